"""Laws of pipelines over groups of nodes: the partition is the best there is, and equal groups change nothing."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.catalog import load_cluster, load_model
from planner.catalog.groups import join_groups
from planner.cost import REFERENCE_TRAINER, estimate_columns
from planner.cost.uneven import Setting, balance_stages, price_partition
from planner.spec import BatchSplit, Candidate, ClusterSpec, ParallelLayout, Precision, TrainingSpec, partition_layers
from planner.spec.columns import columns_of
from planner.spec.kinds import ActivationCheckpointing

MODEL = load_model("llama-3.2-1b")
TRAINING = TrainingSpec(seq_len=1024, global_batch_size=64)
FAST = load_cluster("dgx-h100", nodes=1)


def _slower(cluster: ClusterSpec, *, speed: float, memory: float = 1.0) -> ClusterSpec:
    gpu = cluster.gpu
    slow = replace(
        gpu,
        name="slow",
        peak_bf16_flops_per_s=gpu.peak_bf16_flops_per_s * speed,
        memory_bandwidth_bytes_per_s=gpu.memory_bandwidth_bytes_per_s * speed,
        memory_usable_bytes=int(gpu.memory_usable_bytes * memory),
    )
    return replace(cluster, gpu=slow)


def _setting(groups: tuple[ClusterSpec, ...]) -> Setting:
    nodes = sum(group.nodes for group in groups)
    cluster = replace(groups[0], nodes=nodes, groups=groups)
    return Setting(model=MODEL, training=TRAINING, cluster=cluster, profile=REFERENCE_TRAINER, headroom_fraction=0.05)


def _candidate(layers: tuple[int, ...], *, tensor: int = 4, zero: int = 1) -> Candidate:
    data = 16 // tensor // len(layers)
    layout = ParallelLayout(
        data_parallel_size=data,
        tensor_parallel_size=tensor,
        pipeline_parallel_size=len(layers),
        stage_layers=layers,
    )
    return Candidate(
        layout=layout,
        batch=BatchSplit(micro_batch_size=1, gradient_accumulation_steps=64 // data, data_parallel_size=data),
        zero_stage=zero,
        precision=Precision.BF16,
        activation_checkpointing=ActivationCheckpointing(),
    )


@given(st.floats(0.1, 1.0), st.floats(0.02, 1.0), st.booleans(), st.sampled_from([2, 4]))
@settings(max_examples=25, deadline=None)
def test_partition_is_as_good_as_the_best_of_all(speed: float, memory: float, slow_first: bool, stages: int) -> None:
    groups = (FAST, _slower(FAST, speed=speed, memory=memory))
    setting = _setting(groups[::-1] if slow_first else groups)
    num_layers = MODEL.num_layers
    even = _candidate(partition_layers(num_layers, stages))
    balance = balance_stages(columns_of((even,), gpus_per_node=8), setting)
    tables = [kind for kind in balance.stages for _ in range(int(kind.count[0]))]
    best = np.inf
    for head in product(range(1, num_layers), repeat=stages - 1):
        rest = num_layers - sum(head)
        layers = (*head, rest)
        if rest >= 1 and all(kind.fits[0, count - 1] for kind, count in zip(tables, layers)):
            best = min(best, max(kind.seconds[0, count - 1] for kind, count in zip(tables, layers)))
    assert balance.slowest_s[0] == pytest.approx(best, rel=1e-6) or (np.isinf(best) and np.isinf(balance.slowest_s[0]))
    if np.isfinite(best):
        ours = balance.partition(0)
        assert sum(ours) == num_layers and min(ours) >= 1
        assert max(kind.seconds[0, count - 1] for kind, count in zip(tables, ours)) == pytest.approx(best, rel=1e-6)


@given(st.floats(0.1, 0.9))
@settings(max_examples=20, deadline=None)
def test_slower_group_never_holds_more_layers(speed: float) -> None:
    setting = _setting((FAST, _slower(FAST, speed=speed)))
    balance = balance_stages(columns_of((_candidate((8, 8)),), gpus_per_node=8), setting)
    fast, slow = balance.partition(0)
    assert slow <= fast


def test_even_partition_on_equal_groups_costs_what_the_homogeneous_pipeline_does() -> None:
    candidate = _candidate(partition_layers(MODEL.num_layers, 4))
    twins = price_partition(candidate, _setting((FAST, FAST)))
    alike = replace(FAST, nodes=2)
    whole = estimate_columns(
        columns_of((candidate,), gpus_per_node=8),
        model=MODEL,
        training=TRAINING,
        cluster=alike,
        profile=REFERENCE_TRAINER,
    ).record_at(0)
    assert twins.memory.device_used_bytes == pytest.approx(whole.memory.device_used_bytes, rel=1e-6)
    assert twins.time.compute_s == pytest.approx(whole.time.compute_s, rel=1e-9)
    assert twins.mfu_fraction == pytest.approx(whole.mfu_fraction, rel=0.1)
    # The bubble is the sum of the other stages, not the slowest one's time for each: at most as long. What is done
    # once a step counts where it takes longest, here a little more than on the first stage.
    assert 0.85 * whole.step_time_s <= twins.step_time_s <= whole.step_time_s * 1.01


@given(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5))
def test_groups_of_equal_nodes_are_one_cluster(first: int, second: int, third: int) -> None:
    parts = tuple(replace(FAST, nodes=nodes) for nodes in (first, second, third))
    assert join_groups(parts, name=FAST.name) == replace(FAST, nodes=first + second + third)


def test_joint_cluster_can_do_at_least_what_it_says() -> None:
    slow = _slower(FAST, speed=0.5, memory=0.5)
    joint = join_groups((FAST, slow))
    assert joint.groups == (replace(FAST, name=""), replace(slow, name=""))
    assert joint.gpu.memory_usable_bytes == slow.gpu.memory_usable_bytes
    assert joint.gpu.peak_bf16_flops_per_s == slow.gpu.peak_bf16_flops_per_s
    assert joint.nodes == 2
