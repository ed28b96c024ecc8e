"""The warm pool: one worker program, kept warm between trials, restarted when it dies.

Owns the conversation with the worker, the time limit above its own, the scratch folder and the kept log of a trial.
Leaves the process to `worker_process`, the meaning of an end to `classify`, and which trials to run to the search.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from planner.errors import TrialsUnavailable
from planner.probe.host import kernel_oom_kills, usable_cores
from planner.rundir import explain_os_error
from planner.spec import DeviceKind, Outcome, Phase, TrialTask
from planner.spec.worker import (
    Message,
    Progress,
    RanksStarted,
    RunRequest,
    TrialEnd,
    WorkerReady,
    WorkerRefused,
    rank_log_name,
)
from planner.trial.classify import TrialFacts, classify_trial
from planner.trial.environment import worker_environment
from planner.trial.logs import join_logs, read_tail
from planner.trial.worker_process import WorkerDied, WorkerProcess

WORKER_GRACE_S = 20.0  # past a trial's own limit: the worker dumps stacks, ends and reaps its ranks in this time

OnProgress = Callable[[Phase, int], None]


class WarmPool:
    """Runs trials one at a time; a context manager that starts the worker and takes it down with all it started.

    Entering only starts the worker, so that other work can go on while it imports; `wait_ready` and `run` wait for it.
    Enter it on a thread that outlives it: the kernel ends the worker when the thread that started it ends.
    `model_types`: families (transformers' `model_type`) to import at the start rather than before their first trial;
    `modules`: what else to import then, where it is installed.
    `environment`: variables of the job for the ranks; `whole_shell`: they get the shell's own, too.
    `extra_python_path`: where the job's own modules lie.
    """

    def __init__(
        self,
        device: DeviceKind,
        *,
        model_types: tuple[str, ...] = (),
        modules: tuple[str, ...] = (),
        extra_python_path: tuple[Path, ...] = (),
        environment: Mapping[str, str] | None = None,
        whole_shell: bool = False,
        start_timeout_s: float = 600.0,
    ) -> None:
        self._model_types = model_types
        self._modules = modules
        self._python_path = extra_python_path
        self._environment = worker_environment(device, os.environ, extra=environment, whole_shell=whole_shell)
        self._start_timeout_s = start_timeout_s
        self._worker: WorkerProcess | None = None
        self._worker_is_ready = False
        self._number = 0

    def __enter__(self) -> WarmPool:
        self._start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def worker_pid(self) -> int | None:
        """The process id of the running worker, whose children are the ranks; None when none runs."""
        return self._worker.pid if self._worker is not None and self._worker.alive else None

    def close(self) -> None:
        """End the worker; the pool can be used again and starts another then."""
        if self._worker is not None:
            self._worker.dismiss()
            self._worker = None

    def wait_ready(self) -> None:
        """Wait until trials can start. Raises TrialsUnavailable, with what the worker said, when they cannot."""
        self._ready_worker()

    def run(
        self, task: TrialTask, *, timeout_s: float, log_path: Path, on_progress: OnProgress | None = None
    ) -> Outcome:
        """Run one trial and say how it ended. `timeout_s` counts from the fork, without the worker's imports.

        The full logs of all ranks are left in `log_path`. Raises TrialsUnavailable when no worker can be started, and
        InputError when the disk takes neither log nor scratch: the trial then has no outcome. An exception that arrives
        meanwhile (Ctrl-C, or one of `on_progress`) ends the trial and passes on.
        """
        worker = self._ready_worker()
        self._number += 1
        kills_before = kernel_oom_kills()
        with _scratch_beside(log_path) as scratch:
            request = RunRequest(
                number=self._number, task=task, timeout_s=timeout_s, scratch_dir=str(scratch), cores=usable_cores()
            )
            ranks = range(task.num_processes)
            logs = [(rank, scratch / rank_log_name(rank)) for rank in ranks]
            remark = "interrupted"
            try:
                end, worker_exit_code, last = self._converse(worker, request, on_progress or _ignore)
                outcome = classify_trial(
                    TrialFacts(
                        task=task,
                        timeout_s=timeout_s,
                        end=end,
                        log_tails=tuple(read_tail(path) for _, path in logs),
                        last_phase=last.phase,
                        worker_exit_code=worker_exit_code,
                        kernel_oom_kills=kernel_oom_kills() - kills_before,
                    )
                )
                remark = _summary(outcome)
            finally:
                with _disk_problems_told(log_path):
                    join_logs(logs, into=log_path, remarks=(remark,))
        return outcome

    def _start(self) -> WorkerProcess:
        self._worker = WorkerProcess(
            self._environment, python_path=self._python_path, model_types=self._model_types, modules=self._modules
        )
        self._worker_is_ready = False
        return self._worker

    def _ready_worker(self) -> WorkerProcess:
        if self._worker is not None and self._worker_is_ready and not self._worker.alive:
            self._discard()  # it died between two trials
        worker = self._worker or self._start()
        if not self._worker_is_ready:
            self._await_imports(worker)
            self._worker_is_ready = True
        return worker

    def _await_imports(self, worker: WorkerProcess) -> None:
        try:
            message = worker.receive(timeout_s=self._start_timeout_s)
        except WorkerDied as death:
            problem = _unavailable("the trial worker could not be started", str(death), worker)
            self._discard()
            raise problem from None
        if not isinstance(message, WorkerReady):
            why = message.message if isinstance(message, WorkerRefused) else f"not ready in {self._start_timeout_s} s"
            problem = _unavailable("the trial worker could not be started", why, worker)
            self._discard()
            raise problem

    def _discard(self) -> None:
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _converse(
        self, worker: WorkerProcess, request: RunRequest, on_progress: OnProgress
    ) -> tuple[TrialEnd | None, int | None, Progress]:
        """The trial's end (None: the worker did not bring it to one), the worker's exit code if it died, and the last
        progress heard of."""
        last = Progress(number=request.number, phase=Phase.START, steps_done=0)
        deadline = time.monotonic() + request.timeout_s + WORKER_GRACE_S
        try:
            worker.send(request)
            while True:
                message = worker.receive(timeout_s=max(0.0, deadline - time.monotonic()))
                if isinstance(message, TrialEnd):
                    worker.remember_ranks(())
                    return message, None, last
                if message is None:
                    self._discard()
                    return None, None, last
                last = self._take_note(worker, message, last)
                on_progress(last.phase, last.steps_done)
        except WorkerDied as death:
            self._discard()
            return None, death.exit_code, last
        except BaseException:
            self._discard()
            raise

    def _take_note(self, worker: WorkerProcess, message: Message, last: Progress) -> Progress:
        if isinstance(message, Progress):
            return message
        if isinstance(message, RanksStarted):
            worker.remember_ranks(message.pids)
            return last
        why = message.message if isinstance(message, WorkerRefused) else f"it said {type(message).__name__}"
        raise _unavailable("the trial worker refused a trial", why, worker)


def _ignore(_phase: Phase, _steps_done: int) -> None:
    pass


@contextmanager
def _disk_problems_told(log_path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise explain_os_error(problem, log_path, doing="write") from problem


@contextmanager
def _scratch_beside(log_path: Path) -> Iterator[Path]:
    """A folder for one trial, beside its log (checkpoints need the room of the plan folder's disk, not of /tmp).

    It has one name for each log, so what a killed planner left there is removed when the trial is run again.
    """
    with _disk_problems_told(log_path):
        log_path.parent.mkdir(parents=True, exist_ok=True)
        scratch = log_path.parent.resolve() / f".{log_path.name}.scratch"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _summary(outcome: Outcome) -> str:
    message = getattr(outcome, "message", "")
    return f"{type(outcome).__name__}{': ' if message else ''}{message}"


def _unavailable(error: str, why: str, worker: WorkerProcess) -> TrialsUnavailable:
    tail = worker.stderr_tail().strip()
    return TrialsUnavailable(
        error,
        why=f"{why}\n{tail}" if tail else why,
        fix="see that torch, deepspeed and transformers import in this environment, or plan with --trials none",
    )
