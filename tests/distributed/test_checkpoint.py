"""A training that stops at a checkpoint and goes on in a new process has the losses of one that never stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.layouts import ADAMW, make_task, run_layouts

LAYOUTS: dict[str, dict[str, object]] = {
    "bf16 zero-0": {"precision": "bf16"},
    "zero-2": {"zero": 2, "data": 2},
    "zero-3": {"zero": 3, "data": 2},
    "tensor-2 zero-1": {"tensor": 2, "zero": 1},
    "pipeline-2 zero-0": {"pipeline": 2},
    "tensor-2 pipeline-2 bf16 zero-1": {"tensor": 2, "pipeline": 2, "zero": 1, "precision": "bf16"},
}


def test_resume_every_kind_of_layout_continues_loss_curve(tmp_path: Path) -> None:
    tasks = {}
    for name, axes in LAYOUTS.items():
        common = {"model": "llama-tied", "optimizer": ADAMW, **axes}
        folder = str(tmp_path / name)
        tasks[f"{name}: whole"] = make_task(**common)
        tasks[f"{name}: begun"] = make_task(**common, steps=3, checkpoint_dir=folder)
        tasks[f"{name}: resumed"] = make_task(**common, checkpoint_dir=folder)
    results = run_layouts(tasks, tmp_path / "run")
    wrong = {}
    for name in LAYOUTS:
        whole, begun, resumed = (results[f"{name}: {part}"][0] for part in ("whole", "begun", "resumed"))
        stitched = begun.get("losses", []) + resumed.get("losses", [])
        if len(begun.get("losses", [])) != 3 or stitched != pytest.approx(whole.get("losses"), rel=1e-6):
            wrong[name] = (whole, begun, resumed)
    assert not wrong


def test_resume_checkpoint_that_is_gone_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latest").write_text("global_step9")
    tasks = {"gone": make_task(model="llama", checkpoint_dir=str(tmp_path))}
    (result,) = run_layouts(tasks, tmp_path / "run")["gone"]
    assert "latest names cannot be found" in result["error"]


def test_resume_checkpoint_of_another_layout_is_refused(tmp_path: Path) -> None:
    common = {"model": "llama", "optimizer": ADAMW, "checkpoint_dir": str(tmp_path / "checkpoints")}
    tasks = {"begun": make_task(**common, steps=1), "resumed": make_task(**common, zero=2)}
    results = run_layouts(tasks, tmp_path / "run")
    assert "error" not in results["begun"][0]
    assert "of another layout: zero_stage 0 (now 2)" in results["resumed"][0]["error"]
