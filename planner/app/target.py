"""The cluster that a plan shall run on now: a file, a catalog name, this machine, or a hostfile.

Owns reading what `--cluster` names into the words of a job file's `cluster` section, and the names of its nodes into
`launch.hosts`: those of another cluster are never carried over. Leaves what they mean to
`jobfile`.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from planner.catalog.entries import default_folders, find_entry
from planner.catalog.hostfile import Host, read_hostfile, slots_of_each
from planner.errors import InputError
from planner.spec import ClusterSpec
from planner.spec.codec import to_plain

AUTO = "auto"
_YAML = (".yaml", ".yml", ".json")
_NO_HOSTS = "launch.hosts=[]"


def cluster_overrides(given: str, old: ClusterSpec) -> tuple[str, ...]:
    """The overrides that lay the named cluster over the old plan's job; none for the old cluster itself.

    Raises InputError for what is no cluster. A hostfile has the old plan's GPUs and links; a name out of the catalog
    has the old plan's number of nodes.
    """
    if not given:
        return ("cluster={gpu: auto}", _NO_HOSTS) if old.is_this_machine else ()
    if given == AUTO:
        return ("cluster={gpu: auto}", _NO_HOSTS)
    path = Path(given)
    if path.suffix.lower() in _YAML:
        return (f"cluster={json.dumps({'file': str(path.absolute())})}", _NO_HOSTS)
    if _is_file(path):
        cluster, hosts = _of_hostfile(path, old)
        named = [f"{host.name} slots={host.slots}" for host in hosts]
        return (f"cluster={json.dumps({'resolved': to_plain(cluster)})}", f"launch.hosts={json.dumps(named)}")
    if find_entry("clusters", given, default_folders()) is not None:
        return (f"cluster={json.dumps({'name': given, 'nodes': old.nodes})}", _NO_HOSTS)
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


def _of_hostfile(path: Path, old: ClusterSpec) -> tuple[ClusterSpec, tuple[Host, ...]]:
    """Hosts without slots have as many as before."""
    try:
        hosts = read_hostfile(path, default_slots=old.gpus_per_node)
        slots = slots_of_each(hosts, label=str(path))
    except InputError as problem:
        fix = f"{problem.fix}; the name of a cluster file ends in .yaml"
        raise InputError(problem.error, why=problem.why, fix=fix) from None
    cluster = replace(old, nodes=len(hosts), gpus_per_node=slots, groups=(), is_this_machine=False)
    return cluster, hosts
