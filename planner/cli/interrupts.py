"""Being stopped: once means to end what runs and keep what there is, twice means now.

Ctrl-C, a scheduler's SIGTERM and the SIGHUP of a terminal that went away are one thing: KeyboardInterrupt in the main
thread, which ends the running trial and leaves by exit code 130. Children need no care here: the kernel ends the trial
worker, and the worker's ranks, when this process is gone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from planner.errors import Interrupted

_STOPS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
_SHOW_CURSOR = "\x1b[?25h"  # a live progress bar hides it


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """While the body runs, the first stop raises KeyboardInterrupt and the second ends the process at once.

    A signal that was ignored stays ignored (`nohup`, a shell's background jobs). Does nothing outside the main thread,
    which alone may set handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _STOPS}
    stop = _Stop()
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Stop:
    """The handler: counts."""

    def __init__(self) -> None:
        self._num_stops = 0

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        self._num_stops += 1
        if self._num_stops == 1:
            raise KeyboardInterrupt
        self._leave_now()

    def _leave_now(self) -> None:
        """Nothing is flushed or cleaned up: the plan folder is whole at every moment, and a lock ends with us."""
        words = (
            "error: stopped at once\nwhy: it was told to stop twice; every trial that had ended is kept\n"
            "fix: run the same command again, `planner plan` with --resume\n"
        )
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone is no reason to stay
            os.write(2, ((_SHOW_CURSOR if sys.stderr.isatty() else "") + words).encode())
        os._exit(Interrupted.exit_code)
