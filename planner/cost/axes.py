"""The candidates of one call as float columns, with the few quantities every formula starts from.

Owns the meaning of the columns (which product of degrees is the world, what ZeRO shards over, how many tokens a rank
sees). Leaves every price to the modules beside it.
"""

from __future__ import annotations

import numpy as np

from planner.cost.layer_tensors import caps_scores
from planner.spec._record import record
from planner.spec.columns import ATTENTIONS, OFFLOAD_DEVICES, PRECISIONS, BoolColumn, CandidateColumns, FloatColumn
from planner.spec.hardware import ClusterSpec
from planner.spec.job import TrainingSpec
from planner.spec.kinds import Attention, OffloadDevice, Precision
from planner.spec.model import ModelSpec
from planner.spec.tuning import AccumulationType, CrossEntropy, Overlap
from planner.spec.tuning_columns import has_setting, setting_values

_BYTES_OF_PRECISION = np.array([precision.bytes_per_element for precision in PRECISIONS], dtype=np.float64)
_EAGER, _SDPA = ATTENTIONS.index(Attention.EAGER), ATTENTIONS.index(Attention.SDPA)
_NVME = OFFLOAD_DEVICES.index(OffloadDevice.NVME)
_NO_OFFLOAD = OFFLOAD_DEVICES.index(OffloadDevice.NONE)
_FP8 = PRECISIONS.index(Precision.FP8)


@record
class Axes:
    """Columns of equal length.

    `element_bytes`: a weight or activation in the training precision. `shards`: ranks that ZeRO divides states over
    (data x sequence parallel: DeepSpeed's `seq_data_parallel_group`). `tokens`: of one micro-batch on one rank.
    `checkpointed_layers`: 0 none, k the first k of each stage, -1 full, -2 selective. `bucket_elements` and
    `live_elements` 0: the profile's own.
    """

    data: FloatColumn
    tensor: FloatColumn
    pipeline: FloatColumn
    sequence: FloatColumn
    expert: FloatColumn
    virtual: FloatColumn
    sequence_split: BoolColumn  # Megatron's: activations between tensor-parallel regions split by sequence
    micro_batch: FloatColumn
    accumulation: FloatColumn
    zero_stage: FloatColumn
    precision: FloatColumn  # index into PRECISIONS
    element_bytes: FloatColumn
    is_fp32: BoolColumn
    is_fp8: BoolColumn
    is_eager: BoolColumn
    is_sdpa: BoolColumn
    checkpointed_layers: FloatColumn
    offload_optimizer: BoolColumn
    offload_optimizer_nvme: BoolColumn
    offload_param: BoolColumn
    offload_param_nvme: BoolColumn
    world: FloatColumn
    shards: FloatColumn
    expert_shards: FloatColumn  # ranks that ZeRO divides the routed experts' states over
    tokens: FloatColumn
    gpus_per_node: FloatColumn  # really used: at most the world
    chunked_loss: BoolColumn
    overlap_on: BoolColumn  # asked for below stage 3
    overlap_off: BoolColumn  # switched off at stage 3
    fp32_accumulation: BoolColumn  # of 16-bit gradients
    secondary: FloatColumn  # ranks that share ZeRO++'s second copy of the parameters; 1: there is none
    bucket_elements: FloatColumn
    live_elements: FloatColumn

    def __len__(self) -> int:
        return len(self.data)


def axes_of(columns: CandidateColumns, *, model: ModelSpec, training: TrainingSpec, cluster: ClusterSpec) -> Axes:
    """Turn candidate columns into float columns.

    world = data x tensor x pipeline x sequence; the experts' data-parallel size is data x sequence / expert. A model
    that has no SDPA runs eager attention where it is asked for (`runtime/whole.py`).
    """
    is_sdpa, has_sdpa = columns.attention == _SDPA, not caps_scores(model)
    data, tensor, pipeline, sequence, expert = (
        column.astype(np.float64)
        for column in (
            columns.data_parallel_size,
            columns.tensor_parallel_size,
            columns.pipeline_parallel_size,
            columns.sequence_parallel_size,
            columns.expert_parallel_size,
        )
    )
    world = data * tensor * pipeline * sequence
    micro_batch = columns.micro_batch_size.astype(np.float64)
    return Axes(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        sequence=sequence,
        expert=expert,
        virtual=columns.virtual_pipeline_size.astype(np.float64),
        sequence_split=columns.tensor_sequence_parallel & (columns.tensor_parallel_size > 1),
        micro_batch=micro_batch,
        accumulation=columns.gradient_accumulation_steps.astype(np.float64),
        zero_stage=columns.zero_stage.astype(np.float64),
        precision=columns.precision.astype(np.float64),
        element_bytes=_BYTES_OF_PRECISION[columns.precision],
        is_fp32=_BYTES_OF_PRECISION[columns.precision] == 4,
        is_fp8=columns.precision == _FP8,
        is_eager=(columns.attention == _EAGER) | (is_sdpa & (not has_sdpa)),
        is_sdpa=is_sdpa & has_sdpa,
        checkpointed_layers=columns.checkpointed_layers.astype(np.float64),
        offload_optimizer=columns.offload_optimizer != _NO_OFFLOAD,
        offload_optimizer_nvme=columns.offload_optimizer == _NVME,
        offload_param=columns.offload_param != _NO_OFFLOAD,
        offload_param_nvme=columns.offload_param == _NVME,
        world=world,
        shards=data * sequence,
        expert_shards=np.maximum(data * sequence / expert, 1.0),
        tokens=micro_batch * training.seq_len / sequence,
        gpus_per_node=np.minimum(float(cluster.gpus_per_node), world),
        chunked_loss=has_setting(columns.tuning, "cross_entropy", CrossEntropy.CHUNKED),
        overlap_on=has_setting(columns.tuning, "overlap_comm", Overlap.ON),
        overlap_off=has_setting(columns.tuning, "overlap_comm", Overlap.OFF),
        fp32_accumulation=has_setting(columns.tuning, "grad_accum_dtype", AccumulationType.FP32),
        secondary=setting_values(columns.tuning, "zero_hpz_partition_size"),
        bucket_elements=setting_values(columns.tuning, "reduce_bucket_size"),
        live_elements=setting_values(columns.tuning, "stage3_max_live_parameters"),
    )
