"""What a job file with `gpu: auto` needs to know of this machine."""

from __future__ import annotations

from planner.spec import DeviceKind
from planner.spec._record import record


@record
class MachineFacts:
    """Found by looking (`planner.trial.machine`), handed in by `planner.app`. Bytes are per device.

    On a machine without GPUs a device is one process: `usable_bytes` is what each of `num_devices` may take. A MIG
    slice is a device of its own, with `share_fraction` of the compute of a GPU of `whole_bytes` (0: it is a whole GPU).
    """

    device: DeviceKind
    gpu_name: str  # as the driver says it; "" on a machine without GPUs
    num_devices: int
    usable_bytes: int
    total_bytes: int
    host_memory_bytes: int
    whole_bytes: int = 0
    share_fraction: float = 1.0
