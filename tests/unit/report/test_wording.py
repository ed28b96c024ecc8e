"""Candidates and outcomes in words."""

from __future__ import annotations

import dataclasses

import pytest

from planner.report.wording import (
    MEMORY_LABELS,
    TIME_LABELS,
    crash_reason,
    describe_candidate,
    describe_differences,
    outcome_sentence,
    outcome_word,
    short_candidate,
)
from planner.spec import (
    ActivationCheckpointing,
    Attention,
    Candidate,
    Crashed,
    Diverged,
    HostOutOfMemory,
    MemoryBreakdown,
    OffloadDevice,
    Outcome,
    OutOfMemory,
    Phase,
    TimeBreakdown,
    TimedOut,
)
from planner.spec.tuning import TUNING_VALUES, Tuning
from tests.unit.report.samples import GIB, make_candidate


def test_candidate_in_words_names_what_differs_from_one_device() -> None:
    candidate = make_candidate(tensor=2, data=4)
    assert describe_candidate(candidate) == (
        "ZeRO-1, tensor 2 x data 4, micro-batch 4 with 4 accumulated, bf16, full checkpointing"
    )
    assert short_candidate(candidate) == "ZeRO-1 tp2 dp4 mb4x4 bf16 full"


def test_candidate_with_uneven_stages_says_their_layers() -> None:
    assert "pipeline 3 x data 2 (1 or 2 layers a stage)" in describe_candidate(make_candidate(pipeline=3))


def test_candidate_with_offload_and_other_attention_says_so() -> None:
    candidate = dataclasses.replace(
        make_candidate(),
        attention=Attention.FLASH,
        offload_optimizer=OffloadDevice.CPU,
        activation_checkpointing=ActivationCheckpointing.parse("layers:2"),
    )
    assert describe_candidate(candidate).endswith(
        "checkpointing of 2 layers a stage, flash attention, optimizer on cpu"
    )


@pytest.mark.parametrize("name", TUNING_VALUES)
def test_every_setting_that_is_not_the_default_is_told_and_is_in_the_key(name: str) -> None:
    plain, value = make_candidate(), TUNING_VALUES[name][1]
    changed = dataclasses.replace(plain, tuning=Tuning(**{name: value}))
    assert str(value) in short_candidate(changed) and short_candidate(changed) != short_candidate(plain)
    assert describe_differences(changed, plain) == f"{name} {value} instead of {TUNING_VALUES[name][0]}"
    assert changed.key.startswith(f"{plain.key}-") and changed.key.endswith(str(value))


def test_every_field_that_tells_two_candidates_apart_is_told() -> None:
    """A new axis must be named here, or two different candidates would read alike."""
    named = {field.name for field in dataclasses.fields(Candidate)}
    assert named == {
        "layout",
        "batch",
        "zero_stage",
        "precision",
        "activation_checkpointing",
        "attention",
        "offload_optimizer",
        "offload_param",
        "tuning",
    }
    other = dataclasses.replace(make_candidate(), offload_param=OffloadDevice.NVME, zero_stage=3)
    assert (
        describe_differences(make_candidate(), other) == "ZeRO-1 instead of 3, parameter offload none instead of nvme"
    )


def test_labels_cover_every_part_of_both_breakdowns() -> None:
    assert [field for field, _ in MEMORY_LABELS] == [field.name for field in dataclasses.fields(MemoryBreakdown)]
    assert [field for field, _ in TIME_LABELS] == [field.name for field in dataclasses.fields(TimeBreakdown)]


@pytest.mark.parametrize(
    ("outcome", "word", "sentence"),
    [
        (
            OutOfMemory(
                rank=1,
                phase=Phase.BACKWARD,
                requested_bytes=GIB,
                allocated_bytes=7 * GIB,
                capacity_bytes=0,
                log_tail="",
            ),
            "out of memory",
            "rank 1 ran out of device memory while in backward (asked for 1.00 GiB, had 7.00 GiB)",
        ),
        (
            HostOutOfMemory(rank=0, phase=Phase.BUILD_ENGINE, log_tail=""),
            "host memory",
            "rank 0 was refused host memory while in build engine",
        ),
        (
            TimedOut(limit_s=120, phase=Phase.FORWARD, log_tail=""),
            "timed out",
            "still running after 2 min 00 s, while in forward; ended",
        ),
        (Diverged(step=3, losses=(), log_tail=""), "diverged", "the loss stopped being usable at step 3"),
        (
            Crashed(rank=2, phase=Phase.START, exit_code=1, message="two\nlines", log_tail=""),
            "crashed",
            "rank 2 ended with exit code 1 while in start: two lines",
        ),
    ],
)
def test_failed_outcome_is_told_with_its_figures(outcome: Outcome, word: str, sentence: str) -> None:
    assert (outcome_word(outcome), outcome_sentence(outcome)) == (word, sentence)


@pytest.mark.parametrize(
    ("message", "log_tail", "reason"),
    [
        ("ValueError: heads do not divide", "", "ValueError: heads do not divide"),
        ("ended by signal 6 (SIGABRT)", "x\n[rank 0] RuntimeError: bad shape\nbye", "[rank 0] RuntimeError: bad shape"),
        ("ended by signal 6 (SIGABRT)", "no word of it", "ended by signal 6 (SIGABRT)"),
        ("", "", ""),
        ("KeyError: " + "k" * 90, "", "KeyError: " + "k" * 49 + "…"),
    ],
)
def test_reason_of_a_crash_is_one_short_line(message: str, log_tail: str, reason: str) -> None:
    crashed = Crashed(rank=0, phase=Phase.FORWARD, exit_code=1, message=message, log_tail=log_tail)
    assert crash_reason(crashed) == reason and len(reason) <= 60


def test_only_a_crash_has_a_reason() -> None:
    assert crash_reason(TimedOut(limit_s=1.0, phase=Phase.FORWARD, log_tail="ValueError: x")) == ""
