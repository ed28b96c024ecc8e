"""Hostfiles of the deepspeed launcher (and OpenMPI's form of them): one `host slots=N` a line.

Owns the form, with line numbers: the launcher itself stops at the first bad line and does not say which it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from planner.catalog.documents import read_text, shorten
from planner.errors import InputError
from planner.spec._record import record

_LINE = re.compile(r"(?P<host>[A-Za-z0-9_][A-Za-z0-9_.:-]*(?<!:))(?:\s+slots=(?P<slots>[0-9]{1,4}))?\s*\Z")
MAX_HOSTS = 100_000


@record
class Host:
    """One node: its name and how many ranks it takes. `line` is where it was written, from 1."""

    name: str
    slots: int
    line: int


def read_hostfile(path: Path, *, default_slots: int | None = None) -> tuple[Host, ...]:
    """The nodes of a hostfile. InputError, with the line, for what the launcher could not read."""
    return parse_hosts(read_text(path, what="hostfile").splitlines(), label=str(path), default_slots=default_slots)


def parse_hosts(lines: Iterable[str], *, label: str, default_slots: int | None = None) -> tuple[Host, ...]:
    """The nodes that these lines name, in order; blank lines and `# comments` are passed over. `default_slots`: of a
    host that says none, as OpenMPI allows; None where every host has to."""
    hosts: list[Host] = []
    seen: dict[str, int] = {}
    for number, text in enumerate(lines, start=1):
        line = text.partition("#")[0].strip()
        if not line:
            continue
        host = _host(line, number=number, label=label, default_slots=default_slots)
        if host.name in seen:
            raise InputError(
                f"{label} line {number}: {host.name} was named before, on line {seen[host.name]}",
                why="the launcher starts one agent a host",
                fix="write all of its slots on one line",
            )
        seen[host.name] = number
        hosts.append(host)
    if not hosts:
        raise InputError(f"{label} names no host", why="one line is one node", fix="write lines such as: node0 slots=8")
    if len(hosts) > MAX_HOSTS:
        raise InputError(f"{label} names {len(hosts)} hosts", why=f"at most {MAX_HOSTS} are read", fix="shorten it")
    return tuple(hosts)


def _host(line: str, *, number: int, label: str, default_slots: int | None) -> Host:
    found = _LINE.match(line)
    slots = int((found and found["slots"]) or default_slots or 0)
    if found is None or slots < 1:
        raise InputError(
            f"{label} line {number}: expected <host> slots=<n>, found {shorten(line)!r}",
            why="that is the form the deepspeed launcher reads; it would stop here without naming the line",
            fix="write it like: node0 slots=8",
        )
    return Host(name=found["host"], slots=slots, line=number)


def slots_of_each(hosts: tuple[Host, ...], *, label: str) -> int:
    """The slots that every host has. InputError, with the line, for one that has others."""
    first = hosts[0]
    for host in hosts:
        if host.slots != first.slots:
            raise InputError(
                f"{label} line {host.line}: {host.name} has slots={host.slots}, but {first.name} (line {first.line}) "
                f"has slots={first.slots}",
                why="a plan starts the same number of ranks on every node",
                fix=f"write slots={min(host.slots, first.slots)} on both, or plan the nodes as groups (cluster.groups)",
            )
    return first.slots
