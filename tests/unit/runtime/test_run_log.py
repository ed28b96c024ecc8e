"""What the trainer's lines say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.emit import render_task
from planner.runtime.run_log import RunLog
from planner.runtime.session import StepResult
from planner.runtime.watch import StepHealth
from planner.spec import DeviceKind, RunPromise
from tests.unit.emit.samples import make_candidate, make_job


@pytest.mark.parametrize(("device", "says"), [(DeviceKind.CPU, False), (DeviceKind.CUDA, True)])
def test_share_of_the_peak_is_told_of_a_gpu_only(
    device: DeviceKind, says: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    task = render_task(make_candidate(), job=make_job(), promise=RunPromise(step_time_s=1.0, ideal_step_s=0.5))
    figures = dict.fromkeys(StepHealth.__dataclass_fields__, 1)
    health = StepHealth(**{**figures, "growth": None, "phases": (), "mfu_ratio": 0.5})  # type: ignore[arg-type]
    result = StepResult(loss=1.0, forward_s=0.1, backward_s=0.1, optimizer_s=0.1)
    RunLog(replace(task, device=device), rank=0, end=3).step(1, result, health, learning_rate=1e-3)
    line = capsys.readouterr().out
    assert line.startswith("step 1/3  loss 1.0000") and ("MFU" in line) is says
