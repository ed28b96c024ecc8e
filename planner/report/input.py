"""All that a report is made from."""

from __future__ import annotations

from planner.spec._record import record
from planner.spec.candidate import Candidate
from planner.spec.estimate import Estimate, StageProfile
from planner.spec.forecast import Forecast
from planner.spec.job import JobSpec
from planner.spec.outlook import Outlook
from planner.spec.plan import Plan
from planner.spec.trial import TrialRecord


@record
class CandidateRow:
    """A legal candidate with what the (calibrated) model says of it."""

    key: str
    candidate: Candidate
    estimate: Estimate


@record
class RejectionRow:
    """A rule that refused combinations, how many, and its sentence."""

    rule: str
    count: int
    sentence: str


@record
class ExplainedLine:
    """One setting of the emitted config: dotted key, value as JSON text, why it is there."""

    key: str
    value: str
    why: str


@record
class PinnedLayout:
    """The user's own layout beside the choice. `words` as typed. `row` None: rules refuse it (`refusals`). `trial`
    None: it was not tried, and `screened` says whether because memory cannot suffice. `is_searched`: the job's ranges
    hold it.
    """

    words: str
    row: CandidateRow | None = None
    trial: TrialRecord | None = None
    refusals: tuple[RejectionRow, ...] = ()
    is_searched: bool = False
    screened: bool = False


@record
class MappedCandidate:
    """A legal candidate in the report's plot. `fits`: the plan might promise it without a trial; `is_on_frontier`:
    nothing that fits is faster with as little memory."""

    row: CandidateRow
    fits: bool
    is_on_frontier: bool = False


@record
class CandidateMap:
    """The candidates to plot: the frontier, what was tried, and a fair sample of all others, least memory first."""

    shown: tuple[MappedCandidate, ...]
    num_legal: int
    num_fit: int


@record
class NearMiss:
    """The candidate that came closest without being possible: the fastest that would have been faster than the choice,
    or else the one that misses the least. `over_bytes`: what it may need beyond what may be used."""

    row: CandidateRow
    over_bytes: int
    is_faster: bool


@record
class ErrorCase:
    """One way the model may be wrong, and what it would choose then. `loss_fraction`: by how much the plan's choice is
    slower than that (or, where the objective is another figure, worse by it)."""

    change: str
    best: CandidateRow
    loss_fraction: float


@record
class Sensitivity:
    """How the choice stands when the model errs. `rival`: the best candidate nobody tried (or, without trials, the best
    other); `lead_fraction`: by how much it would have to be better than the model says to win; `within`: (share, how
    many candidates that fit the model has within that share of the choice). `residual_fraction`: the error that the
    trials left, None without enough trials."""

    rival: CandidateRow | None
    lead_fraction: float
    within: tuple[tuple[float, int], ...]
    cases: tuple[ErrorCase, ...]
    residual_fraction: float | None = None


@record
class TrialLog:
    """The end of a trial's log; `is_cut`: there is more in the file."""

    number: int
    text: str
    is_cut: bool = False


@record
class FileText:
    """A file of the plan folder as it was written, with what its lines are for: as many as it has lines."""

    path: str
    does: str
    lines: tuple[str, ...]
    whys: tuple[str, ...]


@record
class ReportInput:
    """`trials` in the order they ended, `tried` what the model says of their candidates; `untried` the best of the
    others by the model, best first; `screened` the best of those that were not tried because memory cannot suffice.
    `plan_dir` and the `launch_script` in it as typed from where the planner ran."""

    plan: Plan
    job: JobSpec
    plan_dir: str
    launch_script: str
    trials: tuple[TrialRecord, ...] = ()
    tried: tuple[CandidateRow, ...] = ()
    untried: tuple[CandidateRow, ...] = ()
    screened: tuple[CandidateRow, ...] = ()
    rejections: tuple[RejectionRow, ...] = ()
    config_lines: tuple[ExplainedLine, ...] = ()
    outlook: Outlook | None = None
    pinned: PinnedLayout | None = None
    forecast: Forecast | None = None
    stages: tuple[StageProfile, ...] = ()
    candidates: CandidateMap | None = None
    runner_up: CandidateRow | None = None
    near_miss: NearMiss | None = None
    sensitivity: Sensitivity | None = None
    logs: tuple[TrialLog, ...] = ()
    files: tuple[FileText, ...] = ()
