"""Settings that keep numerics give the losses of the plain run, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.spec import CrossEntropy, TorchCompile, Tuning
from tests.distributed.layouts import SGD, make_task, run_layouts
from tests.distributed.test_same_result import FP32_TOLERANCE, assert_same_losses, plain_and

CHUNKED = {"tuning": Tuning(cross_entropy=CrossEntropy.CHUNKED)}
LAYERS = {"tuning": Tuning(torch_compile=TorchCompile.LAYER)}
WHOLE = {"tuning": Tuning(torch_compile=TorchCompile.WHOLE)}
CPU = {"device": "cpu", "pin_memory": False}


def test_losses_chunked_loss_every_split_equal_plain_run(tmp_path: Path) -> None:
    layouts: dict[str, dict[str, Any]] = {
        "alone": CHUNKED,
        "tensor-2": {"tensor": 2, **CHUNKED},
        "pipeline-2 zero-1": {"pipeline": 2, "zero": 1, **CHUNKED},
        "tensor-2 pipeline-2": {"tensor": 2, "pipeline": 2, **CHUNKED},
        "zero-2 data-2": {"zero": 2, "data": 2, **CHUNKED},
        "zero-3 data-2 full": {"zero": 3, "data": 2, "checkpointing": "full", **CHUNKED},
    }
    assert_same_losses(plain_and(layouts, "llama", optimizer=SGD), tmp_path, FP32_TOLERANCE)


def test_losses_chunked_loss_tied_embeddings_equal_plain_run(tmp_path: Path) -> None:
    layouts: dict[str, dict[str, Any]] = {
        "alone": CHUNKED,
        "tensor-2 pipeline-2": {"tensor": 2, "pipeline": 2, **CHUNKED},
        "zero-3 data-2": {"zero": 3, "data": 2, **CHUNKED},
    }
    assert_same_losses(plain_and(layouts, "gpt2", optimizer=SGD), tmp_path, FP32_TOLERANCE)


def test_losses_buckets_overlap_and_second_copy_equal_plain_run(tmp_path: Path) -> None:
    small = {"reduce_bucket_size": 10_000, "allgather_bucket_size": 10_000}
    layouts: dict[str, dict[str, Any]] = {
        "zero-2 data-2 overlap": {"zero": 2, "data": 2, "zero_options": {**small, "overlap_comm": True}},
        "zero-3 data-2 live": {
            "zero": 3,
            "data": 2,
            "zero_options": {"stage3_max_live_parameters": 10_000, "stage3_prefetch_bucket_size": 10_000},
        },
        "zero-3 data-4 hpz-2": {"zero": 3, "data": 4, "zero_options": {"zero_hpz_partition_size": 2}},
    }
    assert_same_losses(plain_and(layouts, "llama", optimizer=SGD), tmp_path, FP32_TOLERANCE)


TORCH = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "torch_adam": True}}
ON_HOST = {"type": "AdamW", "params": {"lr": 1e-2, "weight_decay": 0.1, "adam_w_mode": True, "torch_adam": False}}


@pytest.mark.timeout(1200)
@pytest.mark.slow  # DeepSpeed builds its CPU Adam at the first use, which takes minutes on a busy machine
def test_losses_offload_equal_plain_run(tmp_path: Path) -> None:
    layouts: dict[str, dict[str, Any]] = {
        "zero-1": {"zero": 1, "zero_options": {"offload_optimizer": CPU}},
        "zero-2 data-2": {"zero": 2, "data": 2, "zero_options": {"offload_optimizer": CPU}},
        "zero-3 data-2 both": {
            "zero": 3,
            "data": 2,
            "zero_options": {"offload_optimizer": CPU, "offload_param": CPU},
        },
    }
    tasks = {name: make_task("llama", optimizer=ON_HOST, **axes) for name, axes in layouts.items()}
    results = run_layouts({"plain": make_task("llama", optimizer=TORCH), **tasks}, tmp_path)
    wanted = results["plain"][0]["losses"]
    for name, ranks in results.items():
        assert all(rank.get("losses") == pytest.approx(wanted, rel=1e-5) for rank in ranks), (name, ranks)


def test_losses_gradients_accumulated_in_fp32_stay_near_plain_run(tmp_path: Path) -> None:
    common = {"precision": "bf16", "optimizer": TORCH, "other_options": {"data_types": {"grad_accum_dtype": "fp32"}}}
    layouts: dict[str, dict[str, Any]] = {
        **{f"zero-{stage} data-2": {"data": 2, "zero": stage, **common} for stage in (1, 2, 3)},
        "pipeline-2 zero-1": {"pipeline": 2, "zero": 1, **common},
    }
    tasks = {name: make_task("llama", **axes) for name, axes in layouts.items()}
    results = run_layouts({"fp32": make_task("llama", optimizer=TORCH), **tasks}, tmp_path)
    wanted = results["fp32"][0]["losses"]
    for name, ranks in results.items():
        assert all(rank.get("losses") == pytest.approx(wanted, rel=2e-3) for rank in ranks), (name, ranks)


@pytest.mark.timeout(1200)
@pytest.mark.slow  # a compiler at work: minutes on a busy machine
def test_losses_compiled_layers_or_model_equal_plain_run(tmp_path: Path) -> None:
    both = Tuning(torch_compile=TorchCompile.WHOLE, cross_entropy=CrossEntropy.CHUNKED)
    layouts: dict[str, dict[str, Any]] = {
        "layer": LAYERS,
        "layer full": {"checkpointing": "full", **LAYERS},
        "layer selective": {"checkpointing": "selective", **LAYERS},
        "layer zero-2 data-2": {"zero": 2, "data": 2, **LAYERS},
        "layer pipeline-2 zero-1": {"pipeline": 2, "zero": 1, **LAYERS},
        "whole": WHOLE,
        "whole chunked": {"tuning": both},
    }
    assert_same_losses(plain_and(layouts, "llama", optimizer=SGD), tmp_path, FP32_TOLERANCE)
