"""Takes secrets out of text before it is shown, written into a plan folder, or sent with a bug report. Pure.

Owns what counts as a secret: the password of a URL, and the value of an environment variable whose name sounds like
one. Whoever prints a URL, a command line or a log tail passes it through here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN = "***"
_SHORTEST = 6  # a shorter value would blot out ordinary words of the text
_URL_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*://[^\s/:@'\"]*):([^\s'\"]*)@")
_URL_SECRET_OPTION = re.compile(r"(?i)([?&](?:password|passwd|token|secret|sslpassword)=)[^&\s'\"]+")
_ASSIGNMENT = re.compile(
    r"(?P<head>\b(?P<name>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)*)\b[\"']?\s*[:=]\s*)"
    r"(?P<value>\"[^\"\n]*\"|'[^'\n]*'|[^\s,}\]]+)"
)
_SECRET_NAME = re.compile(
    r"(?i)(key|token|secret|passw|passphrase|credential|auth|cookie|session_id|private|signature|_url$|_uri$|_dsn$)"
)


def hide_url_passwords(text: str) -> str:
    """`postgresql://user:***@host/db` for a URL with a password in it; other text as it is."""
    return _URL_SECRET_OPTION.sub(rf"\1{HIDDEN}", _URL_PASSWORD.sub(rf"\1:{HIDDEN}@", text))


def sounds_secret(name: str) -> bool:
    """Whether a variable of this name probably holds a secret."""
    return _SECRET_NAME.search(name) is not None


def secret_values(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The values, long enough to be told from ordinary words, of the variables whose names sound like secrets."""
    values = {value for name, value in environment.items() if sounds_secret(name) and len(value) >= _SHORTEST}
    return tuple(sorted(values, key=lambda value: (-len(value), value)))  # the longest first: one may contain another


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret, every URL's password, and what is assigned to a variable that sounds secret (a job's
    `environment:`, a logged `export`) blotted out."""
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return _ASSIGNMENT.sub(_hidden_assignment, hide_url_passwords(text))


def _hidden_assignment(found: re.Match[str]) -> str:
    return found["head"] + HIDDEN if sounds_secret(found["name"]) else found[0]
