"""A run beside its promise: what breaks it and what does not."""

from __future__ import annotations

import dataclasses
import math

import pytest

from planner.app.comparison import MAX_TIME_TOLERANCE, PROCESS_BYTES, compare
from planner.app.requests import VerifyRow
from planner.spec import DeviceKind, JobSpec, Plan, Precision, Provenance
from planner.spec.trainer import TrainerReport
from tests.unit.report.samples import GIB, MIB, make_job, make_measured, quickstart_report

LOSSES = (6.9, 6.8, 6.7)


def _case(
    device: DeviceKind, *, kind: Provenance = Provenance.MEASURED, used_bytes: int = 4 * GIB
) -> tuple[Plan, JobSpec]:
    plan = quickstart_report().plan
    promise = dataclasses.replace(
        plan.promise,
        step_time_s=0.4,
        step_time_kind=kind,
        device_used_bytes=used_bytes,
        memory_kind=kind,
        first_losses=LOSSES,
    )
    candidate = dataclasses.replace(plan.candidate, precision=Precision.FP32)
    return dataclasses.replace(plan, promise=promise, candidate=candidate), make_job(device=device)


def _report(
    job: JobSpec,
    *,
    step_time_s: float = 0.4,
    used_bytes: int = 4 * GIB,
    losses: tuple[float, ...] = LOSSES,
    sequences: int = 0,
) -> TrainerReport:
    ranks = tuple(
        dataclasses.replace(rank, sequences_per_step=sequences or job.training.global_batch_size)
        for rank in make_measured(step_time_s=step_time_s, device_used_bytes=used_bytes).ranks
    )
    return TrainerReport(resumed_from_step=0, steps_done=len(losses), losses=losses, tokens_per_s=1.0, ranks=ranks)


def _compare(plan: Plan, job: JobSpec, report: TrainerReport, *, load_per_core: float = 0.5) -> tuple[VerifyRow, ...]:
    return compare(plan, job, report, load_per_core=load_per_core)


def _broken(rows: tuple[VerifyRow, ...]) -> list[str]:
    return [row.name for row in rows if row.is_broken]


def test_a_run_as_promised_passes_with_a_row_for_every_figure() -> None:
    plan, job = _case(DeviceKind.CUDA)
    rows = _compare(plan, job, _report(job))
    assert [row.name for row in rows] == [
        "sequences_per_step",
        "step_time_s",
        "device_memory_bytes",
        *("loss_of_step_1", "loss_of_step_2", "loss_of_step_3"),
    ]
    assert not _broken(rows)


@pytest.mark.parametrize(
    ("seen", "broken"),
    [
        ({"step_time_s": 0.43}, []),
        ({"step_time_s": 0.45}, ["step_time_s"]),
        ({"step_time_s": 0.1, "used_bytes": GIB}, []),
        ({"used_bytes": int(4.1 * GIB)}, []),
        ({"used_bytes": int(4.3 * GIB)}, ["device_memory_bytes"]),
        ({"losses": (6.9, 6.85, 6.7)}, ["loss_of_step_2"]),
        ({"losses": (6.9, 6.75, 6.7)}, ["loss_of_step_2"]),
        ({"losses": (math.nan, 6.8)}, ["loss_of_step_1"]),
        ({"losses": (6.9,)}, []),
        ({"sequences": 8}, ["sequences_per_step"]),
    ],
)
def test_more_time_or_memory_or_another_loss_breaks_a_measured_promise(
    seen: dict[str, float], broken: list[str]
) -> None:
    plan, job = _case(DeviceKind.CUDA)
    assert _broken(_compare(plan, job, _report(job, **seen))) == broken  # type: ignore[arg-type]


def test_a_cpu_is_given_more_room_and_a_process_its_own() -> None:
    plan, job = _case(DeviceKind.CPU, used_bytes=40 * MIB)
    cold = 40 * MIB + PROCESS_BYTES[DeviceKind.CPU]
    assert not _broken(_compare(plan, job, _report(job, step_time_s=0.84, used_bytes=cold)))
    late = _report(job, step_time_s=0.86, used_bytes=cold + 20 * MIB)
    assert _broken(_compare(plan, job, late)) == ["step_time_s", "device_memory_bytes"]


def test_one_fast_step_keeps_the_promise_on_a_cpu_and_not_on_a_gpu() -> None:
    for device, broken in ((DeviceKind.CPU, []), (DeviceKind.CUDA, ["step_time_s"])):
        plan, job = _case(device)
        report = _report(job)
        ranks = tuple(dataclasses.replace(rank, step_times_s=(2.0, 0.4, 2.0)) for rank in report.ranks)
        assert _broken(_compare(plan, job, dataclasses.replace(report, ranks=ranks))) == broken


def test_a_computed_promise_is_held_to_less() -> None:
    plan, job = _case(DeviceKind.CUDA, kind=Provenance.COMPUTED)
    assert not _broken(_compare(plan, job, _report(job, step_time_s=0.55, used_bytes=int(5.9 * GIB))))
    assert _broken(_compare(plan, job, _report(job, step_time_s=0.65))) == ["step_time_s"]


def test_a_crowded_cpu_is_given_time_in_proportion_and_a_gpu_is_not() -> None:
    plan, job = _case(DeviceKind.CPU)
    assert all(row.passed for row in _compare(plan, job, _report(job, step_time_s=1.2), load_per_core=1.5))
    assert _broken(_compare(plan, job, _report(job, step_time_s=1.3), load_per_core=1.5)) == ["step_time_s"]
    plan, job = _case(DeviceKind.CUDA)
    assert _broken(_compare(plan, job, _report(job, step_time_s=0.45), load_per_core=3.0)) == ["step_time_s"]


@pytest.mark.parametrize(("step_time_s", "load_per_core"), [(2.4, 3.0), (40.0, 8.0), (0.08, 1.0)])
def test_a_step_too_long_on_a_busy_cpu_is_not_comparable_and_all_else_is_still_judged(
    step_time_s: float, load_per_core: float
) -> None:
    plan, job = _case(DeviceKind.CPU)
    if step_time_s < 0.1:  # a step so short that one wait for a core is several of it
        plan = dataclasses.replace(plan, promise=dataclasses.replace(plan.promise, step_time_s=0.015))
    rows = _compare(plan, job, _report(job, step_time_s=step_time_s, losses=(9.9,)), load_per_core=load_per_core)
    named = {row.name: row for row in rows}
    assert named["step_time_s"].not_comparable and not named["step_time_s"].passed
    assert named["step_time_s"].tolerance_fraction <= MAX_TIME_TOLERANCE
    assert named["device_memory_bytes"].passed and _broken(rows) == ["loss_of_step_1"]


def test_a_step_within_its_cap_is_as_promised_however_busy_the_cpu_was() -> None:
    plan, job = _case(DeviceKind.CPU)
    rows = _compare(plan, job, _report(job, step_time_s=1.6), load_per_core=20.0)
    assert all(row.passed and not row.not_comparable for row in rows)
