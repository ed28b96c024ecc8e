"""What DeepSpeed keeps per parameter, against counts from its source and from the H200 rows."""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.axes import axes_of
from planner.cost.parameters import FIRST, rank_parameters, stage_shape
from planner.cost.profile import DEEPSPEED, REFERENCE_TRAINER
from planner.cost.states import States, moment_bytes
from planner.cost.states_deepspeed import deepspeed_states
from planner.spec import OptimizerName
from tests.unit.cost.samples import BILLION, cluster, columns, estimate, inputs, small_model, training

BUCKET_BYTES = 1.0e9  # 5e8 elements of two bytes


def _states(**values: object) -> States:
    axes = axes_of(columns(**values), model=BILLION, training=training(), cluster=cluster())
    shape = stage_shape(FIRST, axes=axes, model=BILLION)
    params = rank_parameters(shape, axes=axes, inputs=inputs())
    return deepspeed_states(params, axes=axes, profile=DEEPSPEED, moments=8.0)


@pytest.mark.parametrize(
    ("zero_stage", "precision", "bytes_per_parameter"),
    [(0, "bf16", 20), (1, "bf16", 22), (2, "bf16", 22), (0, "fp32", 16), (1, "fp32", 24)],
)
def test_step_on_one_rank_holds_the_bytes_counted_in_the_source(
    zero_stage: int, precision: str, bytes_per_parameter: int
) -> None:
    step = _states(zero_stage=zero_stage, precision=precision).step
    assert step.total[0] / BILLION.num_parameters == pytest.approx(bytes_per_parameter, rel=1e-6)


def test_step_of_stage_three_copies_one_sub_group_at_a_time() -> None:
    step = _states(zero_stage=3).step
    assert step.total[0] == pytest.approx(16 * BILLION.num_parameters + 6 * 1.0e9 + BUCKET_BYTES)


@pytest.mark.parametrize("shards", [2, 8, 64])
def test_stages_one_and_two_keep_two_bytes_whole_and_twelve_divided(shards: int) -> None:
    for zero_stage in (1, 2):
        held = _states(zero_stage=zero_stage, data_parallel_size=shards).loss
        expected = (2 + 12 / shards) * BILLION.num_parameters
        assert held.parameters[0] + held.optimizer[0] == pytest.approx(expected, rel=1e-6)


def test_stage_three_gathers_no_more_than_its_limit_of_live_parameters() -> None:
    many = _states(zero_stage=3, data_parallel_size=8).loss
    alone = _states(zero_stage=3, data_parallel_size=1).loss
    assert many.buffers[0] - BUCKET_BYTES == pytest.approx(2 * (1.0e9 + 2.5e7))
    assert alone.buffers[0] == pytest.approx(BUCKET_BYTES)


def test_optimizer_offload_leaves_no_optimizer_state_on_the_device() -> None:
    held = _states(zero_stage=2, data_parallel_size=2, offload_optimizer="cpu")
    assert held.loss.optimizer[0] == 0
    resident = estimate(zero_stage=2, data_parallel_size=2).memory
    offloaded = estimate(zero_stage=2, data_parallel_size=2, offload_optimizer="cpu").memory
    assert offloaded.device_used_bytes < resident.device_used_bytes
    assert offloaded.host_bytes > resident.host_bytes + 12 * BILLION.num_parameters


def test_optimizer_offload_below_stage_one_changes_nothing_on_the_device() -> None:
    plain, asked = estimate(zero_stage=0).memory, estimate(zero_stage=0, offload_optimizer="cpu").memory
    assert plain.device_used_bytes == asked.device_used_bytes


def test_nvme_offload_puts_the_states_on_disk() -> None:
    memory = estimate(zero_stage=3, data_parallel_size=2, offload_optimizer="nvme").memory
    assert memory.disk_bytes == pytest.approx(16 * BILLION.num_parameters, rel=0.01)


def test_pipeline_in_bf16_at_stage_zero_shards_like_stage_one() -> None:
    held = _states(zero_stage=0, pipeline_parallel_size=2, data_parallel_size=4, precision=["bf16", "fp16"]).loss
    assert held.optimizer[0] * 4 == pytest.approx(held.optimizer[1])


def test_buckets_of_the_emitted_config_never_exceed_the_model() -> None:
    small = small_model()
    stock = estimate(model=small, zero_stage=2, seq_len=128).memory.breakdown.buffers_bytes
    emitted = estimate(model=small, zero_stage=2, seq_len=128, profile=REFERENCE_TRAINER).memory.breakdown.buffers_bytes
    assert stock > 1.0e9 > emitted


@pytest.mark.parametrize(
    ("name", "momentum", "expected"),
    [
        (OptimizerName.ADAMW, 0.0, 8.0),
        (OptimizerName.LION, 0.0, 4.0),
        (OptimizerName.SGD, 0.0, 0.0),
        (OptimizerName.SGD, 0.9, 4.0),
    ],
)
def test_moment_bytes_follow_the_optimizer(name: OptimizerName, momentum: float, expected: float) -> None:
    assert moment_bytes(name, momentum=momentum) == expected


def test_muon_leaves_embeddings_and_norms_to_adam() -> None:
    assert 4.0 < moment_bytes(OptimizerName.MUON, vector_share=0.25) < 8.0


def test_expert_parallel_ranks_divide_the_experts() -> None:
    model = small_model("mixtral", num_local_experts=8, num_experts_per_tok=2)
    axes = axes_of(
        columns(data_parallel_size=8, expert_parallel_size=[1, 8]),
        model=model,
        training=training(seq_len=128),
        cluster=cluster(),
    )
    shape = stage_shape(FIRST, axes=axes, model=model)
    params = rank_parameters(shape, axes=axes, inputs=inputs(model))
    assert params.expert[0] == pytest.approx(8 * params.expert[1])
    assert params.dense[0] == params.dense[1]
    assert np.all(axes.expert_shards == [8, 1])
