"""The configuration that `check` is asked about, from wherever it comes, and where its correction may be written."""

from __future__ import annotations

import os
from pathlib import Path

from planner.app.check_request import CheckRequest
from planner.catalog.documents import read_text
from planner.errors import InputError
from planner.lint import (
    MAX_BYTES,
    AccelerateFile,
    Document,
    as_deepspeed,
    decode,
    decode_base64,
    looks_like_accelerate,
    read_accelerate,
    read_document,
)
from planner.rules import accelerate_block
from planner.spec._record import record

_YAML_SUFFIXES = (".yaml", ".yml")
LONGEST_NAME = 4096


@record
class CheckedSource:
    """A configuration with where it came from. `path` None: nowhere that could be written back."""

    document: Document
    label: str
    path: Path | None
    accelerate: AccelerateFile | None
    from_accelerate: bool = False


def read_source(request: CheckRequest) -> CheckedSource:
    """Read it. InputError for what is no text or no file."""
    beside = _read_accelerate_file(request.accelerate_config) if request.accelerate_config is not None else None
    path = Path(request.config)
    if request.config == "-":
        return _source_of(
            decode(request.stdin, label="standard input"), label="standard input", path=None, beside=beside
        )
    if len(request.config) > LONGEST_NAME or not exists(path):
        text = decode_base64(request.config)
        if text is not None:
            return _source_of(text, label="the base64 argument", path=None, beside=beside)
    return _source_of(_read_file(path), label=str(path), path=path, beside=beside)


def exists(path: Path) -> bool:
    """Whether there is something of this name, whatever it is made of."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read_file(path: Path) -> str:
    name = str(path)[:200]
    what = "a DeepSpeed configuration is read from it"
    try:
        if path.is_dir():
            raise InputError(f"{name!r} is a folder", why=what, fix="give the path of the configuration file")
        if path.exists() and not path.is_file():
            raise InputError(f"{name!r} is not a regular file", why="it is read whole", fix="use - for standard input")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(
            f"there is no file {name!r}", why=what, fix="give the path of a DeepSpeed configuration (or its base64)"
        ) from None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or str(problem)
        raise InputError(f"{name!r} cannot be read: {reason}", why=what, fix="check the path and rights") from None
    return decode(content, label=name)


def _source_of(text: str, *, label: str, path: Path | None, beside: AccelerateFile | None) -> CheckedSource:
    """A DeepSpeed file, or accelerate's own in its place (with the DeepSpeed file that it names, if it is there)."""
    document = read_document(text)
    is_yaml = path is not None and path.suffix in _YAML_SUFFIXES and not text.lstrip().startswith("{")
    if not is_yaml and not looks_like_accelerate(document.value):
        return CheckedSource(document=document, label=label, path=path, accelerate=beside)
    file = read_accelerate(text, label=label)
    if not looks_like_accelerate(file.value):
        raise InputError(
            f"{label} is neither accelerate's file nor a DeepSpeed configuration",
            why="of YAML files accelerate's own are read; DeepSpeed reads JSON",
            fix="give a JSON file, or the file that `accelerate config` wrote",
        )
    named = accelerate_block(file.value).get("deepspeed_config_file")
    if isinstance(named, str) and named not in ("", "none") and exists(Path(named)):
        inner = read_document(_read_file(Path(named)))
        return CheckedSource(document=inner, label=named, path=Path(named), accelerate=file)
    return CheckedSource(document=as_deepspeed(file), label=label, path=path, accelerate=file, from_accelerate=True)


def _read_accelerate_file(path: Path) -> AccelerateFile:
    return read_accelerate(read_text(path, what="file of accelerate"), label=str(path))


def target_of(source: CheckedSource, request: CheckRequest) -> Path:
    """Where the corrected file goes. InputError where none can be written."""
    if source.from_accelerate:
        raise InputError(
            f"{source.label} is accelerate's own file, which is not rewritten",
            why="--fix writes DeepSpeed configurations",
            fix="mend it by the findings, or move its settings into a DeepSpeed file",
        )
    target = request.out_path or source.path
    if target is None:
        raise InputError(
            f"{source.label} cannot be written back",
            why="the configuration did not come from a file",
            fix="say where with --out FILE",
        )
    if target.is_dir():
        raise InputError(f"{str(target)!r} is a folder", why="the corrected file is written to it", fix="name a file")
    if not target.parent.is_dir():
        raise InputError(f"there is no folder {str(target.parent)!r}", why="--out names a file in it", fix="create it")
    return Path(os.path.realpath(target)) if target.is_symlink() else target
