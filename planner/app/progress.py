"""How a use case tells the person waiting for it what is going on. The printing is `planner.cli`'s.

Every method may be called from the thread that runs the use case only; none of them may raise or block for long.
"""

from __future__ import annotations

from typing import Protocol

from planner.spec._record import record
from planner.spec.candidate import Candidate
from planner.spec.kinds import Provenance, TrialMode
from planner.spec.trial import TrialRecord


@record
class OutlinedCandidate:
    """One of the first candidates a search would try, with what the analytic model says of it."""

    key: str
    name: str  # as people read it
    tokens_per_s: float
    device_used_bytes: int  # as a plan promises it: cached blocks included
    kind: Provenance = Provenance.COMPUTED


@record
class SearchOutline:
    """What a search is about to do: said before it starts, and all that `--dry-run` does.

    `longest_s` bounds the whole search (validation included) from above; `mode` is the one really used (never `auto`).
    """

    job_name: str
    mode: TrialMode
    world_size: int
    device_name: str
    usable_bytes: int
    num_combinations: int  # of axis values, before rules
    num_candidates: int  # legal ones
    num_screened: int  # of them, not tried because memory cannot suffice
    max_trials: int  # that can still be run; on resume, without those already done
    longest_s: float
    longest_note: str = ""  # what that is made of, in words
    num_alike: int = 0  # legal ones that are not tried because one that would run alike stands for them
    num_trials_done: int = 0  # kept from an earlier run
    first_candidates: tuple[OutlinedCandidate, ...] = ()
    rejected: tuple[tuple[str, int], ...] = ()  # rule name, how many combinations it refused
    left_out_axes: tuple[tuple[str, str], ...] = ()  # axis, reason
    trials_note: str = ""  # which trials this machine can and cannot run, in words


class Progress(Protocol):
    """What a use case calls as it goes."""

    def stage(self, name: str) -> None:
        """A new stage of the work began: a few words, lower case, such as `validate the plan`."""

    def search_started(self, outline: SearchOutline) -> None:
        """The search is about to run trials (or, with mode `none`, to decide without any)."""

    def trial_started(self, number: int, candidate: Candidate) -> None:
        """Trial `number` began."""

    def trial_ended(self, trial: TrialRecord, *, best: TrialRecord | None) -> None:
        """A trial ended and is durable; `best` is the best so far, None while none was measured."""

    def search_ended(self) -> None:
        """No more trials will run."""

    def note(self, text: str) -> None:
        """Something the user should read: one sentence."""


class SilentProgress:
    """Says nothing: for callers without anybody watching."""

    def stage(self, name: str) -> None: ...

    def search_started(self, outline: SearchOutline) -> None: ...

    def trial_started(self, number: int, candidate: Candidate) -> None: ...

    def trial_ended(self, trial: TrialRecord, *, best: TrialRecord | None) -> None: ...

    def search_ended(self) -> None: ...

    def note(self, text: str) -> None: ...
