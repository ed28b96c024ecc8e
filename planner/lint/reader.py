"""Reads a configuration as DeepSpeed does: JSON, and the liberties that hjson 3.1.0 takes with it.

Comments (`#`, `//`, `/* */`), commas that are missing or trail, names and words without quotes, single quotes, text in
three quotes, no braces around the whole. Every liberty is written down with its place, and so is a key that is there
twice. Written here rather than taken from the `hjson` package because that one gives no lines, and answers hostile
input with a RecursionError, an IndexError or an OverflowError. Size, depth and number of values are bounded, so is
time: the text is walked once.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from typing import Any, NoReturn

from planner.lint.document import Document, Path, Place
from planner.rules import SyntaxFact, SyntaxKind

MAX_DEPTH = 50
MAX_VALUES = 10_000
_MAX_DIGITS = 400  # the largest float has 309
_MAX_FACTS = 200
_LONGEST_NAME = 500

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_BLANK = re.compile(r"[ \t\r\n]*")
_LINE_COMMENT = re.compile(r"(?:#|//)[^\r\n]*")
_BLOCK_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PLAIN = re.compile(r"[^'\"\\\x00-\x1f]*")
_BARE_END = re.compile(r"[,}\]#\r\n]|//|/\*|\Z")
_LINE_END = re.compile(r"[\r\n]|\Z")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(\.\d+)?([eE][-+]?\d+)?", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WORDS = {"true": True, "false": False, "null": None}
_PYTHON_WORDS = {"True": "true", "False": "false", "None": "null"}
_NO_NUMBERS = ("NaN", "Infinity", "-Infinity")


class Unreadable(Exception):
    """What stops the reading, with its place."""

    def __init__(self, what: str, *, position: int) -> None:
        super().__init__(what)
        self.what = what
        self.position = position


def read_document(text: str) -> Document:
    """Read a text; one that cannot be read comes back as an unreadable document with the reason and its place."""
    reader = _Reader(text)
    lines = tuple(_LINE_BREAK.split(text))
    try:
        value = reader.read()
    except Unreadable as problem:
        line, column = reader.place(problem.position)
        fact = SyntaxFact(kind=SyntaxKind.UNREADABLE, line=line, column=column, detail=problem.what)
        return Document(value={}, lines=lines, places={}, syntax=(fact,), unreadable=True)
    return Document(value=value, lines=lines, places=reader.places, syntax=tuple(reader.facts))


class _Reader:
    """One walk over one text."""

    def __init__(self, text: str) -> None:
        self.places: dict[str, Place] = {}
        self.facts: list[SyntaxFact] = []
        self._text = text
        self._at = 0
        self._num_values = 0
        self._has_swallowed_comma = False  # by words without quotes, which go on to the end of the line
        self._line_starts = [0, *(match.end() for match in _LINE_BREAK.finditer(text))]

    def place(self, position: int) -> Place:
        """Line and column, from 1."""
        line = bisect_right(self._line_starts, position)
        return line, position - self._line_starts[line - 1] + 1

    def read(self) -> dict[str, Any]:
        if self._text.startswith("\ufeff"):
            self._note(SyntaxKind.BYTE_ORDER_MARK, 0)
            self._at = 1
        first = self._next()
        if first == "":
            self._fail("the file holds no configuration")
        if first == "{":
            self._at += 1
            value = self._mapping((), braces=True)
        elif first == "[":
            self._fail("the top of a configuration is a mapping of keys, not a list")
        else:
            self._note(SyntaxKind.OTHER, self._at, detail="no braces around the file")
            value = self._mapping((), braces=False)
        if self._next() != "":
            self._fail("something follows after the end of the configuration")
        return value

    def _next(self) -> str:
        """Skip blanks and comments; the character that follows, "" at the end."""
        while True:
            self._at = _match_end(_BLANK, self._text, self._at)
            start = self._text[self._at : self._at + 2]
            if start.startswith("#") or start == "//":
                self._note(SyntaxKind.COMMENT, self._at, detail="a comment")
                self._at = _match_end(_LINE_COMMENT, self._text, self._at)
            elif start == "/*":
                self._note(SyntaxKind.COMMENT, self._at, detail="a comment")
                match = _BLOCK_COMMENT.match(self._text, self._at)
                if match is None:
                    self._fail("a comment that begins with /* and never ends")
                self._at = match.end()
            else:
                return start[:1]

    def _mapping(self, path: Path, *, braces: bool) -> dict[str, Any]:
        values: dict[str, Any] = {}
        end = "}" if braces else ""
        character = self._next()
        while character != end:
            if character == "":
                self._fail("the file ends inside a mapping: a closing } is missing")
            start = self._at
            name = self._name()
            self._remember(name, path, values=values, start=start)
            if self._next() != ":":
                self._fail(f"a colon is missing after the name {name[:60]!r}")
            self._at += 1
            self._next()
            values[name] = self._value((*path, name))
            character = self._after_value(end, path)
        if braces:
            self._at += 1
        return values

    def _remember(self, name: str, path: Path, *, values: dict[str, Any], start: int) -> None:
        place, key = self.place(start), ".".join((*path, name))
        if len(name) > _LONGEST_NAME:
            self._fail(f"a name of {len(name)} characters", position=start)
        if name in values:
            detail = f"first on line {self.places[key][0]}, again on line {place[0]}"
            self._note(SyntaxKind.DUPLICATE_KEY, start, key=key, detail=detail)
        self.places[key] = place

    def _after_value(self, end: str, path: Path) -> str:
        """Pass the comma after a value, noting one that is missing or trails; the character that follows."""
        character = self._next()
        if character == ",":
            comma = self._at
            self._at += 1
            character = self._next()
            if character == end:
                self._note(SyntaxKind.TRAILING_COMMA, comma, key=".".join(path), detail="a trailing comma")
            if character == ",":
                self._fail("two commas in a row")
        elif character not in (end, "") and not self._has_swallowed_comma:
            quoted = character in "\"'" or end == "]"
            kind = SyntaxKind.MISSING_COMMA if quoted else SyntaxKind.OTHER
            self._note(kind, self._at, key=".".join(path), detail="no comma between entries")
        return character

    def _name(self) -> str:
        start = self._at
        if self._text[start : start + 1] in ('"', "'"):
            return self._quoted()
        end = start
        while self._text[end : end + 1] not in ("", ":", "{", "}", "[", "]", ",", " ", "\t", "\r", "\n"):
            end += 1
        name = self._text[start:end]
        if not name:
            self._fail("a name is missing here")
        self._at = _match_end(_BLANK, self._text, end)  # no comment goes between a bare name and its colon
        if self._text[self._at : self._at + 1] != ":":
            self._fail(f"a colon is missing after the name {name[:60]!r}")
        self._note(SyntaxKind.UNQUOTED, start, detail=f"the name {name[:60]!r} without quotes")
        return name

    def _value(self, path: Path) -> Any:
        self._num_values += 1
        if self._num_values > MAX_VALUES:
            self._fail(f"more than {MAX_VALUES} values: this is no configuration")
        if len(path) > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")
        self._has_swallowed_comma = False
        character = self._text[self._at : self._at + 1]
        if character == "{":
            self._at += 1
            return self._mapping(path, braces=True)
        if character == "[":
            self._at += 1
            return self._list(path)
        if self._text.startswith("'''", self._at):
            return self._block_text()
        if character in ('"', "'") and character:
            return self._quoted()
        if character in ("", "}", "]", ",", ":"):
            self._fail("a value is missing here")
        return self._bare(path)

    def _list(self, path: Path) -> list[Any]:
        values: list[Any] = []
        character = self._next()
        while character != "]":
            if character == "":
                self._fail("the file ends inside a list: a closing ] is missing")
            values.append(self._value((*path, str(len(values)))))
            character = self._after_value("]", path)
        self._at += 1
        return values

    def _quoted(self) -> str:
        start, quote = self._at, self._text[self._at]
        if quote == "'":
            self._note(SyntaxKind.UNQUOTED, start, detail="single quotes")
        parts: list[str] = []
        self._at += 1
        while True:
            end = _match_end(_PLAIN, self._text, self._at)
            parts.append(self._text[self._at : end])
            self._at = end
            character = self._text[end : end + 1]
            if character == quote:
                self._at += 1
                return "".join(parts)
            if character in ('"', "'") and character:
                parts.append(character)
                self._at += 1
            elif character == "\\":
                parts.append(self._escape())
            else:
                self._fail("a quoted text that never ends on its line", position=start)

    def _escape(self) -> str:
        letter = self._text[self._at + 1 : self._at + 2]
        if letter in _ESCAPES and letter:
            self._at += 2
            return _ESCAPES[letter]
        code = self._text[self._at + 2 : self._at + 6]
        if letter != "u" or not _HEX.fullmatch(code):
            self._fail("a backslash that begins no escape")
        self._at += 6
        high, low = int(code, 16), self._text[self._at : self._at + 6]
        if 0xD800 <= high < 0xDC00 and low.startswith("\\u") and _HEX.fullmatch(low[2:]):
            second = int(low[2:], 16)
            if 0xDC00 <= second < 0xE000:
                self._at += 6
                return chr(0x10000 + ((high - 0xD800) << 10) + (second - 0xDC00))
        return chr(high)

    def _block_text(self) -> str:
        start = self._at
        self._note(SyntaxKind.OTHER, start, detail="a text in three quotes")
        indent = start - self._line_starts[bisect_right(self._line_starts, start) - 1]
        end = self._text.find("'''", start + 3)
        if end < 0:
            self._fail("a text in three quotes that never ends")
        self._at = end + 3
        raw = self._text[start + 3 : end].replace("\r", "")
        first, newline, rest = raw.partition("\n")
        if not newline or first.strip(" \t"):
            rest = first.lstrip(" \t") + newline + rest
        lines = [_unindented(line, indent) for line in rest.split("\n")]
        return "\n".join(lines).removesuffix("\n")

    def _bare(self, path: Path) -> Any:
        """A number, true, false, null; else the words up to the end of the line, as hjson takes them."""
        start = self._at
        match = _BARE_END.search(self._text, start)
        end = match.start() if match else len(self._text)
        word = self._text[start:end].strip(" \t")
        if word in _WORDS:
            self._at = end
            return _WORDS[word]
        number = _NUMBER.fullmatch(word)
        if number:
            self._at = end
            return self._number(word, is_float=bool(number[1] or number[2]), position=start)
        match = _LINE_END.search(self._text, start)
        end = match.start() if match else len(self._text)
        text = self._text[start:end].strip()
        self._at = end
        self._has_swallowed_comma = text.endswith(",")
        self._note_words(text, word, position=start, path=path)
        return text

    def _note_words(self, text: str, word: str, *, position: int, path: Path) -> None:
        key = ".".join(path)
        if word in _NO_NUMBERS:
            self._note(SyntaxKind.NOT_A_NUMBER, position, key=key, detail=word)
        elif word in _PYTHON_WORDS:
            detail = f"{word} is Python's, JSON writes {_PYTHON_WORDS[word]}"
            self._note(SyntaxKind.UNQUOTED, position, key=key, detail=detail)
        else:
            self._note(SyntaxKind.UNQUOTED, position, key=key, detail=f"the text {text[:60]!r} without quotes")

    def _number(self, word: str, *, is_float: bool, position: int) -> int | float:
        if len(word) > _MAX_DIGITS:
            self._fail(f"a number of {len(word)} digits", position=position)
        if not is_float:
            return int(word)
        value = float(word)
        if not math.isfinite(value):
            self._fail(f"the number {word[:40]} is larger than any that a computer can hold", position=position)
        return int(value) if value == int(value) and abs(value) < 1e10 else value  # as hjson does

    def _note(self, kind: SyntaxKind, position: int, *, key: str = "", detail: str = "") -> None:
        if len(self.facts) < _MAX_FACTS:
            line, column = self.place(position)
            self.facts.append(SyntaxFact(kind=kind, line=line, column=column, key=key, detail=detail))

    def _fail(self, what: str, *, position: int | None = None) -> NoReturn:
        raise Unreadable(what, position=self._at if position is None else position)


def _match_end(pattern: re.Pattern[str], text: str, start: int) -> int:
    match = pattern.match(text, start)
    return match.end() if match else start


def _unindented(line: str, indent: int) -> str:
    blanks = len(line) - len(line.lstrip(" \t"))
    return line[min(blanks, indent) :]
