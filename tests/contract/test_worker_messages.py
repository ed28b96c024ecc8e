"""The messages between planner and worker: what one side writes is what the other reads, and nothing else is taken."""

from __future__ import annotations

import json
import math

import pytest

from planner.spec import Phase
from planner.spec.codec import DecodeError
from planner.spec.worker import (
    Message,
    Ping,
    Pong,
    Progress,
    RanksStarted,
    RunRequest,
    Shutdown,
    TrialEnd,
    WorkerReady,
    WorkerRefused,
    decode_message,
    encode_message,
)
from tests.unit.trial.samples import died, ended_well, make_model, make_task, raised

MESSAGES: list[Message] = [
    RunRequest(number=1, task=make_task(), timeout_s=2.5, scratch_dir="/tmp/a b\n'\"", cores=2),
    RunRequest(number=1, task=make_task(model=make_model(tokens_per_sample=3)), timeout_s=1, scratch_dir="", cores=1),
    Ping(number=2),
    Pong(number=2),
    Shutdown(),
    WorkerReady(pid=4, import_s=1.25),
    WorkerRefused(message="two\nlines and a \u2028"),
    RanksStarted(number=1, pids=(5, 6)),
    Progress(number=1, phase=Phase.BACKWARD, steps_done=3),
    TrialEnd(
        number=1,
        ranks=(ended_well(0), died(1, exit_code=-11), raised(2, "ValueError", "no", chain=("KeyError: 'x'",))),
        timed_out=False,
        duration_s=3.0,
    ),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_message_is_read_as_it_was_written(message: Message) -> None:
    line = encode_message(message)
    assert "\n" not in line
    assert decode_message(line) == message


def test_losses_that_are_not_finite_survive() -> None:
    end = TrialEnd(number=1, ranks=(ended_well(0),), timed_out=False, duration_s=math.inf)
    decoded = decode_message(encode_message(end))
    assert isinstance(decoded, TrialEnd)
    assert decoded.duration_s == math.inf


@pytest.mark.parametrize(
    "line",
    [
        "",
        "hello",
        "[]",
        '{"message": "Ping"}',
        '{"message": "Ping", "body": {"number": 1}, "more": 1}',
        '{"message": "Reboot", "body": {}}',
        '{"message": ["Ping"], "body": {}}',
        '{"message": "Ping", "body": {"number": "1"}}',
        '{"message": "Ping", "body": {"number": 1, "colour": 2}}',
    ],
)
def test_anything_else_is_refused(line: str) -> None:
    with pytest.raises(DecodeError):
        decode_message(line)


def test_task_of_another_version_is_refused_by_name() -> None:
    plain = json.loads(encode_message(MESSAGES[0]))
    plain["body"]["task"]["colour"] = "red"
    with pytest.raises(DecodeError, match="task: unknown key 'colour'"):
        decode_message(json.dumps(plain))
