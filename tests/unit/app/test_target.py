"""What `--cluster` may name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from planner.app.target import cluster_overrides
from planner.errors import InputError
from planner.jobfile import load_job, resolve_job
from planner.spec import ClusterSpec
from tests.unit.jobfile.jobs import write_job

TEXT = """\
model: {name: llama-3.1-8b}
training: {seq_len: 4096, global_batch_size: 64}
cluster: {gpu: h100-sxm-80gb, nodes: 8, gpus_per_node: 8}
"""


def cluster_of(folder: Path, *overrides: str) -> ClusterSpec:
    return resolve_job(load_job(write_job(folder, TEXT), overrides)).cluster


def target(folder: Path, given: str) -> ClusterSpec:
    return cluster_of(folder, *cluster_overrides(given, cluster_of(folder)))


def test_nothing_named_is_the_old_cluster_or_this_machine_again(tmp_path: Path) -> None:
    old = cluster_of(tmp_path)
    this = ("cluster={gpu: auto}", "launch.hosts=[]")
    assert cluster_overrides("", old) == ()
    assert cluster_overrides("", replace(old, is_this_machine=True)) == this
    assert cluster_overrides("auto", old) == this


def test_a_file_and_a_catalog_name_are_taken(tmp_path: Path) -> None:
    (tmp_path / "my new cluster.yaml").write_text("{name: mine, gpu: a100-sxm-80gb, nodes: 3, gpus_per_node: 4}")
    new = target(tmp_path, str(tmp_path / "my new cluster.yaml"))
    assert (new.gpu.name, new.nodes, new.gpus_per_node) == ("a100-sxm-80gb", 3, 4)
    named = target(tmp_path, "dgx-h200")
    assert (named.gpu.name, named.nodes) == ("h200-sxm-141gb", 8)


def test_a_hostfile_has_the_old_gpus(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("# the new ones\nworker-1 slots=8\n\nworker-2 slots=8  # spare\nworker-3\n")
    old, new = cluster_of(tmp_path), target(tmp_path, str(hosts))
    assert new == replace(old, nodes=3)


def test_the_nodes_names_are_those_of_the_new_cluster_or_none(tmp_path: Path) -> None:
    """The job of an old plan carries its hosts; no other cluster's plan may name them."""
    lines = [f"old{number} slots=8" for number in range(8)]
    path = write_job(tmp_path, f"{TEXT}launch: {{launcher: deepspeed, hosts: {lines}}}\n")
    old = resolve_job(load_job(path))
    assert old.launch.hosts[0] == ("old0", 8)
    hosts = tmp_path / "hosts"
    hosts.write_text("new1 slots=8\nnew2\n")

    def names(given: str) -> tuple[tuple[str, int], ...]:
        return resolve_job(load_job(path, cluster_overrides(given, old.cluster))).launch.hosts

    assert names(str(hosts)) == (("new1", 8), ("new2", 8))
    assert names("dgx-h200") == ()
    assert names("") == old.launch.hosts


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", "is empty"),
        ("# nobody\n", "names no host"),
        ("a slots=0\n", "line 1: expected"),
        ("a slots=8\nb slots=4\n", "line 2: b has slots=4"),
        ("a slots=8\na slots=8\n", "line 2"),
        ("gpu: h100-sxm-80gb\n", "line 1: expected"),
        ("gpu:\n", "line 1: expected"),
        (b"\xff\xfe\x00", "hosts"),
    ],
)
def test_a_wrong_hostfile_is_refused(tmp_path: Path, content: str | bytes, expected: str) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InputError, match=expected):
        target(tmp_path, str(hosts))


@pytest.mark.parametrize("given", ["nowhere", "/", "x" * 5000, "a\0b", "nowhere.yaml"])
def test_what_is_no_cluster_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(InputError):
        target(tmp_path, given)
