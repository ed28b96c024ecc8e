"""A job's candidates priced, screened and ranked, and what a search is said to do with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from planner.app.ability import Ability
from planner.app.draft import outline_search, search_problem, what_would_fit
from planner.errors import NoFeasiblePlan
from planner.spec import TrialMode
from tests.unit.app.builders import candidates_of, draft_of, ran, trial
from tests.unit.jobfile.jobs import job_of

LLAMA_70B = """\
model: {name: llama-3.1-70b}
training: {seq_len: 8192, global_batch_size: 512}
cluster: {gpu: h100-sxm-80gb, nodes: 8, gpus_per_node: 8}
"""
REAL = Ability(mode=TrialMode.REAL, note="here")
NONE = Ability(mode=TrialMode.NONE, note="not here")


def test_draft_ranks_what_fits_before_what_does_not_and_screened_last(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, text=LLAMA_70B)
    group = np.where(draft.screened, 2, np.where(draft.fitting(), 0, 1))[draft.order]
    assert list(np.unique(group)) == [0, 1, 2]
    assert np.all(np.diff(group) >= 0)
    speeds = draft.estimates.tokens_per_s[draft.order][group == 0]
    assert np.all(np.diff(np.log(speeds)) <= 1e-6)


def test_draft_of_equal_speeds_puts_the_least_memory_first(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, "cluster.gpus_per_node=1", "search.micro_batch_size=2", "search.zero_stage=[0,1,2,3]")
    fitting = draft.order[draft.fitting()[draft.order]]
    speeds, memory = draft.estimates.tokens_per_s[fitting], draft.estimates.device_used_bytes[fitting]
    ties = np.flatnonzero(np.abs(np.diff(np.log(speeds))) < 1e-7)
    assert len(ties)
    assert all(memory[tie] <= memory[tie + 1] for tie in ties)


def test_draft_where_nothing_fits_names_the_nearest_and_the_tally(tmp_path: Path) -> None:
    with pytest.raises(NoFeasiblePlan) as caught:
        draft_of(tmp_path, "cluster.memory_gib=0.01")
    assert caught.value.tally == (("too-large-for-memory", 12),)
    assert "the nearest, ZeRO-0 dp2" in caught.value.why


def test_what_would_fit_is_a_cluster_on_which_something_does(tmp_path: Path) -> None:
    job = job_of(tmp_path, LLAMA_70B, "cluster.nodes=1", "cluster.gpus_per_node=4")
    words = what_would_fit(job)
    nodes = int(words.split()[1])
    assert words.startswith(f"use {nodes} such nodes ({nodes * 4} x h100-sxm-80gb)")
    assert draft_of(tmp_path, f"cluster.nodes={nodes}", "cluster.gpus_per_node=4", text=LLAMA_70B).fitting().any()


def test_search_problem_holds_the_candidates_that_are_worth_trying(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, text=LLAMA_70B)
    problem = search_problem(draft, seed=3, machine="m")
    kept = draft.worth_trying()
    assert not (kept & draft.screened).any()
    assert len(problem.columns) == int(kept.sum()) < len(draft.columns)
    assert (problem.seed, problem.machine, problem.policy) == (3, "m", draft.job.trials)
    np.testing.assert_array_equal(problem.priors.tokens_per_s, draft.estimates.tokens_per_s[kept])


def test_outline_bounds_trials_and_time_and_counts_what_is_kept(tmp_path: Path) -> None:
    draft = draft_of(tmp_path, "trials.max_trials=5", "trials.time_budget=100s", "trials.timeout=30s")
    problem = search_problem(draft, seed=0, machine="m")
    fresh = outline_search(draft, REAL, problem=problem, done=(), validate=False)
    assert (fresh.max_trials, fresh.num_candidates, fresh.mode) == (5, 12, TrialMode.REAL)
    assert 0 < fresh.longest_s <= 130.0
    assert "the last trial's" in fresh.longest_note and "validation" not in fresh.longest_note
    assert outline_search(draft, REAL, problem=problem, done=(), validate=True).longest_s > fresh.longest_s
    assert {row.key for row in fresh.first_candidates} <= {one.key for one in candidates_of(draft)}
    done = tuple(trial(number, one, ran(0.2)) for number, one in enumerate(candidates_of(draft)[:2]))
    resumed = outline_search(draft, REAL, problem=problem, done=done, validate=False)
    assert (resumed.max_trials, resumed.num_trials_done) == (3, 2)
    assert not {row.key for row in resumed.first_candidates} & {one.key for one in done}


def test_outline_without_trials_shows_the_models_best_and_takes_no_time(tmp_path: Path) -> None:
    draft = draft_of(tmp_path)
    problem = search_problem(draft, seed=0, machine="m")
    outline = outline_search(draft, NONE, problem=problem, done=(), validate=False)
    assert (outline.max_trials, outline.longest_s) == (0, 0.0)
    assert [row.key for row in outline.first_candidates] == [one.key for one in candidates_of(draft)[:5]]
