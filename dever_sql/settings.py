"""`config/setting.json`: what an operator may set, and every rule about it (R8.3).

The file is the only source: no environment variable and no flag changes a value. Structure and
ranges stand in the types below; one walk over them finds every fault and names it by its path.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NoReturn, cast
from urllib.parse import quote

import msgspec
from msgspec import Meta, Struct, inspect

from .credentials import hide_credentials
from .errors import InvalidArgument, SettingsError

SETTINGS_FILE: Final = Path("config") / "setting.json"

_LARGEST_FILE: Final = 1024 * 1024

# Connections of one worker beside those of its handlers: claims, results, renewals. Sweeping takes
# turns with claims and results, and listening has one that no limit counts.
WORKER_CONNECTIONS: Final = 3


class RuntimeSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Which services this process runs, and how long a shutdown may take."""

    mode: Literal["api", "worker", "all"]
    shutdown_ms: Annotated[int, Meta(ge=1, le=300_000)]


class JobSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """How this process works jobs. Durations are milliseconds."""

    workers: Annotated[int, Meta(ge=1, le=256)]
    poll_ms: Annotated[int, Meta(ge=1, le=60_000)]
    lease_ms: Annotated[int, Meta(ge=100, le=7_200_000)]
    retry_base_ms: Annotated[int, Meta(ge=1, le=86_400_000)]
    retry_max_ms: Annotated[int, Meta(ge=1, le=86_400_000)]
    retry_jitter: Annotated[float, Meta(ge=0, le=1)] = 0.0
    error_detail: Literal["type", "message"] = "type"
    queues: Annotated[list[str], Meta(min_length=1)] | None = None
    """Queues to serve; `None`: all queues of the program's jobs."""


class ApiSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the API listens. Port 0 takes any free port."""

    host: Annotated[str, Meta(min_length=1)]
    port: Annotated[int, Meta(ge=0, le=65_535)]


class DatabaseSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """One logical database: `sqlite` (a path) or `postgres` (a URL), with its limits."""

    sqlite: Annotated[str, Meta(min_length=1)] | None = None
    postgres: Annotated[str, Meta(min_length=1)] | None = None
    synchronous: Literal["full", "normal"] = "full"
    connections: Annotated[int, Meta(ge=1, le=1_000)] | None = None
    connect_timeout_ms: Annotated[int, Meta(ge=1, le=300_000)] = 10_000
    statement_timeout_ms: Annotated[int, Meta(ge=1, le=3_600_000)] | None = None

    def __repr__(self) -> str:
        where = f"sqlite={self.sqlite!r}" if self.sqlite else f"postgres={self.shown_url()!r}"
        return f"DatabaseSettings({where})"

    def shown_url(self) -> str:
        """The URL without its password, for people and logs."""
        return hide_credentials(self.postgres or "")


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """A whole settings file."""

    runtime: RuntimeSettings
    database: Annotated[dict[str, DatabaseSettings], Meta(min_length=1)]
    job: JobSettings | None = None
    api: ApiSettings | None = None

    def database_url(self, name: str, project: Path) -> str:
        """The URL of the logical database `name`; relative SQLite paths start at `project`.

        Raises SettingsError when the file does not name that database.
        """
        database = self.database.get(name)
        if database is None:
            raise SettingsError(
                f"database.{name}: missing; the settings name {_listed(self.database)}",
                hint=f"add database.{name} to the settings, or correct Jobs(database=...)",
            )
        if database.postgres is not None:
            return database.postgres
        return sqlite_url(project / str(database.sqlite))


def sqlite_url(path: Path) -> str:
    """The URL of the SQLite file at `path` (made absolute)."""
    return "sqlite:///" + quote(str(path.absolute()))


def project_directory(settings_file: Path) -> Path:
    """The directory that the file's relative paths start from: the one that holds `config`."""
    directory = settings_file.absolute().parent
    return directory.parent if directory.name == SETTINGS_FILE.parent.name else directory


def find_settings(directory: Path) -> Path | None:
    """The settings file of the program in `directory`, or None. Parents are not searched."""
    path = directory / SETTINGS_FILE
    return path if path.is_file() else None


def program_settings(directory: Path, script: Path | None = None) -> tuple[Settings, Path]:
    """The settings of the program in `directory`, and where their relative paths start.

    Only a one-file `script` may do without `config/setting.json`; it then has its defaults.
    """
    path = find_settings(directory)
    if path is not None:
        return load_settings(path), project_directory(path)
    if script is None:
        raise SettingsError(
            f"there is no {SETTINGS_FILE} in {directory}",
            hint="run it in the project's directory; dever init DIR writes a project to start from",
        )
    return script_settings(script), script.absolute().parent


def script_settings(script: Path) -> Settings:
    """The documented defaults of a one-file script: `<stem>.db` beside it, no settings file."""
    return Settings(
        runtime=RuntimeSettings(mode="worker", shutdown_ms=30_000),
        database={"default": DatabaseSettings(sqlite=str(script.absolute().with_suffix(".db")))},
        job=JobSettings(
            workers=4, poll_ms=250, lease_ms=60_000, retry_base_ms=1_000, retry_max_ms=300_000
        ),
    )


def load_settings(path: Path) -> Settings:
    """Read and check a settings file. Raises SettingsError that names every fault by its path."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST_FILE + 1)
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings file {path}: {error.strerror}",
            hint="dever init DIR writes a project with a settings file to start from",
        ) from None
    if len(content) > _LARGEST_FILE:
        raise SettingsError(f"the settings file {path} is larger than 1 MiB")
    return parse_settings(content, str(path))


def parse_settings(content: bytes, name: str = "config/setting.json") -> Settings:
    """Check the content of a settings file; `name` is how messages call it."""
    value, repeated = _parse(content, name)
    faults = [f"{path}: appears more than once" for path in repeated]
    faults += _faults("", value, inspect.type_info(Settings))
    if not faults:
        settings = msgspec.convert(value, Settings)
        faults += _rules(settings)
        if not faults:
            return settings
    # Names of members are the file's own text: a URL in the wrong place must not show its password.
    raise SettingsError(
        hide_credentials("\n".join(faults)),
        hint=f"correct {name}; nothing was started",
    )


class _Members(list[tuple[str, Any]]):
    """A JSON object as the file spells it: repeated members are still there."""


def _parse(content: bytes, name: str) -> tuple[Any, list[str]]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a number")

    try:
        read = json.loads(
            content.decode("utf-8"), object_pairs_hook=_Members, parse_constant=refuse
        )
    except json.JSONDecodeError as error:
        raise SettingsError(
            f"{name} is not JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            hint="comments and trailing commas are not JSON",
        ) from None
    except UnicodeDecodeError:
        raise SettingsError(f"{name} is not UTF-8 text") from None
    except RecursionError:
        raise SettingsError(f"{name} is nested too deeply") from None
    except ValueError:  # NaN, or an integer of thousands of digits
        raise SettingsError(f"{name} holds a number that is not one of JSON's") from None
    repeated: list[str] = []

    def plain(path: str, value: Any) -> Any:
        if isinstance(value, _Members):
            result: dict[str, Any] = {}
            for member, inner in value:
                inner_path = _join(path, member)
                if member in result:
                    repeated.append(inner_path)
                result[member] = plain(inner_path, inner)
            return result
        if isinstance(value, list):
            items = cast(list[Any], value)
            return [plain(f"{path}[{index}]", item) for index, item in enumerate(items)]
        return value

    return plain("", read), repeated


def _faults(path: str, value: Any, kind: inspect.Type) -> Iterator[str]:
    """Every place where `value` is not what the settings types ask for."""
    shown = path or "the settings"
    if isinstance(kind, inspect.UnionType):  # an optional field: leaving it out is the way
        kind = next(item for item in kind.types if not isinstance(item, inspect.NoneType))
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    if value is None:
        yield f"{shown}: null is not a value; set it or leave it out"
        return
    if isinstance(kind, inspect.StructType):
        yield from _struct_faults(path, value, kind)
    elif isinstance(kind, inspect.DictType):
        yield from _dict_faults(path, value, kind)
    elif isinstance(kind, inspect.ListType):
        if not isinstance(value, list):
            yield f"{shown}: must be a list, got {_kind(value)}"
        elif not value:
            yield f"{shown}: must not be empty; leave it out for all"
        else:
            items = cast(list[Any], value)
            for index, item in enumerate(items):
                yield from _faults(f"{path}[{index}]", item, kind.item_type)
    elif isinstance(kind, inspect.LiteralType):
        if value not in kind.values or not isinstance(value, str):
            got = json.dumps(value) if isinstance(value, str) else _kind(value)
            yield f"{shown}: {got} is not one of {_listed(kind.values)}"
    elif isinstance(kind, inspect.StrType):
        if not isinstance(value, str):
            yield f"{shown}: must be text, got {_kind(value)}"
        elif not value.strip():
            yield f"{shown}: must not be empty"
        elif any(letter == "\0" or "\ud800" <= letter <= "\udfff" for letter in value):
            yield f"{shown}: must not contain U+0000 or half of a surrogate pair"
    elif isinstance(kind, inspect.IntType | inspect.FloatType):
        yield from _number_faults(shown, value, kind)
    else:
        raise TypeError(f"settings use a type without a rule: {kind}")


def _struct_faults(path: str, value: Any, kind: inspect.StructType) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path or 'the settings'}: must be an object, got {_kind(value)}"
        return
    members = cast(dict[str, Any], value)
    fields = {field.name: field for field in kind.fields}
    for name, field in fields.items():
        if name in members:
            yield from _faults(_join(path, name), members[name], field.type)
        elif field.required:
            yield f"{_join(path, name)}: missing"
    for name in members:
        if name not in fields:
            missing = [field for field in fields if field not in members]
            guess = _did_you_mean(name, missing, list(fields), path)
            yield f"{_join(path, name)}: unknown field{guess}"


def _dict_faults(path: str, value: Any, kind: inspect.DictType) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path}: must be an object, got {_kind(value)}"
        return
    members = cast(dict[str, Any], value)
    if not members:
        yield f'{path}: names no database; add one, such as "default": {{"sqlite": "app.db"}}'
    for name, inner in members.items():
        if not name.strip():
            yield f"{path}: a name must not be empty"
        yield from _faults(_join(path, name), inner, kind.value_type)


def _number_faults(
    path: str, value: Any, kind: inspect.IntType | inspect.FloatType
) -> Iterator[str]:
    whole = isinstance(kind, inspect.IntType)
    wanted = "an integer" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        yield f"{path}: must be {wanted}, got {_kind(value)}"
    elif whole and isinstance(value, float):
        yield f"{path}: must be {wanted}, got {value!r}"
    elif kind.ge is not None and value < kind.ge:
        yield f"{path}: {value} is below {kind.ge}"
    elif kind.le is not None and value > kind.le:
        yield f"{path}: {value} is above {kind.le}"


def _rules(settings: Settings) -> Iterator[str]:
    """The rules that look at more than one field."""
    mode = settings.runtime.mode
    if settings.job is None and mode != "api":
        yield f'job: missing; runtime.mode "{mode}" works jobs'
    if settings.api is None and mode != "worker":
        yield f'api: missing; runtime.mode "{mode}" listens for requests'
    if settings.job is not None:
        yield from _job_rules(settings.job)
    for name, database in settings.database.items():
        yield from _database_rules(f"database.{name}", database, settings.job)


def _job_rules(job: JobSettings) -> Iterator[str]:
    if job.retry_base_ms > job.retry_max_ms:
        yield f"job.retry_base_ms: {job.retry_base_ms} is above job.retry_max_ms {job.retry_max_ms}"
    seen: set[str] = set()
    for index, queue in enumerate(job.queues or ()):
        path = f"job.queues[{index}]"
        if len(queue.encode("utf-8", "surrogatepass")) > 255:
            yield f"{path}: longer than 255 bytes"
        if queue.startswith("__dever_"):
            yield f"{path}: names that start with __dever_ are reserved"
        if queue in seen:
            yield f"{path}: named twice"
        seen.add(queue)


def _database_rules(
    path: str, database: DatabaseSettings, job: JobSettings | None
) -> Iterator[str]:
    if (database.sqlite is None) == (database.postgres is None):
        yield f"{path}: needs either sqlite (a path) or postgres (a URL), and only one of them"
        return
    if database.sqlite is not None:
        if "://" in database.sqlite or database.sqlite.startswith(":"):
            yield f"{path}.sqlite: must be the path of a file, not a URL or :memory:"
        for field in ("connections", "statement_timeout_ms"):
            if getattr(database, field) is not None:
                yield f"{path}.{field}: belongs to postgres databases only"
        return
    url = str(database.postgres)
    if not url.startswith(("postgresql://", "postgres://")):
        yield f"{path}.postgres: must be a URL such as postgresql://user@host/name"
    else:
        from .postgres_pool import url_parameters  # the driver: programs on SQLite do without it

        try:
            url_parameters(url)
        except InvalidArgument as fault:
            yield f"{path}.postgres: {fault.message}; {fault.hint}"
    if database.synchronous != "full":
        yield f"{path}.synchronous: belongs to sqlite databases only"
    if database.connections is not None and job is not None:
        needed = job.workers + WORKER_CONNECTIONS
        if database.connections < needed:
            yield (
                f"{path}.connections: {database.connections} is below {needed},"
                f" which is job.workers + {WORKER_CONNECTIONS}"
            )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _kind(value: Any) -> str:
    """What a value is, never the value: it may be a secret in the wrong place."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, list) else "an object"


def _listed(words: Any) -> str:
    return ", ".join(json.dumps(word) for word in words)


def _did_you_mean(word: str, missing: list[str], known: list[str], path: str) -> str:
    """By the last word of the path alone: the rest is always alike. A missing field comes first."""
    near = difflib.get_close_matches(word, missing, n=1)
    near = near or difflib.get_close_matches(word, known, n=1)
    if near:
        return f"; did you mean {_join(path, near[0])}?"
    return f"; known: {', '.join(missing or known)}"
