"""Candidate clusters of one job: listed in it, or in a cluster file."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.jobfile import list_choices, load_job, resolve_job

JOB = """\
model: {name: tiny-llama-cpu}
training: {seq_len: 128, global_batch_size: 16}
"""
LISTED = JOB + "cluster: [{gpu: h100, nodes: 2}, {label: ours, name: dgx-a100, nodes: 4}, {gpu: h100, nodes: 2}]\n"


def _write(tmp_path: Path, text: str, name: str = "job.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_listed_clusters_get_labels_of_their_own_and_resolve_one_by_one(tmp_path: Path) -> None:
    path = _write(tmp_path, LISTED)
    labels = [choice.label for choice in list_choices(path)]
    assert labels == ["h100-2", "ours", "h100-2-2"]
    assert resolve_job(load_job(path, cluster="ours")).cluster.gpu.name == "a100-sxm-80gb"
    assert resolve_job(load_job(path, cluster="h100-2")).cluster.nodes == 2


def test_cluster_file_with_several_is_the_same(tmp_path: Path) -> None:
    _write(tmp_path, "clusters: [{gpu: h100, nodes: 2}, {gpu: h200, nodes: 1}]\n", "clusters.yaml")
    path = _write(tmp_path, JOB + "cluster: {file: clusters.yaml}\n")
    assert [choice.label for choice in list_choices(path)] == ["h100-2", "h200-1"]
    assert resolve_job(load_job(path, cluster="h200-1")).cluster.gpu.name == "h200-sxm-141gb"


def test_one_cluster_is_no_choice(tmp_path: Path) -> None:
    assert list_choices(_write(tmp_path, JOB + "cluster: {gpu: h100}\n")) == ()


def test_several_where_one_is_needed_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="lists 3 candidate clusters") as refused:
        load_job(_write(tmp_path, LISTED))
    assert "job.yaml line 3" in str(refused.value)


@pytest.mark.parametrize(
    ("cluster", "error"),
    [
        ("[]", "lists 0 clusters"),
        ("[h100]", "candidate cluster 1 is"),
        ("[{gpu: h100, label: ../up}, {gpu: h200}]", "label is"),
    ],
)
def test_list_that_names_no_clusters_is_refused(tmp_path: Path, cluster: str, error: str) -> None:
    with pytest.raises(InputError, match=error):
        list_choices(_write(tmp_path, JOB + f"cluster: {cluster}\n"))


def test_label_of_no_cluster_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no candidate cluster 'other'") as refused:
        load_job(_write(tmp_path, LISTED), cluster="other")
    assert "ours" in refused.value.why
