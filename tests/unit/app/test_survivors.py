"""Plans for losing nodes: which numbers can be used, and what is said of those that cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.draft import draft_plan
from planner.app.selection import choices_by_model
from planner.app.survivors import require_survivable, surviving_job, survivors_of
from planner.cost import Calibration
from planner.errors import InputError
from planner.spec import JobSpec, Provenance
from tests.unit.jobfile.jobs import job_of

TEXT = """\
model: {name: llama-3.1-8b}
training: {seq_len: 4096, global_batch_size: 96}
cluster: {gpu: h100-sxm-80gb, nodes: 8, gpus_per_node: 8}
search: {tensor_parallel_size: [1, 8], pipeline_parallel_size: 1, zero_stage: [1, 3]}
"""
FITTED = Calibration(time_scale=1.5, num_points=4)

JobOf = Callable[..., JobSpec]


@pytest.fixture(name="job")
def job_fixture(tmp_path: Path) -> JobOf:
    return lambda *overrides: job_of(tmp_path, TEXT, *overrides)


def test_every_smaller_number_has_its_best_layout_at_the_same_batch_or_a_reason(job: JobOf) -> None:
    found = survivors_of(job(), nodes=8, count=7, calibration=FITTED)
    assert [one.nodes for one in found] == [7, 6, 5, 4, 3, 2, 1]
    usable = {one.nodes: next(one.choices()) for one in found if one.draft is not None}
    # With tensor 8 each node is one data-parallel rank: 6, 4, 3, 2 and 1 of them share 96 sequences out evenly.
    assert sorted(usable) == [1, 2, 3, 4, 6]
    for nodes, selection in usable.items():
        candidate = selection.candidate
        assert candidate.batch.global_batch_size == 96
        assert candidate.layout.world_size == 8 * nodes
        assert selection.promise.step_time_kind is Provenance.FITTED
    speeds = [usable[nodes].promise.tokens_per_s for nodes in (6, 4, 3, 2, 1)]
    assert speeds == sorted(speeds, reverse=True)
    refused = {one.nodes: one for one in found if one.draft is None}
    assert {nodes: one.nearest for nodes, one in refused.items()} == {7: 6, 5: 4}
    assert all("56 GPUs is legal" in one.why for nodes, one in refused.items() if nodes == 7)


def test_the_nearest_that_can_is_looked_for_beyond_what_was_asked(job: JobOf) -> None:
    (lost,) = survivors_of(job(), nodes=8, count=1, calibration=Calibration())
    assert (lost.nodes, lost.draft, lost.nearest) == (7, None, 6)


def test_a_survivor_is_what_planning_for_that_cluster_would_choose(job: JobOf) -> None:
    six = next(one for one in survivors_of(job(), nodes=8, count=2, calibration=Calibration()) if one.nodes == 6)
    alone = next(choices_by_model(draft_plan(job("cluster.nodes=6"))))
    chosen = next(six.choices())
    assert (chosen.candidate, chosen.promise) == (alone.candidate, alone.promise)


@pytest.mark.parametrize(
    ("overrides", "count", "expected"),
    [
        ((), 8, "the cluster has 8 nodes"),
        (("cluster.nodes=1",), 1, "the cluster has 1 node"),
    ],
)
def test_losing_all_nodes_is_refused(job: JobOf, overrides: tuple[str, ...], count: int, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        require_survivable(job(*overrides), count)


def test_losing_none_or_some_is_fine(job: JobOf) -> None:
    require_survivable(job("cluster.nodes=1"), 0)
    require_survivable(job(), 7)


def test_which_nodes_are_left_is_not_guessed(job: JobOf) -> None:
    hosts = [f"old{number} slots=8" for number in range(8)]
    named = job(f"launch={{launcher: deepspeed, hosts: {hosts}}}")
    assert len(named.launch.hosts) == 8
    assert surviving_job(named, 6).launch == replace(named.launch, hosts=())
