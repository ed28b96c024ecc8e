"""From what was given (bytes, or base64 on the command line) to text, bounded and with a word for what is no text."""

from __future__ import annotations

import base64
import binascii
import codecs

from planner.errors import InputError

MAX_BYTES = 1 << 20  # DeepSpeed configurations are a few kilobytes; a megabyte is something else

_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)


def decode(content: bytes, *, label: str) -> str:
    """The text of a file (its byte order mark kept). InputError for what is too large, binary or not UTF-8."""
    if len(content) > MAX_BYTES:
        raise InputError(
            f"{label} is larger than {MAX_BYTES} bytes",
            why="a DeepSpeed configuration has a few kilobytes; larger files are not read",
            fix="give the DeepSpeed configuration itself",
        )
    for mark, name in _MARKS:
        if content.startswith(mark):
            raise InputError(
                f"{label} is encoded in {name}", why="DeepSpeed reads configurations as UTF-8", fix="save it as UTF-8"
            )
    if b"\0" in content:
        raise InputError(f"{label} is a binary file", why="it holds zero bytes", fix="give the configuration's text")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as problem:
        line = content.count(b"\n", 0, problem.start) + 1
        raise InputError(
            f"{label} line {line} is not valid UTF-8",
            why="DeepSpeed and Hugging Face read configurations as UTF-8",
            fix="save it as UTF-8",
        ) from None


def decode_base64(argument: str) -> str | None:
    """The text of a configuration given as base64, as DeepSpeed's launcher passes it; None when it is none.

    Only what decodes to text that begins like a configuration counts: most file names are valid base64 too.
    """
    if len(argument) < 4 or len(argument) > 2 * MAX_BYTES:
        return None
    try:
        content = base64.urlsafe_b64decode(argument.strip())
        text = content.decode("utf-8")
    except (binascii.Error, UnicodeDecodeError, ValueError):
        return None
    return text if text.lstrip().startswith("{") else None
