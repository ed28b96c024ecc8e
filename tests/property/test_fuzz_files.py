"""Job files, cluster files and plan.yaml: any text is read or refused in three sentences, without anything else."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from planner.catalog import read_cluster_file, resolve_cluster
from planner.jobfile import load_job, resolve_job
from planner.rundir import names
from planner.rundir.plan_file import parse_plan
from tests.fuzzing import YAML_PIECES, lanes, only_planner_errors
from tests.property.test_jobfile import _changed, _jobs, _key_paths, _odd_flow, _odd_values

_PIECES = st.sampled_from(
    [
        *YAML_PIECES,
        *(": ", "1e999", ".nan", "0x1", "012", "\ufeff", "\x85", "\u2028", "<<: ", "null", "true"),
        *("model", "training", "cluster", "gpu", "nodes", "memory", "usable_gib", "seq_len", "format", "candidate"),
    ]
)
_texts = st.lists(_PIECES | st.text(max_size=4), max_size=40).map("".join)
_bytes = st.binary(max_size=200) | _texts.map(lambda text: text.encode("utf-8", "surrogatepass"))

_CLUSTER = {
    "name": "c",
    "gpu": "h100",
    "nodes": 2,
    "gpus_per_node": 8,
    "memory": {"nominal_gib": 80.0, "usable_gib": 79.0, "kind": "measured", "source": "seen"},
    "intra_node_link": {
        "name": "l", "gb_per_s": 1.0, "latency_us": 1.0, "efficiency_fraction": 0.5, "kind": "measured", "source": "s"
    },
    "inter_node_link": "infiniband-ndr",
    "host_memory_gib": 100.0,
    "memory_gib": 10.0,
}  # fmt: skip
_CLUSTER_PATHS = [
    *((key,) for key in _CLUSTER),
    *(("memory", key) for key in ("nominal_gib", "usable_gib", "kind", "source", "x")),
    *(("intra_node_link", key) for key in ("gb_per_s", "latency_us", "efficiency_fraction", "kind")),
]


def _file(content: bytes) -> Any:
    """A file of this content, while the context is open."""
    file = tempfile.NamedTemporaryFile(suffix=".yaml")  # noqa: SIM115 - the caller opens it as a context
    file.write(content)
    file.flush()
    return file


@lanes(_bytes)
def test_any_bytes_are_a_job_file_or_refused(content: bytes) -> None:
    with _file(content) as file:
        only_planner_errors(lambda: resolve_job(load_job(Path(file.name))))


@lanes(
    st.tuples(_jobs, st.lists(st.tuples(st.sampled_from(_key_paths()), _odd_values), min_size=1, max_size=3)), few=60
)
def test_any_value_anywhere_in_a_job_file_is_taken_or_refused(given_: tuple[dict[str, Any], list[Any]]) -> None:
    values, changes = given_
    for path, value in changes:
        values = _changed(values, path, value)
    text = "".join(f"{key}: {_odd_flow(value)}\n" for key, value in values.items())
    with _file(text.encode("utf-8", "surrogatepass")) as file:
        only_planner_errors(lambda: resolve_job(load_job(Path(file.name))))


@lanes(_bytes)
def test_any_bytes_are_a_cluster_file_or_refused(content: bytes) -> None:
    with _file(content) as file:
        only_planner_errors(lambda: resolve_cluster(read_cluster_file(Path(file.name))))


@lanes(st.lists(st.tuples(st.sampled_from(_CLUSTER_PATHS), _odd_values), min_size=1, max_size=3))
def test_any_value_anywhere_in_a_cluster_file_is_taken_or_refused(changes: list[Any]) -> None:
    values: dict[str, Any] = _CLUSTER
    for path, value in changes:
        values = _changed(values, path, value)
    text = "".join(f"{key}: {_odd_flow(value)}\n" for key, value in values.items())
    with _file(text.encode("utf-8", "surrogatepass")) as file:
        only_planner_errors(lambda: resolve_cluster(read_cluster_file(Path(file.name))))


@lanes(_texts | st.recursive(_odd_values, lambda inner: st.lists(inner, max_size=3), max_leaves=8).map(yaml.safe_dump))
def test_any_text_is_a_plan_or_refused(text: str) -> None:
    only_planner_errors(lambda: parse_plan(text, name=names.PLAN))
