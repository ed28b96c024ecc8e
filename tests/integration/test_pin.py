"""`planner plan --pin`: the user's own layout beside the choice, with figures, reasons and, where possible, a trial."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.rundir import RunDir
from planner.spec.trial import Measured
from tests.integration.commands import TINY_JOB, finish, start
from tests.integration.running import Planner, planner_fixture
from tests.unit.cli.running import assert_three_lines

planner = planner_fixture
CLUSTER_JOB = """\
model: {name: llama-3.1-8b}
training: {seq_len: 4096, global_batch_size: 64}
cluster: {gpu: h100-sxm-80gb, nodes: 2, gpus_per_node: 8}
trials: {mode: none}
"""


def _plan(planner: Planner, tmp_path: Path, pin: str, *flags: str) -> dict[str, object]:
    (tmp_path / "job.yaml").write_text(CLUSTER_JOB)
    words = ("plan", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out"), "--no-validate", "--json")
    run = planner(*words, "--pin", pin, *flags)
    assert run.exit_code == 0, run
    document: dict[str, object] = json.loads(run.out)
    return document


def test_layout_of_ones_own_is_priced_and_the_difference_put_into_words(planner: Planner, tmp_path: Path) -> None:
    pinned = _plan(planner, tmp_path, "tensor_parallel_size=8,pipeline_parallel_size=2")["pinned"]
    assert isinstance(pinned, dict)
    layout = pinned["row"]["candidate"]["layout"]
    assert (layout["tensor_parallel_size"], layout["pipeline_parallel_size"]) == (8, 2)
    verdict, differs, time, memory = pinned["explanation"]
    assert "tp8 pp2" in verdict and "slower than the choice" in verdict and "(computed)" in verdict
    assert "tensor 8 instead of" in differs
    assert "longer: +" in time and "tensor-parallel communication" in time
    assert "By the model its worst rank takes" in memory
    report = planner("report", str(tmp_path / "out")).out
    assert "Why not your layout" in report and verdict in report and "the choice" in report


def test_layout_that_a_rule_refuses_is_told_the_rule_and_the_plan_is_made(planner: Planner, tmp_path: Path) -> None:
    document = _plan(planner, tmp_path, "pipeline_parallel_size=4,zero_stage=3")
    pinned = document["pinned"]
    assert isinstance(pinned, dict) and pinned["row"] is None and document["plan"]
    (sentence,) = pinned["explanation"]
    assert "is refused" in sentence and "pipeline stages run with ZeRO 0 or 1 only" in sentence
    assert "pipeline-needs-zero-0-or-1" in sentence


def test_layout_that_cannot_fit_says_how_much_it_lacks(planner: Planner, tmp_path: Path) -> None:
    pinned = _plan(planner, tmp_path, "zero_stage=0,tensor_parallel_size=1,pipeline_parallel_size=1")["pinned"]
    assert isinstance(pinned, dict) and pinned["screened"]
    assert "It cannot fit, so it was not tried: it needs at least" in pinned["explanation"][0]


def test_layout_that_is_the_choice_says_so(planner: Planner, tmp_path: Path) -> None:
    document = _plan(planner, tmp_path, "precision=bf16")
    pinned = document["pinned"]
    assert isinstance(pinned, dict) and pinned["explanation"] == ["Your layout (precision=bf16) is the choice."]


def test_layout_beside_the_jobs_ranges_is_priced_and_cannot_win(planner: Planner, tmp_path: Path) -> None:
    narrow = ("--set", "search.tensor_parallel_size=[4, 8]")
    pinned = _plan(planner, tmp_path, "tensor_parallel_size=1", *narrow)["pinned"]
    assert isinstance(pinned, dict) and not pinned["is_searched"]
    assert pinned["explanation"][-1].startswith("The job's search ranges do not list it")


@pytest.mark.parametrize(
    ("pin", "error", "fix"),
    [
        ("tensor_paralel_size=8", "tensor_paralel_size is not a key", "did you mean 'tensor_parallel_size'"),
        ("tensor_parallel_size", "is not key=value", "write --pin"),
        ("tensor_parallel_size=", "is not key=value", "write --pin"),
        ("zero_stage=7", "must be from 0 to 3, found 7", "correct"),
        ("zero_stage=[1]x", "not valid YAML", "brackets"),
        ("zero_stage=1,zero_stage=2", "names zero_stage twice", "write --pin"),
        ("precision=bf17", "must be one of", "bf16"),
        ("activation_checkpointing=layers:0", "must be none, selective, full or layers:k", "layers:4"),
        ("nodes=99", "the cluster has 2", "fewer nodes"),
        (" ", "names no layout", "--pin"),
    ],
)
def test_pin_that_names_no_layout_is_refused(planner: Planner, tmp_path: Path, pin: str, error: str, fix: str) -> None:
    (tmp_path / "job.yaml").write_text(CLUSTER_JOB)
    run = planner("plan", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out"), "--no-validate", "--pin", pin)
    assert run.exit_code == 2, run
    assert_three_lines(run.err)
    assert error in run.err.splitlines()[-3] and fix in run.err.splitlines()[-1], run.err


def test_pin_beside_dry_run_is_refused(planner: Planner, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(CLUSTER_JOB)
    run = planner("plan", str(tmp_path / "job.yaml"), "--dry-run", "--pin", "zero_stage=1")
    assert run.exit_code == 2 and "no effect beside --dry-run" in run.err


def test_layout_of_ones_own_is_really_tried_once_and_does_not_win_beside_the_ranges(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TINY_JOB.replace("[0, 1]", "[0]").replace("[1, 2, 4]", "[4]"))
    words = ["plan", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out"), "--json"]
    words += ["--pin", "micro_batch_size=1,zero_stage=1"]
    code, out, err = finish(start(words))
    assert code == 0, err
    document = json.loads(out)
    trials = RunDir.open(tmp_path / "out").read_trials()
    assert [trial.candidate.zero_stage for trial in trials] == [0, 1]
    assert isinstance(trials[1].outcome, Measured) and document["plan"]["trial_number"] == 0
    assert "(measured)" in document["pinned"]["explanation"][0]
    code, out, err = finish(start([*words, "--resume"]))
    assert code == 0, err
    assert RunDir.open(tmp_path / "out").read_trials() == trials
    assert json.loads(out)["pinned"]["explanation"] == document["pinned"]["explanation"]
