"""Several planners on one study: who is alive, what the others' trials were, which of two proposals of one candidate
counts.

Each planner keeps the truth in its own folder; the study carries every trial whole (the user attribute `record`), so
that each folder gets the others' too and any of them can finish with the plan. A planner says every few seconds that
its trial is alive; one that falls silent is taken for dead and its candidate is open again. Silence is measured by the
clock of whoever listens: clocks of two hosts need not agree.
"""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import optuna
from optuna.exceptions import OptunaError, UpdateFinishedTrialError
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from planner.errors import InputError
from planner.search.axes import Axes
from planner.search.problem import Clock
from planner.search.storage import StudyPlace
from planner.spec.codec import DecodeError, from_plain, to_plain
from planner.spec.trial import TrialRecord

WORKER = "worker"
BEAT = "beat"
RECORD = "record"
_PIECES = "record pieces"
_LARGEST_ATTRIBUTE = 48_000  # characters: MySQL holds an attribute in 64 KiB
_POLL_S = 0.5  # how often a planner with nothing to try looks for the others' ends
_CLAIM_POLL_S = 0.02
_CLAIM_WAIT_S = 10.0  # for a planner that has begun a trial and not yet said of what: longer, and it is dead


def record_attributes(trial: TrialRecord) -> dict[str, Any]:
    """The trial as user attributes: as it is, or (many ranks, many steps) packed and in pieces."""
    plain = to_plain(trial)
    text = json.dumps(plain, separators=(",", ":"), allow_nan=False)
    if len(text) <= _LARGEST_ATTRIBUTE:
        return {RECORD: plain}
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    pieces = [packed[start : start + _LARGEST_ATTRIBUTE] for start in range(0, len(packed), _LARGEST_ATTRIBUTE)]
    return {**{f"{RECORD} {number}": piece for number, piece in enumerate(pieces)}, _PIECES: len(pieces)}


def record_of(attributes: Mapping[str, Any]) -> TrialRecord | None:
    """The trial that the attributes carry; None when they carry none. Raises InputError for one of another version."""
    try:
        if RECORD in attributes:
            return from_plain(TrialRecord, attributes[RECORD])
        if _PIECES in attributes:
            packed = "".join(attributes[f"{RECORD} {number}"] for number in range(attributes[_PIECES]))
            return from_plain(TrialRecord, json.loads(zlib.decompress(base64.b85decode(packed))))
    except (DecodeError, ValueError, KeyError, TypeError, zlib.error) as problem:
        raise InputError(
            "a trial of the shared study cannot be read",
            why=str(problem)[:300],
            fix="let all planners of one study be of one version, or begin a new study (another database)",
        ) from problem
    return None


def lost_the_race(study: optuna.Study, trial: Trial, *, axes: Axes, clock: Clock) -> bool:
    """Whether another planner has the candidate that `trial` just proposed: one that ended or, of those that run, the
    one that began first.

    A trial that began earlier and has not said its candidate yet is waited for, so that of two never both go on.
    """
    row = axes.row_of(trial.params)
    until_s = clock.monotonic_s() + _CLAIM_WAIT_S
    while True:
        others = [one for one in study.get_trials(deepcopy=False) if one.number != trial.number]
        earlier = [one for one in others if one.state is TrialState.RUNNING and one.number < trial.number]
        if any(axes.row_of(one.params) == row for one in (*earlier, *filter(_carries_record, others))):
            return True
        if not any(len(one.params) < len(axes.axes) for one in earlier) or clock.monotonic_s() >= until_s:
            return False
        clock.sleep(_CLAIM_POLL_S)


def _carries_record(trial: FrozenTrial) -> bool:
    return trial.state.is_finished() and (RECORD in trial.user_attrs or _PIECES in trial.user_attrs)


@contextlib.contextmanager
def beating(trial: Trial, place: StudyPlace) -> Iterator[None]:
    """While the body runs, say in the shared study that this trial is alive."""
    if place.is_ours_alone:
        yield
        return
    stop = threading.Event()
    thread = threading.Thread(target=_beat, args=(trial, stop, place.beat_s), name="study-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(timeout=place.beat_s)


def _beat(trial: Trial, stop: threading.Event, beat_s: float) -> None:
    count = 0
    while not stop.wait(beat_s):
        count += 1
        try:
            trial.set_user_attr(BEAT, count)
        except UpdateFinishedTrialError:
            return  # taken back by another, who believed us dead: `tell` will find that out
        except (SQLAlchemyError, OptunaError, OSError):
            continue  # the storage is away for a moment; the main thread meets it when it matters


class Others:
    """The other planners of a study, as one of them sees them in the trials it read at one moment. Alone (a study in
    the plan folder), there are none."""

    def __init__(self, study: optuna.Study, *, place: StudyPlace, clock: Clock) -> None:
        self._study = study
        self._place = place
        self._clock = clock
        self._read: set[int] = set()  # Optuna's numbers of the trials whose records were looked at
        self._heard: dict[int, tuple[int, float]] = {}  # of running trials: the last beat, and when it was new

    def new_records(self, trials: list[FrozenTrial]) -> tuple[TrialRecord, ...]:
        """The trials that ended anywhere since the last look, one's own among them. Raises InputError for one of
        another version."""
        if self._place.is_ours_alone:
            return ()
        ended = [one for one in trials if one.number not in self._read and _carries_record(one)]
        self._read |= {one.number for one in ended}
        records = [record_of(one.user_attrs) for one in ended]
        return tuple(record for record in records if record is not None)

    def take_back(self, trials: list[FrozenTrial]) -> None:
        """End the trials of planners that fell silent, so that their candidates are open at the next look."""
        for one in self._running(trials):
            if self._silence_s(one) > self._place.grace_s:
                self._study.tell(one.number, state=TrialState.FAIL, skip_if_finished=True)

    def num_running(self, trials: list[FrozenTrial]) -> int:
        """How many trials run elsewhere, those of the silent included until they are taken back."""
        return len(self._running(trials))

    def wait(self) -> None:
        """Wait a moment for a trial that runs elsewhere."""
        self._clock.sleep(_POLL_S)

    def _silence_s(self, trial: FrozenTrial) -> float:
        beat, now_s = int(trial.user_attrs.get(BEAT, 0)), self._clock.monotonic_s()
        last_beat, since_s = self._heard.get(trial.number, (-1, now_s))
        if beat != last_beat:
            since_s = now_s
            self._heard[trial.number] = (beat, now_s)
        return now_s - since_s

    def _running(self, trials: list[FrozenTrial]) -> list[FrozenTrial]:
        return [] if self._place.is_ours_alone else [one for one in trials if one.state is TrialState.RUNNING]


def number_for(wanted: int, taken: Callable[[int], bool]) -> int:
    """`wanted`, or the next number that is free."""
    while taken(wanted):
        wanted += 1
    return wanted
