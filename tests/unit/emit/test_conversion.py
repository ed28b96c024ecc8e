"""The scripts beside the start script: they convert a checkpoint, and pick the plan for the nodes that are alive."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from planner.emit import EmittedFile, LaunchPaths, render_conversion, render_surviving
from planner.spec import JobSpec
from tests.unit.emit.samples import make_candidate, make_job

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def job_with(*, command: str = "", checkpoint_dir: str = "/data/a b") -> JobSpec:
    job = make_job()
    return replace(
        job,
        launch=replace(job.launch, command=command),
        training=replace(job.training, checkpoint_dir=checkpoint_dir),
    )


def surviving(job: JobSpec, *, converts: bool = True) -> EmittedFile:
    paths = LaunchPaths(script="launch/launch-surviving.sh")
    return render_surviving(job, make_candidate(), paths=paths, nodes=(8, 4), converts=converts)


def conversion(job: JobSpec) -> EmittedFile:
    return render_conversion(job, make_candidate(), paths=LaunchPaths(script="launch/convert-checkpoint.sh"))


OWN = job_with(command="train.py --deepspeed {deepspeed_config}")


@pytest.mark.parametrize(
    "file", [surviving(job_with()), surviving(OWN), conversion(job_with()), conversion(OWN)], ids=lambda file: file.path
)
def test_scripts_are_sound_shell(tmp_path: Path, file: EmittedFile) -> None:
    script = tmp_path / "script.sh"
    script.write_text(file.text)
    subprocess.run(["bash", "-n", str(script)], check=True)
    assert SHELLCHECK, "shellcheck is a development dependency: pip install -e '.[dev]'"
    subprocess.run([SHELLCHECK, str(script)], check=True)
    assert file.executable


def test_only_the_trainers_own_checkpoints_are_converted_on_the_way() -> None:
    assert "convert-checkpoint.sh" in surviving(job_with()).text
    for file in (surviving(job_with(), converts=False), surviving(OWN), surviving(job_with(checkpoint_dir=""))):
        assert "convert-checkpoint.sh" not in file.text


def test_a_program_of_ones_own_gets_deepspeeds_conversion_and_says_what_it_needs(tmp_path: Path) -> None:
    script = tmp_path / "convert.sh"
    script.write_text(conversion(OWN).text)
    run = subprocess.run(["bash", str(script)], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "CHECKPOINT_DIR" in run.stderr
    assert "ds_to_universal" in script.read_text()
    assert "planner.runtime.convert_checkpoint" in conversion(job_with()).text
