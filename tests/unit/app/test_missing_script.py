"""A script of the user's own that is not there is told before the trials, with what it was probably meant to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.app.missing_script import refuse_missing_script
from planner.app.progress import SilentProgress
from planner.errors import InputError
from planner.spec import JobSpec, TrialMode
from tests.unit.app.builders import SMALL
from tests.unit.jobfile.jobs import job_of

OWN = SMALL + 'launch: {command: "trian.py --deepspeed {deepspeed_config}"}\n'


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def _refuse(job: JobSpec, folder: Path, *, mode: TrialMode = TrialMode.REAL) -> list[str]:
    notes = Notes()
    refuse_missing_script(job, job_path=folder / "job.yaml", mode=mode, console=notes)
    return notes.texts


def test_misspelt_script_is_refused_with_the_near_file(tmp_path: Path) -> None:
    (tmp_path / "train.py").touch()
    with pytest.raises(InputError) as refused:
        _refuse(job_of(tmp_path, OWN), tmp_path)
    assert refused.value.exit_code == 2
    assert refused.value.error == "there is no script trian.py"
    assert str(tmp_path) in refused.value.why
    assert refused.value.fix == "did you mean train.py?"


def test_without_trials_here_a_note_is_enough(tmp_path: Path) -> None:
    (note,) = _refuse(job_of(tmp_path, OWN), tmp_path, mode=TrialMode.NONE)
    assert "expects it on the cluster" in note


def test_script_is_found_beside_the_job_and_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, here = tmp_path / "other", tmp_path / "here"
    other.mkdir()
    here.mkdir()
    monkeypatch.chdir(here)
    text = OWN.replace("launch: {", "launch: {folder: other, ")
    (here / "trian.py").touch()
    assert job_of(tmp_path, text).launch.folder == str(here)
    (tmp_path / "trian.py").touch()
    assert job_of(tmp_path, text).launch.folder == str(tmp_path)
    (other / "trian.py").touch()
    job = job_of(tmp_path, text)
    assert job.launch.folder == str(other)
    assert _refuse(job, tmp_path) == []
