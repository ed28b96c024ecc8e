"""What Optuna is told, and that a study can be lost, broken or behind without losing a trial."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from optuna.trial import TrialState

from planner.errors import InputError
from planner.rundir import RunDir
from planner.search import SearchPorts, StudyKind, StudyPlace, run_search, study_place
from planner.search.axes import axes_of
from planner.search.history import observe, row_of
from planner.search.shared import record_attributes, record_of
from planner.search.storage import storage_url
from planner.search.study import open_study, read_history, told_of
from planner.spec import Candidate, Measured, Outcome, TrialPolicy, TrialRecord
from tests.unit.search.builders import candidate, crashed, measured, out_of_memory, problem, trial
from tests.unit.search.landscapes import memory_ports

_SOME = tuple(candidate(micro=micro, gas=16 // micro, zero=zero) for zero in (0, 1) for micro in (1, 2, 4))
_SPACE = problem(_SOME)
_AXES = axes_of(_SPACE.columns)
_TRIALS = (
    trial(0, _SOME[0], measured(1234.5678901234)),
    trial(1, _SOME[4], out_of_memory(excess=0.25)),
    trial(2, _SOME[1], crashed()),
    trial(3, _SOME[2], measured(99.0, memory_share=0.97)),
)


def _truth(trials: tuple[TrialRecord, ...]):  # type: ignore[no-untyped-def]
    rows = [row_of(_SPACE.columns, one) for one in trials]
    return tuple(
        told_of(one, observe(row, one.outcome, usable_bytes=_SPACE.usable_bytes), axes=_AXES, problem=_SPACE)
        for one, row in zip(trials, rows)
        if row is not None
    )


def _place(folder: Path, kind: StudyKind) -> StudyPlace:
    if kind is StudyKind.URL:
        return StudyPlace(kind=kind, name="s", url=f"sqlite:///{folder}/shared.db", worker="me")
    return StudyPlace(kind=kind, name="s", path=folder / "study.db")


def _open(place: StudyPlace, trials: tuple[TrialRecord, ...]) -> optuna.Study:
    return open_study(place, axes=_AXES, truth=_truth(trials))


_FILES = [StudyKind.SQLITE, StudyKind.JOURNAL]


def test_states_values_and_constraints_are_what_optuna_needs() -> None:
    study = _open(StudyPlace(kind=StudyKind.MEMORY, name="s"), _TRIALS)
    ran, out, failed, tight = study.get_trials()
    assert ran.state is TrialState.COMPLETE and ran.value == 1234.5678901234
    assert ran.constraints["memory"] == pytest.approx(0.5 / 0.95 - 1)
    assert out.state is TrialState.COMPLETE and out.value == 0.0
    assert out.constraints["memory"] == pytest.approx(1.25 / 0.95 - 1, rel=1e-6)
    assert failed.state is TrialState.FAIL and failed.user_attrs["outcome"] == "Crashed"
    assert tight.constraints["memory"] > 0
    assert ran.params == {"micro_batch_size": 1, "zero_stage": 0}
    assert study.best_trial.number == ran.number


@pytest.mark.parametrize("kind", [*_FILES, StudyKind.URL])
def test_reopened_study_gives_the_same_history(tmp_path: Path, kind: StudyKind) -> None:
    place = _place(tmp_path, kind)
    first = read_history(_open(place, _TRIALS), _AXES)
    study = _open(place, _TRIALS)
    assert read_history(study, _AXES) == first and len(study.trials) == len(_TRIALS)


def _delete(path: Path) -> None:
    path.unlink()


def _garbage(path: Path) -> None:
    path.write_bytes(b"\x00not a database\n" * 500)


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def _middle(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3 : len(content) // 3 * 2] = b"\xff" * (len(content) // 3)
    path.write_bytes(bytes(content))


def _empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("kind", _FILES)
@pytest.mark.parametrize("damage", [_delete, _garbage, _truncate, _middle, _empty])
def test_lost_or_damaged_file_is_rebuilt_from_the_trials(
    tmp_path: Path, kind: StudyKind, damage: Callable[[Path], None]
) -> None:
    place = _place(tmp_path, kind)
    before = read_history(_open(place, _TRIALS), _AXES)
    damage(tmp_path / "study.db")
    study = _open(place, _TRIALS)
    assert read_history(study, _AXES) == before
    assert [one.user_attrs["key"] for one in study.trials] == [one.key for one in _TRIALS]


def test_study_behind_the_trials_gets_what_it_misses(tmp_path: Path) -> None:
    place = _place(tmp_path, StudyKind.SQLITE)
    _open(place, _TRIALS[:2])
    assert len(_open(place, _TRIALS).trials) == len(_TRIALS)


def test_study_ahead_of_the_trials_or_of_another_space_is_rebuilt(tmp_path: Path) -> None:
    place = _place(tmp_path, StudyKind.SQLITE)
    _open(place, _TRIALS)
    assert len(_open(place, _TRIALS[:1]).trials) == 1
    other = problem((*_SOME, candidate(micro=8, gas=2)))
    study = open_study(place, axes=axes_of(other.columns), truth=())
    assert study.trials == []


def test_trial_cut_off_by_a_kill_is_failed_and_its_candidate_free_again(tmp_path: Path) -> None:
    place = _place(tmp_path, StudyKind.SQLITE)
    cut = _open(place, _TRIALS[:1]).ask()
    study = _open(place, _TRIALS[:1])
    assert study.trials[cut.number].state is TrialState.FAIL
    assert len(read_history(study, _AXES)) == 1


def test_shared_study_keeps_what_others_run_and_clears_only_its_own(tmp_path: Path) -> None:
    mine = _place(tmp_path, StudyKind.URL)
    study = _open(mine, ())
    dists = {axis.name: optuna.distributions.CategoricalDistribution(axis.values) for axis in _AXES.axes}
    for worker, row in (("me", 0), ("other", 4)):
        study.enqueue_trial(_AXES.values_at(row))
        running = study.ask(dists)
        running.set_user_attr("worker", worker)
    again = _open(mine, _TRIALS[:1])
    assert [one.row for one in read_history(again, _AXES)] == [4, 0]
    states = [one.state for one in again.trials]
    assert states == [TrialState.FAIL, TrialState.RUNNING, TrialState.COMPLETE]


def test_enqueued_candidate_is_tried_first_and_an_enqueued_illegal_one_passed_over(tmp_path: Path) -> None:
    place = _place(tmp_path, StudyKind.SQLITE)
    lacking = problem(_SOME[:-1])
    study = open_study(place, axes=axes_of(lacking.columns), truth=())
    study.enqueue_trial({"zero_stage": 1, "micro_batch_size": 4})
    study.enqueue_trial({"zero_stage": 0, "micro_batch_size": 2})
    result = run_search(replace(lacking, policy=TrialPolicy(max_trials=1)), ports=replace(_quiet_ports(), place=place))
    assert [one.key for one in result.trials] == [_SOME[1].key]


@pytest.mark.parametrize(
    "url",
    [
        "nonsense",
        "sqlite:////proc/none/x.db",
        "postgresql+nodriver://localhost/x",
        "postgresql+psycopg://u@127.0.0.1:1/x",
    ],
)
def test_unusable_storage_is_an_input_error_with_its_mend(url: str) -> None:
    with pytest.raises(InputError, match="cannot be used") as refusal:
        _open(StudyPlace(kind=StudyKind.URL, name="s", url=url), ())
    assert "--storage" in refusal.value.fix


@pytest.mark.parametrize("name", ["plain", "with space", "100%?#&;", "ü'\"$x"])
def test_folder_names_with_any_characters_hold_a_study(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    _open(_place(folder, StudyKind.SQLITE), _TRIALS)
    assert (folder / "study.db").stat().st_size > 0
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_study_place_follows_url_and_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = RunDir.create(tmp_path / "p", "0123456789abcdef0123")
    assert study_place(run_dir, url="postgres://u@h/d", machine="m").name == "meshplan-0123456789abcdef-m"
    shared = study_place(run_dir, url="sqlite:///x.db")
    host = shared.worker.partition(":")[0]
    assert shared.is_beside(f"{host}:/another/folder")
    assert not shared.is_beside(shared.worker) and not shared.is_beside("otherhost:/p") and not shared.is_beside("")
    local = study_place(run_dir, url=None)
    assert (local.kind, local.note, local.name) == (StudyKind.SQLITE, "", "meshplan-0123456789abcdef")
    assert study_place(run_dir, url="sqlite:///x.db").kind is StudyKind.URL
    monkeypatch.setattr(RunDir, "network_filesystem", "nfs4")
    network = study_place(run_dir, url=None)
    assert network.kind is StudyKind.JOURNAL and "nfs4" in network.note and network.file.name == "study.journal"


def test_missing_driver_is_named_with_the_line_that_installs_it() -> None:
    with pytest.raises(InputError, match="cannot be used") as refusal:
        _open(StudyPlace(kind=StudyKind.URL, name="s", url="mysql+mysqldb://u:secret@127.0.0.1:1/x"), ())
    assert "driver is not installed" in refusal.value.why and refusal.value.fix == "pip install 'meshplan[mysql]'"
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    ("said", "opened"),
    [
        ("postgres://u:p@h:5/d", "postgresql+psycopg://u:p@h:5/d"),
        ("PostgreSQL://h/d", "postgresql+psycopg://h/d"),
        ("postgresql+asyncpg://h/d", "postgresql+asyncpg://h/d"),
        ("mysql://h/d", "mysql+pymysql://h/d"),
        ("sqlite:///x.db", "sqlite:///x.db"),
        ("journal:///x.journal", "journal:///x.journal"),
        ("redis://h", "redis://h"),
    ],
)
def test_storage_url_gets_the_driver_of_the_extras(said: str, opened: str) -> None:
    assert storage_url(said) == opened


@pytest.mark.parametrize(
    ("said", "error", "fix"),
    [
        ("shared.db", "is no storage URL", "sqlite:///file.db"),
        ("", "is no storage URL", "sqlite:///file.db"),
        ("postgre://h/d", "no study can be kept at postgre", "did you mean 'postgresql'?"),
        ("sqlite://", "names no file", "sqlite:///file.db"),
        ("sqlite:////nowhere/at/all/x.db", "there is no folder /nowhere/at/all", "make it"),
    ],
)
def test_storage_url_that_is_none_is_refused_with_the_forms(said: str, error: str, fix: str) -> None:
    with pytest.raises(InputError) as refusal:
        storage_url(said)
    assert error in refusal.value.error and fix in refusal.value.fix


def test_sqlite_is_refused_on_a_network_file_system_and_the_journal_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("planner.search.storage.network_filesystem", lambda folder: "nfs4")
    with pytest.raises(InputError, match="SQLite cannot be shared") as refusal:
        storage_url(f"sqlite:///{tmp_path}/x.db")
    assert refusal.value.fix.endswith(f"journal:///{tmp_path}/x.journal")
    assert storage_url(f"journal:///{tmp_path}/x.journal")


def test_trial_of_many_ranks_travels_in_pieces_that_a_database_takes() -> None:
    one = trial(3, _SOME[0], measured(10.0))
    assert isinstance(one.outcome, Measured)
    large = replace(one, outcome=replace(one.outcome, ranks=one.outcome.ranks * 4000))
    for record in (one, large):
        attributes = json.loads(json.dumps(record_attributes(record)))
        assert record_of(attributes) == record
        assert all(len(json.dumps(value)) < 65_000 for value in attributes.values())
    with pytest.raises(InputError, match="cannot be read"):
        record_of({"record": {"number": 1, "new_field": 2}})


class _AlwaysRuns:
    def evaluate(self, number: int, candidate: Candidate) -> Outcome:
        return measured(10.0)


def _quiet_ports() -> SearchPorts:
    return memory_ports(_AlwaysRuns())
