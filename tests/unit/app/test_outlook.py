"""What else a job is told: the fronts really are fronts, and what hardware would bring is what planning on it says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from planner.app.draft import Draft, draft_plan
from planner.app.outlook import LINK_FACTOR, outlook_of
from planner.spec.outlook import Outlook
from tests.benchmarks.bench_estimate_scale import plan_at_scale
from tests.unit.app.builders import SMALL, draft_of

MOST_CPU_S, MAX_RUNS = 3.0, 3
SIZES = """\
model: {name: llama-3.1-8b}
training: {seq_len: 4096, global_batch_size: 96}
cluster: {gpu: h100-sxm-80gb, nodes: [1, 2, 3, 4, 6]}
search: {micro_batch_size: [1, 2], activation_checkpointing: [none, full]}
"""
ONE_SIZE = SIZES.replace("[1, 2, 3, 4, 6]", "4")


@pytest.fixture(scope="module")
def sized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draft, Outlook]:
    draft = draft_of(tmp_path_factory.mktemp("job"), text=SIZES)
    return draft, outlook_of(draft)


@pytest.fixture(scope="module")
def one_size(tmp_path_factory: pytest.TempPathFactory) -> tuple[Draft, Outlook]:
    draft = draft_of(tmp_path_factory.mktemp("job"), text=ONE_SIZE)
    return draft, outlook_of(draft)


def test_front_against_gpus_holds_the_fastest_of_each_size_that_pays(sized: tuple[Draft, Outlook]) -> None:
    draft, outlook = sized
    fits = draft.fitting()
    best = {
        int(nodes): float(draft.estimates.tokens_per_s[fits & (draft.columns.nodes == nodes)].max())
        for nodes in np.unique(draft.columns.nodes[fits])
    }
    assert {option.nodes: option.tokens_per_s for option in outlook.by_gpus} == {
        nodes: speed for nodes, speed in best.items() if all(speed > best[fewer] for fewer in best if fewer < nodes)
    }
    assert [option.world_size for option in outlook.by_gpus] == sorted(o.world_size for o in outlook.by_gpus)


def test_front_against_cost_has_no_option_that_is_slower_and_dearer(sized: tuple[Draft, Outlook]) -> None:
    front = sized[1].by_cost
    costs = [option.usd_per_billion_tokens for option in front]
    speeds = [option.tokens_per_s for option in front]
    assert costs == sorted(costs)
    assert speeds == sorted(speeds)
    for option in front:
        price = 12.29 * option.world_size
        assert option.usd_per_hour == pytest.approx(price)
        assert option.usd_per_billion_tokens == pytest.approx(price / 3600 / option.tokens_per_s * 1e9)


def test_smallest_is_the_fewest_gpus_on_which_something_fits(
    sized: tuple[Draft, Outlook], one_size: tuple[Draft, Outlook]
) -> None:
    draft, outlook = sized
    assert outlook.smallest is not None
    assert outlook.smallest.nodes == int(draft.columns.nodes[draft.fitting()].min())
    alone = one_size[1].smallest  # a job of one size is told of smaller ones too
    assert alone is not None
    assert alone.world_size < 32


def test_faster_link_brings_what_planning_on_it_says(one_size: tuple[Draft, Outlook]) -> None:
    draft, outlook = one_size
    cluster, link = draft.job.cluster, draft.job.cluster.inter_node_link
    quicker = replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s * LINK_FACTOR)
    again = draft_plan(replace(draft.job, cluster=replace(cluster, inter_node_link=quicker)))
    (change,) = [change for change in outlook.what_if if "between nodes" in change.change]
    assert change.tokens_per_s == pytest.approx(float(again.estimates.tokens_per_s[again.fitting()].max()))
    assert change.gain_fraction >= 0
    assert change.candidate is not None


def test_one_more_node_brings_what_planning_on_it_says(one_size: tuple[Draft, Outlook]) -> None:
    draft, outlook = one_size
    change = outlook.what_if[-1]
    assert change.change == "one more node"
    larger = draft_plan(replace(draft.job, cluster=replace(draft.job.cluster, nodes=5)))
    assert change.tokens_per_s == pytest.approx(float(larger.estimates.tokens_per_s[larger.fitting()].max()))


def test_larger_size_that_no_layout_can_use_is_passed_over(tmp_path: Path) -> None:
    text = ONE_SIZE.replace(
        "micro_batch_size:", "tensor_parallel_size: 1, pipeline_parallel_size: 1, micro_batch_size:"
    )
    change = outlook_of(draft_of(tmp_path, text=text)).what_if[-1]
    assert change.change == "2 more nodes"  # 40 replicas share 96 sequences out in no way, 48 do
    assert change.candidate is not None
    assert change.candidate.layout.world_size == 48


def test_more_memory_never_brings_less(sized: tuple[Draft, Outlook], one_size: tuple[Draft, Outlook]) -> None:
    for _, outlook in (sized, one_size):
        (change,) = [change for change in outlook.what_if if "memory" in change.change]
        assert change.gain_fraction >= 0
        assert change.detail


def test_cpu_job_has_no_price_and_no_network(tmp_path: Path) -> None:
    outlook = outlook_of(draft_of(tmp_path, text=SMALL))
    assert outlook.by_cost == ()
    assert not any("between nodes" in change.change for change in outlook.what_if)
    assert {option.world_size for option in outlook.by_gpus} <= {1, 2}


def test_scale_job_is_planned_in_little_time_and_memory(tmp_path: Path) -> None:
    """Processor time, not the clock, and the least of a few runs: other tests run beside this one and slow it down.
    `bench_estimate_scale` tells the seconds."""
    for number in range(MAX_RUNS):
        run = plan_at_scale(tmp_path / str(number))
        if run.cpu_s < MOST_CPU_S:
            break
    document = json.loads(run.output)
    assert document["num_candidates"] >= 200_000
    assert len(document["outlook"]["by_gpus"]) > 1
    assert run.cpu_s < MOST_CPU_S
    assert 2**20 < run.peak_bytes < 2**30
