"""What the user asks for: the job, resolved, with every default filled in."""

from __future__ import annotations

from planner.spec._record import record, require
from planner.spec.hardware import ClusterSpec
from planner.spec.kinds import (
    ActivationCheckpointing,
    Attention,
    Launcher,
    Objective,
    OffloadDevice,
    OptimizerName,
    Precision,
    ScriptKind,
    TrialMode,
)
from planner.spec.model import ModelSpec
from planner.spec.run import RunSpec
from planner.spec.tuning import AccumulationType, Allocator, CrossEntropy, OptimizerKernel, Overlap, TorchCompile


@record
class OptimizerSpec:
    name: OptimizerName = OptimizerName.ADAMW
    learning_rate: float = 3.0e-4
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1.0e-8
    weight_decay: float = 0.01
    momentum: float = 0.0  # sgd and muon


@record
class DataSpec:
    """Where the reference trainer reads tokens. `path` "" means synthetic batches."""

    path: str = ""
    token_bytes: int = 4  # of one token in the memory-mapped file: 2 or 4, little endian


@record
class TrainingSpec:
    """One training setup. `global_batch_size` is in sequences per optimizer step and is never changed."""

    seq_len: int
    global_batch_size: int
    optimizer: OptimizerSpec = OptimizerSpec()
    gradient_clipping: float = 1.0  # 0: none
    lora_rank: int = 0  # 0: all parameters are trained
    trainable_fraction: float = 1.0  # share of the parameters with gradients; below 1 only in estimates
    seed: int = 1234
    steps: int = 1000
    warmup_steps: int = 0
    min_learning_rate_fraction: float = 0.1  # of the peak, at the end of the cosine
    data: DataSpec = DataSpec()
    checkpoint_dir: str = ""  # "": no checkpoints
    checkpoint_interval_steps: int = 0  # with a folder, 0: as often as the plan finds best
    run: RunSpec = RunSpec()

    def __post_init__(self) -> None:
        require(self.seq_len >= 1 and self.global_batch_size >= 1, "seq_len and global_batch_size are at least 1")


@record
class SearchRanges:
    """The values each axis may take; None: all that is legal. Precision is never None: it changes numerics.

    Of the axes after precision None means the default alone, until the layouts are settled: then some of them are tried
    around the best ones (`planner.space.refinement`). An axis that is listed is searched with the layouts.
    """

    zero_stage: tuple[int, ...] | None = None
    tensor_parallel_size: tuple[int, ...] | None = None
    pipeline_parallel_size: tuple[int, ...] | None = None
    micro_batch_size: tuple[int, ...] | None = None
    activation_checkpointing: tuple[ActivationCheckpointing, ...] | None = None
    precision: tuple[Precision, ...] = (Precision.BF16,)
    attention: tuple[Attention, ...] | None = None
    offload_optimizer: tuple[OffloadDevice, ...] | None = None
    offload_param: tuple[OffloadDevice, ...] | None = None
    torch_compile: tuple[TorchCompile, ...] | None = None
    cross_entropy: tuple[CrossEntropy, ...] | None = None
    optimizer_kernel: tuple[OptimizerKernel, ...] | None = None
    allocator: tuple[Allocator, ...] | None = None
    overlap_comm: tuple[Overlap, ...] | None = None
    grad_accum_dtype: tuple[AccumulationType, ...] | None = None
    zero_hpz_partition_size: tuple[int, ...] | None = None
    reduce_bucket_size: tuple[int, ...] | None = None
    allgather_bucket_size: tuple[int, ...] | None = None
    stage3_prefetch_bucket_size: tuple[int, ...] | None = None
    stage3_max_live_parameters: tuple[int, ...] | None = None
    stage3_param_persistence_threshold: tuple[int, ...] | None = None


@record
class TrialPolicy:
    mode: TrialMode = TrialMode.AUTO
    max_trials: int = 24
    time_budget_s: float = 900.0
    steps: int = 5  # timed steps, after the warm-up step
    timeout_s: float = 120.0  # of one trial
    sampler: str = "guided"  # guided | tpe | random
    submit: str = "here"  # here | slurm: the whole search as one Slurm job


@record
class LaunchSpec:
    """`command` "" means the reference trainer. `python_path`: absolute folders of the job's own modules.

    `folder`: absolute, where the user's command starts; "" where the start script is called from. `base_config_json`:
    the user's own DeepSpeed config as JSON text, over which the plan lays its keys; "" for the planner's own.
    """

    launcher: Launcher = Launcher.TORCHRUN
    command: str = ""
    environment: tuple[tuple[str, str], ...] = ()
    slurm: tuple[tuple[str, str], ...] = ()  # account, partition, time, …: sbatch's long options
    kubernetes: tuple[tuple[str, str], ...] = ()  # image, namespace
    master_port: int = 29500
    python_path: tuple[str, ...] = ()
    script_kind: ScriptKind = ScriptKind.DEEPSPEED
    folder: str = ""
    base_config_json: str = ""
    hosts: tuple[tuple[str, int], ...] = ()  # name and slots of each node, from a hostfile


@record
class Deadline:
    """All of the training's steps are done within `within_s` of the start. Dates are ISO; "" where the job file gives
    a duration."""

    within_s: float
    date: str = ""
    start: str = ""

    def __post_init__(self) -> None:
        require(self.within_s > 0, "a deadline lies after the start")


@record
class JobSpec:
    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    ranges: SearchRanges = SearchRanges()
    objective: Objective = Objective.THROUGHPUT
    memory_headroom_fraction: float = 0.05
    trials: TrialPolicy = TrialPolicy()
    launch: LaunchSpec = LaunchSpec()
    # Several cluster sizes to choose among, ascending; `cluster` is then described at the largest. (): that one alone.
    node_counts: tuple[int, ...] = ()
    deadline: Deadline | None = None  # of the objective `deadline`

    def __post_init__(self) -> None:
        is_due = self.objective is Objective.DEADLINE
        require(not is_due or self.deadline is not None, "the objective deadline needs one")
        require(0 <= self.memory_headroom_fraction < 1, "memory headroom is a share of the usable memory")
