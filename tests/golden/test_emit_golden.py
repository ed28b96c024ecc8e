"""Emitted files of three plans, byte for byte. Did they move? Whether they are right is asked elsewhere.

Refresh after looking at the difference: MESHPLAN_REFRESH_GOLDENS=1 python -m pytest -n0 tests/golden
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from planner import __version__
from planner.catalog import load_model
from planner.emit import LaunchPaths, render_ds_config_text, render_launch
from planner.spec import Candidate, DeviceKind, JobSpec, Launcher, LaunchSpec, OptimizerName, Precision
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job

FOLDER = Path(__file__).parent / "emit"
REFRESH = "MESHPLAN_REFRESH_GOLDENS"


def plans() -> dict[str, tuple[JobSpec, Candidate, Launcher]]:
    own = LaunchSpec(
        command="train.py --deepspeed {deepspeed_config} --note 'it is'",
        environment=(("GREETING", "it's $HOME"),),
        slurm=(("account", "my project"), ("time", "02:00:00")),
    )
    large, small = load_model("llama-3.1-70b"), load_model("tiny-llama-cpu")
    return {
        "cpu-pipeline-fp32": (
            make_job(model=small, device=DeviceKind.CPU, gpus_per_node=2),
            make_candidate(pipeline=2, stage=1, precision=Precision.FP32, micro=2, checkpointing="full"),
            Launcher.TORCHRUN,
        ),
        "64-gpus-tensor-pipeline-bf16": (
            make_job(model=large, nodes=8),
            make_candidate(data=2, tensor=8, pipeline=4, stage=1, num_layers=80, accumulation=32),
            Launcher.TORCHRUN,
        ),
        "slurm-zero3-fp16-sgd": (
            make_job(model=large, nodes=2, launch=own, optimizer=OptimizerName.SGD),
            make_candidate(data=16, stage=3, num_layers=80, precision=Precision.FP16),
            Launcher.SLURM,
        ),
    }


def render(name: str) -> dict[str, str]:
    job, candidate, launcher = plans()[name]
    paths = LaunchPaths(made_with=("planner", "plan", "my job.yaml"))
    texts = {file.path: file.text for file in render_launch(job, candidate, launcher=launcher, paths=paths)}
    texts["ds_config.json"] = render_ds_config_text(candidate, job=job, deepspeed_version=DEEPSPEED_VERSION)
    return {path: text.replace(f"meshplan {__version__}", "meshplan VERSION") for path, text in texts.items()}


@pytest.mark.parametrize("name", plans())
def test_emitted_files_are_those_that_were_looked_at(name: str) -> None:
    texts = render(name)
    if os.environ.get(REFRESH):
        for path, text in texts.items():
            (FOLDER / name / path).parent.mkdir(parents=True, exist_ok=True)
            (FOLDER / name / path).write_text(text)
    on_disk = {str(file.relative_to(FOLDER / name)) for file in (FOLDER / name).rglob("*") if file.is_file()}
    how = f"look at the difference; if it is meant, run the test once with {REFRESH}=1 and commit the files"
    assert on_disk == set(texts), how
    for path, text in texts.items():
        assert text == (FOLDER / name / path).read_text(), how
