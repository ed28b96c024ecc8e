"""What the use cases are asked and what they answer: records only, no work."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from planner.app.progress import SearchOutline
from planner.report import ReportInput
from planner.spec._record import record
from planner.spec.kinds import TrialMode
from planner.spec.plan import Plan

FROM_ENVIRONMENT = "env:"  # before the name of a variable that holds what is not to be seen on a command line


@record
class PlanRequest:
    """Plan one job. None: what the job file says (or its default). `out_dir` is the plan folder itself."""

    job_path: Path
    out_dir: Path
    cluster: str = ""  # the label of one of the job's candidate clusters, where it lists several
    site_defaults: bool = True  # lay the site's and the user's defaults below the job
    overrides: tuple[str, ...] = ()  # `key=value`, dotted keys, applied in order
    trial_mode: TrialMode | None = None
    max_trials: int | None = None
    time_budget_s: float | None = None
    seed: int | None = None
    storage: str | None = None  # an Optuna storage URL; None: SQLite in the plan folder
    pin: str = ""  # `axis=value,…`: the user's own layout, to be held against the choice
    join: bool = False  # the study at `storage` was begun by another planner: work on it as one more
    resume: bool = False
    validate: bool = True
    dry_run: bool = False
    profile: bool = False  # the winner runs once more and leaves a profile in the plan folder
    survive: int = 0  # also plan for losing up to this many nodes


@record
class PlanResult:
    """`plan` and `report` are None exactly for a dry run, which writes nothing."""

    plan_dir: Path
    outline: SearchOutline
    plan: Plan | None = None
    report: ReportInput | None = None
    files: tuple[Path, ...] = ()


@record
class VerifyRow:
    """One promised figure beside what was seen. `name` ends in its unit (`_s`, `_bytes`, `_tokens_per_s`), if any.

    `not_comparable`: why what was seen says nothing of the promise; "" where it does. Such a row is neither passed nor
    broken.
    """

    name: str
    promised: float
    seen: float
    tolerance_fraction: float  # of the promised value
    passed: bool
    not_comparable: str = ""

    @property
    def is_broken(self) -> bool:
        return not self.passed and not self.not_comparable


@record
class VerifyResult:
    """`passed`: nothing that could be compared broke its promise."""

    plan_dir: Path
    passed: bool
    rows: tuple[VerifyRow, ...]
    command: str  # what was run
    log_path: Path
    note: str = ""  # what this machine could not check, in words


class CatalogKind(StrEnum):
    """What `list` can show."""

    GPUS = "gpus"
    MODELS = "models"
    LINKS = "links"
    CLUSTERS = "clusters"
    RULES = "rules"
    CAUSES = "causes"
    DEFAULTS = "defaults"


CatalogCell: TypeAlias = str | int | float | bool


@record
class CatalogTable:
    """`columns` are field names with their unit as suffix (`memory_usable_bytes`); they are the keys of `--json`."""

    kind: CatalogKind
    columns: tuple[str, ...]
    rows: tuple[tuple[CatalogCell, ...], ...]


@record
class SuperviseRequest:
    """Run `command`, which starts all ranks of this node. `on_stderr`: its output goes there, standard output is taken
    by the answer."""

    plan_dir: Path
    command: tuple[str, ...]
    nodes: int = 1
    node_rank: int = 0
    on_stderr: bool = False


@record
class TokensRequest:
    """Make a token file from text and JSONL. `token_bytes` 0: 2 where the vocabulary allows it, else 4."""

    files: tuple[Path, ...]
    tokenizer: Path
    out_path: Path
    field: str = "text"
    token_bytes: int = 0
