"""Step time: what adds to it, what hides, and where it shows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from planner.catalog import load_gpu, load_link, load_model
from planner.cost import estimate_columns
from planner.cost.axes import axes_of
from planner.cost.parameters import FIRST, LAST, SECOND, stage_shape
from tests.unit.cost.samples import BILLION, cluster, columns, estimates, small_model, training


def test_time_grows_in_proportion_to_accumulation() -> None:
    result = estimates(gradient_accumulation_steps=[1, 8], micro_batch_size=8, zero_stage=1)
    assert result.compute_s[1] == pytest.approx(8 * result.compute_s[0])
    assert result.optimizer_s[1] == result.optimizer_s[0]


def test_larger_micro_batches_use_the_device_better() -> None:
    result = estimates(micro_batch_size=[1, 4, 32], zero_stage=1)
    assert np.all(np.diff(result.tokens_per_s) > 0)


def test_small_work_waits_for_the_host() -> None:
    result = estimates(micro_batch_size=[1, 64], zero_stage=[0, 0], seq_len=512)
    assert result.host_s[0] / result.step_time_s[0] > 0.3 > result.host_s[1] / result.step_time_s[1]


def test_stage_three_hooks_cost_small_models_more() -> None:
    result = estimates(model=small_model(), zero_stage=[2, 3], data_parallel_size=8, seq_len=128)
    assert result.host_s[1] > 2 * result.host_s[0]


def test_tensor_parallelism_within_a_node_beats_across_nodes() -> None:
    model = load_model("llama-3.1-8b")
    rows = columns(tensor_parallel_size=8, data_parallel_size=2, micro_batch_size=4)
    inside = estimate_columns(rows, model=model, training=training(), cluster=cluster(gpus_per_node=8))
    across = estimate_columns(rows, model=model, training=training(), cluster=cluster(gpus_per_node=2))
    assert across.tensor_parallel_s[0] > 2 * inside.tensor_parallel_s[0]


def test_stage_two_reduces_every_micro_batch() -> None:
    result = estimates(zero_stage=[1, 2], data_parallel_size=16, gradient_accumulation_steps=8)
    assert result.data_parallel_s[1] > 4 * result.data_parallel_s[0]


def test_stage_three_hides_gathers_behind_compute() -> None:
    result = estimates(zero_stage=3, data_parallel_size=16, micro_batch_size=[1, 32])
    share = result.data_parallel_s / result.step_time_s
    assert share[1] < share[0]


def test_offload_shows_as_its_own_part() -> None:
    result = estimates(zero_stage=2, data_parallel_size=2, offload_optimizer=["none", "cpu"])
    assert result.offload_s[0] == 0 < result.offload_s[1]
    assert result.step_time_s[1] > result.step_time_s[0]


@pytest.mark.parametrize(("slower", "faster"), [("v100-sxm-32gb", "a100-sxm-80gb"), ("a100-sxm-80gb", "h100-sxm-80gb")])
def test_newer_devices_are_faster(slower: str, faster: str) -> None:
    rows = columns(micro_batch_size=8, precision="fp16", zero_stage=1)
    times = [
        estimate_columns(rows, model=BILLION, training=training(), cluster=cluster(gpu=load_gpu(name))).step_time_s[0]
        for name in (slower, faster)
    ]
    assert times[1] < times[0] / 1.5


def test_layout_of_a_large_model_prefers_published_practice() -> None:
    """Llama-3.1-70B on 64 H100: tensor 8 over NVLink with data and pipeline outside beats 64 pipeline stages."""
    model = load_model("llama-3.1-70b")
    rows = columns(
        tensor_parallel_size=[8, 1],
        pipeline_parallel_size=[2, 64],
        data_parallel_size=[4, 1],
        gradient_accumulation_steps=[64, 256],
        zero_stage=1,
        checkpointing="full",
    )
    result = estimate_columns(rows, model=model, training=training(seq_len=8192), cluster=cluster())
    assert result.tokens_per_s[0] > result.tokens_per_s[1]


def test_slow_network_between_nodes_shows_in_data_parallel_time() -> None:
    slow = replace(cluster(), inter_node_link=load_link("ethernet-25"))
    rows = columns(zero_stage=1, data_parallel_size=64)
    fast = estimate_columns(rows, model=BILLION, training=training(), cluster=cluster())
    poor = estimate_columns(rows, model=BILLION, training=training(), cluster=slow)
    assert poor.data_parallel_s[0] > 5 * fast.data_parallel_s[0]


def test_stages_shared_out_by_cost_leave_the_head_its_room() -> None:
    model = small_model(num_hidden_layers=16, vocab_size=16_000)  # the head weighs as much as six layers
    axes = axes_of(columns(pipeline_parallel_size=[1, 2, 4]), model=model, training=training(), cluster=cluster())
    shapes = [stage_shape(stage, axes=axes, model=model, by_cost=True) for stage in (FIRST, SECOND, LAST)]
    first, second, last = (shape.layers.tolist() for shape in shapes)
    weights = model.counts.attention_per_layer + model.counts.mlp_per_layer
    assert 5.5 < model.hidden_size * model.vocab_size / weights < 6.0
    assert first == [16, 11, 6]
    assert last[1:] == [5, 0]
    assert second[2] in (5, 6)
