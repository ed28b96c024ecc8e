"""The Optuna study: opened, checked against the trials (the truth), mended or made again, and told what ended.

Of each trial Optuna gets its parameters (the tuple of axis values), a value to maximise, and the constraint `memory`:
the share by which the memory shown, or needed at least, exceeds what a winner may use. An out-of-memory trial is
therefore COMPLETE with the worst value and a positive constraint; one that was stopped because it was too slow is
PRUNED; a crash, a hang, a divergence is FAIL. Optuna is
imported here, in `shared` and in `samplers` only, and all are loaded when a search starts.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage, InMemoryStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalRedisBackend
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import SQLAlchemyError

from planner.errors import InputError
from planner.redaction import hide_url_passwords
from planner.search.axes import Axes, AxisValue
from planner.search.history import Ended, Observation
from planner.search.problem import SearchProblem
from planner.search.scoring import study_value
from planner.search.shared import WORKER, record_attributes, record_of
from planner.search.storage import StudyKind, StudyPlace, file_of_url
from planner.spec._record import record
from planner.spec.codec import DecodeError, from_plain, to_plain
from planner.spec.trial import Measured, TrialRecord

CONSTRAINT = "memory"
_OBSERVATION = "observation"  # user attribute: what `history` needs, as JSON
_KEY = "key"
_STARTED = "started_at_s"  # in a shared study, where two may have tried one candidate: a kill before it was told
_LOCK_WAIT_S = 30  # a dashboard reading the study may hold SQLite's lock for a moment
_CONNECT_S = 10  # for a server that does not answer
_OPENINGS = 3  # two planners that make the tables of one database at the same moment get in each other's way
_PAUSE_S = 0.5
_EXTRAS = {"postgresql": "postgresql", "mysql": "mysql", "mariadb": "mysql", "redis": "redis", "rediss": "redis"}


@record
class Told:
    """One ended trial in Optuna's terms."""

    trial: TrialRecord
    params: tuple[tuple[str, AxisValue], ...]
    observation: Observation
    value: float | None  # None: the trial failed, or was stopped early
    constraint: float | None

    @property
    def state(self) -> TrialState:
        """Optuna's word for how it ended."""
        if self.value is not None:
            return TrialState.COMPLETE
        return TrialState.PRUNED if self.observation.ended is Ended.PRUNED else TrialState.FAIL

    def attributes(self, place: StudyPlace) -> dict[str, Any]:
        """Optuna's user attributes; in a shared study the whole trial, so that the others get it."""
        told = {
            _KEY: self.trial.key,
            "outcome": type(self.trial.outcome).__name__,
            _OBSERVATION: to_plain(self.observation),
        }
        if place.is_ours_alone:
            return told
        return {**told, _STARTED: self.trial.started_at_s, **record_attributes(self.trial)}


def told_of(trial: TrialRecord, observation: Observation, *, axes: Axes, problem: SearchProblem) -> Told:
    """What Optuna is told of a trial: a pure translation."""
    value = None
    if isinstance(trial.outcome, Measured) and observation.ended is Ended.MEASURED:
        value = study_value(trial.outcome, trial.candidate.layout.world_size, problem.objective, target=problem.target)
    elif observation.ended is Ended.OUT_OF_MEMORY:
        value = 0.0
    return Told(
        trial=trial,
        params=tuple(axes.values_at(observation.row).items()),
        observation=observation,
        value=value,
        constraint=observation.memory_bytes / problem.limit_bytes - 1.0 if observation.memory_bytes else None,
    )


def distributions_of(axes: Axes) -> dict[str, CategoricalDistribution]:
    """Optuna's search space: every axis independent; which tuples are legal is the samplers' to know."""
    return {axis.name: CategoricalDistribution(axis.values) for axis in axes.axes}


def open_study(place: StudyPlace, *, axes: Axes, truth: tuple[Told, ...]) -> optuna.Study:
    """The study at `place`, holding exactly the trials of `truth` (at a shared URL: at least those).

    A study file that is missing, damaged, of another space or ahead of the trials is made anew; trials it misses are
    added. Trials that began and never ended (a kill) are failed. Raises InputError when the storage cannot be used, or
    holds no study to join.
    """
    with storage_errors(place):
        if place.path is not None:
            study = _load_file(place, axes, truth)
            if study is None:
                _remove_files(place.path)
                study = _create(place)
        else:
            study = _create(place)
        _fail_abandoned(study, place)
        known = [_identity(trial.user_attrs) for trial in _told_trials(study)]
        for told in truth:
            if _identity(told.attributes(place)) not in known:
                study.add_trial(_frozen(told, axes, place))
        return study


def read_shared_trials(place: StudyPlace) -> tuple[TrialRecord, ...]:
    """The trials in a shared study, made if need be. Raises InputError when it cannot be used or joined."""
    with storage_errors(place):
        ended = [trial for trial in _create(place).get_trials(deepcopy=False) if trial.state.is_finished()]
    return tuple(record for record in map(record_of, (trial.user_attrs for trial in ended)) if record is not None)


def ask(study: optuna.Study, *, axes: Axes, place: StudyPlace) -> tuple[Trial, int]:
    """Begin a trial: the sampler proposes one candidate. Returns Optuna's trial and the candidate's row.

    What somebody enqueued through Optuna comes first; of that, a tuple that is no candidate is failed and passed over.
    """
    with storage_errors(place):
        while True:
            trial = study.ask(distributions_of(axes))
            if place.worker:
                trial.set_user_attr(WORKER, place.worker)
            row = axes.row_of(trial.params)
            if row is not None:
                return trial, row
            study.tell(trial, state=TrialState.FAIL)


def tell(study: optuna.Study, trial: Trial, told: Told, *, axes: Axes, place: StudyPlace) -> None:
    """End a trial. It was durable in the trial file before."""
    with storage_errors(place):
        try:
            for name, value in told.attributes(place).items():
                trial.set_user_attr(name, value)
            if told.constraint is not None:
                trial.set_constraint(CONSTRAINT, told.constraint)
            if told.value is None:
                study.tell(trial, state=told.state)
            else:
                study.tell(trial, told.value)
        except UpdateFinishedTrialError:  # taken back by another planner, to whom we were silent for too long
            study.add_trial(_frozen(told, axes, place))


def give_back(study: optuna.Study, trial: Trial, *, place: StudyPlace) -> None:
    """End a trial that was cut off, or lost to another planner: it counts as never tried. A storage that is away keeps
    it as running; whoever opens the study next, or waits for it, clears it."""
    with suppress(InputError), storage_errors(place):
        study.tell(trial, state=TrialState.FAIL, skip_if_finished=True)


def read_history(study: optuna.Study, axes: Axes, *, besides: int = -1) -> tuple[Observation, ...]:
    """All trials that ended, or run at another worker, as observations; but not Optuna's trial number `besides`."""
    return history_of(study.get_trials(deepcopy=False), axes, besides=besides)


def history_of(trials: list[FrozenTrial], axes: Axes, *, besides: int = -1) -> tuple[Observation, ...]:
    """The same of trials that were read before."""
    seen = []
    for trial in trials:
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


def _identity(attributes: Mapping[str, Any]) -> tuple[str, float]:
    return str(attributes[_KEY]), float(attributes.get(_STARTED, 0.0))


def _load_file(place: StudyPlace, axes: Axes, truth: tuple[Told, ...]) -> optuna.Study | None:
    """The study in the file, or None when it is missing, damaged, or does not tell the beginning of the truth."""
    if not place.file.exists() or _is_torn_journal(place):
        return None
    try:
        study = _create(place)
        trials = _told_trials(study)
        wanted = [(told.trial.key, dict(told.params), to_plain(told.observation)) for told in truth[: len(trials)]]
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
    for attempt in range(1, _OPENINGS + 1):
        try:
            return _create_at_once(place)
        except (SQLAlchemyError, optuna.exceptions.StorageInternalError):
            if place.is_ours_alone or attempt == _OPENINGS:
                raise
            time.sleep(_PAUSE_S * attempt)
    raise AssertionError("the last attempt returned or raised")


def _create_at_once(place: StudyPlace) -> optuna.Study:
    with _quiet():
        storage = _storage(place)
        if place.must_exist:
            _refuse_missing(place, tuple(optuna.get_all_study_names(storage)))
        return optuna.create_study(study_name=place.name, storage=storage, direction="maximize", load_if_exists=True)


def _refuse_missing(place: StudyPlace, found: tuple[str, ...]) -> None:
    """Raises InputError, naming what is there instead, when there is no study to join."""
    if place.name in found:
        return
    ours = [name for name in found if name.startswith("meshplan-")]
    same_job = [name for name in ours if name[:_JOB_PART] == place.name[:_JOB_PART]]
    if same_job:
        why = "it holds one of this very job, begun on another kind of machine or with other versions of the software"
        fix = "join from a machine like that one with the same versions (planner --version, pip list)"
    elif ours:
        why = f"it holds {len(ours)} of other jobs: model, training, cluster, ranges or objective differ"
        fix = "give the very job file, with the very --set, that the study was begun with (job.yaml of its plan folder)"
    else:
        why = "it holds none at all"
        fix = "begin one there with --storage in place of --join, or correct the URL"
    raise InputError(f"there is no study of this job to join at {place.shown}", why=why, fix=fix)


_JOB_PART = len("meshplan-") + 16  # of a study's name: up to the end of the job hash


def _storage(place: StudyPlace) -> BaseStorage:
    if place.kind is StudyKind.MEMORY:
        return InMemoryStorage()
    if place.kind is StudyKind.URL:
        return _shared_storage(place.url)
    if place.kind is StudyKind.JOURNAL:
        _remove_stale_journal_locks(place.file)
        return JournalStorage(JournalFileBackend(str(place.file)))
    # Opened by path and not by URL: in a URL, a folder's name with `?`, `#` or `%` would name another file.
    connect = partial(sqlite3.connect, place.file, timeout=_LOCK_WAIT_S, check_same_thread=False)
    return RDBStorage("sqlite://", engine_kwargs={"creator": connect})


def _shared_storage(url: str) -> BaseStorage:
    scheme = url.partition("://")[0].partition("+")[0]
    if scheme == "journal":
        return JournalStorage(JournalFileBackend(str(file_of_url(url))))
    if scheme in ("redis", "rediss"):
        return JournalStorage(JournalRedisBackend(url))
    waits = {"sqlite": {"timeout": _LOCK_WAIT_S}, "postgresql": {"connect_timeout": _CONNECT_S}}
    # pool_pre_ping: a search is longer than a server's patience with silent connections, or its uptime
    return RDBStorage(url, engine_kwargs={"connect_args": waits.get(scheme, {}), "pool_pre_ping": True})


def _fail_abandoned(study: optuna.Study, place: StudyPlace) -> None:
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        if place.is_ours_alone or trial.user_attrs.get(WORKER) == place.worker:
            study.tell(trial.number, state=TrialState.FAIL)


def _frozen(told: Told, axes: Axes, place: StudyPlace) -> FrozenTrial:
    trial = optuna.trial.create_trial(
        state=told.state,
        value=told.value,
        params=dict(told.params),
        distributions=dict(distributions_of(axes)),
        user_attrs=told.attributes(place),
        constraints=None if told.constraint is None else {CONSTRAINT: told.constraint},
    )
    started_at_s = told.trial.started_at_s
    trial.datetime_start = datetime.fromtimestamp(started_at_s)
    trial.datetime_complete = datetime.fromtimestamp(started_at_s + told.trial.duration_s)
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
def storage_errors(place: StudyPlace) -> Iterator[None]:
    """Turns what a storage raises into the InputError of a study that cannot be used."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error, optuna.exceptions.StorageInternalError, ImportError, OSError) as problem:
        raise _unusable(place, problem) from problem
    except Exception as problem:
        if not type(problem).__module__.startswith("redis."):  # not importable without its extra
            raise
        raise _unusable(place, problem) from problem


def _unusable(place: StudyPlace, problem: Exception) -> InputError:
    cause: Any = problem.__cause__ or problem
    why = hide_url_passwords(" ".join(str(cause).split()))[:300] or type(cause).__name__
    fix = "free space or mend the permissions of the plan folder, then run again with --resume: no trial is lost"
    if place.kind is StudyKind.URL:
        fix = "check --storage and that its server answers, then run again with --resume: no trial is lost"
        extra = _EXTRAS.get(place.url.partition("://")[0].partition("+")[0])
        if isinstance(cause, ImportError) and extra:
            why = f"its driver is not installed ({why})"
            fix = f"pip install 'meshplan[{extra}]'"
    return InputError(f"the study at {place.shown} cannot be used", why=why, fix=fix)
