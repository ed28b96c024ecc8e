"""What differs between where a plan was made for and where it shall run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.app.changes import Surroundings, find_changes
from planner.catalog import load_gpu, load_link
from planner.spec import ClusterSpec
from planner.spec.replan import ChangeKind
from tests.unit.jobfile.jobs import job_of

TEXT = """\
model: {name: llama-3.1-8b}
training: {seq_len: 4096, global_batch_size: 64}
cluster: {gpu: h100-sxm-80gb, nodes: 2, gpus_per_node: 8}
"""
VERSIONS = (
    ("planner", "1.0"),
    ("torch", "2.13.0"),
    ("deepspeed", "0.19.8"),
    ("transformers", "5.24.0"),
    ("optuna", "5.0.0"),
    ("nvidia-driver", "570.1"),
)


@pytest.fixture(name="cluster")
def cluster_fixture(tmp_path: Path) -> ClusterSpec:
    return job_of(tmp_path, TEXT).cluster


def around(cluster: ClusterSpec, *, machine: str = "m", **versions: str) -> Surroundings:
    merged = tuple((name, versions.get(name.replace("-", "_"), version)) for name, version in VERSIONS)
    return Surroundings(cluster=cluster, versions=merged, machine=machine)


def test_the_same_surroundings_have_no_changes(cluster: ClusterSpec) -> None:
    assert find_changes(around(cluster), around(cluster)) == ()


@pytest.mark.parametrize(
    ("change", "kinds"),
    [
        ({"nodes": 1}, [ChangeKind.NODES]),
        ({"gpus_per_node": 4}, [ChangeKind.GPUS_PER_NODE]),
        ({"gpu": load_gpu("a100-sxm-80gb")}, [ChangeKind.GPU]),
        ({"inter_node_link": load_link("ethernet-25g")}, [ChangeKind.INTER_NODE_LINK]),
        ({"host_memory_bytes": 1 << 38}, [ChangeKind.HOST_MEMORY]),
        ({"name": "another name of the same"}, []),
    ],
)
def test_a_changed_cluster_is_told(cluster: ClusterSpec, change: dict[str, Any], kinds: list[ChangeKind]) -> None:
    found = find_changes(around(cluster), around(replace(cluster, **change)))
    assert [one.kind for one in found] == kinds
    for one in found:
        assert one.before != one.after
        assert one.before in one.sentence
        assert one.after in one.sentence


def test_a_link_that_nothing_crosses_does_not_matter(cluster: ClusterSpec) -> None:
    alone = replace(cluster, nodes=1, gpus_per_node=1)
    slower = replace(alone, inter_node_link=load_link("ethernet-25g"), intra_node_link=load_link("pcie-4"))
    assert find_changes(around(alone), around(slower)) == ()


def with_memory(cluster: ClusterSpec, fraction: float, *, looked_at: bool) -> ClusterSpec:
    usable = int(cluster.gpu.memory_usable_bytes * fraction)
    return replace(cluster, gpu=replace(cluster.gpu, memory_usable_bytes=usable), is_this_machine=looked_at)


@pytest.mark.parametrize(
    ("fraction", "looked_at", "changed"), [(0.95, True, False), (0.85, True, True), (0.95, False, True)]
)
def test_memory_that_was_looked_at_may_drift(
    cluster: ClusterSpec, fraction: float, looked_at: bool, changed: bool
) -> None:
    before = with_memory(cluster, 1.0, looked_at=looked_at)
    found = find_changes(around(before), around(with_memory(cluster, fraction, looked_at=looked_at)))
    assert [one.kind for one in found] == ([ChangeKind.USABLE_MEMORY] if changed else [])


def test_software_that_decides_measurements_is_told_and_the_rest_is_not(cluster: ClusterSpec) -> None:
    after = around(cluster, torch="2.14.0", nvidia_driver="580.2", planner="2.0", optuna="6.0", machine="other")
    found = find_changes(around(cluster), after)
    assert [(one.kind, one.what) for one in found] == [
        (ChangeKind.SOFTWARE, "torch"),
        (ChangeKind.DRIVER, "GPU driver"),
    ]


def test_another_machine_with_the_same_software_is_told_where_trials_ran(cluster: ClusterSpec) -> None:
    assert [one.kind for one in find_changes(around(cluster), around(cluster, machine="other"))] == [ChangeKind.MACHINE]
    assert find_changes(around(cluster, machine=""), around(cluster, machine="")) == ()
