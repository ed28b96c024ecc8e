"""An emulated rank is held against the real rank it stands for: what it sends, and what it holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.spec import TrialTask
from tests.distributed.emulation_runs import run_both
from tests.distributed.layouts import ADAMW, GLOBAL_BATCH_SIZE, make_task

LAYOUTS: dict[str, dict[str, Any]] = {
    "zero-1 data-2": {"zero": 1, "data": 2},
    "zero-2 data-2": {"zero": 2, "data": 2, "precision": "bf16"},
    "zero-3 data-2": {"zero": 3, "data": 2, "precision": "bf16"},
    "tensor-2": {"tensor": 2},
    "pipeline-2": {"pipeline": 2, "precision": "bf16"},
    "tensor-2 pipeline-2": {"tensor": 2, "pipeline": 2, "zero": 1},
}


def task_of(axes: dict[str, Any]) -> TrialTask:
    """A tiny task; ZeRO-3 keeps no parameter whole, so that it has to gather them."""
    task = make_task("llama", optimizer=ADAMW, **axes)
    config = json.loads(task.ds_config_json)
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return replace(task, ds_config_json=json.dumps(config))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, dict[str, Any]]]:
    """Every layout on real ranks, and its first and last rank emulated."""
    tasks = {name: task_of(axes) for name, axes in LAYOUTS.items()}
    emulated = {name: (0, task.candidate.layout.world_size - 1) for name, task in tasks.items()}
    return run_both(tasks, emulated=emulated, folder=tmp_path_factory.mktemp("emulation"))


def pairs(ranks: dict[str, dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(real, emulated) of each rank that was emulated."""
    emulated = {name.removeprefix("emulated "): seen for name, seen in ranks.items() if name.startswith("emulated")}
    return [(ranks[f"real {rank}"], seen) for rank, seen in emulated.items()]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_emulated_rank_equal_the_real_ranks(both: dict[str, Any], layout: str) -> None:
    for real, emulated in pairs(both[layout]):
        assert len(real["calls"]) > 3
        assert emulated["calls"] == real["calls"]  # order, kind, type, bytes, ranks


@pytest.mark.parametrize("layout", LAYOUTS)
def test_bytes_emulated_rank_equal_the_real_ranks(both: dict[str, Any], layout: str) -> None:
    for real, emulated in pairs(both[layout]):
        assert min(real["before update"][part] for part in ("parameters", "gradients", "optimizer")) > 0
        assert emulated["before update"] == real["before update"]
        assert emulated["after update"] == real["after update"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_steps_emulated_rank_are_all_taken_with_finite_losses(both: dict[str, Any], layout: str) -> None:
    for _real, emulated in pairs(both[layout]):
        assert emulated["skipped"] == 0
        assert all(0.0 <= loss < 10.0 for loss in emulated["losses"])


def test_losses_emulated_world_of_one_equal_the_real_one(tmp_path: Path) -> None:
    tasks = {"zero-2": task_of({"zero": 2, "precision": "bf16"}), "zero-3": task_of({"zero": 3})}
    results = run_both(tasks, emulated=dict.fromkeys(tasks, (0,)), folder=tmp_path)
    for ranks in results.values():
        real, emulated = ranks["real 0"], ranks["emulated 0"]
        assert emulated == real  # losses, calls, sequences and bytes
        assert real["sequences"] == GLOBAL_BATCH_SIZE
