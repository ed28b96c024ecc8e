"""The held-out loss is that of the model, in whatever layout it is computed, however unequal the ranks' shares are."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from planner.spec import RunSpec
from tests.distributed.layouts import SEQ_LEN, make_task, run_layouts

NUM_SEQUENCES = 12  # a multiple of what one round of every layout below takes, and of no more

LAYOUTS = {
    "alone": {},
    "zero3": {"data": 2, "zero": 3},
    "tensor": {"tensor": 2},
    "pipeline": {"pipeline": 2},
}


def test_evaluation_every_layout_gives_the_same_loss(tmp_path: Path) -> None:
    held_out = tmp_path / "held-out.bin"
    ids = np.random.default_rng(3).integers(0, 128, SEQ_LEN * 13 + 5)
    held_out.write_bytes(ids.astype("<u4").tobytes())
    tasks = {}
    for name, layout in LAYOUTS.items():
        task = make_task("llama", steps=2, **layout)  # type: ignore[arg-type]
        for count in (NUM_SEQUENCES, 0) if name in ("alone", "zero3") else (NUM_SEQUENCES,):
            run = RunSpec(eval_path=str(held_out), eval_sequences=count)
            training = dataclasses.replace(task.training, run=run)
            tasks[f"{name}-{count}"] = dataclasses.replace(task, training=training)
    results = {name: ranks[0] for name, ranks in run_layouts(tasks, tmp_path / "runs").items()}
    assert not [result for result in results.values() if "error" in result], results
    for name in LAYOUTS:
        evaluated = results[f"{name}-{NUM_SEQUENCES}"]["evaluated"]
        assert evaluated == pytest.approx(results[f"alone-{NUM_SEQUENCES}"]["evaluated"], rel=1e-5), name
    # Thirteen sequences on two ranks: one of them has a sequence less, and the mean is still over all.
    assert results["zero3-0"]["evaluated"] == pytest.approx(results["alone-0"]["evaluated"], rel=1e-5)
    assert results["alone-0"]["evaluated"] != results[f"alone-{NUM_SEQUENCES}"]["evaluated"]
