"""The deepspeed launcher's hostfile, as text: one `host slots=N` a line."""

from __future__ import annotations


def render_hostfile(hosts: tuple[tuple[str, int], ...]) -> str:
    """The hosts in their order: the first is where the launcher is started."""
    return "".join(f"{host} slots={slots}\n" for host, slots in hosts)
