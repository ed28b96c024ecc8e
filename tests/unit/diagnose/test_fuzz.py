"""Anything is read: no error, no hang, bounded work; hundreds of inputs here, a hundred thousand in the slow lane."""

from __future__ import annotations

import json
import pickle
import random
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.diagnose.decide import decide
from planner.diagnose.document import document_of
from planner.diagnose.head import read_note
from planner.diagnose.records import LogFacts
from planner.diagnose.snapshot import read_snapshot
from planner.diagnose.snapshot_pickle import read_plain_pickle
from planner.diagnose.suggest import suggest_fixes
from planner.errors import InputError
from tests.unit.diagnose.reading import facts_of, load_cases, log_of

_SEEDS = [log_of(case) for case in load_cases("oom_cases.yaml")] + [case["log"] for case in load_cases("further.yaml")]
_LONGEST_S = 5.0

_WORDS = sorted({word for seed in _SEEDS for word in seed.split()})
_texts = st.lists(st.sampled_from(_WORDS) | st.text(max_size=8) | st.integers().map(str), max_size=60).map(" ".join)


def _diagnose(data: bytes) -> dict[str, Any]:
    """Everything between bytes and the document."""
    facts = facts_of(data)
    verdict = decide(facts)
    document = document_of(facts, verdict, suggest_fixes(facts, verdict))
    assert 0 <= verdict.confidence <= 1
    assert verdict.evidence
    json.dumps(document, allow_nan=False)
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


def _mutations(count: int, seed: int) -> Iterator[bytes]:
    rng = random.Random(seed)  # noqa: S311 - no secret
    for _ in range(count):
        yield mutated(rng.choice(_SEEDS), rng)


def test_damaged_real_logs_are_diagnosed() -> None:
    for data in _mutations(300, seed=1):
        _diagnose(data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hundred_thousand_damaged_logs_are_diagnosed() -> None:
    for data in _mutations(100_000, seed=2):
        start = time.perf_counter()
        _diagnose(data)
        assert time.perf_counter() - start < _LONGEST_S


def _pickles(count: int, seed: int) -> Iterator[bytes]:
    """Snapshots, damaged: bytes flipped, cut out, put in."""
    rng = random.Random(seed)  # noqa: S311 - no secret
    frames = [{"filename": "/u/model.py", "line": 3, "name": "forward"}]
    block = {"address": 1, "size": 5, "requested_size": 4, "state": "active_allocated", "frames": frames}
    trace = [
        {"action": action, "addr": 1, "size": 4, "frames": frames} for action in ("alloc", "free_completed", "oom")
    ]
    whole = {"segments": [{"device": 0, "total_size": 9, "blocks": [block]}], "device_traces": [trace]}
    for _ in range(count):
        data = bytearray(pickle.dumps(whole, protocol=rng.randrange(2, 6)))
        for _ in range(rng.randrange(1, 5)):
            at = rng.randrange(len(data))
            if rng.random() < 0.5:
                data[at] = rng.randrange(256)
            elif rng.random() < 0.5:
                del data[at : at + rng.randrange(1, 9)]
            else:
                data[at:at] = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 5)))
        yield bytes(data)


def _read_snapshot(data: bytes) -> None:
    try:
        read_snapshot(read_plain_pickle(data, label="x"), label="x")
    except InputError as problem:
        assert problem.fix


def test_damaged_snapshots_are_read_or_refused() -> None:
    for data in _pickles(500, seed=3):
        _read_snapshot(data)


@pytest.mark.slow
def test_hundred_thousand_damaged_snapshots_are_read_or_refused() -> None:
    for data in _pickles(100_000, seed=4):
        _read_snapshot(data)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_texts)
def test_words_of_failures_in_any_order_are_diagnosed(text: str) -> None:
    _diagnose(text.encode("utf-8", errors="replace"))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=2000))
def test_any_bytes_are_diagnosed(data: bytes) -> None:
    _diagnose(data)


@settings(max_examples=200, deadline=None)
@given(_texts)
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
    start = time.perf_counter()
    _diagnose((word * 40_000).encode()[:200_000])
    assert time.perf_counter() - start < _LONGEST_S
