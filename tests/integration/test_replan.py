"""Planning again after the hardware changed, with real CPU trials: from two ranks to one and to four."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.integration.children import read_plan, read_trials, succeed
from tests.integration.running import Planner, planner_fixture

planner = planner_fixture

JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 32, global_batch_size: 4, steps: 6, checkpoint: {folder: checkpoints, interval: 2}}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 2, memory_gib: 2}
search:
  zero_stage: [1]
  tensor_parallel_size: [1, 2]
  pipeline_parallel_size: 1
  micro_batch_size: [1, 2]
  activation_checkpointing: none
  precision: fp32
trials: {mode: real, max_trials: 2, steps: 1, time_budget: 5m, timeout: 120s}
"""


def cluster_file(folder: Path, *, gpus_per_node: int, memory_gib: float = 2.0) -> Path:
    path = folder / f"cluster-{gpus_per_node}-{memory_gib:g}.yaml"
    usable = {"nominal_gib": 64, "usable_gib": memory_gib, "kind": "measured", "source": "the job's own cap"}
    gpu = {**yaml.safe_load(Path("configs/gpus/cpu.yaml").read_text()), "memory": usable}
    path.write_text(yaml.safe_dump({"name": "new", "gpu": gpu, "gpus_per_node": gpus_per_node}))
    return path


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan for two ranks, by two real trials."""
    folder = tmp_path_factory.mktemp("old")
    (folder / "job.yaml").write_text(JOB)
    succeed("plan", folder / "job.yaml", "--out", folder / "plan", "--no-validate")
    return folder / "plan"


def replanned(old: Path, *words: object) -> dict[str, Any]:
    before = contents(old)
    run = succeed("replan", old, *words, "--json")
    assert contents(old) == before, "the old folder is only read"
    document: dict[str, Any] = json.loads(run.out)
    return document


def test_replan_nothing_changed_is_the_same_plan_without_a_trial(old: Path) -> None:
    document = replanned(old)
    assert document["changed"] is False
    assert document["plan_dir"] == document["old_plan_dir"] == str(old)
    assert document["plan"] == read_plan(old)
    assert document["old_plan_here"]["kind"] == "measured"
    assert sorted(path.name for path in old.parent.iterdir()) == ["job.yaml", "plan"]


def test_replan_to_fewer_ranks_keeps_the_batch_and_says_what_it_costs(old: Path, tmp_path: Path) -> None:
    cluster = cluster_file(tmp_path, gpus_per_node=1)
    document = replanned(old, "--cluster", cluster, "--out", tmp_path / "new", "--no-validate")
    plan = read_plan(tmp_path / "new")
    assert "gpus_per_node" in [change["kind"] for change in document["changes"]]
    assert "needs 2 GPUs, and there are 1" in document["old_plan_here"]["sentence"]
    assert plan["candidate"]["layout"]["data_parallel_size"] == 1
    batch = plan["candidate"]["batch"]
    assert batch["micro_batch_size"] * batch["gradient_accumulation_steps"] == 4
    assert plan["promise"]["step_time_kind"] == "measured"
    assert (document["num_trials_kept"], document["num_trials_prior"]) == (0, len(read_trials(old)))
    assert plan["replanned"]["old_key"] == read_plan(old)["key"]
    assert document["checkpoint"]["way"] == "convert"
    assert (tmp_path / "new" / "launch" / "convert-checkpoint.sh").is_file()


def test_replan_to_more_ranks_and_back_by_the_kept_trials(old: Path, tmp_path: Path) -> None:
    """Four ranks are tried anew. From more memory on the same ranks every trial holds, and no new one is needed."""
    wide = replanned(
        old, "--cluster", cluster_file(tmp_path, gpus_per_node=4), "--out", tmp_path / "wide", "--no-validate"
    )
    layout = read_plan(tmp_path / "wide")["candidate"]["layout"]
    assert layout["data_parallel_size"] * layout["tensor_parallel_size"] == 4
    assert "leaving 2 GPUs idle" in wide["old_plan_here"]["sentence"]
    roomy = cluster_file(tmp_path, gpus_per_node=2, memory_gib=3)
    same = replanned(old, "--cluster", roomy, "--out", tmp_path / "roomy", "--max-trials", 0, "--no-validate")
    assert [change["kind"] for change in same["changes"]] == ["usable_memory"]
    assert same["num_trials_kept"] == len(read_trials(old))
    assert same["key"] == same["old_key"]
    assert same["checkpoint"]["way"] == "as_is"
    kept = [trial for trial in read_trials(tmp_path / "roomy") if trial["kept_from"]]  # the winner's last one is new
    assert [trial["kept_from"] for trial in kept] == [f"{old}#{trial['number']}" for trial in read_trials(old)]
    assert all((tmp_path / "roomy" / "logs" / trial["log_name"]).is_file() for trial in kept)
    again = replanned(tmp_path / "roomy")
    assert again["changed"] is False


def spoil_nothing(folder: Path) -> None:
    shutil.rmtree(folder)


def spoil_foreign(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "thesis.txt").write_text("mine")


def spoil_half(folder: Path) -> None:
    (folder / "plan.yaml").unlink()


def spoil_newer(folder: Path) -> None:
    for name in ("plan.yaml", ".meshplan.json"):
        text = (folder / name).read_text()
        (folder / name).write_text(text.replace("format: 1", "format: 99").replace('"format": 1', '"format": 99'))


def spoil_job(folder: Path) -> None:
    text = (folder / "job.yaml").read_text()
    (folder / "job.yaml").write_text(text.replace("global_batch_size: 4", "global_batch_size: 8"))


def spoil_trials(folder: Path) -> None:
    (folder / "trials.jsonl").unlink()


def spoil_plan(folder: Path) -> None:
    (folder / "plan.yaml").write_text("format: 1\nkey: [")


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        (spoil_nothing, "there is no plan folder"),
        (spoil_foreign, "is not a plan folder"),
        (spoil_half, "has no plan.yaml"),
        (spoil_newer, "written by a newer planner"),
        (spoil_job, "is not the job that the plan was made for"),
        (spoil_trials, "which the plan was chosen by"),
        (spoil_plan, "cannot be read"),
    ],
)
def test_replan_of_a_wrong_folder_says_so_and_touches_nothing(
    old: Path, tmp_path: Path, planner: Planner, spoil: Any, expected: str
) -> None:
    folder = Path(shutil.copytree(old, tmp_path / "copy"))
    spoil(folder)
    before = contents(tmp_path)
    run = planner("replan", str(folder), "--cluster", "auto")
    assert run.exit_code == 2
    said = [line for line in run.err.splitlines() if line.startswith(("error:", "why:", "fix:"))]
    assert len(said) == 3
    assert expected in said[0]
    assert contents(tmp_path) == before


def test_replan_into_the_old_folder_or_an_unknown_cluster_is_refused(old: Path, planner: Planner) -> None:
    before = contents(old.parent)
    for words, expected in (
        (("--cluster", "nowhere"), "there is no cluster 'nowhere'"),
        (("--cluster", "dgx-h100", "--trials", "none", "--out", str(old / "new")), "into the old one's folder"),
        (("--cluster", "dgx-h100", "--trials", "none", "--out", str(old)), "into the old one's folder"),
        (("--cluster", str(old / "plan.yaml")), "--cluster"),
    ):
        run = planner("replan", str(old), *words)
        assert run.exit_code == 2
        assert expected in run.err
    assert contents(old.parent) == before


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_replan_training_goes_on_under_the_new_plan(old: Path, tmp_path: Path) -> None:
    """The scripts as they were emitted: trained on two ranks, refused on one with the command that mends it, converted
    by the emitted script, resumed on one to the end, with the losses of a training that never stopped."""
    place = Path(shutil.copytree(old.parent, tmp_path / "moved"))
    cluster = cluster_file(tmp_path, gpus_per_node=1)
    succeed("replan", old, "--cluster", cluster, "--out", tmp_path / "new", "--no-validate", "--max-trials", 1)
    checkpoints = old.parent / "checkpoints"

    def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["bash", str(script), *words], capture_output=True, text=True, check=False, cwd="/")

    def losses(text: str) -> dict[int, float]:
        lines = (line.split() for line in text.splitlines() if line.startswith("step "))
        return {int(words[1].split("/")[0]): float(words[3]) for words in lines}

    whole = run(place / "plan" / "launch.sh", "--no-checkpoint")
    assert whole.returncode == 0, whole.stderr
    try:
        first = run(old / "launch.sh", "--steps", "3")
        assert first.returncode == 0, first.stderr
        refused = run(tmp_path / "new" / "launch.sh", "--resume")
        assert refused.returncode != 0
        assert "convert_checkpoint" in refused.stderr + refused.stdout
        for _ in range(2):  # the second time there is nothing to do
            converted = run(tmp_path / "new" / "launch" / "convert-checkpoint.sh")
            assert converted.returncode == 0, converted.stderr
        resumed = run(tmp_path / "new" / "launch.sh", "--resume")
        assert resumed.returncode == 0, resumed.stderr
        stitched = losses(first.stdout) | losses(resumed.stdout)
        assert stitched == pytest.approx(losses(whole.stdout), rel=1e-3)
        assert len(stitched) == 6
    finally:
        shutil.rmtree(checkpoints, ignore_errors=True)


EMULATED = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 32, global_batch_size: 32}
cluster: {gpu: cpu, nodes: 4, gpus_per_node: 2, memory_gib: 2}
search:
  zero_stage: [0]
  tensor_parallel_size: 1
  pipeline_parallel_size: 1
  micro_batch_size: [1, 2]
  activation_checkpointing: none
  precision: fp32
trials: {mode: emulated, max_trials: 2, steps: 1, time_budget: 5m, timeout: 120s}
"""


@pytest.mark.slow
def test_replan_keeps_emulated_trials_whose_ranks_do_the_same_work(tmp_path: Path) -> None:
    """Eight ranks to four without a new trial: what a rank did is known, what it sends is priced anew."""
    (tmp_path / "job.yaml").write_text(EMULATED)
    (tmp_path / "hosts").write_text("a slots=2\nb slots=2\n")
    old = tmp_path / "plan"
    succeed("plan", tmp_path / "job.yaml", "--out", old, "--no-validate")
    words = ("--cluster", tmp_path / "hosts", "--out", tmp_path / "new", "--no-validate", "--max-trials", "0")
    document = replanned(old, *words)
    assert (document["num_trials_kept"], document["num_trials_prior"]) == (len(read_trials(old)), 0)
    plan = read_plan(tmp_path / "new")
    assert plan["candidate"]["layout"]["data_parallel_size"] == 4
    assert (
        plan["candidate"]["batch"]["gradient_accumulation_steps"] * 4 * plan["candidate"]["batch"]["micro_batch_size"]
        == 32
    )
    assert plan["promise"]["step_time_kind"] == "emulated"
    assert document["checkpoint"]["way"] == "as_is"
