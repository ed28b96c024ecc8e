"""The same seed and data give the same losses under every layout: what a plan changes is speed, not the training."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.spec import TrialTask
from tests.distributed.layouts import ADAMW, GLOBAL_BATCH_SIZE, SGD, make_task, run_layouts

# Sums in another order differ in the last bits; five steps of gradient descent at a large rate amplify them a little.
FP32_TOLERANCE = 1e-5
# bf16 keeps 8 bits (relative steps of 0.4%), in weights, activations and, without ZeRO, accumulated gradients.
BF16_TOLERANCE = 2e-3


def plain_and(layouts: dict[str, dict[str, object]], model: str, **common: object) -> dict[str, TrialTask]:
    """The plain one-process run and the named layouts of one model."""
    return {name: make_task(model, **{**common, **axes}) for name, axes in {"plain": {}, **layouts}.items()}


def assert_same_losses(tasks: dict[str, TrialTask], folder: Path, tolerance: float) -> None:
    """Every rank of every layout reports the losses of the plain run, and consumed whole global batches."""
    results = run_layouts(tasks, folder)
    reference = results["plain"][0]["losses"]
    assert reference[-1] < reference[0], "nothing was learned, so equal losses would say little"
    wrong = {}
    for name, ranks in results.items():
        for rank, result in enumerate(ranks):
            same = "losses" in result and result["losses"] == pytest.approx(reference, rel=tolerance)
            if not same or set(result["sequences"]) != {GLOBAL_BATCH_SIZE} or result["skipped"]:
                wrong[f"{name}, rank {rank}"] = result
    assert not wrong, f"expected {reference}"


ZERO = {f"zero-{stage}": {"zero": stage, "data": 2} for stage in range(4)}
SPLITS = {
    "data-2": {"data": 2},
    "tensor-2": {"tensor": 2},
    "pipeline-2": {"pipeline": 2},
    "tensor-2 pipeline-2": {"tensor": 2, "pipeline": 2},
}
CHECKPOINTING = {kind: {"checkpointing": kind} for kind in ("full", "selective", "layers:1")}
CROSSINGS = {
    "tensor-2 zero-3 selective": {"tensor": 2, "zero": 3, "checkpointing": "selective"},
    "zero-3 full": {"zero": 3, "data": 2, "checkpointing": "full"},
    "zero-3 selective": {"zero": 3, "data": 2, "checkpointing": "selective"},
    "pipeline-2 zero-1 data-2 layers:1": {"pipeline": 2, "zero": 1, "data": 2, "checkpointing": "layers:1"},
    "tensor-2 pipeline-2 zero-1 full": {"tensor": 2, "pipeline": 2, "zero": 1, "checkpointing": "full"},
    "tensor-2 data-2 zero-2": {"tensor": 2, "data": 2, "zero": 2},
    "uneven stages": {"pipeline": 2, "stage_layers": (1, 3), "checkpointing": "selective"},
}


def test_losses_llama_every_axis_equal_plain_run(tmp_path: Path) -> None:
    tasks = plain_and({**ZERO, **SPLITS, **CHECKPOINTING, **CROSSINGS}, "llama", optimizer=SGD)
    assert_same_losses(tasks, tmp_path, FP32_TOLERANCE)


@pytest.mark.parametrize("model", ["llama-tied", "gpt2"])
def test_losses_tied_embeddings_every_split_equal_plain_run(model: str, tmp_path: Path) -> None:
    layouts = {**SPLITS, "zero-3": {"zero": 3, "data": 2}, "zero-1 pipeline-2": {"zero": 1, "pipeline": 2}}
    assert_same_losses(plain_and(layouts, model, optimizer=SGD), tmp_path, FP32_TOLERANCE)


def test_losses_adamw_every_split_equal_plain_run(tmp_path: Path) -> None:
    layouts = {**SPLITS, "zero-2": {"zero": 2, "data": 2}, "zero-3": {"zero": 3, "data": 2}}
    assert_same_losses(plain_and(layouts, "llama", optimizer=ADAMW), tmp_path, 1e-4)


@pytest.mark.parametrize("model", ["mixtral", "qwen3"])
def test_losses_other_families_equal_plain_run(model: str, tmp_path: Path) -> None:
    layouts = {**SPLITS, "zero-3 selective": {"zero": 3, "data": 2, "checkpointing": "selective"}}
    assert_same_losses(plain_and(layouts, model, optimizer=SGD), tmp_path, FP32_TOLERANCE)


def test_losses_bf16_every_axis_equal_plain_run(tmp_path: Path) -> None:
    layouts = {
        **SPLITS,
        "zero-1": {"zero": 1, "data": 2},
        "zero-3 full": {"zero": 3, "data": 2, "checkpointing": "full"},
        "selective": {"checkpointing": "selective"},
        "tensor-2 zero-1": {"tensor": 2, "zero": 1},
        "pipeline-2 zero-1": {"pipeline": 2, "zero": 1},
    }
    for model in ("llama-tied", "qwen3"):
        tasks = plain_and(layouts, model, precision="bf16", optimizer=SGD)
        assert_same_losses(tasks, tmp_path / model, BF16_TOLERANCE)
