"""Rules about ZeRO, precision, activation checkpointing, offload and the optimizer.

What was found by running DeepSpeed 0.19.8 on CPU (gloo; one process, data-parallel 2, pipeline 2, pipeline 2 x data 2;
three optimizer steps of four micro-batches; fp16 with the CPU accelerator's refusal lifted):

- ZeRO 0-3 x fp32, bf16, fp16 without pipeline, and ZeRO 0-1 x the same with pipeline, all initialize and step, also on
  one data-parallel rank. ZeRO 2 and 3 with pipeline raise AssertionError (runtime/pipe/engine.py).
- `data_types.grad_accum_dtype`: unset or equal to the training precision works everywhere. "fp32" with bf16 or fp16
  works at ZeRO 1-3 and raises NotImplementedError at ZeRO 0 (engine `_do_optimizer_sanity_check`). bf16 + "fp32" at
  ZeRO 1 changes the optimizer class to BF16_Optimizer; so does bf16 at ZeRO 0 with pipeline.
- **ZeRO 0 in 16 bits steps the optimizer once before training** (fp16/unfused_optimizer.py and fused_optimizer.py,
  `initialize_optimizer_states`, with zero gradients): Adam's step counter starts at 1, so that its first update is
  about 0.74 of what it should be, and weight decay has acted once. Losses then differ from ZeRO 1-3 by more than
  rounding. Not with bf16 + pipeline (BF16_Optimizer), not in fp32, not with plain SGD. No key prevents it; the
  reference trainer undoes it (`planner/runtime/fresh_optimizer.py`), a script of the user's own meets it.
- fp16 on CPU raises ValueError ("Type fp16 is not supported on your device") unless the CPU has AVX-512 FP16.
- SGD under ZeRO 1-3 needs `zero_allow_untested_optimizer`. Muon: ZeRO 3 needs `reduce_scatter: false`; bf16 at ZeRO 0
  with pipeline raises. Lion has no CPU kernel. 8-bit Adam is no optimizer DeepSpeed can name.
"""

from __future__ import annotations

import numpy as np

from planner.rules.config_context import Severity
from planner.rules.config_zero import (
    nvme_below_zero_3,
    offload_optimizer_at_zero_0,
    offload_param_below_zero_3,
    zero_with_pipeline,
)
from planner.rules.rule import Rule, RuleContext, everywhere
from planner.spec import DeviceKind, ModelFamily, OffloadDevice, OptimizerName, Precision, Runtime
from planner.spec.columns import (
    OFFLOAD_DEVICES,
    PRECISIONS,
    BoolColumn,
    CandidateColumns,
    IntColumn,
)

_BF16 = PRECISIONS.index(Precision.BF16)
_FP8 = PRECISIONS.index(Precision.FP8)
_NO_OFFLOAD = OFFLOAD_DEVICES.index(OffloadDevice.NONE)
_NVME = OFFLOAD_DEVICES.index(OffloadDevice.NVME)


def _is_deepspeed(context: RuleContext) -> bool:
    return context.runtime is Runtime.DEEPSPEED


def _pipeline_with_zero_2(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    return (columns.pipeline_parallel_size > 1) & (columns.zero_stage >= 2) & _is_deepspeed(context)


def _precision_missing(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    gpu = context.cluster.gpu
    lacks = np.array([gpu.peak_flops_per_s(precision) <= 0 for precision in PRECISIONS], dtype=np.bool_)
    return lacks[columns.precision]


def precisions_of(context: RuleContext) -> tuple[Precision, ...]:
    """The precisions that the GPU has units for and DeepSpeed can train in."""
    gpu = context.cluster.gpu
    return tuple(p for p in PRECISIONS if gpu.peak_flops_per_s(p) > 0 and p is not Precision.FP8)


def _precision_sentence(context: RuleContext) -> str:
    words = ", ".join(precisions_of(context)) or "none"
    return f"{context.cluster.gpu.name} has no units for the precision (it has {words})"


def _trains_in_fp8(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused: BoolColumn = (columns.precision == _FP8) & _is_deepspeed(context)
    return refused


def smallest_stage(pipeline_parallel_size: IntColumn, num_layers: int) -> IntColumn:
    """Layers of the pipeline stage that holds the fewest."""
    return num_layers // np.maximum(pipeline_parallel_size, 1)


def _largest_stage(pipeline_parallel_size: IntColumn, num_layers: int) -> IntColumn:
    return -(-num_layers // np.maximum(pipeline_parallel_size, 1))


def _checkpoints_without_layers(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    no_layers = context.reference_trainer and bool(checkpointing_refusal(context))
    refused: BoolColumn = (columns.checkpointed_layers != 0) & no_layers
    return refused


def checkpointing_refusal(context: RuleContext) -> str:
    """Why this model takes no activation checkpointing; "" when it does."""
    if context.model.family is ModelFamily.MODULE:
        return "an arbitrary module does not say where its layers begin and end"
    return "" if context.model.num_layers else "the model is not a stack of layers"


def _checkpoints_beyond_stage(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    return columns.checkpointed_layers > smallest_stage(columns.pipeline_parallel_size, context.model.num_layers)


def _checkpoints_all_layers(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    every = _largest_stage(columns.pipeline_parallel_size, context.model.num_layers)
    refused: BoolColumn = (columns.checkpointed_layers == every) & (columns.checkpointed_layers > 0)
    return refused


def _optimizer_unknown(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    is_8bit = context.training.optimizer.name is OptimizerName.ADAM8BIT
    return everywhere(columns, is_8bit and _is_deepspeed(context) and context.reference_trainer)


def _lion_on_cpu(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    is_lion = context.training.optimizer.name is OptimizerName.LION
    on_cpu = context.cluster.gpu.device is DeviceKind.CPU
    refused: BoolColumn = (columns.offload_optimizer == _NO_OFFLOAD) & (
        is_lion and on_cpu and context.reference_trainer
    )
    return refused


def _splits_muon_matrices(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    is_muon = context.training.optimizer.name is OptimizerName.MUON
    return (columns.tensor_parallel_size > 1) & (is_muon and context.reference_trainer)


def _muon_in_bf16_optimizer(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    is_muon = context.training.optimizer.name is OptimizerName.MUON and _is_deepspeed(context)
    wrapped = (columns.pipeline_parallel_size > 1) & (columns.zero_stage == 0) & (columns.precision == _BF16)
    refused: BoolColumn = wrapped & is_muon
    return refused


def _sequence_too_long(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    learned = context.model.counts.position_embedding > 0 and context.model.max_seq_len > 0
    return everywhere(columns, learned and context.training.seq_len > context.model.max_seq_len)


def _offloads_param_below_3(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused: BoolColumn = (columns.offload_param != _NO_OFFLOAD) & (columns.zero_stage < 3) & _is_deepspeed(context)
    return refused


def _offloads_optimizer_at_0(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused: BoolColumn = (
        (columns.offload_optimizer != _NO_OFFLOAD) & (columns.zero_stage == 0) & _is_deepspeed(context)
    )
    return refused


def _offloads_to_nvme_below_3(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused: BoolColumn = (columns.offload_optimizer == _NVME) & (columns.zero_stage < 3) & _is_deepspeed(context)
    return refused


MODE_RULES: tuple[Rule, ...] = (
    Rule(
        name="sequence-fits-positions",
        severity=Severity.ERROR,
        summary="a model with learned positions takes no sequence longer than it has positions",
        source="planner/runtime: the reference trainer",
        mask=_sequence_too_long,
        sentence=lambda c: (
            f"{c.model.name} has {c.model.max_seq_len} learned positions, but seq_len is {c.training.seq_len}"
        ),
    ),
    Rule(
        name="optimizer-unknown-to-deepspeed",
        severity=Severity.ERROR,
        summary="DeepSpeed's JSON names only its own optimizers and those of torch.optim",
        source="DeepSpeed 0.19.8, runtime/engine.py: _is_supported_optimizer",
        mask=_optimizer_unknown,
        sentence=lambda c: f"DeepSpeed has no optimizer {c.training.optimizer.name}; use adamw, sgd, lion or muon",
    ),
    Rule(
        name="precision-unsupported-by-gpu",
        severity=Severity.ERROR,
        summary="the GPU must have units for the precision",
        source="DeepSpeed 0.19.8, runtime/engine.py: _do_sanity_check; the catalog's peak rates",
        axes=("precision",),
        mask=_precision_missing,
        sentence=_precision_sentence,
    ),
    Rule(
        name="precision-not-trained",
        severity=Severity.ERROR,
        summary="DeepSpeed's JSON has no switch for training in fp8",
        source="DeepSpeed 0.19.8, runtime/precision_config.py",
        axes=("precision",),
        mask=_trains_in_fp8,
    ),
    Rule(
        name="pipeline-needs-zero-0-or-1",
        severity=Severity.ERROR,
        summary="a pipeline keeps the gradients of several micro-batches, which ZeRO 2 and 3 would have given away: "
        "pipeline stages run with ZeRO 0 or 1 only",
        source="DeepSpeed 0.19.8, runtime/pipe/engine.py: assertion in __init__ (seen)",
        axes=("zero_stage", "pipeline_parallel_size"),
        mask=_pipeline_with_zero_2,
        check=zero_with_pipeline,
    ),
    Rule(
        name="checkpointing-needs-layers",
        severity=Severity.ERROR,
        summary="activation checkpointing recomputes layer by layer, so the model must be a stack of layers",
        source="planner/runtime: the reference trainer",
        axes=("activation_checkpointing",),
        mask=_checkpoints_without_layers,
        sentence=lambda c: f"{c.model.name} takes no activation checkpointing: {checkpointing_refusal(c)}",
    ),
    Rule(
        name="checkpointed-layers-equal-full",
        severity=Severity.ERROR,
        summary="checkpointing as many layers as every stage holds is `full` under another name",
        source="arithmetic",
        axes=("activation_checkpointing", "pipeline_parallel_size"),
        mask=_checkpoints_all_layers,
    ),
    Rule(
        name="checkpointed-layers-beyond-stage",
        severity=Severity.ERROR,
        summary="`layers:k` checkpoints k layers of each pipeline stage, so k is at most what the smallest stage holds",
        source="arithmetic",
        axes=("activation_checkpointing", "pipeline_parallel_size"),
        mask=_checkpoints_beyond_stage,
        sentence=lambda c: (
            "`layers:k` checkpoints k layers of each pipeline stage: k must be at most "
            f"{c.model.num_layers} layers / pipeline_parallel_size"
        ),
    ),
    Rule(
        name="lion-needs-gpu",
        severity=Severity.ERROR,
        summary="DeepSpeed's Lion has a CUDA kernel and none for CPU devices",
        source="DeepSpeed 0.19.8, ops/op_builder/cpu/no_impl.py (seen)",
        axes=("offload_optimizer",),
        mask=_lion_on_cpu,
    ),
    Rule(
        name="muon-needs-whole-matrices",
        severity=Severity.ERROR,
        summary="Muon orthogonalises whole matrices; on tensor-parallel slices it would be another optimizer",
        source="arXiv 2502.16982, section 2.3; DeepSpeed 0.19.8, runtime/zero/muon/",
        axes=("tensor_parallel_size",),
        mask=_splits_muon_matrices,
    ),
    Rule(
        name="muon-pipeline-needs-zero-1",
        severity=Severity.ERROR,
        summary="Muon in bf16 with pipeline stages needs ZeRO 1: at ZeRO 0 DeepSpeed wraps it in BF16_Optimizer, which "
        "refuses",
        source="DeepSpeed 0.19.8, runtime/bf16_optimizer.py (seen)",
        axes=("zero_stage", "pipeline_parallel_size", "precision"),
        mask=_muon_in_bf16_optimizer,
    ),
    Rule(
        name="offload-param-needs-zero-3",
        severity=Severity.ERROR,
        summary="parameters are offloaded at ZeRO 3 only; below it DeepSpeed ignores the request",
        source="DeepSpeed 0.19.8, runtime/zero/config.py and engine (seen at stage 2)",
        axes=("offload_param", "zero_stage"),
        mask=_offloads_param_below_3,
        check=offload_param_below_zero_3,
    ),
    Rule(
        name="offload-optimizer-needs-zero",
        severity=Severity.ERROR,
        summary="optimizer states are offloaded at ZeRO 1 to 3; at ZeRO 0 DeepSpeed does not offload",
        source="DeepSpeed 0.19.8, runtime/engine.py (seen on CPU)",
        axes=("offload_optimizer", "zero_stage"),
        mask=_offloads_optimizer_at_0,
        check=offload_optimizer_at_zero_0,
    ),
    Rule(
        name="offload-nvme-needs-zero-3",
        severity=Severity.ERROR,
        summary="optimizer states go to NVMe at ZeRO 3 only; at ZeRO 1 and 2 DeepSpeed keeps them in host memory",
        source="DeepSpeed 0.19.8, runtime/zero/stage_1_and_2.py (seen)",
        axes=("offload_optimizer", "zero_stage"),
        mask=_offloads_to_nvme_below_3,
        check=nvme_below_zero_3,
    ),
)
