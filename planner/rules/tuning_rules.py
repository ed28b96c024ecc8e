"""Rules about the settings of one layout: compilation, the loss's form, kernels, offload, buckets, ZeRO++'s hpZ.

What DeepSpeed refuses, what it would ignore without a word, and what the reference trainer cannot do.
"""

from __future__ import annotations

import numpy as np

from planner.rules.config_context import Severity
from planner.rules.layout_rules import pipeline_parallel_refusal
from planner.rules.rule import Rule, RuleContext
from planner.spec import (
    AccumulationType,
    Allocator,
    Attention,
    CrossEntropy,
    DeviceKind,
    ModelFamily,
    OffloadDevice,
    OptimizerKernel,
    OptimizerName,
    Overlap,
    Precision,
    TorchCompile,
)
from planner.spec.columns import ATTENTIONS, OFFLOAD_DEVICES, PRECISIONS, BoolColumn, CandidateColumns
from planner.spec.tuning_columns import has_setting, setting_values

_TRAINER = "planner/runtime: the reference trainer"
_NVME = OFFLOAD_DEVICES.index(OffloadDevice.NVME)
_NO_OFFLOAD = OFFLOAD_DEVICES.index(OffloadDevice.NONE)
_FLASH = ATTENTIONS.index(Attention.FLASH)
_FP32 = PRECISIONS.index(Precision.FP32)
_KERNELS = {
    OptimizerKernel.UNFUSED: (OptimizerName.ADAMW, OptimizerName.SGD),
    OptimizerKernel.DEEPSPEED: (OptimizerName.ADAMW,),
}


def _on_gpu(context: RuleContext) -> bool:
    return context.cluster.gpu.device is DeviceKind.CUDA


def _compiles(columns: CandidateColumns) -> BoolColumn:
    compiles: BoolColumn = ~has_setting(columns.tuning, "torch_compile", TorchCompile.NONE)
    return compiles


def is_built_of_blocks(context: RuleContext) -> bool:
    """Whether the reference trainer assembles the model from its own blocks, and can thus change how one of them runs:
    exactly the models that it can cut into a pipeline."""
    return context.model.family is ModelFamily.DECODER and not pipeline_parallel_refusal(context)


def _compiles_layers_of_none(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    by_layer = has_setting(columns.tuning, "torch_compile", TorchCompile.LAYER)
    refused: BoolColumn = by_layer & (context.reference_trainer and not is_built_of_blocks(context))
    return refused


def _compiles_pipeline_whole(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    whole = has_setting(columns.tuning, "torch_compile", TorchCompile.WHOLE)
    refused: BoolColumn = whole & (columns.pipeline_parallel_size > 1) & context.reference_trainer
    return refused


def _compiles_split_layers(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused: BoolColumn = _compiles(columns) & (columns.tensor_parallel_size > 1) & context.reference_trainer
    return refused


def _compiles_gathered_layers(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused: BoolColumn = _compiles(columns) & (columns.zero_stage == 3) & context.reference_trainer
    return refused


def _chunks_without_blocks(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    chunked = has_setting(columns.tuning, "cross_entropy", CrossEntropy.CHUNKED)
    refused: BoolColumn = chunked & (context.reference_trainer and not is_built_of_blocks(context))
    return refused


def _allocates_on_cpu(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    expands = has_setting(columns.tuning, "allocator", Allocator.EXPANDABLE_SEGMENTS)
    refused: BoolColumn = expands & (not _on_gpu(context))
    return refused


def _overlaps_in_pipeline(columns: CandidateColumns, _context: RuleContext) -> BoolColumn:
    overlaps = has_setting(columns.tuning, "overlap_comm", Overlap.ON)
    refused: BoolColumn = overlaps & (columns.pipeline_parallel_size > 1)
    return refused


def _accumulates_without_zero(columns: CandidateColumns, _context: RuleContext) -> BoolColumn:
    other = ~has_setting(columns.tuning, "grad_accum_dtype", AccumulationType.SAME)
    refused: BoolColumn = other & (columns.zero_stage == 0)
    return refused


def _accumulates_coarser(columns: CandidateColumns, _context: RuleContext) -> BoolColumn:
    sixteen = has_setting(columns.tuning, "grad_accum_dtype", AccumulationType.BF16)
    return sixteen | has_setting(columns.tuning, "grad_accum_dtype", AccumulationType.FP16)


def _partitions_unevenly(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    size = setting_values(columns.tuning, "zero_hpz_partition_size").astype(np.int64)
    split = (columns.tensor_parallel_size > 1) | (columns.pipeline_parallel_size > 1)
    uneven = (columns.data_parallel_size % size != 0) | (context.cluster.gpus_per_node % size != 0) | split
    refused: BoolColumn = (size > 1) & uneven
    return refused


def _kernel_missing(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    refused: BoolColumn = np.zeros(len(columns), dtype=np.bool_)
    for kernel, names in _KERNELS.items():
        missing = context.training.optimizer.name not in names or not _on_gpu(context)
        refused = refused | (has_setting(columns.tuning, "optimizer_kernel", kernel) & missing)
    return refused


def _flash_cannot(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    flash = (columns.attention == _FLASH) & context.reference_trainer
    window = context.model.sliding_window
    slides = 0 < window < context.training.seq_len
    refused: BoolColumn = flash & ((columns.precision == _FP32) | slides | (not _on_gpu(context)))
    return refused


def _offloads_to_nvme(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    to_drive = (columns.offload_optimizer == _NVME) | (columns.offload_param == _NVME)
    refused: BoolColumn = to_drive & context.reference_trainer
    return refused


def _offloads_unknown_optimizer(columns: CandidateColumns, context: RuleContext) -> BoolColumn:
    steps_on_host = context.training.optimizer.name in (OptimizerName.ADAMW, OptimizerName.LION)
    refused: BoolColumn = (columns.offload_optimizer != _NO_OFFLOAD) & (context.reference_trainer and not steps_on_host)
    return refused


TUNING_RULES: tuple[Rule, ...] = (
    Rule(
        name="compile-layer-needs-blocks",
        severity=Severity.ERROR,
        summary="torch_compile: layer compiles the trainer's own decoder layers, so the model must be built of them",
        source=_TRAINER,
        axes=("torch_compile",),
        mask=_compiles_layers_of_none,
        sentence=lambda c: f"{c.model.name} is not built layer by layer, so torch_compile can only be none or whole",
    ),
    Rule(
        name="compile-whole-needs-one-stage",
        severity=Severity.ERROR,
        summary="torch_compile: whole compiles one module that holds the whole model; with pipeline stages use layer",
        source=_TRAINER,
        axes=("torch_compile", "pipeline_parallel_size"),
        mask=_compiles_pipeline_whole,
    ),
    Rule(
        name="compile-without-tensor-parallel",
        severity=Severity.WARNING,
        summary="torch_compile is tried with tensor_parallel_size 1: split layers call collectives between their "
        "products, at which the compiler stops. Where you list it, it is tried (results are the same: seen on CPU)",
        source=_TRAINER,
        axes=("torch_compile", "tensor_parallel_size"),
        mask=_compiles_split_layers,
    ),
    Rule(
        name="compile-without-zero-3",
        severity=Severity.WARNING,
        summary="torch_compile is tried with ZeRO 0 to 2: at stage 3 hooks around every module gather its parameters, "
        "and the compiler stops at each. Where you list it, it is tried (results are the same: seen on CPU)",
        source=_TRAINER,
        axes=("torch_compile", "zero_stage"),
        mask=_compiles_gathered_layers,
    ),
    Rule(
        name="chunked-loss-needs-blocks",
        severity=Severity.ERROR,
        summary="cross_entropy: chunked replaces the trainer's own head and loss, so the model must be built of blocks",
        source=_TRAINER,
        axes=("cross_entropy",),
        mask=_chunks_without_blocks,
        sentence=lambda c: f"{c.model.name} computes its loss itself, so cross_entropy can only be whole",
    ),
    Rule(
        name="allocator-needs-gpu",
        severity=Severity.ERROR,
        summary="allocator: expandable_segments is an option of torch's CUDA allocator",
        source="torch: c10/cuda/CUDAAllocatorConfig",
        axes=("allocator",),
        mask=_allocates_on_cpu,
    ),
    Rule(
        name="overlap-without-pipeline",
        severity=Severity.ERROR,
        summary="DeepSpeed switches overlap_comm off with pipeline stages, with a warning in the log",
        source="DeepSpeed 0.19.8, runtime/pipe/engine.py",
        axes=("overlap_comm", "pipeline_parallel_size"),
        mask=_overlaps_in_pipeline,
    ),
    Rule(
        name="accumulation-type-needs-zero",
        severity=Severity.ERROR,
        summary="without ZeRO gradients accumulate in the type of the weights; DeepSpeed refuses any other mix",
        source="DeepSpeed 0.19.8, runtime/engine.py: _do_optimizer_sanity_check (seen)",
        axes=("grad_accum_dtype", "zero_stage"),
        mask=_accumulates_without_zero,
    ),
    Rule(
        name="accumulation-type-not-coarser",
        severity=Severity.ERROR,
        summary="gradients accumulate in the type of the weights or in fp32: another 16-bit type only loses "
        "digits or range",
        source="arithmetic",
        axes=("grad_accum_dtype", "precision"),
        mask=_accumulates_coarser,
    ),
    Rule(
        name="hpz-divides-node",
        severity=Severity.ERROR,
        summary="zero_hpz_partition_size must divide the GPUs of a node and the data-parallel ranks, and DeepSpeed "
        "forms its groups of neighbouring ranks without regard to tensor or pipeline groups",
        source="DeepSpeed 0.19.8, utils/groups.py: _create_zero_param_parallel_group",
        axes=("zero_hpz_partition_size", "data_parallel_size", "tensor_parallel_size", "pipeline_parallel_size"),
        mask=_partitions_unevenly,
        sentence=lambda c: (
            f"zero_hpz_partition_size must divide the {c.cluster.gpus_per_node} GPUs of a node and the data-parallel "
            "ranks, with tensor and pipeline sizes of 1"
        ),
    ),
    Rule(
        name="kernel-for-optimizer",
        severity=Severity.ERROR,
        summary="optimizer_kernel: deepspeed is for AdamW, unfused for AdamW and SGD, and both are for GPUs",
        source="DeepSpeed 0.19.8, runtime/engine.py: _configure_basic_optimizer",
        axes=("optimizer_kernel",),
        mask=_kernel_missing,
    ),
    Rule(
        name="flash-needs-16-bit",
        severity=Severity.ERROR,
        summary="torch's flash kernel computes in 16 bit, on a GPU, without a sliding window shorter than the sequence",
        source=_TRAINER,
        axes=("attention", "precision"),
        mask=_flash_cannot,
    ),
    Rule(
        name="offload-nvme-needs-path",
        severity=Severity.ERROR,
        summary="offload to NVMe needs the path of a drive on every node, which a job cannot name yet; use cpu",
        source="DeepSpeed 0.19.8, runtime/zero/offload_config.py",
        axes=("offload_optimizer", "offload_param"),
        mask=_offloads_to_nvme,
    ),
    Rule(
        name="offload-needs-host-optimizer",
        severity=Severity.ERROR,
        summary="optimizer states are offloaded with AdamW or Lion, which DeepSpeed can step in host memory",
        source="DeepSpeed 0.19.8, runtime/zero/utils.py: is_zero_supported_optimizer",
        axes=("offload_optimizer",),
        mask=_offloads_unknown_optimizer,
    ),
)
