"""The streaming scan: how a log is cut does not matter, ranks are kept apart, budgets hold."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.diagnose.lines import rank_of_file, read_line
from planner.diagnose.needles import FAILURES, distinct_lines, failures_in
from planner.diagnose.records import EventKind, RunPhase
from planner.diagnose.scanner import MAX_EVENTS, Scanner
from planner.diagnose.window import LOOK_AHEAD_BYTES, Window
from tests.unit.diagnose.reading import facts_of, oom_text

_TRACEBACK = (
    "Traceback (most recent call last):",
    '  File "/u/train.py", line 310, in main',
    "    loss = engine(batch)",
    '  File "/u/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775, in _call_impl',
    '  File "/u/model.py", line {line}, in forward',
)


def _interleaved(ranks: int) -> str:
    """Every rank fails in forward at a line of its own; their lines come in turn."""
    texts = []
    for place in range(len(_TRACEBACK) + 1):
        for rank in range(ranks):
            if place < len(_TRACEBACK):
                texts.append(f"[rank{rank}]: {_TRACEBACK[place].format(line=100 + rank)}\n")
            else:
                texts.append(
                    oom_text(
                        request=1.5,
                        total=79.15,
                        free=0.3,
                        live=76.9,
                        idle=0.4,
                        in_use=78.7,
                        prefix=f"[rank{rank}]: ",
                        gpu=rank % 8,
                    )
                )
    return "".join(texts)


@pytest.mark.parametrize("ranks", [2, 8, 64])
def test_interleaved_tracebacks_are_told_apart(ranks: int) -> None:
    facts = facts_of(_interleaved(ranks))
    assert [event.rank for event in facts.events] == list(range(ranks))
    assert [event.line for event in facts.events] == [100 + rank for rank in range(ranks)]
    assert all(event.phase is RunPhase.FORWARD and event.file == "/u/model.py" for event in facts.events)
    assert facts.ranks == tuple(range(ranks))


@settings(max_examples=40, deadline=None)
@given(chunk=st.integers(min_value=1, max_value=5000))
def test_how_the_log_is_cut_does_not_matter(chunk: int) -> None:
    log = "step 1 | loss 2 | mem 3.0 GiB\n" * 30 + _interleaved(3) + "exits with return code = -9\n"
    whole = facts_of(log)
    cut = facts_of(log, chunk=chunk)
    assert cut.events == whole.events
    assert cut.num_lines == whole.num_lines


def test_failure_far_from_any_chunk_border_has_its_line_number() -> None:
    filler = "iteration 5/100 | lm loss 2.1 | grad norm 0.8\n"
    count = (3 * LOOK_AHEAD_BYTES) // len(filler)
    facts = facts_of(
        filler * count + oom_text(request=1, total=8, free=0, live=7, idle=0) + filler * count, chunk=1 << 16
    )
    assert [event.log_line for event in facts.events] == [count + 1]
    assert facts.num_lines == 2 * count + 1


def test_colours_time_stamps_and_launcher_prefixes_are_taken_off() -> None:
    raw = (
        b"\x1b[36mnode-3: \x1b[0m2026-05-01 12:00:00,123 [default7]:\x1b[31m[rank7]: "
        b"RuntimeError\x1b[0m: CUDA out of memory"
    )
    line = read_line(raw)
    assert (line.rank, line.text) == (7, "RuntimeError: CUDA out of memory")


@pytest.mark.parametrize(
    ("raw", "rank"),
    [
        (b"[rank12]: x", 12),
        (b"[default3]: x", 3),
        (b"3: Traceback (most recent call last):", 3),
        (b"[1,5]<stderr>: x", 5),
        (b"[rank: 4] x", 4),
        (b"worker-2: [rank9]: x", 9),
        (b"RuntimeError: CUDA out of memory", None),
        (b"12345, 10148 MiB", None),
    ],
)
def test_rank_is_read_from_the_prefix(raw: bytes, rank: int | None) -> None:
    assert read_line(raw).rank == rank


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank_3.log", 3),
        ("logs/attempt_0/11/stderr.log", 11),
        ("7.log", 7),
        ("train.log", None),
        ("node0-rank12.out", 12),
        ("slurm-4711.out", None),
    ],
)
def test_rank_is_read_from_a_file_name(name: str, rank: int | None) -> None:
    assert rank_of_file(name) == rank


def test_message_that_a_terminal_wrapped_is_joined() -> None:
    log = (
        "╭─────────── Traceback ───────────╮\n│ /u/train.py:12 in main          │\n╰──────────────────╯\n"
        "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a\ntotal "
        "capacity of 23.69 GiB of which 1.00 GiB is\n"
        "free. Of the allocated memory 20.00 GiB is allocated by PyTorch, and 1.10 GiB\nis "
        "reserved by PyTorch but unallocated.\n"
    )
    (event,) = facts_of(log).events
    assert event.figures.total is not None and event.figures.unallocated is not None
    assert (event.file, event.line) == ("/u/train.py", 12)


def test_figures_of_a_later_message_are_not_taken_for_an_earlier_one() -> None:
    short = "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB\n"
    facts = facts_of(short + "INFO next\n" + oom_text(request=2, total=79, free=0.5, live=70, idle=1))
    assert facts.events[0].figures.total is None


def test_repetitions_are_counted_on_the_first() -> None:
    facts = facts_of(oom_text(request=1, total=8, free=0, live=7, idle=0) * 50)
    assert [event.count for event in facts.events] == [50]


def test_different_events_are_bounded() -> None:
    log = "".join(
        oom_text(request=1, total=8, free=0, live=3 + place / 1000, idle=0) for place in range(3 * MAX_EVENTS)
    )
    facts = facts_of(log)
    assert len(facts.events) <= MAX_EVENTS
    assert facts.notes


def test_caught_advice_is_not_a_failure() -> None:
    assert facts_of("hint: on CUDA out of memory lower the batch\n").events == ()


def test_unhandled_exception_is_known_when_memory_was_not_the_matter() -> None:
    (event,) = facts_of("Traceback (most recent call last):\n  File \"t.py\", line 3, in main\nKeyError: 'lr'\n").events
    assert (event.kind, event.text) == (EventKind.OTHER_FAILURE, "KeyError: 'lr'")


@pytest.mark.parametrize("needle", FAILURES)
def test_every_needle_is_found_alone(needle: bytes) -> None:
    assert needle in set(failures_in(distinct_lines(b"line 1\n" + needle + b"\nline 3")))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(FAILURES), min_size=1, max_size=6), st.binary(max_size=200))
def test_needle_is_found_in_the_distinct_lines_wherever_it_stands(needles: list[bytes], filler: bytes) -> None:
    data = b"\n".join(filler.replace(b"\n", b" ") + b" 12 " + needle + b" 3.4" for needle in needles)
    assert set(needles) <= set(failures_in(distinct_lines(data)))


def test_needles_have_no_digits_which_the_distinct_lines_lack() -> None:
    assert not any(chr(letter).isdigit() or letter == ord(".") for needle in FAILURES for letter in needle)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=3000), st.integers(min_value=1, max_value=700), st.randoms(use_true_random=False))
def test_window_hands_out_every_byte_once(data: bytes, chunk: int, _: random.Random) -> None:
    window, seen = Window(), b""
    for start in range(0, len(data), chunk):
        window.feed(data[start : start + chunk], is_last=False)
        seen += window.data[window.start : window.end]
    window.feed(b"", is_last=True)
    seen += window.data[window.start : window.end]
    assert seen == data


def test_facts_of_a_scanner_that_was_fed_nothing() -> None:
    scanner = Scanner("x")
    scanner.feed(b"", is_last=True)
    assert scanner.facts().num_lines == 0
