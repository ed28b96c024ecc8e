"""Groups of nodes in job and cluster files: what they mean together, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.jobfile import dump_job, job_hash
from planner.spec import JobSpec
from tests.unit.jobfile.jobs import job_of, write_job

JOB = """\
model: {{name: llama-3.2-1b}}
training: {{seq_len: 1024, global_batch_size: 64}}
cluster: {cluster}
"""
TWO = "{groups: [{gpu: h100, nodes: 2}, {gpu: a100-80gb, nodes: 3}]}"


def _job(folder: Path, cluster: str) -> JobSpec:
    return job_of(folder, JOB.format(cluster=cluster))


def test_mixed_cluster_says_what_every_gpu_can_do_at_least(tmp_path: Path) -> None:
    cluster = _job(tmp_path, TWO).cluster
    fast, slow = cluster.groups
    assert (cluster.nodes, cluster.gpus_per_node) == (5, 8)
    assert cluster.gpu.name == "h100-sxm-80gb+a100-sxm-80gb"
    assert cluster.gpu.peak_bf16_flops_per_s == slow.gpu.peak_bf16_flops_per_s < fast.gpu.peak_bf16_flops_per_s
    assert cluster.intra_node_link.name == "nvlink3"
    assert cluster.gpu.price_per_hour == pytest.approx((16 * 12.29 + 24 * 5.12) / 40)


def test_network_and_failures_of_the_whole_are_the_jobs_word(tmp_path: Path) -> None:
    cluster = _job(tmp_path, TWO.replace("{groups", "{inter_node_link: ethernet-100, mtbf_hours: 50, groups")).cluster
    assert cluster.inter_node_link.name == "ethernet-100"
    assert cluster.mtbf_s == 180_000.0


def test_failures_of_the_groups_add_up(tmp_path: Path) -> None:
    groups = "{groups: [{gpu: h100, nodes: 1, mtbf_hours: 100}, {gpu: a100-80gb, nodes: 1, mtbf_hours: 50}]}"
    assert _job(tmp_path, groups).cluster.mtbf_s == pytest.approx(2 / (1 / 100 + 1 / 50) * 3600)


def test_cluster_file_with_groups_is_the_same_cluster(tmp_path: Path) -> None:
    text = "name: two-kinds\ngroups: [{gpu: h100, nodes: 2}, {gpu: a100-80gb, nodes: 3}]\n"
    write_job(tmp_path, text, "two.yaml")
    by_file, written = _job(tmp_path, "{file: two.yaml}"), _job(tmp_path, TWO)
    assert by_file.cluster.name == "two-kinds"
    assert job_hash(by_file) == job_hash(written)


def test_job_of_the_plan_folder_keeps_the_groups(tmp_path: Path) -> None:
    job = _job(tmp_path, TWO)
    assert job_of(tmp_path, dump_job(job)) == job


def test_order_of_the_groups_is_part_of_the_job(tmp_path: Path) -> None:
    other = "{groups: [{gpu: a100-80gb, nodes: 3}, {gpu: h100, nodes: 2}]}"
    assert job_hash(_job(tmp_path, TWO)) != job_hash(_job(tmp_path, other))


@pytest.mark.parametrize(
    ("cluster", "error", "fix"),
    [
        ("{groups: [{gpu: h100}]}", "from 2 to 4 groups of nodes, found 1", "gpu: for nodes of one kind"),
        ("{groups: {gpu: h100}}", "from 2 to 4 groups of nodes, found a mapping", "write groups:"),
        ("{gpu: h100, groups: [{gpu: h100}, {gpu: a100}]}", "has gpu and groups", "exactly one of"),
        ("{nodes: 3, groups: [{gpu: h100}, {gpu: a100}]}", "has nodes beside groups", "in the groups"),
        ("{memory_gib: 9, groups: [{gpu: h100}, {gpu: a100}]}", "has memory_gib beside groups", "in the groups"),
        ("{groups: [{gpu: h100}, {gpu: cpu}]}", "holds GPUs and CPUs", "keep the groups of one kind"),
        ("{groups: [{nodes: 2}, {gpu: a100}]}", r"cluster\.groups\[0\]\.gpu is missing", "add `gpu:`"),
        ("{groups: [{gpu: h100, count: 2}, {gpu: a100}]}", r"groups\[0\]\.count is not a key", "nodes"),
        ("{groups: [{gpu: h1000}, {gpu: a100}]}", "no GPU 'h1000'", "did you mean 'h100'"),
    ],
)
def test_groups_that_mean_nothing_are_refused(tmp_path: Path, cluster: str, error: str, fix: str) -> None:
    with pytest.raises(InputError, match=error) as refused:
        _job(tmp_path, cluster)
    assert fix in refused.value.fix
    assert "job.yaml line 3" in refused.value.error


@pytest.mark.parametrize(
    ("price", "error"),
    [
        ("-1", "at least 0"),
        ("cheap", "must be a price"),
        ("{currency: EUR}", "one of usd_per_hour and per_hour"),
        ("{per_hour: 2, currency: euro}", "currency of three letters"),
        ("{usd_per_hour: 2, currency: EUR}", "usd_per_hour in another currency"),
        ("{per_hour: 2, date: yesterday}", "must be a date"),
    ],
)
def test_price_that_is_none_is_refused(tmp_path: Path, price: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        _job(tmp_path, f"{{gpu: h100, price_per_gpu_hour: {price}}}")
