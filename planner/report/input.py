"""All that a report is made from."""

from __future__ import annotations

from planner.spec._record import record
from planner.spec.candidate import Candidate
from planner.spec.estimate import Estimate
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
