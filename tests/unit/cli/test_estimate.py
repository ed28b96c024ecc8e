"""`planner estimate`: flags as a row, rows from a file, and what it prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.app.estimate_row import GPUS_PER_NODE, EstimateRow
from planner.cli.estimate_view import estimate_verdict
from tests.unit.cli.fakes import FakeUseCases, estimate_result
from tests.unit.cli.running import Cli, assert_three_lines, run_child

_ALL_FLAGS = {
    "model": "llama-3.1-8b",
    "gpu": "h200",
    "nodes": 2,
    "gpus_per_node": 4,
    "seq_len": 4096,
    "micro_batch_size": 3,
    "gradient_accumulation_steps": 5,
    "global_batch_size": 120,
    "zero_stage": 3,
    "tensor_parallel_size": 2,
    "pipeline_parallel_size": 2,
    "sequence_parallel_size": 1,
    "expert_parallel_size": 1,
    "virtual_pipeline_size": 2,
    "activation_checkpointing": "layers:4",
    "precision": "fp16",
    "attention": "flash",
    "optimizer": "lion",
    "offload_optimizer": "cpu",
    "offload_param": "nvme",
    "trainable_fraction": 0.5,
    "lora_rank": 16,
    "runtime": "megatron",
}


def test_every_flag_becomes_a_key_of_the_row(cli: Cli) -> None:
    product = FakeUseCases()
    words = [word for name, value in _ALL_FLAGS.items() for word in ("--" + name.replace("_", "-"), str(value))]
    cli("estimate", *words, "--tensor-sequence-parallel", "false", "--torch-compile", product=product)
    assert product.rows == [{**_ALL_FLAGS, "tensor_sequence_parallel": False, "torch_compile": True}]


def test_flag_that_is_left_out_is_left_out_of_the_row(cli: Cli) -> None:
    product = FakeUseCases()
    cli("estimate", "--model", "m", "--json", "--quiet", product=product)
    assert product.rows == [{"model": "m"}]


def test_estimate_prints_a_breakdown_that_sums_and_a_verdict(cli: Cli) -> None:
    run = cli("estimate", "--model", "m")
    assert run.exit_code == 0
    lines = run.out.splitlines()
    assert lines[0] == "assumed: 1 node of 8 GPUs (h100-sxm-80gb), micro-batch 1, no checkpointing"
    assert lines[1].split("  ")[0] == "memory of the worst rank"
    assert any(line.split()[:3] == ["parameters", "1.25", "GiB"] for line in lines)
    assert any(line.split() == ["total", "10.0", "GiB"] for line in lines)
    assert not any(line.startswith("communication") for line in lines)  # nothing of it
    assert "usable 40.0 GiB; it cannot do without 7.50 GiB to 10.0 GiB" in run.out
    assert "2.56 thousand tokens/s" in run.out
    assert lines[-1] == "fits with 30.0 GiB to spare (computed)"


def test_estimate_of_a_pipeline_names_the_stage_and_assumes_nothing_that_is_said(cli: Cli) -> None:
    said = ("--nodes", "1", "--gpus-per-node", "8", "--gpu", "h100", "--activation-checkpointing", "none")
    run = cli("estimate", "--model", "m", *said, "--micro-batch-size", "1", "--pipeline-parallel-size", "2")
    assert run.out.splitlines()[0].startswith("memory of the worst rank (pipeline stage 0)")


def test_what_is_said_to_be_assumed_is_what_a_row_defaults_to() -> None:
    fields = EstimateRow.model_fields
    assert GPUS_PER_NODE == 8
    assert fields["gpu"].default == "h100-sxm-80gb"
    assert fields["micro_batch_size"].default == 1
    assert str(fields["activation_checkpointing"].default) == "none"


def test_estimate_that_does_not_fit_says_by_how_much(cli: Cli) -> None:
    run = cli("estimate", "--model", "m", "--micro-batch-size", "9", "--quiet")
    assert (run.exit_code, run.out) == (0, "does not fit by 50.0 GiB (computed)\n")


def test_estimate_that_does_not_fit_the_host_says_so() -> None:
    result = estimate_result(device_used_gib=1)
    result["fits"] = False
    result["memory"]["host_bytes"] = 10 * 2**30
    assert estimate_verdict(result) == "does not fit the host's memory by 2.00 GiB (computed)"


def test_estimate_that_a_rule_forbids_gives_the_reason(cli: Cli) -> None:
    run = cli("estimate", "--zero-stage", "3")
    assert (run.exit_code, run.out) == (0, "not legal:\n- pipelines run with ZeRO 0 or 1 only\n")
    quiet = cli("estimate", "--zero-stage", "3", "--quiet")
    assert quiet.out == "not legal: pipelines run with ZeRO 0 or 1 only\n"


def test_estimate_with_json_prints_the_result_as_it_is(cli: Cli) -> None:
    assert json.loads(cli("estimate", "--model", "m", "--json").out) == estimate_result(device_used_gib=10)


def test_rows_of_a_file_give_one_line_each_in_order(cli: Cli, tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(b'{"a": 1}\n\xff\xfe broken\n{"b": 2}')
    run = cli("estimate", "--from", str(rows))
    replaced = "\N{REPLACEMENT CHARACTER}" * 2
    assert [json.loads(line)["row"] for line in run.out.splitlines()] == ['{"a": 1}', f"{replaced} broken", '{"b": 2}']


def test_rows_of_standard_input_are_streamed() -> None:
    run = run_child("estimate", "--from", "-", stdin="1\n2\n")
    assert [json.loads(line) for line in run.out.splitlines()] == [{"row": "1"}, {"row": "2"}]


def test_rows_that_cannot_be_read_end_in_three_lines(cli: Cli, tmp_path: Path) -> None:
    for path in (tmp_path / "missing.jsonl", tmp_path):
        run = cli("estimate", "--from", str(path))
        assert run.exit_code == 2
        assert_three_lines(run.err)


@pytest.mark.parametrize("flag", [("--nodes", "2"), ("--torch-compile",), ("--tensor-sequence-parallel", "true")])
def test_flag_beside_rows_is_refused_since_it_has_no_effect(cli: Cli, flag: tuple[str, ...]) -> None:
    run = cli("estimate", "--from", "rows.jsonl", *flag)
    assert run.exit_code == 2
    assert run.err.startswith(f"error: {flag[0]} has no effect beside --from\n")
