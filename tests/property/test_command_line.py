"""Laws of the command line: whatever is typed and whatever the job file says, it ends by one of the exit codes, and any
end but a good one in three lines; never in a traceback."""

from __future__ import annotations

import contextlib
import io
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from planner.cli import main

MOST_JOBS = 150
EXIT_CODES = {0, 2, 3, 4, 5}
GOOD: dict[str, Any] = {
    "model": {"name": "tiny-llama-cpu"},
    "training": {"seq_len": 64, "global_batch_size": 16, "optimizer": {"name": "adamw", "lr": 1e-3}},
    "cluster": {"gpu": "h100", "nodes": 2, "gpus_per_node": 4},
    "search": {"zero_stage": [0, 1, 3], "micro_batch_size": [1, 2], "precision": "bf16"},
    "trials": {"mode": "none", "max_trials": 4},
    "memory_headroom": 0.1,
    "objective": "throughput",
    "launch": {"launcher": "torchrun"},
}
_PATHS = [(key,) for key in GOOD] + [
    (key, inner) for key, value in GOOD.items() if isinstance(value, dict) for inner in value
]
_junk = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-5, 70),
        st.integers(),
        st.floats(),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
        st.sampled_from(
            ["h100", "auto", "gpt2", "llama-3.1-8b", "full", "layers:3", "sgd", "fp16", "real", "1h", "../x"]
        ),
    ),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
    max_leaves=5,
)
_steps = st.lists(st.tuples(st.sampled_from(_PATHS), st.one_of(_junk, st.just("<remove>"))), min_size=1, max_size=4)
WORDS = """
plan estimate verify emit report list check diagnose gpus models links clusters rules causes --json --quiet -q --help
--out x y --set
training.seq_len=8 search.zero_stage=[1] --max-trials 3 --time-budget 1m --seed --storage sqlite:///x.db --join --pin
zero_stage=1 tensor_parallel_size=2 --resume --dry-run --no-validate --model gpt2 --gpu h100 --seq-len 128 --zero-stage
--micro-batch-size --nodes --from --launcher slurm --steps job.yaml . / -1 0 1 1e9 nan --format html --precision bf16
--activation-checkpointing layers:2 --trainable-fraction 0.5 --debug
"""
FLAGS = """
model gpu nodes gpus-per-node seq-len micro-batch-size gradient-accumulation-steps global-batch-size zero-stage
tensor-parallel-size pipeline-parallel-size sequence-parallel-size expert-parallel-size virtual-pipeline-size
activation-checkpointing precision attention optimizer trainable-fraction lora-rank runtime offload-optimizer
offload-param
"""
VALUES = "gpt2 bert-base mixtral-8x7b h100 cpu 0 1 2 3 8 64 full layers:2 bf16 fp8 sdpa adam8bit fsdp"
_words = st.one_of(
    st.sampled_from(WORDS.split()),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    st.integers().map(str),
)
relaxed = settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=MOST_JOBS)


@contextlib.contextmanager
def _in_new_folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        try:
            yield Path(name)
        finally:
            os.chdir(before)


def _run(words: list[str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as end:
            return int(end.code or 0), out.getvalue(), err.getvalue()
    raise AssertionError("main returned")


def _assert_ends_well(words: list[str]) -> None:
    code, out, err = _run(words)
    assert code in EXIT_CODES, (code, words)
    assert "Traceback" not in out + err
    if code == 0 or words[:1] == ["check"]:  # findings are an answer: they are on standard output
        return
    if "--json" in words:
        assert '"error": ' in out and '"fix": ' in out
        return
    lines = err.splitlines()[-3:]
    assert [line.partition(": ")[0] for line in lines] == ["error", "why", "fix"], err
    assert all(line.partition(": ")[2].strip() for line in lines), err


def _changed(steps: list[tuple[tuple[str, ...], Any]]) -> dict[str, Any]:
    job = yaml.safe_load(yaml.safe_dump(GOOD))
    for path, value in steps:
        at = job
        for key in path[:-1]:
            at = at.get(key) if isinstance(at, dict) else None
        if isinstance(at, dict):
            if value == "<remove>":
                at.pop(path[-1], None)
            else:
                at[path[-1]] = value
    return job


@relaxed
@given(_steps)
@example([(("trials", "mode"), "emulated")])
@example([(("cluster", "nodes"), 100_000), (("cluster", "gpus_per_node"), 1024)])
def test_any_job_file_ends_in_a_plan_or_in_three_lines(steps: list[tuple[tuple[str, ...], Any]]) -> None:
    with _in_new_folder() as folder:
        (folder / "job.yaml").write_text(yaml.safe_dump(_changed(steps), allow_unicode=True), encoding="utf-8")
        _assert_ends_well(["plan", "job.yaml", "--out", "out", "--trials", "none", "--no-validate"])


@relaxed
@given(st.lists(_words, max_size=8))
def test_any_words_end_in_an_answer_or_in_three_lines(words: list[str]) -> None:
    with _in_new_folder() as folder:
        (folder / "job.yaml").write_text(yaml.safe_dump(GOOD), encoding="utf-8")
        _assert_ends_well(words)


@relaxed
@given(
    st.dictionaries(
        st.sampled_from(FLAGS.split()),
        st.one_of(
            st.sampled_from(VALUES.split()),
            st.integers(-3, 10**6).map(str),
            st.integers().map(str),
            st.text(max_size=6),
        ),
        max_size=8,
    )
)
def test_any_flags_of_estimate_end_in_an_answer_or_in_three_lines(flags: dict[str, str]) -> None:
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    _assert_ends_well(["estimate", "--model", "gpt2", "--seq-len", "64", *words])


@pytest.mark.slow
@settings(relaxed, max_examples=20 * MOST_JOBS)
@given(_steps)
def test_many_job_files_end_in_a_plan_or_in_three_lines(steps: list[tuple[tuple[str, ...], Any]]) -> None:
    with _in_new_folder() as folder:
        (folder / "job.yaml").write_text(yaml.safe_dump(_changed(steps), allow_unicode=True), encoding="utf-8")
        _assert_ends_well(["plan", "job.yaml", "--dry-run"])


@pytest.mark.slow
@settings(relaxed, max_examples=20 * MOST_JOBS)
@given(st.lists(_words, max_size=8))
def test_many_words_end_in_an_answer_or_in_three_lines(words: list[str]) -> None:
    with _in_new_folder() as folder:
        (folder / "job.yaml").write_text(yaml.safe_dump(GOOD), encoding="utf-8")
        _assert_ends_well(words)
