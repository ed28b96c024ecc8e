"""The use case `supervise`: what is refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.app.requests import SuperviseRequest
from planner.app.supervise import _checkpoint_dir, supervise_run
from planner.errors import InputError
from planner.rundir import RunDir, names


def test_node_rank_beyond_the_nodes_is_refused(tmp_path: Path) -> None:
    request = SuperviseRequest(plan_dir=tmp_path, command=("true",), nodes=2, node_rank=5)
    with pytest.raises(InputError, match="--node-rank 5"):
        supervise_run(request)


@pytest.mark.parametrize("program", ["/nonexistent/x", "/tmp"])
def test_unsupervised_command_that_cannot_be_started_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    monkeypatch.setenv("MESHPLAN_SUPERVISE", "off")
    with pytest.raises(InputError, match=program):
        supervise_run(SuperviseRequest(plan_dir=tmp_path, command=(program,)))


@pytest.mark.parametrize("text", ["x", "", "[]", "{}", '{"training": {}}', '{"training": {"checkpoint_dir": 1}}'])
def test_damaged_task_is_refused(tmp_path: Path, text: str) -> None:
    run_dir = RunDir.create(tmp_path / "plan", "hash")
    run_dir.write_text(names.TASK, text)
    with pytest.raises(InputError, match="damaged"):
        _checkpoint_dir(run_dir)
