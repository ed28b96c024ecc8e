"""Ports for servers and meeting places that tests start."""

from __future__ import annotations

import socket
from random import SystemRandom

_PORTS = range(15_000, 30_000)
_TRIES = 200


def free_port(count: int = 1) -> int:
    """The first of `count` ports in a row that are free now, of as good as 15,000 at random.

    They lie below those that the system gives to clients: another process is not handed one of them a moment later, and
    a node that waits for its peer at one cannot connect to itself. Python's own generator is seeded alike in all test
    processes, which would then ask for the same ports.
    """
    for first in SystemRandom().sample(_PORTS, _TRIES):
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise AssertionError(f"of {_TRIES} ports tried, none is free")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
