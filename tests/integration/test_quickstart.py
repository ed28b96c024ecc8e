"""The README's first line: planned by real trials, launched, verified; and the verbs on the folder it leaves."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import yaml

from tests.integration.children import QUICKSTART, planner, processes_that_mention, read_plan, read_trials, succeed

INTERFACE_FILES = {
    *("plan.yaml", "ds_config.json", "task.json", "launch.sh", "job.yaml", "trials.jsonl", "study.db"),
    *("report.html", "report.md", "logs"),
}


@pytest.fixture(scope="module")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan folder of the quickstart, made once."""
    folder = tmp_path_factory.mktemp("quickstart") / "plan"
    run = succeed("plan", QUICKSTART, "--out", folder)
    assert f"planner verify {folder}" in run.out
    assert not processes_that_mention(str(folder))
    return folder


def _copy(quickstart: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(quickstart, tmp_path / "a plan's copy"))


def test_quickstart_folder_is_complete_and_agrees_with_itself(quickstart: Path) -> None:
    plan, trials = read_plan(quickstart), read_trials(quickstart)
    shown = {path.name for path in quickstart.iterdir() if not path.name.startswith(".")}
    assert shown - {"fallbacks"} == INTERFACE_FILES  # a micro-batch of 1 leaves nothing to fall back to
    winner = next(trial for trial in trials if trial["number"] == plan["trial_number"])
    assert winner["key"] == plan["key"]
    runs = [trial["outcome"] for trial in trials if trial["key"] == plan["key"] and "ranks" in trial["outcome"]]
    steps_s = [max(times) for run in runs for times in zip(*(rank["step_times_s"] for rank in run["ranks"]))]
    assert plan["promise"]["step_time_s"] == pytest.approx(median(steps_s))
    assert [step["passed"] for step in plan["validation"]] == [True, True, True]
    config = json.loads((quickstart / "ds_config.json").read_text())
    batch = plan["candidate"]["batch"]
    assert config["train_batch_size"] == 16
    assert config["train_micro_batch_size_per_gpu"] == batch["micro_batch_size"]
    assert config["gradient_accumulation_steps"] == batch["gradient_accumulation_steps"]
    assert "auto" not in json.dumps(config)
    assert all((quickstart / "logs" / trial["log_name"]).is_file() for trial in trials)
    assert plan["promise"]["device_used_bytes"] <= 0.95 * plan["promise"]["usable_bytes"]


def test_report_made_again_is_the_one_that_planning_wrote(quickstart: Path, tmp_path: Path) -> None:
    for form, name in (("text", "report.md"), ("html", "report.html")):
        succeed("report", quickstart, "--format", form, "--out", tmp_path / name)
        assert (tmp_path / name).read_bytes() == (quickstart / name).read_bytes()


def test_quickstart_script_trains_wherever_the_folder_was_moved(quickstart: Path, tmp_path: Path) -> None:
    folder = _copy(quickstart, tmp_path)
    done = subprocess.run(
        ["bash", str(folder / "launch.sh"), "--steps", "4"], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "step 2/50" in done.stdout


def test_quickstart_keeps_its_promise(quickstart: Path) -> None:
    document = succeed("verify", quickstart, "--json").document
    assert document["passed"]
    assert {row["name"] for row in document["rows"]} >= {"sequences_per_step", "step_time_s", "loss_of_step_1"}
    assert document["command"] == f"bash {quickstart}/launch.sh --steps 5 --no-checkpoint"
    assert "step 5/50" in (quickstart / "logs" / "verify.log").read_text()


def test_verify_of_an_impossible_promise_ends_with_6_and_names_every_broken_figure(
    quickstart: Path, tmp_path: Path
) -> None:
    folder = _copy(quickstart, tmp_path)
    _edit(folder / "plan.yaml", step_time_s=1e-6, device_used_bytes=1, first_losses=[0.5])
    run = planner("verify", folder, "--steps", "4", "--json")
    assert run.exit_code == 6
    broken = [row["name"] for row in run.document["rows"] if not row["passed"]]
    assert set(broken) >= {"step_time_s", "loss_of_step_1"}
    assert "broke its promise" in run.document["error"]


def test_verify_of_a_script_that_does_not_run_ends_with_6_and_its_last_words(quickstart: Path, tmp_path: Path) -> None:
    folder = _copy(quickstart, tmp_path)
    (folder / "launch.sh").write_text("echo no such interpreter >&2; exit 3\n")
    run = planner("verify", folder)
    assert run.exit_code == 6
    assert "launch.sh of the plan did not run" in run.err
    assert "exit code 3: no such interpreter" in run.err
    assert (folder / "logs" / "verify.log").read_text().strip() == "no such interpreter"


@pytest.mark.parametrize("launcher", ["deepspeed", "slurm"])
def test_plan_emitted_for_another_launcher_is_a_plan_that_verifies(
    quickstart: Path, tmp_path: Path, launcher: str
) -> None:
    folder = tmp_path / launcher
    succeed("emit", quickstart, "--launcher", launcher, "--out", folder)
    assert read_plan(folder)["launcher"] == launcher
    assert succeed("verify", folder, "--steps", "4", "--json").document["passed"]


def test_emit_into_the_plan_folder_leaves_its_own_script_alone(quickstart: Path, tmp_path: Path) -> None:
    folder = _copy(quickstart, tmp_path)
    before = (folder / "launch.sh").read_text()
    files = succeed("emit", folder, "--launcher", "slurm", "--json").document["files"]
    assert files == [f"{folder}/launch/slurm.sh", f"{folder}/launch/slurm.sbatch"]
    assert all(os.access(path, os.X_OK) for path in files)
    succeed("emit", folder, "--launcher", "deepspeed", "--set", "launch.master_port=29777")
    assert "29777" in (folder / "launch" / "deepspeed.sh").read_text()
    assert (folder / "launch.sh").read_text() == before
    refused = planner("emit", folder, "--launcher", "kubernetes")
    assert (refused.exit_code, "kubernetes.image" in refused.err) == (2, True)
    succeed("emit", folder, "--launcher", "kubernetes", "--set", "kubernetes.image=team/train:1")
    assert "team/train:1" in (folder / "launch" / "kubernetes.yaml").read_text()
    refused = planner("emit", folder, "--set", "training.seq_len=64")
    assert (refused.exit_code, "would change what was planned" in refused.err) == (2, True)


def test_report_of_the_folder_is_what_planning_wrote(quickstart: Path) -> None:
    run = succeed("report", quickstart)
    assert run.out.rstrip("\n") == (quickstart / "report.md").read_text().rstrip("\n")
    assert succeed("report", quickstart, "--json").document["plan"]["key"] == read_plan(quickstart)["key"]
    page = (quickstart / "report.html").read_text()
    assert succeed("report", quickstart, "--format", "html").out.rstrip("\n") == page.rstrip("\n")
    assert all(f"logs/{trial['log_name']}" in page for trial in read_trials(quickstart))
    assert all(f"<code>{name}</code>" in page for name in ("ds_config.json", "task.json", "launch.sh"))


def test_same_trials_and_seed_choose_the_same_plan_without_repeating_any(quickstart: Path, tmp_path: Path) -> None:
    folder = tmp_path / "again"
    folder.mkdir()
    for name in ("trials.jsonl", ".meshplan.json"):  # the study is rebuilt from the trials
        shutil.copy(quickstart / name, folder)
    refused = planner("plan", QUICKSTART, "--out", folder)
    assert (refused.exit_code, "--resume" in refused.err) == (2, True)
    limit = str(len(read_trials(folder)))
    document = succeed("plan", QUICKSTART, "--out", folder, "--resume", "--max-trials", limit, "--json").document
    assert (folder / "trials.jsonl").read_text() == (quickstart / "trials.jsonl").read_text()
    old, new = read_plan(quickstart), read_plan(folder)
    assert {key: new[key] for key in ("key", "promise", "candidate", "trial_number", "runner_up")} == {
        key: old[key] for key in ("key", "promise", "candidate", "trial_number", "runner_up")
    }
    assert (document["key"], document["outline"]["max_trials"]) == (old["key"], 0)


def test_dry_run_says_what_would_be_tried_and_writes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "nothing"
    document = succeed("plan", QUICKSTART, "--out", folder, "--dry-run", "--json").document
    outline = document["outline"]
    assert document["dry_run"] and outline["mode"] == "real"
    assert outline["max_trials"] == 8 and len(outline["first_candidates"]) == 5
    assert 60 < outline["longest_s"] < 600
    assert not folder.exists()


def test_seed_flag_changes_the_search_and_not_the_job(tmp_path: Path) -> None:
    jobs = []
    for seed in ("1", "2"):
        succeed("plan", QUICKSTART, "--out", tmp_path / seed, "--seed", seed, "--trials", "none", "--no-validate")
        jobs.append((tmp_path / seed / "job.yaml").read_text())
    assert jobs[0] == jobs[1]


def _edit(path: Path, **promise: Any) -> None:
    plan = yaml.safe_load(path.read_text())
    plan["promise"] |= promise
    path.write_text(yaml.safe_dump(plan, sort_keys=False))
