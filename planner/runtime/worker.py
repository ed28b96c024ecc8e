"""The warm worker: `python -m planner.runtime.worker --parent-pid PID`.

Imports torch, DeepSpeed and transformers once, never touches a device, and runs trials on request, one at a time, each
in forked children. Requests come as lines on standard input, answers go as lines to standard output
(`planner.spec.worker`); everything else that anybody prints goes to standard error. It ends when its input closes.
"""

from __future__ import annotations

import argparse
import importlib
import os
import select
import signal
import sys
import time
from types import FrameType

from planner.runtime.preload import import_ahead, preload_deepspeed, preload_model_code
from planner.runtime.worker_process import adopt_orphans, die_with_parent, end_orphans
from planner.spec.codec import DecodeError
from planner.spec.worker import (
    Message,
    Ping,
    Pong,
    RanksStarted,
    RunRequest,
    Shutdown,
    TrialEnd,
    WorkerReady,
    WorkerRefused,
    decode_message,
    encode_message,
)

WATCH_PERIOD_S = 0.05


class RequestLines:
    """Lines of standard input, read without a buffer of their own, so that waiting can be given up at any time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._pending = b""

    def wait(self, timeout_s: float | None = None) -> None:
        """Take in what comes within the time; EOFError when the other side is gone."""
        readable, _, _ = select.select([self._descriptor], [], [], timeout_s)
        if readable:
            received = os.read(self._descriptor, 1 << 16)
            if not received:
                raise EOFError("standard input closed")
            self._pending += received

    def next_line(self) -> str:
        """The next whole line; waits for it."""
        while b"\n" not in self._pending:
            self.wait()
        line, _, self._pending = self._pending.partition(b"\n")
        return line.decode()


class Answers:
    """The pipe to the planner."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def tell(self, message: Message) -> None:
        """Say something; BrokenPipeError when nobody listens any more."""
        line = memoryview(encode_message(message).encode() + b"\n")
        while line:
            line = line[os.write(self.descriptor, line) :]


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to stop or until the planner is gone. Exit code 0, or 1 when nothing could be imported."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parent-pid", type=int, required=True)
    parser.add_argument("--python-path", action="append", default=[], help="put before sys.path; for user modules")
    parser.add_argument("--model-type", action="append", default=[], help="import this model family at the start")
    parser.add_argument("--module", action="append", default=[], help="import this, too, at the start where it exists")
    options = parser.parse_args(arguments)
    die_with_parent(options.parent_pid, signal.SIGTERM)
    adopt_orphans()
    answers = _take_over_standard_output()
    sys.path[:0] = options.python_path
    began_s = time.monotonic()
    try:
        warm_up(options.model_type, modules=options.module)
    except Exception as problem:
        answers.tell(WorkerRefused(message=f"{type(problem).__name__}: {problem}"))
        raise
    signal.signal(signal.SIGTERM, _leave_in_order)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the planner's to handle
    answers.tell(WorkerReady(pid=os.getpid(), import_s=time.monotonic() - began_s))
    try:
        serve(RequestLines(0), answers)
    except (EOFError, BrokenPipeError):  # the planner is gone; there is no one left to tell
        return 0
    return 0


def _leave_in_order(_signal: int, _frame: FrameType | None) -> None:
    """On SIGTERM (also sent by the kernel when the planner dies): unwind, which ends the ranks, and go."""
    raise SystemExit(0)


def _take_over_standard_output() -> Answers:
    """Keep the pipe to the planner for answers alone; what libraries print goes to standard error."""
    answers = Answers(os.dup(1))
    os.dup2(2, 1)
    return answers


def warm_up(model_types: list[str], *, modules: list[str]) -> None:
    """Import all that a trial needs, and check that no device was touched on the way."""
    for name in ("torch", "deepspeed", "transformers", "planner.runtime.worker_trial"):
        importlib.import_module(name)
    preload_deepspeed()
    for model_type in model_types:
        preload_model_code(model_type)
    for module in modules:
        import_ahead(module)
    torch = importlib.import_module("torch")
    if torch.cuda.is_initialized():
        raise RuntimeError("importing initialised CUDA; a forked child could not use the device any more")
    if os.environ.get("DS_ACCELERATOR") == "cuda" and torch.version.cuda is None and torch.version.hip is None:
        raise RuntimeError(f"torch {torch.__version__} is built without CUDA, but the trials are to run on a GPU")


def serve(requests: RequestLines, answers: Answers) -> None:
    """Answer requests until `Shutdown`."""
    while True:
        try:
            request = decode_message(requests.next_line())
        except DecodeError as problem:
            answers.tell(WorkerRefused(message=f"request not understood: {problem}"))
            continue
        if isinstance(request, Shutdown):
            return
        if isinstance(request, Ping):
            answers.tell(Pong(number=request.number))
        elif isinstance(request, RunRequest):
            answers.tell(run_trial(request, requests, answers))
        else:
            answers.tell(WorkerRefused(message=f"{type(request).__name__} is not a request"))


def run_trial(request: RunRequest, requests: RequestLines, answers: Answers) -> TrialEnd | WorkerRefused:
    """Run one trial to its end."""
    from planner.runtime.worker_marks import TrialMarks
    from planner.runtime.worker_trial import ForkRefused, TrialWatch, fork_ranks

    preload_model_code(request.task.model.model_type)
    marks = TrialMarks(request.task.num_processes)
    try:
        pids = fork_ranks(request, marks, answers_descriptor=answers.descriptor)
        answers.tell(RanksStarted(number=request.number, pids=tuple(pids.values())))
        watch = TrialWatch(request, pids, marks)
        return watch.run(pause=lambda: requests.wait(WATCH_PERIOD_S), tell=answers.tell)
    except ForkRefused as problem:
        return WorkerRefused(message=str(problem))
    finally:
        end_orphans()
        marks.close()


if __name__ == "__main__":
    sys.exit(main())
