"""Laws of the job file: what is written loads back equal, and no text of any kind ends in a traceback."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.catalog.yaml_text import parse_yaml
from planner.errors import InputError
from planner.jobfile import dump_job, job_hash, load_job, resolve_job
from planner.jobfile.dump import flow_text
from planner.jobfile.launch_schema import SLURM_OWNED
from planner.jobfile.schema import JobSchema
from planner.spec import JobSpec
from tests.fuzzing import YAML_PIECES

relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=60)


def _axis(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(values, st.lists(values, min_size=1, max_size=4, unique=True))


def _some_of(**choices: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries({}, optional=choices)


_finite = {"allow_nan": False, "allow_infinity": False}
_texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30
)  # a process takes no zero byte, UTF-8 no half surrogate
_names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,10}", fullmatch=True)
_options = st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True).filter(lambda name: name not in SLURM_OWNED)
_optimizers = st.one_of(
    _some_of(
        name=st.just("adamw"),
        betas=st.lists(st.floats(0, 0.9999), min_size=2, max_size=2),
        eps=st.floats(1e-12, 1, **_finite),
        lr=st.floats(1e-12, 100, **_finite),
        weight_decay=st.floats(0, 100, **_finite),
    ),
    st.fixed_dictionaries({"name": st.sampled_from(["sgd", "muon"])}, optional={"momentum": st.floats(0, 0.999)}),
    st.just({"name": "lion"}),
)
_trainings = st.fixed_dictionaries(
    {"seq_len": st.integers(1, 512), "global_batch_size": st.integers(1, 10**7)},
    optional={
        "optimizer": _optimizers,
        "gradient_clipping": st.floats(0, 1e9, **_finite),
        "seed": st.integers(0, 2**32 - 1),
        "steps": st.integers(1000, 10**9),
        "schedule": _some_of(warmup_steps=st.integers(0, 1000), min_lr_fraction=st.floats(0, 1)),
        "data": st.fixed_dictionaries({"path": _texts.filter(bool)}, optional={"token_bytes": st.sampled_from([2, 4])}),
        "checkpoint": st.fixed_dictionaries(
            {"folder": _texts.filter(bool), "interval": st.integers(1, 10**9) | st.just("auto")}
        ),
    },
)
_clusters = st.fixed_dictionaries(
    {"gpu": st.sampled_from(["h100", "cpu", "v100", "mi300x"])},
    optional={
        "nodes": st.integers(1, 100_000),
        "gpus_per_node": st.integers(1, 1024),
        "intra_node_link": st.sampled_from(["nvlink4", "pcie3"]),
        "inter_node_link": st.fixed_dictionaries(
            {
                "name": _texts.filter(bool),
                "gb_per_s": st.floats(1e-3, 1e6),
                "latency_us": st.floats(0, 1e6),
                "efficiency_fraction": st.floats(1e-3, 1),
                "source": _texts.filter(bool),
                "kind": st.sampled_from(["measured", "computed"]),
            }
        ),
        "host_memory_gib": st.floats(0.1, 1e5),
        "memory_gib": st.floats(0.1, 15),
    },
)
_sizes = st.integers(1, 65_536)
_searches = _some_of(
    zero_stage=_axis(st.integers(0, 3)),
    tensor_parallel_size=_axis(_sizes),
    pipeline_parallel_size=_axis(_sizes),
    micro_batch_size=_axis(_sizes),
    activation_checkpointing=_axis(st.sampled_from(["none", "selective", "full", "layers:1", "layers:99999"])),
    precision=_axis(st.sampled_from(["fp32", "fp16", "bf16"])),
    torch_compile=_axis(st.sampled_from(["none", "layer", "whole"])),
    cross_entropy=_axis(st.sampled_from(["whole", "chunked"])),
    overlap_comm=_axis(st.sampled_from(["on", "by-stage"])),
    reduce_bucket_size=_axis(st.sampled_from([0, 50_000_000, 1_000_000_000])),
    zero_hpz_partition_size=_axis(st.sampled_from([1, 8])),
    offload_optimizer=_axis(st.sampled_from(["none", "cpu"])),
)
_trials = _some_of(
    mode=st.sampled_from(["auto", "real", "emulated", "none"]),
    max_trials=st.integers(0, 100_000),
    time_budget=st.one_of(st.sampled_from(["15m", "1h30m", "2d"]), st.floats(0.001, 2_592_000)),
    steps=st.integers(1, 10_000),
    timeout=st.integers(1, 1000).map(lambda seconds: f"{seconds}s"),
    sampler=st.sampled_from(["guided", "tpe", "random"]),
)


def _with_image(job: dict[str, Any]) -> dict[str, Any]:
    """Kubernetes is no launcher without an image."""
    needs = job.get("launch", {}).get("launcher") == "kubernetes"
    return {**job, "kubernetes": {"image": "registry/image:1"}} if needs else job


_jobs = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["tiny-llama-cpu", "gpt2", "bert-large", "mixtral-8x7b"]).map(
            lambda name: {"name": name}
        ),
        "training": _trainings,
        "cluster": _clusters,
    },
    optional={
        "search": _searches,
        "objective": st.sampled_from(["throughput", "cost", "fewest_gpus"]),
        "memory_headroom": st.floats(0, 0.9),
        "trials": _trials,
        "environment": st.dictionaries(_names, _texts, max_size=3),
        "slurm": st.dictionaries(_options, st.one_of(_texts, st.integers(0, 10**9)), max_size=2),
        "launch": _some_of(
            launcher=st.sampled_from(["torchrun", "deepspeed", "slurm", "kubernetes"]),
            command=_names.map(lambda word: f"{word}.py --config {{deepspeed_config}}"),
            master_port=st.integers(1, 65_535),
        ),
    },
).map(_with_image)


def _text_of(job: dict[str, Any]) -> str:
    return "".join(f"{key}: {flow_text(value)}\n" for key, value in job.items())


def _resolved(text: str) -> JobSpec:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.yaml"
        path.write_text(text, encoding="utf-8")
        return resolve_job(load_job(path))


@relaxed
@given(_jobs)
def test_dump_of_any_job_loads_back_equal(values: dict[str, Any]) -> None:
    job = _resolved(_text_of(values))
    again = _resolved(dump_job(job))
    assert again == job
    assert dump_job(again) == dump_job(job)
    assert job_hash(again) == job_hash(job)


_odd_scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**28), 10**28),
    st.floats(),
    _texts,
    st.sampled_from(["auto", "none", "layers:-1", "0x10", "1e999", "8", ".nan", "{deepspeed_config}", "../x", "h100"]),
    st.sampled_from(["\0", "a\0b", "\x85\u2028\ufeff"]),
)
_odd_values = st.recursive(
    _odd_scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(_texts, inner, max_size=3)),
    max_leaves=6,
)


def _key_paths() -> list[tuple[str, ...]]:
    from planner.catalog.strict import all_paths

    return [tuple(str(step) for step in path) for path in all_paths(JobSchema)]


def _odd_flow(value: Any) -> str:
    """As the dump writes it, and the numbers that it never writes."""
    if isinstance(value, float):
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(value), repr(value))
    if isinstance(value, list):
        return "[" + ", ".join(map(_odd_flow, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{flow_text(key)}: {_odd_flow(item)}" for key, item in value.items()) + "}"
    return flow_text(value)


def _changed(job: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    if len(path) == 1:
        return {**job, path[0]: value}
    inner = job.get(path[0])
    return {**job, path[0]: _changed(inner if isinstance(inner, dict) else {}, path[1:], value)}


@settings(relaxed, max_examples=150)
@given(_jobs, st.lists(st.tuples(st.sampled_from(_key_paths()), _odd_values), min_size=1, max_size=3))
def test_any_value_at_any_key_is_taken_or_refused_with_its_mend(
    values: dict[str, Any], changes: list[tuple[tuple[str, ...], Any]]
) -> None:
    for path, value in changes:
        values = _changed(values, path, value)
    text = "".join(f"{key}: {_odd_flow(value)}\n" for key, value in values.items())
    try:
        job = _resolved(text)
    except InputError as refused:
        assert refused.error
        assert refused.why
        assert refused.fix
    else:
        assert _resolved(dump_job(job)) == job


@settings(relaxed, max_examples=200)
@given(st.dictionaries(_texts, _odd_values, max_size=4))
def test_any_document_is_refused_with_its_mend(values: dict[str, Any]) -> None:
    text = "".join(f"{flow_text(key)}: {_odd_flow(value)}\n" for key, value in values.items()) or "{}"
    try:
        _resolved(text)
    except InputError as refused:
        assert refused.fix
    else:
        raise AssertionError("a job without a model was taken")


@settings(relaxed, max_examples=300)
@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    try:
        parse_yaml(text, label="t")
    except InputError as refused:
        assert refused.fix


_snippets = st.sampled_from(YAML_PIECES)


@settings(relaxed, max_examples=300)
@given(st.lists(_snippets, max_size=40).map("".join))
def test_any_yaml_like_text_parses_or_is_refused(text: str) -> None:
    try:
        parse_yaml(text, label="t")
    except InputError as refused:
        assert refused.fix
