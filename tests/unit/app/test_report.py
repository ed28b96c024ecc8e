"""A report made again from the folder is the one that planning wrote, byte for byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.app.draft import Draft, draft_plan
from planner.app.jobs import read_planned_job
from planner.app.report import load_report
from planner.app.report_input import told_trials
from planner.app.selection import choices_by_trials
from planner.app.write import PlanParts, write_plan_folder
from planner.jobfile import dump_job, job_hash
from planner.report import ReportInput, render_report_html, render_report_markdown
from planner.rundir import RunDir, names
from planner.spec import Crashed, Phase, Plan, TrialRecord
from planner.trial import Machine, probe_cpu
from tests.unit.app.builders import GIB, candidates_of, draft_of, ran, result_of, trial


def test_report_of_a_winner_with_two_trials_is_the_same_bytes_again(tmp_path: Path) -> None:
    machine = probe_cpu()
    run_dir = RunDir.create(tmp_path / "plan", job_hash(draft_of(tmp_path).job))
    run_dir.write_text(names.JOB, dump_job(draft_of(tmp_path).job))
    draft = draft_plan(read_planned_job(run_dir))
    fast, second, third, broken, *_rest = candidates_of(draft)
    crashed = Crashed(rank=0, phase=Phase.FORWARD, exit_code=1, message="ValueError: no", log_tail="")
    runs = (
        trial(0, second, ran(0.387)),
        trial(1, fast, ran(0.365)),
        trial(2, third, ran(0.5)),
        trial(3, broken, crashed),
        trial(4, fast, ran(0.478, used_bytes=GIB // 2)),
        trial(5, second, ran(0.511)),
    )
    ours = tuple(replace(one, machine=machine.fingerprint) for one in runs)
    for one in (*ours, replace(runs[0], number=6)):  # the last ran on another machine
        run_dir.append_trial(one)
    told = told_trials(run_dir, machine=machine.fingerprint)
    assert told == ours
    plan, written = _write(run_dir, draft, told, machine)
    again = load_report(run_dir.path)
    assert (plan.key, plan.promise.device_used_bytes) == (fast.key, GIB // 2)
    assert render_report_markdown(again) == run_dir.read_text(names.REPORT_MARKDOWN)
    assert render_report_html(again) == run_dir.read_text(names.REPORT_HTML)
    assert again == written
    text = run_dir.read_text(names.REPORT_MARKDOWN)
    assert "422 ms" in text and "closer than their measurements' spread" in text
    assert "Trials 1 and 4 are runs of one candidate" in text


def _write(run_dir: RunDir, draft: Draft, told: tuple[TrialRecord, ...], machine: Machine) -> tuple[Plan, ReportInput]:
    selection = next(choices_by_trials(draft, result_of(*told)))
    parts = PlanParts(
        selection=selection, validation=(), job=draft.job, machine=machine, draft=draft, trials_note="a test"
    )
    with run_dir.locked():
        plan, written, _files = write_plan_folder(run_dir, parts)
    return plan, written
