"""`planner plan --survive N`: whole folders for fewer nodes, and the script that picks one at once."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.integration.children import read_plan, succeed
from tests.integration.running import Planner, planner_fixture

planner = planner_fixture

JOB = """\
model: {name: llama-3.1-8b}
training: {seq_len: 4096, global_batch_size: 96, checkpoint: {folder: checkpoints, interval: 10}}
cluster: {gpu: h100-sxm-80gb, nodes: 4, gpus_per_node: 8}
search: {tensor_parallel_size: 8, pipeline_parallel_size: 1, zero_stage: [1], micro_batch_size: [1, 2]}
trials: {mode: none}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("survive")
    (place / "job.yaml").write_text(JOB.replace("folder: checkpoints", "folder: plan/checkpoints"))
    run = succeed("plan", place / "job.yaml", "--survive", "3", "--out", place / "plan")
    assert "3 nodes: tp8-pp1-dp3-z1" in run.out
    return place / "plan"


def test_survive_writes_whole_validated_plans_at_the_same_batch(folder: Path) -> None:
    main = read_plan(folder)
    assert [one["nodes"] for one in main["survive"]] == [3, 2, 1]
    for one in main["survive"]:
        place = folder / one["folder"]
        plan = read_plan(place)
        assert plan["key"] == one["key"]
        assert [(step["name"], step["passed"]) for step in plan["validation"]] == [("rules", True), ("parse", True)]
        config = json.loads((place / "ds_config.json").read_text())
        assert config["train_batch_size"] == 96
        assert yaml.safe_load((place / "job.yaml").read_text())["cluster"]["resolved"]["nodes"] == one["nodes"]
        assert os.access(place / "launch.sh", os.X_OK)
        assert one["checkpoint"] == "convert"
        assert (place / "launch" / "convert-checkpoint.sh").is_file()
        assert (place / "task.json").is_file()


def test_survive_folders_are_plan_folders_for_the_other_verbs(folder: Path, planner: Planner, tmp_path: Path) -> None:
    place = folder / "survive" / "2"
    assert planner("emit", str(place), "--launcher", "slurm", "--out", str(tmp_path / "slurm")).exit_code == 0
    assert (tmp_path / "slurm" / "launch" / "slurm.sbatch").is_file()
    assert planner("report", str(place)).exit_code == 0
    assert planner("replan", str(place)).exit_code == 0
    run = planner("replan", str(place), "--out", str(tmp_path / "r2"))
    assert run.exit_code == 0 and "nothing was written to" in run.err
    run = planner("replan", str(place), "--survive", "1", "--out", str(tmp_path / "r2"))
    assert run.exit_code == 2 and "--survive 1 has no effect" in run.err
    assert not (tmp_path / "r2").exists()


def surviving(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    script = folder / "launch" / "launch-surviving.sh"
    return subprocess.run(
        ["bash", str(script), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd="/",
        env={**os.environ, **environment},
    )


def test_survive_script_picks_the_plan_for_the_nodes_alive(folder: Path) -> None:
    for alive, expected in (
        ("4", folder),
        ("9", folder),
        ("3", folder / "survive" / "3"),
        ("01", folder / "survive" / "1"),
    ):
        run = surviving(folder, "--which", alive)
        assert (run.returncode, run.stdout.strip()) == (0, str(expected)), run.stderr
    assert surviving(folder, "--which", "0").returncode == 3
    for behind in (("2", "--which"), ("2", "--resume", "--which")):  # asking starts nothing, wherever it is asked
        run = surviving(folder, *behind)
        assert (run.returncode, run.stdout.strip()) == (0, str(folder / "survive" / "2")), run.stderr
    for words in ((), ("--which",), ("many",), ("-1",), ("2; rm",), ("--resume", "2"), ("--whcih", "2")):
        run = surviving(folder, *words)
        assert run.returncode == 2
        assert "usage" in run.stderr


def test_survive_script_converts_before_going_on_and_passes_options(folder: Path, tmp_path: Path) -> None:
    """With stand-ins for what it starts: the first node converts when it goes on, and only then."""
    copy = tmp_path / "a copy"
    subprocess.run(["cp", "-r", str(folder), str(copy)], check=True)
    place = copy / "survive" / "2"
    (place / "launch.sh").write_text('echo "started in 2 with $*"\n')
    (place / "launch" / "convert-checkpoint.sh").write_text("echo converted\n")
    assert (
        surviving(copy, "2", "--resume", "--steps", "5").stdout == "converted\nstarted in 2 with --resume --steps 5\n"
    )
    assert surviving(copy, "2", "--steps", "5").stdout == "started in 2 with --steps 5\n"
    assert surviving(copy, "2", "--resume", NODE_RANK="1").stdout == "started in 2 with --resume\n"


def test_survive_folders_share_the_checkpoints_wherever_the_plan_is_moved(
    folder: Path, planner: Planner, tmp_path: Path
) -> None:
    def told(place: Path) -> Path:
        return Path(json.loads((place / "task.json").read_text())["training"]["checkpoint_dir"])

    moved = tmp_path / "moved"
    subprocess.run(["cp", "-r", str(folder), str(moved)], check=True)
    assert told(moved) == Path("checkpoints")
    for nodes in ("3", "2", "1"):
        place = moved / "survive" / nodes
        assert (place / told(place)).resolve() == moved.resolve() / "checkpoints"
    # Written elsewhere by itself it has none beside it: then the place is named in full.
    assert planner("emit", str(moved / "survive" / "2"), "--out", str(tmp_path / "alone")).exit_code == 0
    assert told(tmp_path / "alone") == moved.resolve() / "checkpoints"


def test_survive_and_replan_never_name_the_old_hosts_for_other_nodes(planner: Planner, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("".join(f"old{number} slots=8\n" for number in (1, 2, 3, 4)))
    job = JOB.replace("nodes: 4, gpus_per_node: 8", "hostfile: hosts") + "launch: {launcher: deepspeed}\n"
    (tmp_path / "job.yaml").write_text(job)
    plan = tmp_path / "plan"
    run = planner("plan", str(tmp_path / "job.yaml"), "--survive", "2", "--out", str(plan), "--no-validate")
    assert run.exit_code == 0, run.err
    assert (plan / "hostfile").read_text().startswith("old1 slots=8\n")
    for nodes in ("3", "2"):
        assert "old1" not in (plan / "survive" / nodes / "job.yaml").read_text()
        assert not (plan / "survive" / nodes / "hostfile").exists()
    started = surviving(plan, "3")
    assert started.returncode == 2 and "name one with HOSTFILE" in started.stderr
    for names in (("new1", "new2"), ("new1", "new2", "new3", "new4")):  # other sizes, and only other names
        (tmp_path / "new hosts").write_text("".join(f"{name} slots=8\n" for name in names))
        new = tmp_path / f"new{len(names)}"
        words = ("replan", str(plan), "--cluster", str(tmp_path / "new hosts"), "--out", str(new), "--no-validate")
        run = planner(*words)
        assert run.exit_code == 0, run.err
        assert "hosts: new1, new2" in run.out
        assert (new / "hostfile").read_text() == (tmp_path / "new hosts").read_text()
        assert "old1" not in (new / "job.yaml").read_text()
    run = planner("replan", str(plan), "--cluster", "dgx-h200", "--out", str(tmp_path / "named"), "--no-validate")
    assert run.exit_code == 0, run.err
    assert not (tmp_path / "named" / "hostfile").exists()


def test_survive_numbers_that_cannot_be_used_are_said_with_the_nearest(planner: Planner, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("global_batch_size: 96", "global_batch_size: 64"))
    words = ("plan", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "plan"), "--no-validate")
    run = planner(*words, "--survive", "1")
    assert run.exit_code == 0
    assert "3 nodes: no plan; 2 nodes can" in run.out
    (one,) = read_plan(tmp_path / "plan")["survive"]
    assert (one["folder"], one["nearest_nodes"]) == ("", 2)
    assert not (tmp_path / "plan" / "launch" / "launch-surviving.sh").exists()
    # Planned again without: nothing of the former is taken for a plan.
    assert planner(*words, "--survive", "2", "--resume").exit_code == 0
    assert (tmp_path / "plan" / "survive" / "2" / "plan.yaml").is_file()
    assert planner(*words, "--resume").exit_code == 0
    assert not (tmp_path / "plan" / "survive" / "2" / "plan.yaml").exists()
    refused = planner(*words, "--survive", "4")
    assert refused.exit_code == 2
    assert "the cluster has 4 nodes" in refused.err
