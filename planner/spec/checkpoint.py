"""What decides whether a checkpoint can be loaded: how it is cut into files, and which samples its run has seen.

The trainer writes it down beside every checkpoint; `planner.app` compares two plans by the same function.
"""

from __future__ import annotations

from planner.spec._record import record
from planner.spec.candidate import Candidate
from planner.spec.job import TrainingSpec
from planner.spec.kinds import Precision


@record
class CheckpointLayout:
    """How DeepSpeed cuts a checkpoint into files; it loads under an equal layout only.

    `data_parallel_size` is 1 where data-parallel ranks are alike and one of them writes for all.
    """

    zero_stage: int
    precision: str
    tensor_parallel_size: int
    stage_layers: tuple[int, ...]
    data_parallel_size: int


@record
class RunIdentity:
    """What decides the samples of a step."""

    seed: int
    seq_len: int
    global_batch_size: int
    data: str


def checkpoint_layout(candidate: Candidate) -> CheckpointLayout:
    """The layout of the candidate's checkpoints.

    Without ZeRO data-parallel ranks are alike, but for bf16 pipelines: DeepSpeed 0.19.8 gives those an optimizer
    (`BF16_Optimizer`) that shares its states out as ZeRO-1 does.
    """
    layout = candidate.layout
    staged = layout.pipeline_parallel_size > 1
    shares = candidate.zero_stage > 0 or (staged and candidate.precision is Precision.BF16)
    return CheckpointLayout(
        zero_stage=candidate.zero_stage,
        precision=str(candidate.precision),
        tensor_parallel_size=layout.tensor_parallel_size,
        stage_layers=layout.stage_layers,
        data_parallel_size=layout.data_parallel_size if shares else 1,
    )


def run_identity(training: TrainingSpec) -> RunIdentity:
    """What must not change when a training goes on."""
    return RunIdentity(
        seed=training.seed,
        seq_len=training.seq_len,
        global_batch_size=training.global_batch_size,
        data=training.data.path,
    )


def differences(saved: CheckpointLayout | RunIdentity, wanted: CheckpointLayout | RunIdentity) -> str:
    """`zero_stage 1 (now 2), …` of what differs; "" where nothing does."""
    pairs = [(name, getattr(saved, name), getattr(wanted, name)) for name in wanted.__dataclass_fields__]
    return ", ".join(f"{name} {_shown(old)} (now {_shown(new)})" for name, old, new in pairs if old != new)


def _shown(value: object) -> str:
    return repr(list(value)) if isinstance(value, tuple) else repr(value)
