"""What the figures of a failure prove about checkpointing, and when they prove nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.app.diagnose import diagnose_logs
from planner.app.diagnose_request import DiagnoseRequest
from tests.unit.diagnose.reading import oom_text

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
AT_THE_HEAD = "    logits = self.lm_head(hidden_states)\n"


def _diagnose(folder: Path, code: str, *, live: float, said: str = "") -> dict[str, Any]:
    """Llama 8B at micro-batch 8 on 8 H100: 272 GiB without checkpointing, about 80 GiB with it."""
    log = 'Traceback (most recent call last):\n  File "/u/m.py", line 2, in forward\n' + code
    (folder / "train.log").write_text(
        log + oom_text(request=7.83, total=79.1, free=2.0, live=live, idle=0.4, in_use=live + 1)
    )
    (folder / "ds_config.json").write_text(json.dumps(CONFIG))
    request = DiagnoseRequest(
        paths=(folder / "train.log",),
        config=folder / "ds_config.json",
        model="llama-3.1-8b",
        gpu="h100",
        seq_len=4096,
        world_size=8,
        activation_checkpointing=said,
    )
    return diagnose_logs(request).document


def _recomputes(document: dict[str, Any]) -> bool:
    return any("the run recomputes activations" in note for note in document["notes"])


def test_far_less_memory_than_all_layers_take_proves_checkpointing(tmp_path: Path) -> None:
    document = _diagnose(tmp_path, AT_THE_HEAD, live=73.1)
    assert _recomputes(document)
    changes = [fix["change"] for fix in document["fixes"]]
    assert changes
    assert not any("activation_checkpointing" in change.get("run", {}) for change in changes)


@pytest.mark.parametrize(
    ("code", "live", "said"),
    [
        ("    x = self.layers[3](x)\n", 73.1, ""),  # in the middle of the forward pass only some layers are held
        (AT_THE_HEAD, 73.1, "none"),  # the user knows
        (AT_THE_HEAD, 20.0, ""),  # less than even checkpointing takes: the setting is another one
    ],
)
def test_other_figures_prove_nothing(tmp_path: Path, code: str, live: float, said: str) -> None:
    assert not _recomputes(_diagnose(tmp_path, code, live=live, said=said))
