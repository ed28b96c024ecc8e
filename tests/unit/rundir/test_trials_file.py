"""Trials are truth: nothing that ended is lost, nothing half-written is believed, damage is named."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import InputError
from planner.rundir.problems import explain_os_error
from planner.rundir.trials_file import append_trial, read_trials
from planner.spec import TrialRecord
from planner.spec.codec import to_plain

MakeTrial = Callable[[int], TrialRecord]


def test_read_back_equals_what_was_appended(tmp_path: Path, trial: MakeTrial) -> None:
    path = tmp_path / "t"
    for number in range(4):
        append_trial(path, trial(number))
    assert read_trials(path) == tuple(trial(number) for number in range(4))


def test_read_missing_or_empty_file_is_no_trials(tmp_path: Path) -> None:
    assert read_trials(tmp_path / "t") == ()
    (tmp_path / "t").touch()
    assert read_trials(tmp_path / "t") == ()


def test_cut_at_any_byte_keeps_whole_lines_and_goes_on(tmp_path: Path, trial: MakeTrial) -> None:
    path = tmp_path / "t"
    for number in range(3):
        append_trial(path, trial(number))
    content = path.read_bytes()
    line_ends = [index + 1 for index, byte in enumerate(content) if byte == 10]
    for cut in [*range(0, len(content), 37), *line_ends, *(end - 1 for end in line_ends)]:
        path.write_bytes(content[:cut])
        whole = sum(end <= cut for end in line_ends)
        assert read_trials(path) == tuple(trial(number) for number in range(whole))
        append_trial(path, trial(whole))
        assert read_trials(path) == tuple(trial(number) for number in range(whole + 1))


@pytest.mark.parametrize(
    "tail", [b"\0\0\0\0", b'{"log": "' + b"x" * 9999, b'{"numb', b"\0\0\0\n", b'{"number": 3\n', b"\n"]
)
def test_torn_tail_after_a_power_cut_is_dropped_then_truncated(tmp_path: Path, trial: MakeTrial, tail: bytes) -> None:
    path = tmp_path / "t"
    append_trial(path, trial(0))
    with path.open("ab") as file:
        file.write(tail)
    assert read_trials(path) == (trial(0),)
    append_trial(path, trial(1))
    assert read_trials(path) == (trial(0), trial(1))
    assert len(path.read_bytes().split(b"\n")) == 3


@pytest.mark.parametrize(
    "damage",
    [b"", b"{}", b"not json", b"\xff\xfe", b"[1, 2]", b'{"number": "three"}', b"[" * 100_000],
)
def test_corrupt_middle_line_is_named(tmp_path: Path, trial: MakeTrial, damage: bytes) -> None:
    path = tmp_path / "trials.jsonl"
    for number in range(3):
        append_trial(path, trial(number))
    lines = path.read_bytes().split(b"\n")
    lines[1] = damage
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(InputError, match="line 2 of") as refusal:
        read_trials(path)
    assert "delete that one line" in refusal.value.fix


def test_last_line_that_is_json_but_no_trial_is_not_taken_for_a_torn_one(tmp_path: Path, trial: MakeTrial) -> None:
    path = tmp_path / "t"
    append_trial(path, trial(0))
    with path.open("a") as file:
        file.write('{"number": 1, "flavour": "unknown key"}\n')
    with pytest.raises(InputError, match="line 2 of"):
        read_trials(path)


def test_same_number_twice_is_refused(tmp_path: Path, trial: MakeTrial) -> None:
    path = tmp_path / "t"
    append_trial(path, trial(0))
    append_trial(path, trial(0))
    with pytest.raises(InputError, match="line 2 of") as refusal:
        read_trials(path)
    assert "number 0" in refusal.value.why


def test_append_on_a_full_disk_is_an_input_error_and_keeps_what_was_there(tmp_path: Path, trial: MakeTrial) -> None:
    path = tmp_path / "t"
    append_trial(path, trial(0))
    before = path.read_bytes()
    code = (
        "import json, resource, signal, sys; from pathlib import Path;"
        "from planner.rundir.trials_file import append_trial; from planner.spec import TrialRecord;"
        "from planner.spec.codec import from_plain;"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), int(sys.argv[2])));"
        "append_trial(Path(sys.argv[1]), from_plain(TrialRecord, json.load(sys.stdin)))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code, str(path), str(len(before) + 100)],
        input=json.dumps(to_plain(trial(1))),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "InputError" in child.stderr
    assert path.read_bytes() == before


def test_disk_full_message_says_full_and_how_to_go_on() -> None:
    refusal = explain_os_error(OSError(errno.ENOSPC, "No space left on device"), Path("/p/t"), doing="write")
    assert refusal.why == "the disk is full" and "--resume" in refusal.fix


@given(st.binary(max_size=400))
def test_any_bytes_are_trials_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("f") / "t"
    path.write_bytes(content)
    try:
        assert read_trials(path) == ()
    except InputError as refusal:
        assert refusal.fix
