"""`planner replan`: what it asks and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.app.replan_request import ReplanRequest, ReplanResult
from planner.spec import Provenance, TrialMode
from planner.spec.replan import Change, ChangeKind, CheckpointRoute, CheckpointWay, Verdict
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import Cli
from tests.unit.report.samples import quickstart_report

RUNS = Verdict(
    starts=True,
    fits=True,
    sentence="it still runs: 2.56 thousand tokens/s",
    tokens_per_s=2560.0,
    kind=Provenance.FITTED,
)
CHANGE = Change(kind=ChangeKind.GPUS_PER_NODE, what="GPUs a node", before="2", after="4")
CONVERT = CheckpointRoute(way=CheckpointWay.CONVERT, why="the layouts differ: …", command="python", script="new/c.sh")


class Replanning(FakeUseCases):
    """Answers that nothing changed, or (with a cluster) that the plan was made again."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[ReplanRequest] = []

    def replan(self, request: ReplanRequest, *, console: object) -> ReplanResult:
        self.asked.append(request)
        report = quickstart_report()
        if not request.cluster:
            return ReplanResult(old_dir=request.plan_dir, old_plan=report.plan, changes=(), old_here=RUNS)
        from planner.app.requests import PlanResult
        from tests.unit.cli.fakes import make_outline

        planned = PlanResult(plan_dir=Path("new"), outline=make_outline(), plan=report.plan, report=report)
        return ReplanResult(
            old_dir=request.plan_dir,
            old_plan=report.plan,
            changes=(CHANGE,),
            old_here=RUNS,
            num_kept=2,
            num_prior=1,
            planned=planned,
            checkpoint=CONVERT,
        )


@pytest.fixture(name="product")
def product_fixture() -> Replanning:
    return Replanning()


def test_replan_passes_on_what_was_asked(cli: Cli, product: Replanning) -> None:
    words = ("--cluster", "new.yaml", "--out", "new", "--trials", "real", "--time-budget", "2m", "--survive", "3")
    assert cli("replan", "old", *words, product=product).exit_code == 0
    (asked,) = product.asked
    assert (asked.plan_dir, asked.cluster, asked.out_dir) == (Path("old"), "new.yaml", Path("new"))
    assert (asked.trial_mode, asked.time_budget_s, asked.survive) == (TrialMode.REAL, 120.0, 3)


def test_replan_nothing_changed_says_so(cli: Cli, product: Replanning) -> None:
    run = cli("replan", "old", product=product)
    assert "nothing that bears on the plan has changed" in run.out
    assert RUNS.sentence in run.out
    assert cli("replan", "old", "--quiet", product=product).out == "old\n"


def test_replan_shows_both_plans_the_gain_and_the_checkpoint(cli: Cli, product: Replanning) -> None:
    run = cli("replan", "old", "--cluster", "new.yaml", product=product)
    said = ("GPUs a node: 4, was 2", "it still runs", "2 of the old plan hold", "old", "new", "0% more", "new/c.sh")
    for expected in said:
        assert expected in run.out


def test_replan_json_is_one_document(cli: Cli, product: Replanning) -> None:
    document = json.loads(cli("replan", "old", "--cluster", "new.yaml", "--json", product=product).out)
    assert document["changed"] is True
    assert document["changes"][0]["sentence"] == "GPUs a node: 4, was 2"
    assert document["old_plan_here"]["runs"] is True
    assert document["checkpoint"]["way"] == "convert"
    assert (document["plan_dir"], document["gain_fraction"]) == ("new", 0.0)
    assert (document["num_trials_kept"], document["num_trials_prior"]) == (2, 1)
