"""The one entry of the cost model: memory and time of many candidates at once.

Owns the order of the parts, the rounding to whole bytes and the working-set size. Formulas are in the modules beside.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from planner.cost.architecture import architecture_of
from planner.cost.axes import Axes, axes_of
from planner.cost.calibration import Calibration
from planner.cost.columns import EstimateColumns, joined
from planner.cost.inputs import Inputs
from planner.cost.memory import device_memory
from planner.cost.peak import KINDS
from planner.cost.profile import DEEPSPEED, RuntimeProfile
from planner.cost.states import moment_bytes
from planner.cost.steptime import step_time
from planner.spec._record import record
from planner.spec.columns import BoolColumn, CandidateColumns, FloatColumn, IntColumn, replace_setting
from planner.spec.hardware import ClusterSpec
from planner.spec.job import TrainingSpec
from planner.spec.kinds import Precision, Provenance
from planner.spec.model import ModelSpec
from planner.spec.tuning import TUNING_VALUES, TorchCompile
from planner.spec.tuning_columns import has_setting, setting_codes

# Rows evaluated together: the arrays of one chunk stay in the processor's cache, and memory does not grow with rows.
_CHUNK_ROWS = 16_384
_NO_CALIBRATION = Calibration()


def estimate_columns(
    columns: CandidateColumns,
    *,
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    profile: RuntimeProfile = DEEPSPEED,
    calibration: Calibration = _NO_CALIBRATION,
) -> EstimateColumns:
    """Estimate every candidate. Cost is linear in candidates and does not depend on the number of GPUs.

    `calibration` corrects memory and time from trials of this model on this machine; its result is marked `fitted`.
    """
    compiled = ~has_setting(columns.tuning, "torch_compile", TorchCompile.NONE)
    if compiled.any():
        setting = _Setting(model=model, training=training, cluster=cluster, profile=profile, calibration=calibration)
        return _with_compiled(columns, setting)
    inputs = inputs_of(model=model, training=training, cluster=cluster, profile=profile, calibration=calibration)
    chunks = [
        _estimate_chunk(axes_of(_rows(columns, start), model=model, training=training, cluster=cluster), inputs=inputs)
        for start in range(0, max(len(columns), 1), _CHUNK_ROWS)
    ]
    return joined(chunks)


def inputs_of(
    *,
    model: ModelSpec,
    training: TrainingSpec,
    cluster: ClusterSpec,
    profile: RuntimeProfile,
    calibration: Calibration,
) -> Inputs:
    """What all candidates of one call share."""
    optimizer, vectors = training.optimizer, _vector_share(model)
    return Inputs(
        model=model,
        training=training,
        cluster=cluster,
        profile=profile,
        architecture=architecture_of(model, profile=profile, lora_rank=training.lora_rank),
        calibration=calibration,
        moments=moment_bytes(optimizer.name, momentum=optimizer.momentum, vector_share=vectors),
    )


@record
class _Setting:
    """What the rows of one call are priced under."""

    model: ModelSpec
    training: TrainingSpec
    cluster: ClusterSpec
    profile: RuntimeProfile
    calibration: Calibration


def _with_compiled(columns: CandidateColumns, setting: _Setting) -> EstimateColumns:
    """Rows of which some are compiled: each kind is priced under its profile, and all are put back in order."""
    kinds = setting_codes(columns.tuning, "torch_compile")
    places, parts = [], []
    for code, kind in enumerate(TUNING_VALUES["torch_compile"]):
        rows = np.flatnonzero(kinds == code)
        if not len(rows):
            continue
        some = columns.take(rows)
        plain = replace_setting(some, "torch_compile", TorchCompile.NONE)
        compiles = kind is not TorchCompile.NONE
        profile = replace(setting.profile, compiled=compiles, compiles_loss=kind is TorchCompile.WHOLE)
        places.append(rows)
        parts.append(
            estimate_columns(
                plain,
                model=setting.model,
                training=setting.training,
                cluster=setting.cluster,
                profile=profile,
                calibration=setting.calibration,
            )
        )
    return joined(parts).take(np.argsort(np.concatenate(places), kind="stable"))


def _rows(columns: CandidateColumns, start: int) -> CandidateColumns:
    part = slice(start, start + _CHUNK_ROWS)
    return CandidateColumns(**{name: getattr(columns, name)[part] for name in CandidateColumns.__dataclass_fields__})


def _vector_share(model: ModelSpec) -> float:
    """Share of the parameters that Muon leaves to Adam: embeddings, head, norms."""
    counts, total = model.counts, model.num_parameters
    vectors = counts.embedding + counts.position_embedding + counts.head + counts.final_norm
    return min((vectors + model.num_layers * counts.norm_per_layer) / total, 1.0) if total else 0.0


def _estimate_chunk(axes: Axes, *, inputs: Inputs) -> EstimateColumns:
    memory = device_memory(axes, inputs=inputs)
    time = step_time(axes, inputs=inputs)
    parts = {kind: _whole(memory.peak.parts[kind]) for kind in KINDS}
    allocated = sum(parts.values(), start=np.zeros(len(axes), dtype=np.int64))
    slack, communication, context = (_whole(part) for part in (memory.slack, memory.communication, memory.context))
    high, host = _whole(memory.high), _whole(memory.host)
    sequences = axes.micro_batch * axes.accumulation * axes.data
    tokens = sequences * _tokens_per_sequence(inputs)
    tokens_per_s = tokens / time.total
    gpu, cluster = inputs.cluster.gpu, inputs.cluster
    peak = gpu.peak_flops_per_s(Precision.BF16) or gpu.peak_flops_per_s(Precision.FP16) or gpu.peak_fp32_flops_per_s
    return EstimateColumns(
        parameters_bytes=parts["parameters"],
        gradients_bytes=parts["gradients"],
        optimizer_bytes=parts["optimizer"],
        activations_bytes=parts["activations"],
        buffers_bytes=parts["buffers"],
        allocator_slack_bytes=slack,
        communication_bytes=communication,
        context_bytes=context,
        allocated_bytes=allocated,
        reserved_bytes=allocated + slack,
        device_used_bytes=allocated + slack + communication + context,
        worst_stage=memory.peak.stage,
        low_bytes=_whole(memory.low),
        high_bytes=high,
        host_bytes=host,
        disk_bytes=_whole(memory.disk),
        compute_s=time.parts["compute"],
        recompute_s=time.parts["recompute"],
        tensor_parallel_s=time.parts["tensor_parallel"],
        data_parallel_s=time.parts["data_parallel"],
        pipeline_s=time.parts["pipeline"],
        bubble_s=time.parts["bubble"],
        optimizer_s=time.parts["optimizer"],
        offload_s=time.parts["offload"],
        host_s=time.parts["host"],
        step_time_s=time.total,
        tokens_per_s=tokens_per_s,
        tokens_per_s_per_gpu=tokens_per_s / axes.world,
        mfu_fraction=time.model_flops / (time.total * axes.world * peak),
        fits=_fits(high, host=host, cluster=cluster),
        usable_bytes=gpu.memory_usable_bytes,
        host_usable_bytes=cluster.host_memory_bytes,
        kind=Provenance.FITTED if inputs.calibration.num_points else Provenance.COMPUTED,
    )


def _tokens_per_sequence(inputs: Inputs) -> float:
    traced = inputs.model.traced
    return float(traced.tokens_per_sample if traced is not None else inputs.training.seq_len)


def _fits(high: IntColumn, *, host: IntColumn, cluster: ClusterSpec) -> BoolColumn:
    fits: BoolColumn = (high <= cluster.gpu.memory_usable_bytes) & (host <= cluster.host_memory_bytes)
    return fits


def _whole(values: FloatColumn) -> IntColumn:
    return np.rint(values).astype(np.int64)
