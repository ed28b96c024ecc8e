"""The same seed and data give the same losses under every layout: what a plan changes is speed, not the training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from planner.spec import TrialTask
from tests.distributed.layouts import ADAMW, GLOBAL_BATCH_SIZE, SGD, make_task, run_layouts

# Sums in another order differ in the last bits; five steps of gradient descent at a large rate amplify them a little.
FP32_TOLERANCE = 1e-5
# Adam divides by the gradient's own size, so that the last bits of a small gradient count.
ADAMW_TOLERANCE = 1e-4
# bf16 keeps 8 bits (relative steps of 0.4%), in weights, activations and, without ZeRO, accumulated gradients.
BF16_TOLERANCE = 1e-3


def plain_and(layouts: dict[str, dict[str, Any]], model: str, **common: Any) -> dict[str, TrialTask]:
    """The plain one-process run of one model, the named layouts, and a run that learns nothing, as the control."""
    tasks = {name: make_task(model, **{**common, **axes}) for name, axes in {"plain": {}, **layouts}.items()}
    optimizer = {**common["optimizer"], "params": {**common["optimizer"]["params"], "lr": 0.0}}
    tasks["weights never change"] = make_task(model, **{**common, "optimizer": optimizer})
    return tasks


def assert_same_losses(tasks: dict[str, TrialTask], folder: Path, tolerance: float) -> None:
    """Every rank of every layout reports the losses of the plain run, and consumed whole global batches."""
    results = run_layouts(tasks, folder)
    reference = results["plain"][0]["losses"]
    unchanged = results.pop("weights never change")[0]["losses"]
    assert unchanged[2:] != pytest.approx(reference[2:], rel=10 * tolerance), "training hardly shows in these losses"
    wrong = {}
    for name, ranks in results.items():
        for rank, result in enumerate(ranks):
            same = "losses" in result and result["losses"] == pytest.approx(reference, rel=tolerance)
            if not same or set(result["sequences"]) != {GLOBAL_BATCH_SIZE} or result["skipped"]:
                wrong[f"{name}, rank {rank}"] = result
    assert not wrong, f"expected {reference}"


GENTLE_SGD = {**SGD, "params": {**SGD["params"], "lr": 0.5}}
TENSOR = {"tensor-2": {"tensor": 2}}
PIPELINE = {"pipeline-2": {"pipeline": 2}}
TENSOR_PIPELINE = {"tensor-2 pipeline-2": {"tensor": 2, "pipeline": 2}}
ZERO_DATA = {f"zero-{stage} data-2": {"zero": stage, "data": 2} for stage in range(4)}
CHECKPOINTING = {kind: {"checkpointing": kind} for kind in ("full", "selective", "layers:1")}
CROSSINGS = {
    "tensor-2 zero-3 selective": {"tensor": 2, "zero": 3, "checkpointing": "selective"},
    "zero-3 data-2 full": {"zero": 3, "data": 2, "checkpointing": "full"},
    "zero-3 data-2 selective": {"zero": 3, "data": 2, "checkpointing": "selective"},
    "uneven stages": {"pipeline": 2, "stage_layers": (1, 3), "checkpointing": "selective"},
    "pipeline-2 zero-1 data-2 layers:1": {"pipeline": 2, "zero": 1, "data": 2, "checkpointing": "layers:1"},
    "tensor-2 data-2 zero-2 full": {"tensor": 2, "data": 2, "zero": 2, "checkpointing": "full"},
}


def test_losses_llama_every_axis_equal_plain_run(tmp_path: Path) -> None:
    layouts = {**ZERO_DATA, **TENSOR, **PIPELINE, **TENSOR_PIPELINE, **CHECKPOINTING, **CROSSINGS}
    assert_same_losses(plain_and(layouts, "llama", optimizer=SGD), tmp_path, FP32_TOLERANCE)


@pytest.mark.parametrize("model", ["llama-tied", "gpt2"])
def test_losses_tied_embeddings_every_split_equal_plain_run(model: str, tmp_path: Path) -> None:
    both = {"tensor-2 pipeline-2 zero-1": {"tensor": 2, "pipeline": 2, "zero": 1}}
    layouts = {**TENSOR, **PIPELINE, **both, "zero-3": ZERO_DATA["zero-3 data-2"]}
    assert_same_losses(plain_and(layouts, model, optimizer=SGD), tmp_path, FP32_TOLERANCE)


def test_losses_adamw_every_split_equal_plain_run(tmp_path: Path) -> None:
    layouts = {**TENSOR, **PIPELINE, **ZERO_DATA}
    assert_same_losses(plain_and(layouts, "llama", optimizer=ADAMW), tmp_path, ADAMW_TOLERANCE)


@pytest.mark.parametrize("model", ["mixtral", "qwen3", "qwen3_moe"])
def test_losses_other_families_equal_plain_run(model: str, tmp_path: Path) -> None:
    layouts = {**TENSOR, **PIPELINE, "zero-3 selective": CROSSINGS["zero-3 data-2 selective"]}
    tasks = plain_and(layouts, model, optimizer=GENTLE_SGD, clipping=0.0)
    assert_same_losses(tasks, tmp_path, FP32_TOLERANCE)


def test_losses_low_rank_adapters_equal_plain_run(tmp_path: Path) -> None:
    layouts = {**TENSOR, **PIPELINE, "zero-3 full": CROSSINGS["zero-3 data-2 full"]}
    assert_same_losses(plain_and(layouts, "gpt2", lora_rank=4, optimizer=SGD), tmp_path, FP32_TOLERANCE)


@pytest.mark.parametrize("optimizer", [SGD, ADAMW], ids=["sgd", "adamw"])
def test_losses_bf16_every_axis_equal_plain_run(optimizer: dict[str, Any], tmp_path: Path) -> None:
    layouts = {
        **TENSOR,
        **PIPELINE,
        "selective": CHECKPOINTING["selective"],
        "zero-1": ZERO_DATA["zero-1 data-2"],
        "zero-3 full": CROSSINGS["zero-3 data-2 full"],
        "tensor-2 zero-1": {"tensor": 2, "zero": 1},
        "pipeline-2 zero-1": {"pipeline": 2, "zero": 1},
    }
    tasks = plain_and(layouts, "llama-tied", precision="bf16", optimizer=optimizer)
    assert_same_losses(tasks, tmp_path, BF16_TOLERANCE)
