"""Every error a user can meet, each with its mend and its exit code.

    PlannerError
    |- InputError            2   the job, the catalog, a config, a flag: the user's input is wrong
    |- NoFeasiblePlan        3   nothing legal is left, or everything that was tried ran out of memory
    |- TrialsUnavailable     4   trials could not be started on this machine
    |- NotExpressible        5   the plan cannot be expressed for this target
    |- PromiseBroken         6   `verify` ran the plan and it did not do what was promised
    `- Interrupted         130   stopped by the user; the state is kept

A plain traceback (exit 1) means a bug. Expected ends of a trial are values (`planner.spec.Outcome`), never exceptions.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class PlannerError(Exception):
    """An end the user can do something about, printed as `error:`, `why:`, `fix:`."""

    exit_code = 1

    def __init__(self, error: str, *, why: str, fix: str) -> None:
        super().__init__(error)
        self.error = error
        self.why = why
        self.fix = fix

    def __str__(self) -> str:
        return f"error: {self.error}\nwhy: {self.why}\nfix: {self.fix}"


class InputError(PlannerError):
    """The user's input (job file, catalog, config, flag, plan folder) is wrong."""

    exit_code = 2


class NoFeasiblePlan(PlannerError):
    """No legal candidate is left, or none of them fits. `tally` counts rejections by rule name."""

    exit_code = 3

    def __init__(self, error: str, *, why: str, fix: str, tally: tuple[tuple[str, int], ...] = ()) -> None:
        super().__init__(error, why=why, fix=fix)
        self.tally = tally


class TrialsUnavailable(PlannerError):
    """Trials were asked for and this machine cannot start them."""

    exit_code = 4


class NotExpressible(PlannerError):
    """The chosen plan cannot be written for the requested launcher, consumer or version."""

    exit_code = 5


class PromiseBroken(PlannerError):
    """`verify` ran the emitted files and the result contradicts the plan."""

    exit_code = 6


class Interrupted(PlannerError):
    """The user stopped the work; everything that had ended is kept."""

    exit_code = 130


def near_matches(word: str, known: Iterable[str], *, limit: int = 3) -> tuple[str, ...]:
    """The known words that `word` was probably meant to be, best first."""
    by_folded = {name.lower(): name for name in known}
    return tuple(by_folded[hit] for hit in get_close_matches(word.lower()[:200], list(by_folded), n=limit, cutoff=0.6))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A sentence that names the near matches, or lists what is known when nothing is near."""
    names = sorted(known)
    near = near_matches(word, names)
    if near:
        return "did you mean " + " or ".join(repr(name) for name in near) + "?"
    shown = ", ".join(names[:30])
    return f"use one of: {shown}" + (f" (and {len(names) - 30} more)" if len(names) > 30 else "")
