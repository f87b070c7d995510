"""Schedule specs: five-field UTC cron and `@every <n><s|m|h|d>` (R6.1, R6.2, R7.4).

One strict grammar decides what is a spec; `sql/src/25_cron.sql` is the same grammar in PL/pgSQL,
function for function. The instants of a cron spec come from croniter, which never sees a text that
the grammar has not accepted (alone it accepts far more). Counting the windows of a long gap uses
the compiled bitmaps, because walking 2.6 million windows one by one would take minutes.

A field's bitmap has bit i set when value i fires. Specs that fire at the same instants compile to
equal rules, whatever their spelling.
"""

from __future__ import annotations

import re
from calendar import monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import islice
from typing import Any, Final, cast

from croniter import croniter  # type: ignore[import-untyped]

from dever_sql.errors import InvalidArgument, InvalidSpec

MAX_BYTES: Final = 512
MAX_PREVIEW: Final = 10_000
MAX_EVERY_SECONDS: Final = 36_500 * 86_400
MINUTE: Final = timedelta(minutes=1)

_MONTHS: Final = (
    "jan",
    "feb",
    "mar",
    "apr",
    "may",
    "jun",
    "jul",
    "aug",
    "sep",
    "oct",
    "nov",
    "dec",
)
_WEEKDAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_MONTH_DAYS: Final = (0, 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_UNIT_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_ITEM: Final = re.compile(r"([0-9A-Za-z]+)(?:-([0-9A-Za-z]+))?(?:/([0-9]+))?")


@dataclass(frozen=True, slots=True)
class Field:
    """One of the five fields: its name and its values. Names begin at the lowest value."""

    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def values(self) -> int:
        """How many values `*` stands for: seven for the day of week, where 7 is 0 again."""
        return 7 if self.names is _WEEKDAYS else self.high - self.low + 1


MINUTES: Final = Field("minute", 0, 59)
HOURS: Final = Field("hour", 0, 23)
DAYS: Final = Field("day of month", 1, 31)
MONTHS: Final = Field("month", 1, 12, _MONTHS)
WEEKDAYS: Final = Field("day of week", 0, 7, _WEEKDAYS)
FIELDS: Final = (MINUTES, HOURS, DAYS, MONTHS, WEEKDAYS)


@dataclass(frozen=True, slots=True)
class Rule:
    """When a cron spec fires. `either`: a day fires if its date or its weekday does (R6.2)."""

    minutes: int
    hours: int
    days: int
    months: int
    weekdays: int
    either: bool


@dataclass(frozen=True, slots=True)
class Cron:
    """A five-field spec. Equal instants give equal rules."""

    spec: str
    rule: Rule

    def after(self, instant: datetime) -> Iterator[datetime]:
        """The instants strictly after `instant`, ascending, without end before the year 9999."""
        walker: Any = croniter(self.spec, instant)
        while True:
            try:
                yield cast(datetime, walker.get_next(datetime))
            except (OverflowError, ValueError) as error:
                raise _out_of_years() from error

    def count(self, after: datetime, until: datetime) -> int:
        """How many instants there are in the interval (after, until]."""
        if until <= after:
            return 0
        total = _elapsed(self.rule, until) - _elapsed(self.rule, after)
        month = after.date().replace(day=1)
        a_day = self.rule.minutes.bit_count() * self.rule.hours.bit_count()
        while month < until.date().replace(day=1):
            total += _days_of_month(self.rule, month).bit_count() * a_day
            month = _next_month(month)
        return total

    def last(self, boundary: datetime, until: datetime) -> datetime:
        """The newest instant at or before `until`, at least the known `boundary`."""
        walker: Any = croniter(self.spec, until.replace(second=0, microsecond=0) + MINUTE)
        return max(boundary, cast(datetime, walker.get_prev(datetime)))

    def following(self, boundary: datetime, instant: datetime) -> datetime:
        """The first instant after `instant`, of whatever boundary."""
        return next(self.after(instant))

    def same_as(self, other: Cron | Every) -> bool:
        """Whether both fire at the same instants, however they are spelt."""
        return isinstance(other, Cron) and self.rule == other.rule


@dataclass(frozen=True, slots=True)
class Every:
    """`@every`: a boundary is the previous boundary plus the interval."""

    spec: str
    interval: timedelta

    def after(self, instant: datetime) -> Iterator[datetime]:
        """The boundaries after the boundary `instant`."""
        while True:
            try:
                instant += self.interval
            except OverflowError as error:
                raise _out_of_years() from error
            yield instant

    def count(self, after: datetime, until: datetime) -> int:
        """How many boundaries there are in the interval (after, until], `after` being one."""
        return max(0, (until - after) // self.interval)

    def last(self, boundary: datetime, until: datetime) -> datetime:
        """The newest boundary at or before `until`, in the phase of the known `boundary`."""
        return boundary + self.count(boundary, until) * self.interval

    def following(self, boundary: datetime, instant: datetime) -> datetime:
        """The first boundary after `instant`, in the phase of the known `boundary`."""
        return boundary + ((instant - boundary) // self.interval + 1) * self.interval

    def same_as(self, other: Cron | Every) -> bool:
        return isinstance(other, Every) and self.interval == other.interval


def parse(spec: str) -> Cron:
    """The compiled form of a five-field spec. Raises InvalidSpec, naming the field (R6.1, R6.2)."""
    _check_size(spec)
    return _compile(spec)


def parse_schedule(spec: str) -> Cron | Every:
    """The compiled form of what a schedule takes: five-field cron or `@every` (R7.4)."""
    _check_size(spec)
    if spec.startswith("@every"):
        return _every(spec)
    return _compile(spec)


def next_after(spec: str, after: datetime) -> datetime:
    """The first instant of `spec` strictly after `after`; for `@every` `after` is a boundary."""
    return next(parse_schedule(spec).after(_checked_instant(after)))


def preview(spec: str, after: datetime, n: int) -> list[datetime]:
    """The first `n` instants after `after`, ascending; none when n <= 0, at most 10,000."""
    if n > MAX_PREVIEW:
        raise InvalidArgument(f"n is {n}", hint=f"ask for at most {MAX_PREVIEW:,} instants")
    return list(islice(parse_schedule(spec).after(_checked_instant(after)), max(0, n)))


def _checked_instant(instant: datetime) -> datetime:
    if instant.tzinfo is None:
        raise InvalidArgument(
            "the instant has no time zone", hint="give an aware datetime, for example in UTC"
        )
    try:
        return instant.astimezone(UTC)
    except OverflowError:
        raise InvalidArgument(
            "after is outside the years 1 to 9999",
            hint="give an instant between 0001-01-01 and 9999-12-31 (UTC)",
        ) from None


def _out_of_years() -> InvalidArgument:
    return InvalidArgument(
        "the next instant is outside the years 1 to 9999", hint="give an earlier instant"
    )


def _check_size(spec: object) -> None:
    if not isinstance(spec, str):
        raise InvalidSpec(
            "the schedule spec is not text", hint='write five fields, for example "0 3 * * *"'
        )
    if len(spec.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise InvalidSpec(
            f"the schedule spec is longer than {MAX_BYTES} bytes",
            hint="write ranges and steps instead of long lists",
        )


def _every(spec: str) -> Every:
    match = re.fullmatch(r"@every ([0-9]+)([smhd])", spec)
    if match is None:
        raise InvalidSpec(
            f"the schedule spec {_shown(spec)} is not of the form @every <n><s|m|h|d>",
            hint="write for example @every 90s, with one space and one lower-case unit",
        )
    digits, unit = match[1], match[2]
    if digits.startswith("0"):
        raise InvalidSpec(
            f"the schedule spec {_shown(spec)} has a number that is zero or starts with one",
            hint="write a number from 1 without leading zeros",
        )
    # Ten digits hold the longest interval in seconds; more are never converted.
    seconds = int(digits) * _UNIT_SECONDS[unit] if len(digits) <= 10 else MAX_EVERY_SECONDS + 1
    if seconds > MAX_EVERY_SECONDS:
        raise InvalidSpec(
            f"the schedule spec {_shown(spec)} is longer than 36,500 days",
            hint="write a shorter interval",
        )
    return Every(spec, timedelta(seconds=seconds))


@lru_cache(maxsize=1024)
def _compile(spec: str) -> Cron:
    if spec == "":
        raise InvalidSpec(
            "the schedule spec is empty", hint='write five fields, for example "0 3 * * *"'
        )
    if spec.startswith("@"):
        raise InvalidSpec(
            f"the schedule spec {_shown(spec)} is not five fields",
            hint='write five fields (@daily is "0 0 * * *"); '
            "@every <n><s|m|h|d> is for schedule(...) alone",
        )
    if spec != spec.strip(" "):
        raise InvalidSpec(
            f"the schedule spec {_shown(spec)} begins or ends with a space",
            hint="write five fields with spaces between them only",
        )
    texts = [text for text in spec.split(" ") if text]
    if len(texts) != 5:
        raise InvalidSpec(
            f"the schedule spec {_shown(spec)} has {len(texts)} fields instead of 5",
            hint="write minute, hour, day of month, month, day of week; there are no seconds",
        )
    minutes, hours, days, months, weekdays = (
        _bits(field, text) for field, text in zip(FIELDS, texts, strict=True)
    )
    if weekdays & 1 << 7:
        weekdays = weekdays & ~(1 << 7) | 1
    either = texts[2] != "*" and texts[4] != "*"
    if either:
        for field, text, full in (
            (DAYS, texts[2], days == _bits(DAYS, "*")),
            (WEEKDAYS, texts[4], weekdays == _bits(WEEKDAYS, "*")),
        ):
            if full or text.startswith("*"):
                raise _refused(
                    field,
                    text,
                    "means different days in different dialects beside a second day field",
                    "write * in one of the two day fields, or a plain list of values in both",
                )
    return Cron(spec, _canonical(spec, Rule(minutes, hours, days, months, weekdays, either)))


def _bits(field: Field, text: str) -> int:
    """The bitmap of one field."""
    if "*" in text:
        return _star_bits(field, text)
    bits = 0
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise _refused(
                field, text, "is not a list of values", "write *, */n, a, a-b or a-b/n, with commas"
            )
        bits |= _item_bits(field, item, match[1], match[2], match[3])
    return bits


def _star_bits(field: Field, text: str) -> int:
    top = field.low + field.values - 1
    if text == "*":
        return _span(field.low, top, 1)
    if "," in text:
        raise _refused(
            field, text, "has a star inside a list", "write the values, or * or */n alone"
        )
    match = re.fullmatch(r"\*/([0-9]+)", text)
    if match is None:
        raise _refused(field, text, "has a star that is not alone", "write * or */n")
    return _span(field.low, top, _step(field, text, match[1], field.values))


def _item_bits(field: Field, item: str, first: str, last: str | None, step: str | None) -> int:
    low = _value(field, first)
    if last is None:
        if step is not None:
            top = field.low + field.values - 1
            raise _refused(
                field, item, "has a step on a single value", f"write {first}-{top}/{step}"
            )
        return 1 << low
    high = _value(field, last)
    if low == high:
        raise _refused(field, item, "is a range of one value", f"write {first}")
    if low > high:
        raise _refused(field, item, "runs backwards", f"write {_unwrapped(field, low, high)}")
    size = high - low + 1
    return _span(low, high, 1 if step is None else _step(field, item, step, size))


def _value(field: Field, text: str) -> int:
    if text.isdigit():
        if len(text) > 2:
            raise _refused(field, text, "has more than two digits", _range_hint(field))
        value = int(text)
        if not field.low <= value <= field.high:
            raise _refused(field, text, "is out of range", _range_hint(field))
        return value
    name = text.lower()
    if name in field.names:
        return field.names.index(name) + field.low
    if name in _MONTHS or name in _WEEKDAYS:
        raise _refused(field, text, "is a name of another field", _range_hint(field))
    raise _refused(field, text, "is not a value", _range_hint(field))


def _step(field: Field, text: str, digits: str, values: int) -> int:
    if len(digits) > 2:
        raise _refused(field, text, "has a step of more than two digits", "write a smaller step")
    step = int(digits)
    if step == 0:
        raise _refused(field, text, "has a step of zero", "write a step from 1")
    if step >= values:
        raise _refused(
            field,
            text,
            f"has a step that is not smaller than its {values} values",
            f"write a step below {values}, or the one value that it means",
        )
    return step


def _span(low: int, high: int, step: int) -> int:
    return sum(1 << value for value in range(low, high + 1, step))


def _unwrapped(field: Field, low: int, high: int) -> str:
    """How to write a range that runs over the end of a field."""
    if field is WEEKDAYS and high == 0:
        return f"{low}-7"
    if field is WEEKDAYS and low == 7:
        return f"0-{high}"
    top = field.low + field.values - 1
    head = f"{low}" if low == top else f"{low}-{top}"
    tail = f"{high}" if high == field.low else f"{field.low}-{high}"
    return f"{head},{tail}"


def _range_hint(field: Field) -> str:
    names = f" or {field.names[0]}-{field.names[-1]}" if field.names else ""
    return f"write a number from {field.low} to {field.high}{names}"


def _refused(field: Field, text: str, what: str, hint: str) -> InvalidSpec:
    return InvalidSpec(f"the {field.name} field: {_shown(text)} {what}", hint=hint)


def _shown(text: str) -> str:
    text = text if len(text) <= 40 else text[:40] + "..."
    return '"' + text.encode("unicode_escape").decode("ascii") + '"'


def _canonical(spec: str, rule: Rule) -> Rule:
    """The one rule of all specs that fire at the same instants. Refuses dates that never come."""
    longest = max(_MONTH_DAYS[month] for month in range(1, 13) if rule.months >> month & 1)
    every_day, every_weekday = _span(1, longest, 1), _span(0, 6, 1)
    days, months, weekdays, either = rule.days & every_day, rule.months, rule.weekdays, rule.either
    if either and days == 0:
        days, either = every_day, False
    elif either and days == every_day:
        weekdays, either = every_weekday, False
    if not either and weekdays == every_weekday:
        for month in range(1, 13):
            if days & _span(1, _MONTH_DAYS[month], 1) == 0:
                months &= ~(1 << month)
        if months == 0:
            raise InvalidSpec(
                f"the day of month field: {_shown(spec)} names a date that never comes",
                hint="write a day that one of its months has",
            )
    return Rule(rule.minutes, rule.hours, days, months, weekdays, either)


def _days_of_month(rule: Rule, first: date) -> int:
    """The bitmap of the days on which the rule fires in the month that begins at `first`."""
    if not rule.months >> first.month & 1:
        return 0
    length = monthrange(first.year, first.month)[1]
    days = rule.days & _span(1, length, 1)
    weekdays = 0
    for day in range(1, length + 1):
        # isoweekday: Monday 1 to Sunday 7; the first of the month is day 1.
        if rule.weekdays >> (first.isoweekday() + day - 1) % 7 & 1:
            weekdays |= 1 << day
    return days | weekdays if rule.either else days & weekdays


def _next_month(first: date) -> date:
    return date(first.year + first.month // 12, first.month % 12 + 1, 1)


def _elapsed(rule: Rule, instant: datetime) -> int:
    """The windows from the first of the instant's month up to the instant, which is included."""
    days = _days_of_month(rule, instant.date().replace(day=1))
    minutes, hours = rule.minutes.bit_count(), rule.hours.bit_count()
    total = (days & (1 << instant.day) - 1).bit_count() * minutes * hours
    if days >> instant.day & 1:
        total += (rule.hours & (1 << instant.hour) - 1).bit_count() * minutes
        if rule.hours >> instant.hour & 1:
            total += (rule.minutes & (2 << instant.minute) - 1).bit_count()
    return total
