"""The plan's allocator is set before CUDA starts, in the trial's child and in the start script where asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from planner.emit import LaunchPaths, render_launch
from planner.runtime.allocator import settle_allocator
from planner.spec import Allocator, DeviceKind, Launcher, TrialTask, Tuning
from planner.spec.codec import from_plain, to_plain
from planner.spec.tuning import ALLOCATOR_ENVIRONMENT
from tests.unit.emit.samples import make_candidate, make_job

_NAMES = [name for name, _ in ALLOCATOR_ENVIRONMENT]
_CHILD = """
import json, os, sys
import torch
from planner.runtime.allocator import settle_allocator
from planner.spec import TrialTask
from planner.spec.codec import from_plain
settle_allocator(from_plain(TrialTask, json.load(sys.stdin)))
print(json.dumps({name: os.environ[name] for name in sys.argv[1:]}))
"""


def task(allocator: Allocator, device: DeviceKind) -> TrialTask:
    job = make_job(device=device)
    return TrialTask(
        model=job.model,
        training=job.training,
        candidate=make_candidate(tuning=Tuning(allocator=allocator)),
        device=device,
        ds_config_json="{}",
        steps=1,
    )


def test_child_with_torch_loaded_is_set_before_its_first_use_of_the_device() -> None:
    asked = task(Allocator.EXPANDABLE_SEGMENTS, DeviceKind.CUDA)
    environment = {name: value for name, value in os.environ.items() if name not in _NAMES}
    run = subprocess.run(
        [sys.executable, "-c", _CHILD, *_NAMES],
        input=json.dumps(to_plain(asked)),
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == dict(ALLOCATOR_ENVIRONMENT)
    assert from_plain(TrialTask, to_plain(asked)) == asked


@pytest.mark.parametrize(
    ("allocator", "device"),
    [(Allocator.DEFAULT, DeviceKind.CUDA), (Allocator.EXPANDABLE_SEGMENTS, DeviceKind.CPU)],
)
def test_nothing_is_set_where_nothing_was_asked_or_there_is_no_gpu(allocator: Allocator, device: DeviceKind) -> None:
    before = dict(os.environ)
    settle_allocator(task(allocator, device))
    assert dict(os.environ) == before


@pytest.mark.parametrize("launcher", [Launcher.TORCHRUN, Launcher.DEEPSPEED, Launcher.SLURM])
def test_start_script_sets_the_plan_s_allocator_and_no_other(launcher: Launcher) -> None:
    paths = LaunchPaths(script="launch.sh", python="python3")
    texts = {
        allocator: "".join(
            file.text
            for file in render_launch(
                make_job(), make_candidate(data=8, tuning=Tuning(allocator=allocator)), launcher=launcher, paths=paths
            )
        )
        for allocator in Allocator
    }
    for name, value in ALLOCATOR_ENVIRONMENT:
        assert f"export {name}={value}" in texts[Allocator.EXPANDABLE_SEGMENTS]
        assert f"export {name}=" not in texts[Allocator.DEFAULT]
