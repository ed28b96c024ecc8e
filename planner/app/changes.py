"""What is different where a plan shall run now: two surroundings in, sentences out. Pure."""

from __future__ import annotations

from planner.report.units import format_bytes
from planner.spec import ClusterSpec, DeviceKind, LinkSpec
from planner.spec._record import record
from planner.spec.replan import Change, ChangeKind

# Packages that decide what a trial measures, in the order in which they are told. The planner's own version and
# Optuna's decide what is tried, not what is seen.
_MEASURED_SOFTWARE = ("torch", "deepspeed", "transformers", "python")
_DRIVER = "nvidia-driver"

# Memory that was looked at moves with whatever else runs: less than this share is no other hardware. On CPU it is a
# share of what the host has free, which any program changes.
_DRIFT = {DeviceKind.CUDA: 0.10, DeviceKind.CPU: 0.50}
_MAX_NAMED = 8
_NAMED_DRIFT = 0.001  # figures of a catalog are the same or they are not


@record
class Surroundings:
    """Where a plan was made for, and by what. `machine`: the fingerprint of the one that ran the trials; "" where none
    were run."""

    cluster: ClusterSpec
    versions: tuple[tuple[str, str], ...]
    machine: str = ""
    hosts: tuple[str, ...] = ()  # the nodes by name, where the plan's files hold them


def find_changes(old: Surroundings, new: Surroundings) -> tuple[Change, ...]:
    """Every difference that bears on a plan: hardware first, then software. () when nothing does."""
    return (*_hardware(old.cluster, new.cluster), *_hosts(old.hosts, new.hosts), *_software(old, new))


def _hardware(old: ClusterSpec, new: ClusterSpec) -> tuple[Change, ...]:
    found = [
        _change(ChangeKind.GPU, "GPU", old.gpu.name, new.gpu.name),
        _change(ChangeKind.NODES, "nodes", str(old.nodes), str(new.nodes)),
        _change(ChangeKind.GPUS_PER_NODE, "GPUs a node", str(old.gpus_per_node), str(new.gpus_per_node)),
        _memory(old, new),
        _host_memory(old, new),
    ]
    if max(old.gpus_per_node, new.gpus_per_node) > 1:
        found.append(_link(ChangeKind.INTRA_NODE_LINK, "link in a node", old.intra_node_link, new.intra_node_link))
    if max(old.nodes, new.nodes) > 1:
        found.append(
            _link(ChangeKind.INTER_NODE_LINK, "network between nodes", old.inter_node_link, new.inter_node_link)
        )
    return tuple(change for change in found if change is not None)


def _hosts(old: tuple[str, ...], new: tuple[str, ...]) -> tuple[Change, ...]:
    """Other nodes by name: they change no figure, but the plan's hostfile. Where no names are given, none changed."""
    if not new or new == old:
        return ()
    return (Change(kind=ChangeKind.HOSTS, what="hosts", before=_few(old) or "not named", after=_few(new)),)


def _few(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(hosts[:_MAX_NAMED])
    return shown if len(hosts) <= _MAX_NAMED else f"{shown} and {len(hosts) - _MAX_NAMED} more"


def _change(kind: ChangeKind, what: str, before: str, after: str) -> Change | None:
    return Change(kind=kind, what=what, before=before, after=after) if before != after else None


def _memory(old: ClusterSpec, new: ClusterSpec) -> Change | None:
    """Usable memory of a device, where it is more than drift."""
    before, after = old.gpu.memory_usable_bytes, new.gpu.memory_usable_bytes
    looked_at = old.is_this_machine and new.is_this_machine
    allowed = _DRIFT[new.gpu.device] if looked_at else _NAMED_DRIFT
    if abs(after - before) <= allowed * before:
        return None
    return _change(ChangeKind.USABLE_MEMORY, "usable memory of a GPU", _bytes(before, after), _bytes(after, before))


def _host_memory(old: ClusterSpec, new: ClusterSpec) -> Change | None:
    before, after = old.host_memory_bytes, new.host_memory_bytes
    if abs(after - before) <= 0.02 * before:
        return None
    return _change(ChangeKind.HOST_MEMORY, "host memory of a node", _bytes(before, after), _bytes(after, before))


def _bytes(value: int, other: int) -> str:
    """In words, and exact where the words would be the same."""
    words = format_bytes(value)
    return words if words != format_bytes(other) else f"{value} bytes"


def _link(kind: ChangeKind, what: str, old: LinkSpec, new: LinkSpec) -> Change | None:
    """A link is what it can carry, whatever it is called."""
    figures = [(link.bandwidth_bytes_per_s * link.efficiency_fraction, link.latency_s) for link in (old, new)]
    if figures[0] == figures[1]:
        return None
    return Change(kind=kind, what=what, before=_link_words(old), after=_link_words(new))


def _link_words(link: LinkSpec) -> str:
    return f"{link.name} ({link.bandwidth_bytes_per_s / 1e9:g} GB/s a GPU)"


def _software(old: Surroundings, new: Surroundings) -> tuple[Change, ...]:
    before, after = dict(old.versions), dict(new.versions)
    found = [
        _change(ChangeKind.SOFTWARE, name, before[name], after[name])
        for name in _MEASURED_SOFTWARE
        if before.get(name) and after.get(name)
    ]
    if before.get(_DRIVER) and after.get(_DRIVER):
        found.append(_change(ChangeKind.DRIVER, "GPU driver", before[_DRIVER], after[_DRIVER]))
    changes = tuple(change for change in found if change is not None)
    if not changes and old.machine and new.machine and old.machine != new.machine:
        machine = Change(kind=ChangeKind.MACHINE, what="machine of the trials", before=old.machine, after=new.machine)
        return (machine,)
    return changes
