"""Logs as text to facts and verdicts, as the use case does it, without files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from planner.diagnose.decide import decide
from planner.diagnose.head import read_note
from planner.diagnose.merge import merge_facts
from planner.diagnose.records import LogFacts, ModelView, Verdict
from planner.diagnose.scanner import Scanner

DATA = Path(__file__).parents[2] / "data" / "logs"
GIB = 2**30


def load_cases(name: str) -> list[dict[str, Any]]:
    """The cases of one file of tests/data/logs."""
    cases: list[dict[str, Any]] = yaml.safe_load((DATA / name).read_text(encoding="utf-8"))
    return cases


def log_of(case: dict[str, Any], *, as_json: bool = False) -> str:
    """A case's input as a log: text as it is, structures as people write them down."""
    given = case["input"]
    if isinstance(given, str):
        return given
    return json.dumps(given) if as_json else yaml.safe_dump(given)


def facts_of(log: str | bytes, *, note: str = "", rank: int | None = None, chunk: int = 1 << 22) -> LogFacts:
    """What the scanner reads of a log fed in chunks, with a note."""
    data = log.encode() if isinstance(log, str) else log
    scanner = Scanner("run.log", rank=rank)
    for start in range(0, len(data), chunk):
        scanner.feed(data[start : start + chunk])
    scanner.feed(b"", is_last=True)
    facts = scanner.facts()
    if not note:
        return facts
    head = read_note(note)
    return merge_facts((facts, LogFacts(hints=head.hints, settings=head.settings, series=head.series)))


def verdict_of(log: str | bytes, *, note: str = "", model: ModelView | None = None) -> Verdict:
    """The verdict on a log with a note."""
    return decide(facts_of(log, note=note), model=model)


def oom_text(
    *,
    request: float,
    total: float,
    free: float,
    live: float,
    idle: float,
    in_use: float | None = None,
    prefix: str = "torch.OutOfMemoryError: ",
    gpu: int = 0,
    others: tuple[tuple[int, float], ...] = (),
) -> str:
    """A message of PyTorch 2.6 with these figures in GiB."""
    named = "".join(f"Process {pid} has {size:.2f} GiB memory in use. " for pid, size in others)
    own = (
        f"Including non-PyTorch memory, this process has {in_use:.2f} GiB memory in use. " if in_use is not None else ""
    )
    return (
        f"{prefix}CUDA out of memory. Tried to allocate {request * 1024:.2f} MiB. GPU {gpu} has a total capacity of "
        f"{total:.2f} GiB of which {free * 1024:.2f} MiB is free. {named}{own}Of the allocated "
        f"memory {live:.2f} GiB is allocated by "
        f"PyTorch, and {idle * 1024:.2f} MiB is reserved by PyTorch but unallocated. If "
        "reserved but unallocated memory is large try "
        "setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
    )
