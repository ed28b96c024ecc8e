"""Decides what to try next and which trial wins. Never meets a process: candidates are tried by an `Evaluator`.

It owns the sampler over enumerated candidates, the loop with its budget, the Optuna study (derived from the trials) and
the choice of the winner. It leaves running a trial to `trial`, pricing a candidate to `cost`, durability to `rundir`;
`app` joins them. Optuna is imported when `run_search` is called, not before.
"""

from __future__ import annotations

from planner.errors import InputError, Interrupted, did_you_mean
from planner.search.hopeless import HOPELESS_FACTOR, hopeless_step_s
from planner.search.preview import SearchPreview, expected_left_s, preview_search
from planner.search.problem import SAMPLERS, Clock, Evaluator, Priors, SearchPorts, SearchProblem
from planner.search.result import SearchResult
from planner.search.scoring import memory_bytes, utilities, world_sizes
from planner.search.storage import StudyKind, StudyPlace, study_place
from planner.search.winner import Choice, choose_winner
from planner.spec.trial import TrialRecord

__all__ = [
    "HOPELESS_FACTOR",
    "SAMPLERS",
    "Choice",
    "Clock",
    "Evaluator",
    "Priors",
    "SearchPorts",
    "SearchPreview",
    "SearchProblem",
    "SearchResult",
    "StudyKind",
    "StudyPlace",
    "choose_winner",
    "expected_left_s",
    "hopeless_step_s",
    "memory_bytes",
    "preview_search",
    "run_search",
    "shared_trials",
    "study_place",
    "utilities",
    "world_sizes",
]


def run_search(problem: SearchProblem, *, ports: SearchPorts, done: tuple[TrialRecord, ...] = ()) -> SearchResult:
    """Try candidates until nothing untried is likely to win, or the limits of the policy are reached.

    `done` are the trials of earlier runs in this folder: nothing of them is repeated. Raises InputError for an unknown
    sampler or an unusable study storage, Interrupted on Ctrl-C (everything that ended is kept), and whatever `ports`
    raise.
    """
    if problem.policy.sampler not in SAMPLERS:
        name = problem.policy.sampler
        raise InputError(f"unknown sampler {name!r}", why="it names no sampler", fix=did_you_mean(name, SAMPLERS))
    from planner.search.loop import Search  # Keep here: it imports Optuna, which the command line must start without

    try:
        return Search(problem, ports=ports).run(done)
    except KeyboardInterrupt:
        raise Interrupted(
            "the search was interrupted",
            why="Ctrl-C; every trial that had ended is kept, the one that was running is not",
            fix="run the same command with --resume to go on",
        ) from None


def shared_trials(place: StudyPlace) -> tuple[TrialRecord, ...]:
    """The trials that ended so far in a shared study, whoever ran them. Raises InputError when it cannot be used, or
    there is none to join."""
    from planner.search.study import read_shared_trials  # Keep here: it imports Optuna

    return read_shared_trials(place)
