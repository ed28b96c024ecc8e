"""What the use case `replan` is asked and what it answers: records only, no work."""

from __future__ import annotations

from pathlib import Path

from planner.app.progress import SearchOutline
from planner.app.requests import PlanResult
from planner.spec._record import record
from planner.spec.kinds import TrialMode
from planner.spec.plan import Plan
from planner.spec.replan import Change, CheckpointRoute, Verdict


@record
class ReplanRequest:
    """Plan again what `plan_dir` was made for. `cluster`: what `--cluster` names, "" for the plan's own; `out_dir`
    None: beside the old folder, named after the new cluster. None elsewhere: what the job says."""

    plan_dir: Path
    cluster: str = ""
    out_dir: Path | None = None
    trial_mode: TrialMode | None = None
    max_trials: int | None = None
    time_budget_s: float | None = None
    seed: int | None = None
    resume: bool = False
    validate: bool = True
    dry_run: bool = False
    survive: int | None = None  # None: for as many lost nodes as the old plan was made for, where so many are left


@record
class ReplanResult:
    """`planned` None: nothing changed (`changes` are empty, `old_plan` stands) or a dry run (`outline` says what would
    be tried). `checkpoint` None exactly then."""

    old_dir: Path
    old_plan: Plan
    changes: tuple[Change, ...]
    old_here: Verdict
    num_kept: int = 0
    num_prior: int = 0
    carried: str = "correct the model"  # what those do here, after "they"
    outline: SearchOutline | None = None
    planned: PlanResult | None = None
    checkpoint: CheckpointRoute | None = None
    notes: tuple[str, ...] = ()
