"""The last of the fallbacks: a checkpoint of a run with its optimizer on the device goes on with one in host memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.layouts import ADAMW, make_task, run_layouts

IN_HOST_MEMORY = {"type": "AdamW", "params": {**ADAMW["params"], "torch_adam": False, "adam_w_mode": True}}
OFFLOAD = {"offload_optimizer": {"device": "cpu", "pin_memory": False}}


@pytest.mark.slow  # DeepSpeed compiles its CPU Adam
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_checkpoint_without_offload_goes_on_with_offload_on_the_same_curve(zero: int, tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoints")
    both = {"data": 2, "zero": zero}
    whole = make_task("llama", steps=4, optimizer=ADAMW, **both)
    first = make_task("llama", steps=2, optimizer=ADAMW, checkpoint_dir=folder, **both)
    second = make_task("llama", steps=4, optimizer=IN_HOST_MEMORY, zero_options=OFFLOAD, checkpoint_dir=folder, **both)
    before = run_layouts({"whole": whole, "first": first}, tmp_path / "before")
    after = run_layouts({"second": second}, tmp_path / "after")["second"][0]
    assert "error" not in after, after
    assert after["losses"] == pytest.approx(before["whole"][0]["losses"][2:], rel=1e-5)
