"""What was seen of a machine: records only. Everywhere None means that nobody told."""

from __future__ import annotations

from planner.probe.nvidia import GpuState
from planner.spec import DeviceKind
from planner.spec._record import record


@record
class PcieLink:
    """A slot's lanes and generation, now and at most. Idle GPUs lower the generation to save power, not the width."""

    generation: int | None = None
    max_generation: int | None = None
    width: int | None = None
    max_width: int | None = None


@record
class EccState:
    """Error counts since the driver was loaded (volatile). `rows_pending`: rows wait for a reset to be replaced."""

    enabled: bool | None = None
    corrected: int | None = None
    uncorrected: int | None = None
    rows_pending: bool | None = None
    rows_failed: bool | None = None


@record
class MigSlice:
    """A part of a GPU that is a device of its own. `share_fraction`: of the GPU's compute."""

    uuid: str
    profile: str  # 1g.10gb
    total_bytes: int
    free_bytes: int
    share_fraction: float


@record
class GpuDetails:
    """What drivers tell of one GPU beside its memory. `nvlinks`: how many are up; `nvlink_bytes_per_s`: of one of them,
    one direction. `throttled`: why the hardware slows it now, in words."""

    vendor: str = "nvidia"
    pci_address: str = ""
    compute_capability: str = ""  # 9.0
    numa_node: int | None = None
    pcie: PcieLink = PcieLink()
    ecc: EccState = EccState()
    mig_enabled: bool = False
    mig_slices: tuple[MigSlice, ...] = ()
    persistence: bool | None = None
    compute_mode: str = ""  # default, exclusive process, prohibited
    power_limit_w: float | None = None
    power_default_w: float | None = None
    throttled: tuple[str, ...] = ()
    nvlinks: int | None = None
    nvlink_version: int | None = None
    nvlink_bytes_per_s: float | None = None
    fabric_state: str = ""  # of an NVSwitch machine: completed, in progress, not started
    memory_clock_mhz: int | None = None
    memory_bus_bits: int | None = None
    sm_clock_mhz: int | None = None
    num_cores: int | None = None


@record
class SeenGpu:
    """A GPU as it counts for training, with the names of the processes on it where they can be read."""

    state: GpuState
    details: GpuDetails = GpuDetails()
    process_names: tuple[tuple[int, str], ...] = ()


@record
class GpuPair:
    """How two GPUs reach each other. `kind` as `nvidia-smi topo -m` says it: NV12, PIX, PXB, PHB, NODE, SYS; XGMI."""

    first: int
    second: int
    kind: str


@record
class GpuSight:
    """All GPUs, and in `unseen` what could not be told, in sentences. `cuda_version`: the newest the driver runs."""

    gpus: tuple[SeenGpu, ...] = ()
    pairs: tuple[GpuPair, ...] = ()
    vendor: str = ""
    source: str = ""
    driver_version: str = ""
    cuda_version: str = ""
    problem: str = ""  # why there is nothing although there should be; "" otherwise
    unseen: tuple[str, ...] = ()


@record
class HostState:
    """The host. `limit_bytes`: a control group's, below `machine_bytes`. Limits of processes: None is unlimited."""

    cpu_name: str
    cores: int  # this process may keep busy
    machine_cores: int
    numa_nodes: tuple[int, ...]
    allowed_numa_nodes: tuple[int, ...]
    total_bytes: int  # what counts here: the control group's where it is the lower
    available_bytes: int
    machine_bytes: int
    limit_bytes: int | None
    swap_bytes: int
    shm_total_bytes: int | None
    shm_free_bytes: int | None
    locked_memory_bytes: int | None
    open_files: int | None
    container: str  # docker, kubernetes, podman, slurm, a container; "" outside any
    kernel: str
    oom_kills: int


@record
class NetworkInterface:
    """`bytes_per_s` None: the kernel does not say (virtual ones do not)."""

    name: str
    is_up: bool
    bytes_per_s: float | None
    is_physical: bool
    driver: str = ""
    numa_node: int | None = None


@record
class InfinibandPort:
    """`link_layer`: InfiniBand, or Ethernet for RoCE."""

    device: str
    port: int
    state: str  # ACTIVE, DOWN, INIT, ARMED
    bytes_per_s: float | None
    link_layer: str
    numa_node: int | None = None


@record
class NetworkState:
    interfaces: tuple[NetworkInterface, ...] = ()
    ports: tuple[InfinibandPort, ...] = ()
    has_gpu_direct: bool | None = None  # nvidia_peermem (or amdgpu's) is loaded; None: not told
    unseen: tuple[str, ...] = ()


@record
class SoftwareState:
    """What a training process would run. `torch_cuda`, `torch_hip`: what torch was built for; "" neither.

    `ops_prebuilt`, `ops_buildable`: of DeepSpeed's. `problems`: (package, what importing it ended in).
    """

    python: str
    versions: tuple[tuple[str, str], ...] = ()  # name, version; of all that is there
    torch_cuda: str = ""
    torch_hip: str = ""
    nccl: str = ""
    cudnn: str = ""
    architectures: tuple[str, ...] = ()  # sm_90
    torch_sees_gpus: int | None = None
    toolkit_cuda: str = ""  # of nvcc; "" without one
    ops_prebuilt: tuple[str, ...] = ()
    ops_buildable: tuple[str, ...] = ()
    ops_not_buildable: tuple[str, ...] = ()
    problems: tuple[tuple[str, str], ...] = ()
    unseen: tuple[str, ...] = ()

    def version(self, name: str) -> str:
        """A package's version; "" when it is not installed."""
        return dict(self.versions).get(name, "")


@record
class StaircaseResult:
    """What a device really gave a training step. `largest_batch` is the last that fitted; `steps` all that were tried.

    `capacity_bytes`: the most that the process held on the device at once, its context included.
    """

    device: int
    capacity_bytes: int
    allocated_bytes: int
    context_bytes: int
    largest_batch: int
    failed_batch: int  # 0: the limit of time ended it, not memory
    bytes_per_sample: int
    steps: tuple[tuple[int, int], ...]  # batch, peak bytes allocated
    ended_by: str  # what the failure said


@record
class BandwidthRow:
    """All-reduce of one message size. `bus_bytes_per_s` = 2 (n - 1) / n x size / time, as nccl-tests count it."""

    message_bytes: int
    time_s: float
    bus_bytes_per_s: float


@record
class LinkMeasurement:
    """`latency_s` of one ring step and `bandwidth_bytes_per_s` of large messages."""

    backend: str
    ranks: int
    rows: tuple[BandwidthRow, ...]
    bandwidth_bytes_per_s: float
    latency_s: float


@record
class MachineReport:
    """All that was seen. `num_devices` and `usable_bytes` are what a cluster file says of this node: its least GPU."""

    device: DeviceKind
    device_name: str
    num_devices: int
    usable_bytes: int
    total_bytes: int
    sight: GpuSight
    host: HostState
    network: NetworkState
    software: SoftwareState
    staircases: tuple[StaircaseResult, ...] = ()
    link: LinkMeasurement | None = None
    unseen: tuple[str, ...] = ()
