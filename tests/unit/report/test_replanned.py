"""What the report says of the plan before, and of the plans for losing nodes."""

from __future__ import annotations

from dataclasses import replace

from planner.report import build_document, render_report_html, render_report_markdown
from planner.report.next_steps import next_commands
from planner.spec import Provenance
from planner.spec.replan import (
    Change,
    ChangeKind,
    CheckpointRoute,
    CheckpointWay,
    ReplanSummary,
    SurvivalPlan,
    Verdict,
)
from tests.unit.report.samples import quickstart_report

SUMMARY = ReplanSummary(
    from_dir="plans/old <one>",
    old_key="tp1-pp1-dp4",
    old_tokens_per_s=2000.0,
    old_kind=Provenance.MEASURED,
    changes=(Change(kind=ChangeKind.NODES, what="nodes", before="2", after="1"),),
    old_here=Verdict(starts=False, fits=False, sentence="it cannot start: it needs 4 GPUs, and there are 2"),
    num_kept=0,
    num_prior=3,
    checkpoint=CheckpointRoute(
        way=CheckpointWay.CONVERT, why="the layouts differ", command="python …", script="a b/convert.sh"
    ),
)
SURVIVE = (
    SurvivalPlan(nodes=3, nearest_nodes=2, note="no layout on 24 GPUs is legal: all were refused"),
    SurvivalPlan(
        nodes=2,
        folder="survive/2",
        key="tp1-pp1-dp16",
        tokens_per_s=51_000.0,
        kind=Provenance.FITTED,
        checkpoint=CheckpointWay.AS_IS,
    ),
)


def test_a_plan_that_came_first_has_no_such_sections() -> None:
    titles = {section.title for section in build_document(quickstart_report()).sections}
    assert not titles & {"Since the plan before", "If nodes are lost"}


def test_what_comes_next_converts_the_checkpoint_and_goes_on_from_it() -> None:
    report = quickstart_report()
    saving = replace(report.job.training, checkpoint_dir="checkpoints")
    report = replace(report, job=replace(report.job, training=saving))
    convert, start, _verify = next_commands(replace(report, plan=replace(report.plan, replanned=SUMMARY)))
    assert convert.command == "bash 'a b/convert.sh'"
    assert start.command.endswith("launch.sh' --resume")
    as_it_is = replace(SUMMARY, checkpoint=CheckpointRoute(way=CheckpointWay.AS_IS, why="alike"))
    start, _verify = next_commands(replace(report, plan=replace(report.plan, replanned=as_it_is)))
    assert start.command.endswith("launch.sh' --resume")
    cannot = replace(SUMMARY, checkpoint=CheckpointRoute(way=CheckpointWay.CANNOT, why="Muon"))
    start, _verify = next_commands(replace(report, plan=replace(report.plan, replanned=cannot)))
    assert start.command.endswith("launch.sh'")


def test_both_sections_are_told_in_text_and_html_with_values_escaped() -> None:
    report = quickstart_report()
    report = replace(report, plan=replace(report.plan, replanned=SUMMARY, survive=SURVIVE))
    text, page = render_report_markdown(report), render_report_html(report)
    for expected in (
        "it cannot start: it needs 4 GPUs, and there are 2",
        "0 trials of it hold here. Of 3 more: they correct the model.",
        "has to be converted once: the layouts differ",
        "bash 'a b/convert.sh'",
        "none; 2 nodes can",
        "no layout on 24 GPUs is legal",
        "loads as it is",
        "fitted",
        "launch-surviving.sh",
    ):
        assert expected in text
    assert "plans/old <one>" not in page
    assert "Since the plan before" in page
    assert "If nodes are lost" in page
