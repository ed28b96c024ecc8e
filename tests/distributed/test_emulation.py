"""An emulated rank is held against the real rank it stands for: what it sends, and what it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.emulation_runs import run_both, task_of, with_micro_batches
from tests.distributed.layouts import GLOBAL_BATCH_SIZE

LAYOUTS: dict[str, dict[str, Any]] = {
    "zero-1 data-2": {"zero": 1, "data": 2},
    "zero-2 data-2": {"zero": 2, "data": 2, "precision": "bf16"},
    "zero-3 data-2": {"zero": 3, "data": 2, "precision": "bf16"},
    "tensor-2": {"tensor": 2},
    "pipeline-2": {"pipeline": 2, "precision": "bf16"},
    "tensor-2 pipeline-2": {"tensor": 2, "pipeline": 2, "zero": 1},
}


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
        for moment in ("before update", "after update"):
            own = emulated[moment]["live"] - real[moment]["live"]
            assert 0 <= own < 256  # the integers that a stage is told, kept to be told again
            assert {**emulated[moment], "live": 0} == {**real[moment], "live": 0}


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


def test_bytes_of_few_micro_batches_are_those_of_many(tmp_path: Path) -> None:
    few_enough = {"zero-3 data-2": 1, "zero-2 data-2": 2, "pipeline-2": 2}
    tasks = {
        f"{layout}, {count}": with_micro_batches(task_of(LAYOUTS[layout]), count)
        for layout, few in few_enough.items()
        for count in (few, 7)
    }
    results = run_both(tasks, emulated=dict.fromkeys(tasks, (0,)), folder=tmp_path, real=False)
    for layout, few in few_enough.items():
        short, long = results[f"{layout}, {few}"]["emulated 0"], results[f"{layout}, 7"]["emulated 0"]
        for moment in ("before update", "after update"):
            live = [seen[moment].pop("live") for seen in (short, long)]
            assert live[0] == pytest.approx(live[1], abs=7 * 64)  # each micro-batch leaves a loss
            assert short[moment] == long[moment]
