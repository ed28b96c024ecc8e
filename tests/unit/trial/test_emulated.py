"""Which ranks of a candidate are stood in for, how many micro-batches they run, and what their reports add up to."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from planner.emit import render_ds_config
from planner.spec import (
    BatchSplit,
    Candidate,
    CollectiveCount,
    CollectiveKind,
    Crashed,
    Diverged,
    EmulationReport,
    HostOutOfMemory,
    Measured,
    OutOfMemory,
    Phase,
    Provenance,
    RankReport,
    TimedOut,
)
from planner.spec.codec import from_plain, to_plain
from planner.trial.emulated import (
    Basis,
    EmulatedRole,
    emulated_outcome,
    emulated_roles,
    role_outcome,
    timed_steps,
)
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job

GIB = 1 << 30
JOB = make_job()


def candidate_of(*, data: int = 1, tensor: int = 1, pipeline: int = 1, accumulation: int = 8) -> Candidate:
    candidate = make_candidate(data=data, tensor=tensor, pipeline=pipeline)
    batch = BatchSplit(micro_batch_size=2, gradient_accumulation_steps=accumulation, data_parallel_size=data)
    return replace(candidate, batch=batch)


def roles_of(candidate: Candidate) -> tuple[EmulatedRole, ...]:
    training = replace(JOB.training, global_batch_size=candidate.batch.global_batch_size)
    return emulated_roles(
        candidate,
        job=replace(JOB, training=training),
        deepspeed_version=DEEPSPEED_VERSION,
        memory_limit_bytes=3 * GIB,
        steps=4,
    )


@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ({"data": 64}, [(0, 1)]),
        ({"data": 4, "tensor": 2, "pipeline": 2}, [(0, 1), (8, 1)]),
        ({"data": 2, "tensor": 2, "pipeline": 3}, [(0, 1), (4, 1), (8, 1)]),
        ({"data": 1, "tensor": 2, "pipeline": 4}, [(0, 1), (2, 2), (6, 1)]),
    ],
)
def test_roles_are_the_first_second_and_last_stage_and_count_all(
    layout: dict[str, int], expected: list[tuple[int, int]]
) -> None:
    roles = roles_of(candidate_of(**layout))
    assert [(role.rank, role.num_stages) for role in roles] == expected
    assert sum(role.num_stages for role in roles) == layout.get("pipeline", 1)
    assert all(role.task.emulated_rank == role.rank and role.task.num_processes == 1 for role in roles)


@pytest.mark.parametrize(
    ("pipeline", "accumulation", "expected"),
    [(1, 64, [2]), (1, 1, [1]), (4, 64, [4, 3, 2]), (4, 2, [2, 2, 2]), (2, 64, [2, 2])],
)
def test_roles_run_as_many_micro_batches_as_their_memory_depends_on(
    pipeline: int, accumulation: int, expected: list[int]
) -> None:
    roles = roles_of(candidate_of(pipeline=pipeline, data=2, accumulation=accumulation))
    assert [role.task.candidate.batch.gradient_accumulation_steps for role in roles] == expected


def test_role_of_zero_3_runs_one_micro_batch_because_all_are_alike() -> None:
    (role,) = roles_of(replace(candidate_of(data=8, accumulation=64), zero_stage=3))
    assert role.task.candidate.batch.gradient_accumulation_steps == 1


def test_role_runs_the_config_that_would_ship_but_for_the_number_of_micro_batches() -> None:
    candidate = candidate_of(data=4, accumulation=32)
    (role,) = roles_of(candidate)
    job = replace(JOB, training=replace(JOB.training, global_batch_size=candidate.batch.global_batch_size))
    shipped = render_ds_config(candidate, job=job, deepspeed_version=DEEPSPEED_VERSION)
    config = json.loads(role.task.ds_config_json)
    changed = {key: (shipped[key], config[key]) for key in shipped if shipped[key] != config[key]}
    assert changed == {"train_batch_size": (256, 16), "gradient_accumulation_steps": (32, 2)}
    assert role.task.training.global_batch_size == config["train_batch_size"]
    assert (role.task.memory_limit_bytes, role.task.steps) == (3 * GIB, 4)


def test_steps_timed_are_fewer_the_longer_they_take() -> None:
    assert timed_steps(wanted=5, micro_batch_s=0.01) == 5
    assert timed_steps(wanted=5, micro_batch_s=2.0) == 3
    assert timed_steps(wanted=5, micro_batch_s=100.0) == 1
    assert timed_steps(wanted=1, micro_batch_s=100.0) == 1


def report(**fields: Any) -> RankReport:
    emulation = EmulationReport(
        rank=0,
        world_size=8,
        micro_batches=2,
        micro_batch_s=fields.pop("micro_batch_s", 1.0),
        step_end_s=0.5,
        own_s=0.0,
        groups=(tuple(range(8)),),
        collectives=(
            CollectiveCount(
                kind=CollectiveKind.ALL_REDUCE,
                dtype="bfloat16",
                num_bytes=GIB,
                group=0,
                phase=Phase.BACKWARD,
                count=1,
                each_micro_batch=False,
            ),
        ),
    )
    values: dict[str, Any] = {
        "rank": 0,
        "initialised_bytes": GIB,
        "peak_allocated_bytes": 2 * GIB,
        "peak_reserved_bytes": 3 * GIB,
        "device_used_bytes": 4 * GIB,
        "host_peak_bytes": GIB,
        "build_s": 1.0,
        "engine_s": 1.0,
        "step_times_s": (2.5, 2.6, 2.4),
        "forward_s": 0.0,
        "backward_s": 0.0,
        "optimizer_s": 0.0,
        "losses": (5.0, 4.9, 4.8, 4.7),
        "sequences_per_step": 16,
        "skipped_steps": 0,
        "allocator_retries": 0,
        "emulation": emulation,
    }
    return RankReport(**{**values, **fields})


def measured(**fields: Any) -> Measured:
    return Measured(step_time_s=2.5, step_time_spread_s=0.1, tokens_per_s=1.0, ranks=(report(**fields),))


ROLE = roles_of(candidate_of(data=4, pipeline=2))[1]


def test_skipped_step_makes_a_trial_count_for_nothing_unless_it_warmed_up() -> None:
    assert isinstance(role_outcome(measured(), ROLE, basis=Basis()), Measured)
    outcome = role_outcome(measured(skipped_steps=1), ROLE, basis=Basis())
    assert isinstance(outcome, Diverged)
    assert "skipped 1 of 4 optimizer steps" in outcome.log_tail
    longer = measured(skipped_steps=2, losses=(5.0,) * 6)  # three warm-up steps, the first two overflowed
    assert isinstance(role_outcome(longer, ROLE, basis=Basis()), Measured)


def test_report_without_a_record_is_never_measured() -> None:
    outcome = role_outcome(measured(emulation=None), ROLE, basis=Basis())
    assert isinstance(outcome, Crashed)
    assert outcome.rank == ROLE.rank


OUT_OF_MEMORY = OutOfMemory(
    rank=0, phase=Phase.BACKWARD, requested_bytes=GIB, allocated_bytes=GIB, capacity_bytes=GIB, log_tail="tail"
)


def test_out_of_memory_is_of_the_rank_stood_in_for() -> None:
    outcome = role_outcome(OUT_OF_MEMORY, ROLE, basis=Basis())
    assert outcome == replace(OUT_OF_MEMORY, rank=ROLE.rank)


def test_out_of_memory_of_a_smaller_device_is_no_evidence_about_the_target() -> None:
    outcome = role_outcome(OUT_OF_MEMORY, ROLE, basis=Basis(holds_target=False))
    assert isinstance(outcome, Crashed)
    assert "says nothing of the target" in outcome.message
    assert outcome.log_tail == "tail"


def test_other_ends_stay_what_they_are() -> None:
    time_out = TimedOut(limit_s=3.0, phase=Phase.FORWARD, log_tail="")
    assert role_outcome(time_out, ROLE, basis=Basis(holds_target=False)) == time_out
    host = HostOutOfMemory(rank=0, phase=Phase.FORWARD, log_tail="")
    assert role_outcome(host, ROLE, basis=Basis()) == replace(host, rank=ROLE.rank)


def outcome_of(basis: Basis, **second: Any) -> Measured:
    candidate = candidate_of(data=4, pipeline=2, accumulation=8)
    job = replace(JOB, training=replace(JOB.training, global_batch_size=candidate.batch.global_batch_size))
    first_role, second_role = roles_of(candidate)
    roles = [(first_role, measured()), (second_role, measured(**second))]
    return emulated_outcome(roles, candidate=candidate, job=job, basis=basis)


def test_outcome_takes_memory_of_the_worst_role_and_time_of_all() -> None:
    outcome = outcome_of(
        Basis(communication_bytes=GIB), peak_reserved_bytes=6 * GIB, device_used_bytes=7 * GIB, micro_batch_s=2.0
    )
    assert outcome.kind is outcome.step_time_kind is Provenance.EMULATED
    assert outcome.device_used_bytes == 8 * GIB  # what NCCL would hold is added
    assert outcome.peak_reserved_bytes == 6 * GIB
    assert [rank.rank for rank in outcome.ranks] == [0, 4]
    assert outcome.breakdown is not None
    assert outcome.breakdown.compute_s == pytest.approx(8 * 2.0)
    assert outcome.breakdown.bubble_s == pytest.approx(1.0)
    assert outcome.breakdown.data_parallel_s > 0.0
    assert outcome.step_time_s > 16.0 + 1.0 + 0.5
    sequences = 8 * 2 * 4
    assert outcome.tokens_per_s == pytest.approx(sequences * JOB.training.seq_len / outcome.step_time_s)


def test_outcome_on_another_device_has_its_time_computed_and_its_memory_emulated() -> None:
    here = outcome_of(Basis())
    there = outcome_of(Basis(compute_scale=2.0, time_kind=Provenance.COMPUTED))
    assert there.kind is Provenance.EMULATED
    assert there.step_time_kind is Provenance.COMPUTED
    assert there.step_time_s > here.step_time_s
    assert there.device_used_bytes == here.device_used_bytes


def test_spread_is_that_of_the_steps_seen_relative_to_them() -> None:
    outcome = outcome_of(Basis())
    assert outcome.step_time_spread_s / outcome.step_time_s == pytest.approx(1.4826 * 0.1 / 2.5)


def test_outcome_survives_the_trial_log() -> None:
    outcome = outcome_of(Basis(compute_scale=2.0, time_kind=Provenance.COMPUTED))
    line = json.dumps(to_plain(outcome))
    assert from_plain(Measured, json.loads(line)) == outcome
