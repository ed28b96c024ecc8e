"""Anything is read: no error, no hang, bounded work; hundreds of inputs here, a hundred thousand in the slow lane."""

from __future__ import annotations

import json
import pickle
import random
import time
from typing import Any

import pytest
from hypothesis import strategies as st

from planner.diagnose.decide import decide
from planner.diagnose.document import document_of
from planner.diagnose.head import read_note
from planner.diagnose.records import LogFacts
from planner.diagnose.snapshot import read_snapshot
from planner.diagnose.snapshot_pickle import read_plain_pickle
from planner.diagnose.suggest import suggest_fixes
from tests.fuzzing import lanes, only_planner_errors
from tests.unit.diagnose.reading import facts_of, load_cases, log_of

_SEEDS = [log_of(case) for case in load_cases("oom_cases.yaml")] + [case["log"] for case in load_cases("further.yaml")]
_LONGEST_S = 60.0  # hangs, not speed: machines pause

_WORDS = sorted({word for seed in _SEEDS for word in seed.split()})
_texts = st.lists(st.sampled_from(_WORDS) | st.text(max_size=8) | st.integers().map(str), max_size=60).map(" ".join)


def _diagnose(data: bytes) -> dict[str, Any]:
    """Everything between bytes and the document."""
    start = time.perf_counter()
    facts = facts_of(data)
    verdict = decide(facts)
    document = document_of(facts, verdict, suggest_fixes(facts, verdict))
    assert 0 <= verdict.confidence <= 1
    assert verdict.evidence
    json.dumps(document, allow_nan=False)
    assert time.perf_counter() - start < _LONGEST_S
    return document


def mutated(seed: str, rng: random.Random) -> bytes:
    """A real log, damaged: cut, doubled, lines shuffled, numbers changed, bytes flipped."""
    data = bytearray(seed.encode())
    for _ in range(rng.randrange(1, 6)):
        kind = rng.randrange(7)
        at = rng.randrange(len(data) + 1)
        if kind == 0:
            del data[at : at + rng.randrange(40)]
        elif kind == 1:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(8)))
        elif kind == 2 and data:
            data[min(at, len(data) - 1)] = rng.randrange(256)
        elif kind == 3:
            data[at:at] = rng.choice(_WORDS).encode() + b" "
        elif kind == 4:
            data[at:at] = str(rng.choice([0, -1, 10**30, 1e308, 2**64, 0.0])).encode()
        elif kind == 5:
            lines = bytes(data).splitlines(keepends=True)
            rng.shuffle(lines)
            data = bytearray(b"".join(lines))
        else:
            data += data[: rng.randrange(400)]
    return bytes(data)


@lanes(st.tuples(st.sampled_from(_SEEDS), st.integers(0, 2**62)))
def test_damaged_real_logs_are_diagnosed(given_: tuple[str, int]) -> None:
    log, seed = given_
    _diagnose(mutated(log, random.Random(seed)))  # noqa: S311 - no secret


def _damaged_pickle(seed: int) -> bytes:
    """A snapshot, damaged: bytes flipped, cut out, put in."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    frames = [{"filename": "/u/model.py", "line": 3, "name": "forward"}]
    block = {"address": 1, "size": 5, "requested_size": 4, "state": "active_allocated", "frames": frames}
    trace = [
        {"action": action, "addr": 1, "size": 4, "frames": frames} for action in ("alloc", "free_completed", "oom")
    ]
    whole = {"segments": [{"device": 0, "total_size": 9, "blocks": [block]}], "device_traces": [trace]}
    data = bytearray(pickle.dumps(whole, protocol=rng.randrange(2, 6)))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(data))
        if rng.random() < 0.5:
            data[at] = rng.randrange(256)
        elif rng.random() < 0.5:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5)))
    return bytes(data)


@lanes(st.integers(0, 2**62).map(_damaged_pickle) | st.binary(max_size=300).map(lambda data: b"\x80\x04" + data))
def test_damaged_snapshots_are_read_or_refused(data: bytes) -> None:
    only_planner_errors(lambda: read_snapshot(read_plain_pickle(data, label="x"), label="x"))


@lanes(_texts)
def test_words_of_failures_in_any_order_are_diagnosed(text: str) -> None:
    _diagnose(text.encode("utf-8", errors="replace"))


@lanes(st.binary(max_size=2000))
def test_any_bytes_are_diagnosed(data: bytes) -> None:
    _diagnose(data)


@lanes(_texts)
def test_any_note_is_read(text: str) -> None:
    head = read_note(text)
    decide(LogFacts(hints=head.hints, settings=head.settings, series=head.series, num_bytes=1))


@pytest.mark.parametrize(
    "word",
    [
        "memory ",
        "a",
        "mem: ",
        "step ",
        "CUDA out of memory. ",
        "Process 1 has 1 GiB memory in use. ",
        "\x1b[",
        'File "',
        "1: 2 ",
        "[rank",
        "| ",
    ],
)
def test_no_repetition_makes_the_reading_slow(word: str) -> None:
    _diagnose((word * 40_000).encode()[:200_000])
