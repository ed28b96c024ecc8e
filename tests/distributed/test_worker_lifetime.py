"""The worker program lives exactly as long as its planner: nothing is left behind, whoever dies and however."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import torch

from planner.errors import TrialsUnavailable
from planner.spec import DeviceKind, Measured
from planner.spec.worker import Ping, Pong, Shutdown, WorkerReady, WorkerRefused, decode_message, encode_message
from planner.trial import WarmPool
from tests.distributed.tasks import make_task, tiny_llama

ROOT = Path(__file__).parents[2]

PLANNER = """
import sys
from pathlib import Path
from planner.spec import DeviceKind
from planner.trial import WarmPool
from tests.distributed.tasks import make_task, tiny_llama

def say(phase, steps):
    print(phase.value, steps, flush=True)

with WarmPool(DeviceKind.CPU, model_types=("llama",)) as pool:
    print("entered", flush=True)
    pool.wait_ready()
    task = make_task(tiny_llama(), data_parallel_size=2, steps=1_000_000)
    pool.run(task, timeout_s=300, log_path=Path(sys.argv[1]), on_progress=say)
"""


@contextmanager
def _planner(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PLANNER, str(tmp_path / "trial.log")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=tmp_path) as planner:
        try:
            yield planner
        finally:
            planner.kill()


def _wait_until_entered(planner: subprocess.Popen[str]) -> None:
    assert planner.stdout is not None
    assert planner.stdout.readline() == "entered\n"


def _wait_until_training(planner: subprocess.Popen[str]) -> None:
    assert planner.stdout is not None
    for line in planner.stdout:
        if line.split()[-1].isdecimal() and int(line.split()[-1]) >= 3:
            return
    raise AssertionError("the planner ended before it trained")


def _still_running(processes: list[psutil.Process], *, within_s: float) -> list[psutil.Process]:
    deadline = time.monotonic() + within_s
    left = processes
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [one for one in left if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]
    return left


def test_killed_planner_leaves_no_process_behind(tmp_path: Path) -> None:
    with _planner(tmp_path) as planner:
        _wait_until_training(planner)
        family = psutil.Process(planner.pid).children(recursive=True)
        assert len(family) == 3  # the worker and two ranks
        planner.kill()
        assert not _still_running(family, within_s=3)


def test_planner_killed_while_the_worker_imports_leaves_no_process_behind(tmp_path: Path) -> None:
    with _planner(tmp_path) as planner:
        _wait_until_entered(planner)
        family = psutil.Process(planner.pid).children(recursive=True)
        assert len(family) == 1
        planner.kill()
        assert not _still_running(family, within_s=3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_planner_that_is_told_to_stop_takes_all_down(tmp_path: Path, number: signal.Signals) -> None:
    with _planner(tmp_path) as planner:
        _wait_until_training(planner)
        family = psutil.Process(planner.pid).children(recursive=True)
        planner.send_signal(number)
        assert not _still_running(family, within_s=5)
        assert planner.wait(timeout=5) != 0


@contextmanager
def _worker(environment: dict[str, str] | None = None) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "planner.runtime.worker", "--parent-pid", str(os.getpid())]
    settings = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**settings, **(environment or {})},
    ) as worker:
        try:
            yield worker
        finally:
            worker.kill()


def _ask(worker: subprocess.Popen[str], line: str) -> object:
    assert worker.stdin is not None
    assert worker.stdout is not None
    worker.stdin.write(line + "\n")
    worker.stdin.flush()
    return decode_message(worker.stdout.readline())


def test_worker_answers_refuses_nonsense_and_ends_with_its_input() -> None:
    with _worker() as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        ready = decode_message(worker.stdout.readline())
        assert isinstance(ready, WorkerReady)
        assert ready.pid == worker.pid
        assert len(list(Path(f"/proc/{worker.pid}/task").iterdir())) == 1  # nothing that a fork could lose
        assert _ask(worker, encode_message(Ping(number=1))) == Pong(number=1)
        for nonsense in ("hello", json.dumps({"message": "RunRequest", "body": {}}), encode_message(ready)):
            assert isinstance(_ask(worker, nonsense), WorkerRefused)
        assert _ask(worker, encode_message(Ping(number=2))) == Pong(number=2)
        worker.stdin.close()
        assert worker.wait(timeout=60) == 0  # unloading torch takes seconds on a busy machine


def test_worker_ends_when_told_to_stop() -> None:
    with _worker() as worker:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdout.readline()
        worker.stdin.write(encode_message(Shutdown()) + "\n")
        worker.stdin.flush()
        assert worker.wait(timeout=60) == 0  # unloading torch takes seconds on a busy machine


def test_pool_without_a_working_deepspeed_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("raise ImportError('no DeepSpeed for this machine')")
    with WarmPool(DeviceKind.CPU, extra_python_path=(tmp_path,)) as pool, pytest.raises(TrialsUnavailable) as caught:
        pool.wait_ready()
    assert "no DeepSpeed for this machine" in caught.value.why


@pytest.mark.skipif(torch.version.cuda is not None, reason="this torch could use a GPU")
def test_pool_for_gpus_refuses_a_torch_without_cuda() -> None:
    with WarmPool(DeviceKind.CUDA) as pool, pytest.raises(TrialsUnavailable) as caught:
        pool.wait_ready()
    assert caught.value.exit_code == 4


def test_pool_whose_worker_takes_too_long_to_start_gives_up(tmp_path: Path) -> None:
    (tmp_path / "deepspeed.py").write_text("import time; time.sleep(600)")
    began_s = time.monotonic()
    pool = WarmPool(DeviceKind.CPU, extra_python_path=(tmp_path,), start_timeout_s=3.0)
    with pool, pytest.raises(TrialsUnavailable, match="could not be started"):
        pool.wait_ready()
    assert time.monotonic() - began_s < 120  # and not the ten minutes that the import takes
    assert pool.worker_pid is None


def test_pool_can_be_used_again_after_it_was_closed(tmp_path: Path) -> None:
    with WarmPool(DeviceKind.CPU, model_types=("llama",)) as pool:
        pool.wait_ready()
        first = psutil.Process(pool.worker_pid)
        pool.close()
        assert not first.is_running()
        outcome = pool.run(make_task(tiny_llama(), steps=1), timeout_s=60, log_path=tmp_path / "trial.log")
        assert isinstance(outcome, Measured), outcome
        second = psutil.Process(pool.worker_pid)
    assert not second.is_running()
