"""The reference trainer's command line: who this process is, and what it reads."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from planner.errors import InputError
from planner.runtime.train import CALLER_FOLDER, LaunchedRank, from_caller, launched_rank, load_task, main
from planner.spec.codec import to_plain
from tests.distributed.layouts import make_task


@pytest.mark.parametrize(
    ("environment", "local_rank", "expected"),
    [
        ({}, None, (0, 1, 0)),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}, None, (5, 8, 1)),
        ({"RANK": "5", "WORLD_SIZE": "8"}, 3, (5, 8, 3)),
        ({"SLURM_PROCID": "9", "SLURM_NTASKS": "16", "SLURM_LOCALID": "1"}, None, (9, 16, 1)),
        (
            {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "2"},
            None,
            (2, 4, 2),
        ),
    ],
)
def test_launched_rank_each_launcher_is_understood(
    environment: dict[str, str], local_rank: int | None, expected: tuple[int, int, int]
) -> None:
    rank, world_size, local = expected
    assert launched_rank(environment, local_rank=local_rank) == LaunchedRank(
        rank=rank, world_size=world_size, local_rank=local
    )


def test_load_task_config_in_its_own_file_is_put_in_unchanged(tmp_path: Path) -> None:
    task = make_task("llama")
    text = json.dumps(json.loads(task.ds_config_json), indent=3)
    (tmp_path / "ds_config.json").write_text(text)
    (tmp_path / "task.json").write_text(json.dumps(to_plain(dataclasses.replace(task, ds_config_json=""))))
    loaded = load_task(tmp_path / "task.json", ds_config_path=tmp_path / "ds_config.json")
    assert loaded == dataclasses.replace(task, ds_config_json=text)


@pytest.mark.parametrize("content", [None, "{", "{}", '{"model": 3}'])
def test_load_task_unreadable_refused_naming_the_file(content: str | None, tmp_path: Path) -> None:
    path = tmp_path / "task.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match=r"cannot be read"):
        load_task(path, ds_config_path=None)


def test_main_unreadable_task_exits_2_with_three_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--task", str(tmp_path / "nothing.json")]) == 2
    told = capsys.readouterr().err
    assert [line.split(":")[0] for line in told.strip().splitlines()] == ["error", "why", "fix"]


def test_main_checkpoints_of_another_training_are_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latest").write_text("global_step5000")
    (tmp_path / "task.json").write_text(json.dumps(to_plain(make_task("llama", checkpoint_dir=str(tmp_path)))))
    assert main(["--task", str(tmp_path / "task.json")]) == 2
    told = capsys.readouterr().err
    assert "already holds checkpoints" in told
    assert "--resume" in told


def test_main_export_that_cannot_be_written_is_refused_before_the_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make_task("llama")
    (tmp_path / "task.json").write_text(json.dumps(to_plain(task)))
    assert main(["--task", str(tmp_path / "task.json"), "--export", str(tmp_path)]) == 2
    assert "an export never writes over anything" in capsys.readouterr().err


def test_export_of_a_factorys_model_is_refused(tmp_path: Path) -> None:
    from planner.runtime.export import refuse_export

    of_factory: Any = SimpleNamespace(model=SimpleNamespace(config_json="", name="mine"))
    with pytest.raises(InputError, match="mine cannot be exported"):
        refuse_export(of_factory, tmp_path / "new")


@pytest.mark.parametrize("steps", ["0", "-1", "many"])
def test_main_steps_that_are_no_number_of_steps_are_refused(steps: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--task", "task.json", "--steps", steps])
    assert end.value.code == 2
    assert "--steps" in capsys.readouterr().err


def test_train_module_import_is_light() -> None:
    code = "import planner.runtime.train, sys; sys.exit('torch' in sys.modules or 'deepspeed' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_train_folders_of_options_are_found_from_where_the_start_script_was_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CALLER_FOLDER, raising=False)
    monkeypatch.chdir(tmp_path)
    assert from_caller(Path("out")) == tmp_path / "out"
    monkeypatch.setenv(CALLER_FOLDER, "/somewhere")
    assert from_caller(Path("out")) == Path("/somewhere/out")
    assert from_caller(Path("/else/out")) == Path("/else/out")
    assert from_caller(None) is None
