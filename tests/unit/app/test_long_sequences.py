"""Sequences beyond what a rotary model was made for are noted, not refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.app.planning import prepare
from planner.app.progress import SilentProgress
from planner.app.requests import PlanRequest
from planner.trial import probe_cpu
from tests.unit.app.builders import SMALL
from tests.unit.jobfile.jobs import job_of


class Notes(SilentProgress):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


@pytest.mark.parametrize(("seq_len", "is_noted"), [(2048, False), (2049, True)])
def test_sequence_beyond_the_positions_of_the_config_is_noted(tmp_path: Path, seq_len: int, is_noted: bool) -> None:
    job = job_of(tmp_path, SMALL, f"training.seq_len={seq_len}", "cluster.memory_gib=64")
    notes = Notes()
    request = PlanRequest(job_path=tmp_path / "job.yaml", out_dir=tmp_path / "plan")
    prepare(request, console=notes, job=job, machine=probe_cpu())
    assert any("max_position_embeddings" in text for text in notes.texts) is is_noted
