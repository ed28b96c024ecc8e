"""What the report is made from: which candidates are shown, the near miss, the model's errors, logs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from planner.app.candidate_map import MAX_FITTING, MAX_OTHERS, candidate_map, frontier_rows
from planner.app.doubt import near_miss, sensitivity
from planner.app.draft import Draft, draft_plan
from planner.app.report_input import file_text, trial_logs
from planner.app.selection import Selection, choices_by_model
from planner.emit import EmittedFile
from planner.jobfile import load_job, resolve_job
from planner.rundir import RunDir
from planner.spec import OutOfMemory, Phase, TrialRecord

JOBS = Path(__file__).parents[3] / "configs" / "jobs"


def _draft(name: str, *overrides: str) -> Draft:
    return draft_plan(resolve_job(load_job(JOBS / name, overrides), machine=None, traced=None))


def _choice(draft: Draft) -> Selection:
    return next(choices_by_model(draft))


def test_frontier_is_what_nothing_that_fits_beats() -> None:
    draft = _draft("llama-3.1-70b-8x8-h100.yaml")
    fits, estimates = draft.fitting(), draft.estimates
    frontier = set(frontier_rows(estimates, fits=fits).tolist())
    memory, speed = estimates.device_used_bytes, estimates.tokens_per_s
    for row in np.flatnonzero(fits).tolist():
        beaten = fits & (memory <= memory[row]) & (speed >= speed[row])
        beaten &= (memory < memory[row]) | (speed > speed[row])
        if row in frontier:
            assert not beaten.any()
        elif not beaten.any():  # equal to one that is on it
            assert any(memory[row] == memory[one] and speed[row] == speed[one] for one in frontier)


def test_map_of_a_quarter_million_candidates_is_small_and_shows_every_layout_that_fits() -> None:
    draft = _draft("llama-3.1-405b-scale.yaml")
    assert len(draft.columns) > 200_000
    fits = draft.fitting()
    keep = (int(draft.order[-1]),)
    shown = candidate_map(draft, draft.estimates, fits=fits, trials=(), keep=keep)
    layouts = {
        (row.zero_stage, row.layout.tensor_parallel_size, row.layout.pipeline_parallel_size)
        for row in (one.row.candidate for one in shown.shown if one.fits)
    }
    columns = draft.columns
    every = zip(columns.zero_stage[fits], columns.tensor_parallel_size[fits], columns.pipeline_parallel_size[fits])
    assert layouts == {tuple(int(value) for value in layout) for layout in every}
    assert len(shown.shown) <= MAX_FITTING + MAX_OTHERS + len(layouts) + 200
    assert draft.row(keep[0]).key in {one.row.key for one in shown.shown}
    memory = [one.row.estimate.memory.device_used_bytes for one in shown.shown]
    assert memory == sorted(memory)
    assert sum(one.is_on_frontier for one in shown.shown) == len(frontier_rows(draft.estimates, fits=fits))
    assert (shown.num_legal, shown.num_fit) == (len(draft.columns), int(fits.sum()))


def test_near_miss_would_be_faster_and_misses_by_the_least_of_those() -> None:
    draft = _draft("llama-3.1-70b-8x8-h100.yaml")
    selection, fits = _choice(draft), draft.fitting()
    miss = near_miss(draft, draft.estimates, fits=fits, selection=selection)
    assert miss is not None and miss.is_faster and miss.over_bytes > 0
    assert miss.row.estimate.tokens_per_s > selection.promise.tokens_per_s
    estimates, limit = draft.estimates, draft.estimates.usable_bytes * 0.95
    faster = ~fits & (estimates.tokens_per_s > selection.promise.tokens_per_s * 1.01)
    over = np.maximum(estimates.high_bytes, estimates.device_used_bytes)[faster] - limit
    assert miss.over_bytes <= over.min() + 1


def test_near_miss_is_none_where_everything_fits() -> None:
    draft = _draft("quickstart.yaml")
    assert draft.fitting().all()
    assert near_miss(draft, draft.estimates, fits=draft.fitting(), selection=_choice(draft)) is None


def test_error_of_the_model_changes_the_choice_only_where_another_is_better_then() -> None:
    draft = _draft("llama-3.1-70b-8x8-h100.yaml")
    selection = _choice(draft)
    doubt = sensitivity(draft, draft.estimates, fits=draft.fitting(), selection=selection)
    assert doubt is not None and doubt.rival is not None
    rival_s = doubt.rival.estimate.tokens_per_s
    assert doubt.lead_fraction == pytest.approx(selection.promise.tokens_per_s / rival_s - 1)
    assert len(doubt.cases) >= 4
    for case in doubt.cases:
        assert (case.best.key == selection.candidate.key) == (case.loss_fraction == 0)
    counts = [count for _, count in doubt.within]
    assert counts == sorted(counts)


def test_logs_are_the_ends_of_the_files_without_secrets_or_what_the_outcome_kept(tmp_path: Path) -> None:
    run_dir = RunDir.create(tmp_path / "plan", "hash")
    candidate = _choice(_draft("quickstart.yaml")).candidate
    end = OutOfMemory(
        rank=0, phase=Phase.FORWARD, requested_bytes=1, allocated_bytes=1, capacity_bytes=1, log_tail="kept by it"
    )
    trial = TrialRecord(
        number=0, key=candidate.key, candidate=candidate, outcome=end, started_at_s=0.0, duration_s=1.0, machine="m",
        log_name="trial-0000.log",
    )  # fmt: skip
    long = "\n".join(f"line {number}" for number in range(5000)) + "\nHF_TOKEN=hf_abcdefgh \xff"
    run_dir.log_file(0).write_bytes(long.encode("latin-1"))
    escaping = dataclasses.replace(trial, number=1, log_name="../../etc/passwd")
    first, second = trial_logs(run_dir, (trial, escaping))
    assert first.text.endswith("HF_TOKEN=*** \N{REPLACEMENT CHARACTER}") and len(first.text.splitlines()) == 40
    assert first.is_cut
    assert second.text == "kept by it"


def test_secrets_of_the_environment_are_not_in_the_reports_files() -> None:
    text = "#!/usr/bin/env bash\nexport WANDB_API_KEY=abcdef0123\nexport NCCL_DEBUG=WARN\n"
    shown = file_text(EmittedFile(path="launch.sh", text=text))
    assert shown.lines == ("#!/usr/bin/env bash", "export WANDB_API_KEY=***", "export NCCL_DEBUG=WARN")
    assert len(shown.whys) == 3
