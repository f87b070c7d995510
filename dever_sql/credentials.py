"""Hiding credentials in text that people see."""

from __future__ import annotations

import re

# To the last @: a password that should have been percent-encoded holds / ? # or @ itself.
_URL_USER = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?P<user>[^\s/?#:@]*):\S*@")
_PARAMETER = re.compile(
    r"(?P<name>\b(?:password|passwd|pwd|passfile|sslpassword)\s*=\s*)"
    r"(?:'(?:[^'\\]|\\.)*'|[^\s&;'\"]+)",
    re.IGNORECASE,
)


def hide_credentials(text: str) -> str:
    """Return `text` with the passwords of URLs and connection strings replaced by `***`.

    Covers `scheme://user:password@host`, `?password=...` and libpq's `password=...` (R5.5, R8.3).
    """
    text = _URL_USER.sub(lambda found: f"{found['scheme']}{found['user']}:***@", text)
    return _PARAMETER.sub(lambda found: f"{found['name']}***", text)
