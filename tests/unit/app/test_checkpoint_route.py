"""How checkpoints of one plan come to another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.app.checkpoint_route import checkpoint_route
from planner.spec import Candidate, JobSpec, OptimizerName, Precision
from planner.spec.replan import CheckpointWay
from planner.spec.tuning import OptimizerKernel
from tests.unit.emit.samples import make_candidate, make_job

OWN = "train.py --deepspeed {deepspeed_config}"


def job_with(*, command: str = "", **training: Any) -> JobSpec:
    job = make_job()
    return replace(job, launch=replace(job.launch, command=command), training=replace(job.training, **training))


def layout(zero: int, **axes: int) -> Candidate:
    return replace(make_candidate(**axes), zero_stage=zero)


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (layout(1, data=4), layout(1, data=4), CheckpointWay.AS_IS),
        (layout(0, data=4), layout(0, data=2), CheckpointWay.AS_IS),  # without ZeRO data-parallel ranks are alike
        (layout(1, data=4), layout(1, data=2), CheckpointWay.CONVERT),
        (layout(3, data=2), layout(1, tensor=2), CheckpointWay.CONVERT),
        (layout(0, tensor=2), layout(0, pipeline=2), CheckpointWay.CONVERT),
    ],
)
def test_route_of_the_reference_trainer(old: Candidate, new: Candidate, expected: CheckpointWay) -> None:
    job = job_with(checkpoint_dir="/data/a b")
    route = checkpoint_route(old, new, job=job, folder="plans/new")
    assert route.way is expected
    if expected is CheckpointWay.CONVERT:
        assert route.command == "python -m planner.runtime.convert_checkpoint '/data/a b'"
        assert route.script == "plans/new/launch/convert-checkpoint.sh"
    else:
        assert (route.command, route.script) == ("", "")


def test_route_of_muon_and_of_adapters_cannot_be_had() -> None:
    muon = replace(job_with().training.optimizer, name=OptimizerName.MUON)
    for job in (job_with(optimizer=muon), job_with(lora_rank=8)):
        route = checkpoint_route(layout(1, data=4), layout(1, data=2), job=job, folder="new")
        assert route.way is CheckpointWay.CANNOT
        assert "layouts differ" in route.why
        assert route.script == ""


def test_route_of_fused_adam_without_zero_cannot_be_had() -> None:
    tuning = replace(make_candidate().tuning, optimizer_kernel=OptimizerKernel.DEEPSPEED)
    old, new = (
        replace(one, tuning=tuning, precision=Precision.BF16) for one in (layout(0, tensor=2), layout(0, pipeline=2))
    )
    assert checkpoint_route(old, new, job=job_with(), folder="new").way is CheckpointWay.CANNOT
    assert checkpoint_route(old, old, job=job_with(), folder="new").way is CheckpointWay.AS_IS


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (layout(0, data=4), layout(0, data=2), CheckpointWay.AS_IS),
        (layout(1, data=4), layout(2, data=4), CheckpointWay.AS_IS),
        (layout(2, data=4), layout(2, data=2), CheckpointWay.UNIVERSAL),
        (layout(2, data=4), layout(3, data=4), CheckpointWay.UNIVERSAL),
        (layout(0, data=4), layout(1, data=4), CheckpointWay.CANNOT),
        (layout(1, data=4), layout(1, data=2, tensor=2), CheckpointWay.CANNOT),
    ],
)
def test_route_of_a_program_of_the_users_own(old: Candidate, new: Candidate, expected: CheckpointWay) -> None:
    route = checkpoint_route(old, new, job=job_with(command=OWN), folder="new")
    assert route.way is expected
    assert ("ds_to_universal" in route.command) == (expected is CheckpointWay.UNIVERSAL)
