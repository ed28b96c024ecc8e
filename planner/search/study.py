"""The Optuna study: opened, checked against the trials (the truth), mended or made again, and told what ended.

Of each trial Optuna gets its parameters (the tuple of axis values), a value to maximise, and the constraint `memory`:
the share by which the memory shown, or needed at least, exceeds what a winner may use. An out-of-memory trial is
therefore COMPLETE with the worst value and a positive constraint; a crash, a hang, a divergence is FAIL. Optuna is
imported here and in `samplers` only, and both are loaded when a search starts.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from planner.errors import InputError
from planner.search.axes import Axes, AxisValue
from planner.search.history import Ended, Observation
from planner.search.problem import SearchProblem
from planner.search.scoring import study_value
from planner.search.storage import StudyKind, StudyPlace
from planner.spec._record import record
from planner.spec.codec import DecodeError, from_plain, to_plain
from planner.spec.trial import Measured, TrialRecord

CONSTRAINT = "memory"
_OBSERVATION = "observation"  # user attribute: what `history` needs, as JSON
_KEY = "key"
_WORKER = "worker"
_LOCK_WAIT_S = 30  # a dashboard reading the study may hold SQLite's lock for a moment


@record
class Told:
    """One ended trial in Optuna's terms."""

    key: str
    params: tuple[tuple[str, AxisValue], ...]
    observation: Observation
    outcome: str
    value: float | None  # None: the trial failed
    constraint: float | None
    started_at_s: float
    duration_s: float


def told_of(trial: TrialRecord, observation: Observation, *, axes: Axes, problem: SearchProblem) -> Told:
    """What Optuna is told of a trial: a pure translation."""
    value = None
    if isinstance(trial.outcome, Measured) and observation.ended is Ended.MEASURED:
        value = study_value(trial.outcome, trial.candidate.layout.world_size, problem.objective)
    elif observation.ended is Ended.OUT_OF_MEMORY:
        value = 0.0
    return Told(
        key=trial.key,
        params=tuple(axes.values_at(observation.row).items()),
        observation=observation,
        outcome=type(trial.outcome).__name__,
        value=value,
        constraint=None if value is None else observation.memory_bytes / problem.limit_bytes - 1.0,
        started_at_s=trial.started_at_s,
        duration_s=trial.duration_s,
    )


def distributions_of(axes: Axes) -> dict[str, CategoricalDistribution]:
    """Optuna's search space: every axis independent; which tuples are legal is the samplers' to know."""
    return {axis.name: CategoricalDistribution(axis.values) for axis in axes.axes}


def open_study(place: StudyPlace, *, axes: Axes, truth: tuple[Told, ...]) -> optuna.Study:
    """The study at `place`, holding exactly the trials of `truth` (at a shared URL: at least those).

    A study file that is missing, damaged, of another space or ahead of the trials is made anew; trials it misses are
    added. Trials that began and never ended (a kill) are failed. Raises InputError when the storage cannot be used.
    """
    with _storage_errors(place):
        if place.path is not None:
            study = _load_file(place, axes, truth)
            if study is None:
                _remove_files(place.path)
                study = _create(place)
        else:
            study = _create(place)
        _fail_abandoned(study, place)
        known = [trial.user_attrs[_KEY] for trial in _told_trials(study)]
        for told in truth:
            if told.key not in known:
                study.add_trial(_frozen(told, axes))
        return study


def ask(study: optuna.Study, *, axes: Axes, place: StudyPlace) -> tuple[Trial, int]:
    """Begin a trial: the sampler proposes one candidate. Returns Optuna's trial and the candidate's row.

    What somebody enqueued through Optuna comes first; of that, a tuple that is no candidate is failed and passed over.
    """
    with _storage_errors(place):
        while True:
            trial = study.ask(distributions_of(axes))
            if place.worker:
                trial.set_user_attr(_WORKER, place.worker)
            row = axes.row_of(trial.params)
            if row is not None:
                return trial, row
            study.tell(trial, state=TrialState.FAIL)


def tell(study: optuna.Study, trial: Trial, told: Told, *, place: StudyPlace) -> None:
    """End a trial. It was durable in the trial file before."""
    with _storage_errors(place):
        trial.set_user_attr(_KEY, told.key)
        trial.set_user_attr("outcome", told.outcome)
        trial.set_user_attr(_OBSERVATION, to_plain(told.observation))
        if told.constraint is not None:
            trial.set_constraint(CONSTRAINT, told.constraint)
        if told.value is None:
            study.tell(trial, state=TrialState.FAIL)
        else:
            study.tell(trial, told.value)


def give_back(study: optuna.Study, trial: Trial, *, place: StudyPlace) -> None:
    """End a trial that was cut off: it counts as never tried."""
    with _storage_errors(place):
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)


def read_history(study: optuna.Study, axes: Axes, *, besides: int = -1) -> tuple[Observation, ...]:
    """All trials that ended, or run at another worker, as observations; but not Optuna's trial number `besides`."""
    seen = []
    for trial in study.get_trials(deepcopy=False):
        if trial.number == besides or (axes.axes and not trial.params):
            continue
        row = axes.row_of(trial.params)
        if row is None:
            continue
        if _OBSERVATION in trial.user_attrs and trial.state.is_finished():
            seen.append(from_plain(Observation, {**trial.user_attrs[_OBSERVATION], "row": row}))
        elif trial.state is TrialState.RUNNING:
            seen.append(Observation(row=row, ended=Ended.RUNNING))
    return tuple(seen)


def _told_trials(study: optuna.Study) -> list[FrozenTrial]:
    return [
        trial
        for trial in study.get_trials(deepcopy=False)
        if trial.state.is_finished() and {_OBSERVATION, _KEY} <= trial.user_attrs.keys()
    ]


def _load_file(place: StudyPlace, axes: Axes, truth: tuple[Told, ...]) -> optuna.Study | None:
    """The study in the file, or None when it is missing, damaged, or does not tell the beginning of the truth."""
    if not place.file.exists() or _is_torn_journal(place):
        return None
    try:
        study = _create(place)
        trials = _told_trials(study)
        wanted = [(told.key, dict(told.params), to_plain(told.observation)) for told in truth[: len(trials)]]
        found = [(t.user_attrs[_KEY], t.params, t.user_attrs[_OBSERVATION]) for t in trials]
        same_space = all(t.distributions in ({}, distributions_of(axes)) for t in study.get_trials(deepcopy=False))
        for trial in trials:
            from_plain(Observation, trial.user_attrs[_OBSERVATION])
    except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.OptunaError, DecodeError, *_DAMAGE):
        return None
    return study if same_space and found == wanted else None


def _is_torn_journal(place: StudyPlace) -> bool:
    """A kill while Optuna wrote a line of its journal: what is appended to half a line makes the file unreadable."""
    return place.kind is StudyKind.JOURNAL and place.file.read_bytes()[-1:] != b"\n"


# What reading a damaged file raises besides the database's own errors: alembic's RuntimeError for an unknown schema,
# decoding errors of a journal's lines, an assertion on a table that lost a row.
_DAMAGE = (RuntimeError, ValueError, KeyError, TypeError, AttributeError, AssertionError)


def _create(place: StudyPlace) -> optuna.Study:
    with _quiet():
        return optuna.create_study(
            study_name=place.name, storage=_storage(place), direction="maximize", load_if_exists=True
        )


def _storage(place: StudyPlace) -> BaseStorage:
    if place.kind is StudyKind.MEMORY:
        return InMemoryStorage()
    if place.kind is StudyKind.URL:
        return RDBStorage(place.url)
    if place.kind is StudyKind.JOURNAL:
        _remove_stale_journal_locks(place.file)
        return JournalStorage(JournalFileBackend(str(place.file)))
    # Opened by path and not by URL: in a URL, a folder's name with `?`, `#` or `%` would name another file.
    connect = partial(sqlite3.connect, place.file, timeout=_LOCK_WAIT_S, check_same_thread=False)
    return RDBStorage("sqlite://", engine_kwargs={"creator": connect})


def _fail_abandoned(study: optuna.Study, place: StudyPlace) -> None:
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if place.is_ours_alone or trial.user_attrs.get(_WORKER) == place.worker:
            study.tell(trial.number, state=TrialState.FAIL)


def _frozen(told: Told, axes: Axes) -> FrozenTrial:
    trial = optuna.trial.create_trial(
        state=TrialState.FAIL if told.value is None else TrialState.COMPLETE,
        value=told.value,
        params=dict(told.params),
        distributions=dict(distributions_of(axes)),
        user_attrs={_KEY: told.key, "outcome": told.outcome, _OBSERVATION: to_plain(told.observation)},
        constraints=None if told.constraint is None else {CONSTRAINT: told.constraint},
    )
    trial.datetime_start = datetime.fromtimestamp(told.started_at_s)
    trial.datetime_complete = datetime.fromtimestamp(told.started_at_s + told.duration_s)
    return trial


def _remove_files(path: Path) -> None:
    """The study file and what SQLite keeps beside it."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _remove_stale_journal_locks(path: Path) -> None:
    """A kill leaves Optuna's lock file, and Optuna would wait for it for half a minute. The folder's own lock is
    held."""
    for stale in path.parent.glob(f"{path.name}.lock*"):
        stale.unlink(missing_ok=True)


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna announces every study on standard error; the search has its own voice."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _storage_errors(place: StudyPlace) -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError, ImportError, OSError) as problem:
        raise _unusable(place, problem) from problem


def _unusable(place: StudyPlace, problem: Exception) -> InputError:
    where = place.url or str(place.path)
    cause: Any = problem.__cause__ or problem
    return InputError(
        f"the study at {where} cannot be used",
        why=" ".join(str(cause).split())[:300] or type(cause).__name__,
        fix="check --storage (an Optuna storage such as postgresql+psycopg2://…, its driver installed) or leave it out"
        if place.kind is StudyKind.URL
        else "free space or mend the permissions of the plan folder, then run again with --resume: no trial is lost",
    )
