"""The plan: what was chosen, what it promises, and from what it was made."""

from __future__ import annotations

from planner.spec._record import record
from planner.spec.candidate import Candidate
from planner.spec.estimate import Estimate
from planner.spec.kinds import Launcher, Provenance
from planner.spec.replan import ReplanSummary, SurvivalPlan

PLAN_FORMAT = 1


@record
class Promise:
    """What the plan says will be seen, and how each number was obtained. Memory is of the worst rank."""

    step_time_s: float
    step_time_kind: Provenance
    tokens_per_s: float
    device_used_bytes: int
    memory_kind: Provenance
    usable_bytes: int
    first_losses: tuple[float, ...] = ()  # of the winning trial; empty without one


@record
class RunnerUp:
    key: str
    tokens_per_s: float
    kind: Provenance


@record
class SearchSummary:
    num_candidates: int  # legal ones
    num_screened: int  # of them, not tried because memory cannot suffice
    num_trials: int
    num_out_of_memory: int
    rejected: tuple[tuple[str, int], ...]  # rule name, how many combinations it refused
    left_out_axes: tuple[tuple[str, str], ...]  # axis, reason
    trials_note: str  # which trials this machine could and could not run, in words


@record
class ValidationStep:
    name: str  # rules | parse | initialize
    passed: bool
    detail: str


@record
class Fallback:
    """One step down from the plan: the same layout, global batch and curve in less memory, as files in `folder`."""

    candidate: Candidate
    key: str
    folder: str  # inside the plan folder; holds ds_config.json and task.json
    change: str  # from the step before, in words
    estimate: Estimate
    validation: tuple[ValidationStep, ...] = ()


@record
class Plan:
    """The contents of `plan.yaml`."""

    format: int
    planner_version: str
    job_hash: str
    candidate: Candidate
    key: str
    promise: Promise
    estimate: Estimate
    trial_number: int  # -1: chosen without a trial
    runner_up: RunnerUp | None
    search: SearchSummary
    validation: tuple[ValidationStep, ...]
    launcher: Launcher
    versions: tuple[tuple[str, str], ...]
    hardware: tuple[tuple[str, str], ...]
    machine: str  # fingerprint of the machine that ran the trials
    pin: str = ""  # the user's own layout that the choice was held against, as typed
    fallbacks: tuple[Fallback, ...] = ()  # what a run that ran out of memory goes on with, in order
    packages: tuple[str, ...] = ()  # name==version of all that was installed and needed, as in a requirements file
    replanned: ReplanSummary | None = None  # from an earlier plan, when anything had changed
    survive: tuple[SurvivalPlan, ...] = ()  # plans for fewer nodes, most nodes first
