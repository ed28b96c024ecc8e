"""Trials of the reference trainer on one H200 (tests/data/h200/trainer.jsonl), each beside its estimate.

One run of `planner plan configs/jobs/h200-1.3b.yaml`: Llama-1.3B, 2,048 tokens, 48 sequences a step; step times are
medians of five steps, memory is what the device had in use.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from planner.catalog import load_gpu, load_link, load_model
from planner.cost import REFERENCE_TRAINER, estimate_columns
from planner.spec import ClusterSpec, Estimate, TrainingSpec
from tests.unit.cost.samples import columns
from tests.validation.h200_rows import FOLDER

P = TypeVar("P")


@cache
def rows() -> tuple[tuple[str, float, float, Estimate], ...]:
    """Name, step seconds, device bytes, estimate of each trial."""
    return tuple(_row(json.loads(line)) for line in (FOLDER / "trainer.jsonl").read_text().splitlines())


def _row(trial: dict[str, Any]) -> tuple[str, float, float, Estimate]:
    cluster = ClusterSpec(
        gpu=load_gpu("h200-sxm-141gb"),
        nodes=1,
        gpus_per_node=1,
        intra_node_link=load_link("nvlink4"),
        inter_node_link=load_link("infiniband-ndr"),
        host_memory_bytes=2 * 2**40,
    )
    asked = columns(
        zero_stage=trial["zero_stage"],
        micro_batch_size=trial["micro_batch_size"],
        gradient_accumulation_steps=trial["gradient_accumulation_steps"],
        checkpointing=trial["activation_checkpointing"],
    )
    result = estimate_columns(
        asked,
        model=load_model("llama-1.3b"),
        training=TrainingSpec(seq_len=2048, global_batch_size=48),
        cluster=cluster,
        profile=REFERENCE_TRAINER,
    )
    name = f"llama-1.3b z{trial['zero_stage']} mb{trial['micro_batch_size']} {trial['activation_checkpointing']}"
    return name, trial["step_time_s"], trial["device_used_gib"] * 2**30, result.record_at(0)


def pairs(make: Callable[..., P]) -> dict[str, list[P]]:
    """Each trial's step time and device memory as `make(name=, seen=, estimated=)`."""
    return {
        "step time": [make(name=name, seen=time, estimated=e.step_time_s, sweep="all") for name, time, _, e in rows()],
        "device used": [
            make(name=name, seen=used, estimated=float(e.memory.device_used_bytes)) for name, _, used, e in rows()
        ],
    }
