"""`Secret`: text that must not show up anywhere by accident."""

from __future__ import annotations

import hmac
from typing import Any, Final, Self, final
from weakref import WeakValueDictionary

from .errors import InvalidArgument

_HIDDEN: Final = "***"
_SHORTEST_HIDDEN: Final = 4


@final
class Secret:
    """Text that `repr`, `str`, formatting and pickling never reveal; `reveal()` does.

    Never part of a payload (R2.1): pass a `ModelId` and look the secret up in the handler.
    """

    __slots__ = ("__weakref__", "_value")

    def __init__(self, value: str) -> None:
        if type(value) is not str:
            raise InvalidArgument(f"a Secret holds text, not {type(value).__name__}")
        self._value = value
        _living[id(self)] = self

    def reveal(self) -> str:
        """The text itself. Call it where the text is used, and do not keep the result."""
        return self._value

    def __repr__(self) -> str:
        return f"Secret({_HIDDEN})"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(_bytes(self._value), _bytes(other._value))

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError("a Secret cannot be pickled")


# By identity: equal secrets must not stand in for each other when one of them goes away.
_living: Final[WeakValueDictionary[int, Secret]] = WeakValueDictionary()


def hide_secrets(text: str) -> str:
    """Return `text` with the value of every living `Secret` replaced by `***` (R5.5).

    Values shorter than 4 characters are left: replacing them would garble any text and tell
    where they were.
    """
    values = {secret.reveal() for secret in list(_living.values())}
    for value in sorted(values, key=len, reverse=True):
        if len(value) >= _SHORTEST_HIDDEN:
            text = text.replace(value, _HIDDEN)
    return text


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
