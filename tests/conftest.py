"""What holds for all tests."""

from __future__ import annotations

import signal


def pytest_configure() -> None:
    """Be interruptible, and so are the programs that tests start and interrupt.

    A shell starts its background commands, and `nohup` its own, with these signals ignored; an ignored signal is
    inherited by every child, and Python then leaves it ignored.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
