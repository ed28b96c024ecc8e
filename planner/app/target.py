"""The cluster that a plan shall run on now: a file, a catalog name, this machine, or a hostfile.

Owns reading what `--cluster` names into the words of a job file's `cluster` section. Leaves what they mean to
`jobfile`.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

from planner.catalog.documents import read_text
from planner.catalog.entries import default_folders, find_entry
from planner.errors import InputError
from planner.spec import ClusterSpec
from planner.spec.codec import to_plain

AUTO = "auto"
_YAML = (".yaml", ".yml", ".json")
_MAX_HOSTFILE_BYTES = 1 << 20
_HOST = re.compile(r"(?P<host>\S+)(?:\s+slots\s*=\s*(?P<slots>\d+))?(?:\s+.*)?\Z")


def cluster_override(given: str, old: ClusterSpec) -> str:
    """The `cluster=…` override that lays the named cluster over the old plan's job; "" for the old cluster itself.

    Raises InputError for what is no cluster. A hostfile has the old plan's GPUs and links; a name out of the catalog
    has the old plan's number of nodes.
    """
    if not given:
        return "cluster={gpu: auto}" if old.is_this_machine else ""
    if given == AUTO:
        return "cluster={gpu: auto}"
    path = Path(given)
    if path.suffix.lower() in _YAML:
        return f"cluster={json.dumps({'file': str(path.absolute())})}"
    if _is_file(path):
        return f"cluster={json.dumps({'resolved': to_plain(_of_hostfile(path, old))})}"
    if find_entry("clusters", given, default_folders()) is not None:
        return f"cluster={json.dumps({'name': given, 'nodes': old.nodes})}"
    raise InputError(
        f"there is no cluster {given!r}",
        why="it is neither a file, nor a name of `planner list clusters`, nor auto",
        fix="give a cluster file (gpu:, nodes:, gpus_per_node: …), a hostfile, a catalog name, or auto: this machine",
    )


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _of_hostfile(path: Path, old: ClusterSpec) -> ClusterSpec:
    """DeepSpeed's and MPI's form: a host a line, `worker-1 slots=8`; hosts without slots have as many as before."""
    slots: dict[str, int] = {}
    text = read_text(path, what="hostfile", max_bytes=_MAX_HOSTFILE_BYTES)
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split("#", 1)[0].strip()
        if not words:
            continue
        match = _HOST.fullmatch(words)
        if match is None or ":" in match["host"] or match["host"] in slots:
            raise _no_host(path, number, words)
        slots[match["host"]] = int(match["slots"] or old.gpus_per_node)
    counts = set(slots.values())
    if not slots or 0 in counts:
        raise InputError(
            f"{path} names no host with a GPU",
            why="a hostfile has a host a line",
            fix="write lines like: worker-1 slots=8",
        )
    if len(counts) > 1:
        raise InputError(
            f"the hosts of {path} have different numbers of slots ({', '.join(map(str, sorted(counts)))})",
            why="a layout uses the same number of GPUs on every node",
            fix="give every host the same slots, or leave hosts out",
        )
    return replace(old, nodes=len(slots), gpus_per_node=counts.pop(), groups=(), is_this_machine=False)


def _no_host(path: Path, number: int, words: str) -> InputError:
    return InputError(
        f"line {number} of {path} is no host: {words[:80]!r}",
        why="a hostfile has a host a line, each once, with its number of GPUs",
        fix="write lines like: worker-1 slots=8; a cluster file ends in .yaml",
    )
