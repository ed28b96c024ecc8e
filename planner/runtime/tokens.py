"""Turns text into the token file that the trainer reads: a child program, since only the runtime imports tokenizers.

    python -m planner.runtime.tokens --tokenizer FOLDER --out tokens.bin [--field text] [--token-bytes 2|4] FILES…

Owns reading text and JSONL a piece at a time, tokenizing in batches, and a file that is there whole or not at all: what
is being written is called `.part`, with a note of how far it has come, so that a run that was cut off goes on there.
Prints one JSON document on standard output; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from planner.errors import InputError, PlannerError
from planner.runtime.result_channel import result_channel
from planner.runtime.whole_file import write_whole
from planner.spec._record import record

BATCH_BYTES = 1 << 20  # of text between two notes of how far it has come
PIECE_BYTES = 1 << 18  # of plain text at most in one document: cut at a line, so that no document needs much memory
LINE_BYTES = 64 << 20  # of one line of JSONL: a longer one would have to be held, parsed and tokenized at once
PROGRESS_S = 1.0


@record
class Order:
    """What to make. `field`: of a JSONL line. `token_bytes` 0: 2 where every id of the vocabulary fits, else 4."""

    files: tuple[Path, ...]
    tokenizer: Path
    out: Path
    field: str = "text"
    token_bytes: int = 0


@record
class Place:
    """How far it has come: everything before byte `offset` of file `file` is in the first `tokens` tokens."""

    file: int = 0
    offset: int = 0
    tokens: int = 0
    documents: int = 0


def make_token_file(order: Order) -> dict[str, Any]:
    """Write the token file; the answer names it with its counts. Goes on where an earlier run of the same order ended.

    Raises InputError for files, lines or a tokenizer that cannot be read, and for an output that is there.
    """
    _refuse_unwritable(order.out)
    _require_files(order.files)
    tokenizer = _load_tokenizer(order.tokenizer)
    size = max(tokenizer.get_vocab().values(), default=-1) + 1  # Keep: vocabularies have gaps, len() counts entries
    token_bytes = order.token_bytes or (2 if size <= 1 << 16 else 4)
    _require_fit(size, token_bytes, what="the vocabulary")
    part, note = order.out.with_name(order.out.name + ".part"), order.out.with_name(order.out.name + ".progress.json")
    identity = _identity(order, token_bytes)
    place = _place_of(part, note, identity, token_bytes)
    resumed = place.tokens
    with _kept_where_of_use(part, note, order.files), part.open("r+b" if part.exists() else "w+b") as output:
        output.truncate(place.tokens * token_bytes)
        output.seek(0, os.SEEK_END)
        progress = _Progress(order.files, place)
        for texts, after in _batches(order, place):
            ids = _tokenize(tokenizer, texts)
            _require_fit(int(ids.max(initial=-1)) + 1, token_bytes, what="the text")
            output.write(ids.astype(f"<u{token_bytes}").tobytes())
            output.flush()
            os.fsync(output.fileno())
            place = Place(
                file=after[0],
                offset=after[1],
                tokens=place.tokens + len(ids),
                documents=place.documents + sum(text.ends for text in texts),
            )
            _write_note(note, identity, place)
            progress.show(place)
    if not place.tokens:
        part.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        raise InputError("the files hold no text", why="no document gave a token", fix="look at them, and at --field")
    part.replace(order.out)
    note.unlink(missing_ok=True)
    return {
        "path": str(order.out),
        "tokens": place.tokens,
        "documents": place.documents,
        "token_bytes": token_bytes,
        "vocab_size": size,
        "separates_documents": tokenizer.eos_token_id is not None,
        "resumed_after_tokens": resumed,
    }


@contextmanager
def _kept_where_of_use(part: Path, note: Path, files: tuple[Path, ...]) -> Iterator[None]:
    """What was tokenized before the body failed is kept when the same order can go on from it: not where the input was
    refused, which will be another. InputError for what the system refuses, such as a full disk."""
    try:
        yield
    except InputError:
        part.unlink(missing_ok=True)
        note.unlink(missing_ok=True)
        raise
    except OSError as problem:
        if not note.exists():
            part.unlink(missing_ok=True)
        raise InputError(
            f"cannot read {problem.filename}" if problem.filename in map(str, files) else f"cannot write {part}",
            why=(problem.strerror or str(problem)).lower(),
            fix="mend that and run it again, which goes on from what is kept; or name another place with --out",
        ) from problem


def _refuse_unwritable(out: Path) -> None:
    """Before anything is read."""
    if out.exists():
        raise InputError(f"{out} exists", why="a token file is never written over", fix="name another with --out")
    if not out.parent.is_dir():
        raise InputError(f"there is no folder {str(out.parent)!r}", why="--out names a file in it", fix="create it")


def _require_fit(size: int, token_bytes: int, *, what: str) -> None:
    """InputError where `token_bytes` do not hold every id below `size`: cut off, an id would be another token's."""
    if size > 1 << (8 * token_bytes):
        raise InputError(
            f"{what} holds ids up to {size - 1:,}, which do not fit into {token_bytes} bytes a token",
            why=f"{token_bytes} bytes hold ids below {1 << (8 * token_bytes):,}",
            fix="leave --token-bytes out, or use 4",
        )


def _require_files(files: tuple[Path, ...]) -> None:
    for path in files:
        if not path.is_file():
            raise InputError(f"there is no file {path}", why="it is to be tokenized", fix="correct its name")
        if path.suffix == ".json" and not _starts_with_object(path):
            raise InputError(
                f"{path} is no JSONL",
                why="a .json file is read as JSONL, and its first line is no whole JSON object",
                fix=f"write one object a line, for an array with: jq -c '.[]' {path.name} > {path.stem}.jsonl",
            )


def _starts_with_object(path: Path) -> bool:
    """Whether the first line that is not blank is a JSON object. An empty file has nothing against it."""
    with path.open("rb") as file:
        first = next((line for line in iter(lambda: file.readline(LINE_BYTES), b"") if line.strip()), b"{}")
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _load_tokenizer(folder: Path) -> Any:
    if not folder.is_dir():
        raise InputError(
            f"there is no tokenizer folder {folder}",
            why="nothing is downloaded: the tokenizer is read from a local folder",
            fix="name a folder with tokenizer.json, as `save_pretrained` writes it",
        )
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(str(folder), local_files_only=True)
    except (OSError, ValueError, KeyError) as problem:
        raise InputError(
            f"no tokenizer can be read from {folder}",
            why=f"{type(problem).__name__}: {str(problem).splitlines()[0][:300]}",
            fix="name a folder with tokenizer.json and tokenizer_config.json",
        ) from problem


def _identity(order: Order, token_bytes: int) -> str:
    """What must be the same for a run to go on with what another began."""
    facts = [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in order.files]
    text = json.dumps([facts, str(order.tokenizer.resolve()), order.field, token_bytes])
    return hashlib.sha256(text.encode()).hexdigest()


def _place_of(part: Path, note: Path, identity: str, token_bytes: int) -> Place:
    """Where an earlier run of the same order got to; the beginning where there was none."""
    if not (part.is_file() and note.is_file()):
        return Place()
    try:
        kept = json.loads(note.read_text(encoding="utf-8"))
        if kept["identity"] != identity:
            return Place()
        place = Place(**kept["place"])
    except (ValueError, TypeError, KeyError):  # none of ours: begin
        return Place()
    return place if part.stat().st_size >= place.tokens * token_bytes else Place()


def _write_note(note: Path, identity: str, place: Place) -> None:
    plain = {name: getattr(place, name) for name in place.__dataclass_fields__}
    write_whole(note, json.dumps({"identity": identity, "place": plain}))


@record
class Text:
    """A document, or a piece of one that is too long: `ends` says whether the document ends with it."""

    text: str
    ends: bool


def _batches(order: Order, place: Place) -> Iterator[tuple[list[Text], tuple[int, int]]]:
    """Documents, about a MiB of them at a time, and where the next ones begin."""
    for number in range(place.file, len(order.files)):
        path = order.files[number]
        offset = place.offset if number == place.file else 0
        texts: list[Text] = []
        size, end = 0, offset
        for text, end in _named(_documents(path, offset, field=order.field), path):
            texts.append(text)
            size += len(text.text)
            if size >= BATCH_BYTES:
                yield texts, (number, end)
                texts, size = [], 0
        if texts:
            yield texts, (number, end)


def _named(documents: Iterator[tuple[Text, int]], path: Path) -> Iterator[tuple[Text, int]]:
    """The same; what the system refuses names the file."""
    try:
        yield from documents
    except OSError as problem:
        problem.filename = str(path)
        raise


def _documents(path: Path, offset: int, *, field: str) -> Iterator[tuple[Text, int]]:
    """Each document with the byte after it: a line of JSONL; of plain text, which is one document, a piece.

    Raises InputError for a line of JSONL longer than LINE_BYTES.
    """
    is_json = path.suffix in (".jsonl", ".ndjson", ".json")
    size = path.stat().st_size
    with path.open("rb") as file:
        number = _lines_before(file, offset) if is_json else 0
        file.seek(offset)
        lines: list[bytes] = []
        held = 0
        while line := file.readline(PIECE_BYTES if not is_json else LINE_BYTES + 1):
            if is_json:
                _require_bounded(line, place=f"{path}, byte {file.tell() - len(line)}")
                number += 1
                text = _field_of(line, field, place=f"{path}, line {number}")
                if text:
                    yield Text(text=text, ends=True), file.tell()
                continue
            lines.append(line)
            held += len(line)
            if held >= PIECE_BYTES:
                whole = b"".join(lines)
                cut = _last_whole_character(whole)
                file.seek(file.tell() - (len(whole) - cut))
                yield Text(text=_decoded(whole[:cut], path), ends=file.tell() >= size), file.tell()
                lines, held = [], 0
        if held:
            yield Text(text=_decoded(b"".join(lines), path), ends=True), file.tell()


def _require_bounded(line: bytes, *, place: str) -> None:
    if len(line) > LINE_BYTES:
        raise InputError(
            f"{place}: the line is longer than {LINE_BYTES >> 20} MiB",
            why="a line of JSONL is one document, and is held in memory whole",
            fix="write one JSON object a line, and split this document",
        )


def _lines_before(file: BinaryIO, offset: int) -> int:
    """The number of lines that end before `offset`: a run that goes on names lines as an editor does."""
    file.seek(0)
    found, left = 0, offset
    while left > 0 and (block := file.read(min(left, BATCH_BYTES))):
        found += block.count(b"\n")
        left -= len(block)
    return found


def _last_whole_character(data: bytes) -> int:
    """Where to cut UTF-8 so that no character is split: before a last one whose bytes are not all there."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte & 0xC0 != 0x80:  # the first byte of a character
            length = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) if length <= back else len(data) - back
    return len(data)


def _decoded(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as problem:
        raise InputError(
            f"{path} is not UTF-8 text", why=str(problem), fix="convert it, or leave the file out"
        ) from problem


def _field_of(line: bytes, field: str, *, place: str) -> str:
    if not line.strip():
        return ""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as problem:
        raise InputError(
            f"{place}: the line holds no text under {field!r}",
            why=_why_no_json(problem),
            fix="each line is a JSON object with the text under one key",
        ) from problem
    if not isinstance(value, dict) or field not in value:
        keys = ", ".join(map(repr, list(value)[:10])) if isinstance(value, dict) else ""
        raise InputError(
            f"{place}: the line holds no text under {field!r}",
            why=f"its keys are: {keys}" if keys else "it is no JSON object with keys",
            fix="each line is a JSON object; name the key of its text with --field",
        )
    text = value[field]
    if not isinstance(text, str):
        raise InputError(f"{place}: {field!r} is no text", why=f"it is a {type(text).__name__}", fix="use --field")
    try:
        text.encode()
    except UnicodeEncodeError as problem:
        raise InputError(
            f"{place}: {field!r} is no Unicode text",
            why=f"character {problem.start + 1} is half of a surrogate pair ({text[problem.start]!a})",
            fix="write the character whole, or leave the line out",
        ) from problem
    return text


def _why_no_json(problem: Exception) -> str:
    if isinstance(problem, RecursionError):
        return "it is nested too deeply"
    if isinstance(problem, json.JSONDecodeError):  # the column is the line's own: the place names the line
        return f"it is no JSON: {problem.msg} (column {problem.colno})"
    return "it is no JSON: " + ("it is not UTF-8 text" if isinstance(problem, UnicodeDecodeError) else str(problem))


def _tokenize(tokenizer: Any, texts: list[Text]) -> np.ndarray:
    """The ids of all documents, each ended by the tokenizer's end-of-text token where it has one."""
    plain = [text.text for text in texts]
    rows = tokenizer(plain, add_special_tokens=False, return_attention_mask=False, verbose=False)["input_ids"]
    end = [tokenizer.eos_token_id] if tokenizer.eos_token_id is not None else []
    ended = [[*row, *end] if text.ends else row for row, text in zip(rows, texts)]
    return np.concatenate([np.asarray(row, dtype=np.int64) for row in ended])


class _Progress:
    """One line on standard error, now and then, with the time left."""

    def __init__(self, files: tuple[Path, ...], begun: Place) -> None:
        self._sizes = [path.stat().st_size for path in files]
        self._begun_bytes = self._bytes(begun)
        self._began_s = self._shown_s = time.monotonic()

    def _bytes(self, place: Place) -> int:
        return sum(self._sizes[: place.file]) + place.offset

    def show(self, place: Place) -> None:
        now_s = time.monotonic()
        if now_s < self._shown_s + PROGRESS_S:
            return
        self._shown_s = now_s
        done, total = self._bytes(place), sum(self._sizes)
        speed = (done - self._begun_bytes) / (now_s - self._began_s)
        left_s = (total - done) / speed if speed else 0.0
        print(
            f"{done / total:6.1%}  {place.tokens:,} tokens  {speed / 1e6:.1f} MB/s  about {left_s:,.0f} s left",
            file=sys.stderr,
            flush=True,
        )


def main(arguments: list[str]) -> int:
    """The command line; see the module's text."""
    parser = argparse.ArgumentParser(prog="python -m planner.runtime.tokens", description="Make a token file.")
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--field", default="text")
    parser.add_argument("--token-bytes", type=int, default=0, choices=(0, 2, 4))
    options = parser.parse_args(arguments)
    order = Order(
        files=tuple(options.files),
        tokenizer=options.tokenizer,
        out=options.out,
        field=options.field,
        token_bytes=options.token_bytes,
    )
    try:
        with result_channel() as channel:
            os.write(channel, (json.dumps(make_token_file(order)) + "\n").encode())
    except PlannerError as problem:
        print(problem, file=sys.stderr, flush=True)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
