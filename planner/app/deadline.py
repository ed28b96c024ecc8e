"""A deadline that no candidate meets: said with what would meet it. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.app.draft import Draft, estimate_space, fitting
from planner.app.forecast import forecast_of, target_of
from planner.app.selection import Selection
from planner.errors import NoFeasiblePlan
from planner.report.forecast import deadline_words
from planner.report.units import format_seconds, format_tokens
from planner.search import world_sizes
from planner.space import enumerate_candidates
from planner.spec import JobSpec
from planner.spec.forecast import Forecast

# Larger clusters that are looked at: every half power of two, up to sixteen times the nodes.
_FACTORS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
# The model may be off by some; a search of trials is not begun when even this many times the modelled speed is late.
_HOPELESS = 2.0


def refuse_hopeless(draft: Draft, *, by_model: bool) -> None:
    """Before any trial: nothing that fits comes near the deadline. `by_model`: there will be none, so that the model's
    word counts to the day. Raises NoFeasiblePlan."""
    target = target_of(draft.job)
    rows = np.flatnonzero(fitting(draft.job, draft.estimates))
    if target is None or not len(rows):
        return
    worlds = world_sizes(draft.columns)[rows]
    slack = target.slack(np.log(draft.estimates.tokens_per_s[rows]), worlds)
    best = int(rows[np.argmax(slack)])
    if float(slack.max()) < (0.0 if by_model else -np.log(_HOPELESS)):
        row = draft.row(best)
        step_s, kind = row.estimate.step_time_s, row.estimate.kind
        raise _missed(draft.job, forecast_of(draft.job, row.candidate, step_time_s=step_s, kind=kind))


def refuse_missed(job: JobSpec, selection: Selection) -> None:
    """The best choice is late, and so is every other. Raises NoFeasiblePlan."""
    promise = selection.promise
    forecast = forecast_of(job, selection.candidate, step_time_s=promise.step_time_s, kind=promise.step_time_kind)
    if not forecast.is_in_time:
        raise _missed(job, forecast)


def _missed(job: JobSpec, forecast: Forecast) -> NoFeasiblePlan:
    late_s = forecast.expected_s - forecast.within_s
    return NoFeasiblePlan(
        f"no plan trains {format_tokens(forecast.tokens)} {deadline_words(forecast)}",
        why=f"the nearest, on {forecast.world_size} GPUs, takes {format_seconds(forecast.expected_s)} "
        f"({forecast.kind}; failures included), {format_seconds(late_s)} too long",
        fix=_what_would_do(job, forecast),
        tally=(("late", 1),),
    )


def _what_would_do(job: JobSpec, forecast: Forecast) -> str:
    """The smallest larger cluster in time by the model, the tokens that are done in time, the time that is needed."""
    ways = []
    more = _nodes_in_time(job)
    if more:
        ways.append(f"use {more} such nodes, which are in time by the model")
    done = forecast.tokens * forecast.within_s / forecast.expected_s
    ways += [
        f"allow {format_seconds(forecast.expected_s)} from the start",
        f"train at most {format_tokens(done)}",
    ]
    return "; or ".join(ways)


def _nodes_in_time(job: JobSpec) -> int:
    """0 where none of the sizes looked at is."""
    target = target_of(job)
    counts = tuple(sorted({max(round(job.cluster.nodes * factor), job.cluster.nodes + 1) for factor in _FACTORS}))
    columns = enumerate_candidates(replace(job, node_counts=()), nodes=counts).columns
    if target is None or not len(columns):
        return 0
    estimates = estimate_space(job, columns)
    in_time = target.slack(np.log(estimates.tokens_per_s), world_sizes(columns)) >= 0
    rows = np.flatnonzero(fitting(job, estimates) & in_time)
    return int(columns.nodes[rows].min()) if len(rows) else 0
