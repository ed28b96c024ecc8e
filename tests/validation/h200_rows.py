"""The rows measured on one H200 (tests/data/h200), each beside its estimate."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import median
from typing import Any

from planner.catalog import load_gpu, load_link, model_from_config
from planner.cost import DEEPSPEED, estimate_columns
from planner.spec import ClusterSpec, Estimate, ModelSpec, TrainingSpec
from planner.spec._record import record
from tests.unit.cost.samples import columns

FOLDER = Path(__file__).parent.parent / "data" / "h200"


@record
class Row:
    """One trial and the estimate of the same configuration. A trial that ran out of memory has no figures."""

    name: str
    ran_out: bool
    retried: bool  # ran only because the allocator gave cached blocks back
    emulated: bool  # communication absent: its time does not count
    allocated_bytes: int
    reserved_bytes: int
    device_used_bytes: int
    step_time_s: float
    estimate: Estimate

    @property
    def allocated_error(self) -> float:
        return self.estimate.memory.allocated_bytes / self.allocated_bytes - 1

    @property
    def device_used_error(self) -> float:
        return self.estimate.memory.device_used_bytes / self.device_used_bytes - 1

    @property
    def time_error(self) -> float:
        return self.estimate.step_time_s / self.step_time_s - 1


@cache
def rows(*, priced_as: str = "h200-sxm-141gb") -> tuple[Row, ...]:
    """All rows, in the order of the file. `priced_as` another GPU: what the model says with a wrong data sheet."""
    lines = (FOLDER / "measured.jsonl").read_text().splitlines()
    return tuple(_row(json.loads(line), gpu=priced_as) for line in lines)


@cache
def _model(path: str) -> ModelSpec:
    return model_from_config(json.loads((FOLDER / path).read_text()), Path(path).stem)


def _row(trial: dict[str, Any], *, gpu: str) -> Row:
    times = trial.get("step_times_s") or [0.0, 0.0]
    name = (
        f"{Path(trial['model_config']).stem} s{trial['seq_len']} mb{trial['micro_batch_size']} z{trial['zero_stage']} "
        f"{trial['activation_checkpointing']} {trial['precision']}{' compiled' if trial['torch_compile'] else ''} "
        f"ranks{trial['world_size']} tp{trial['tensor_parallel_size']}"
    )
    return Row(
        name=name,
        ran_out=trial["outcome"] == "oom",
        retried=bool(trial.get("allocator_retries")),
        emulated=trial["emulated_rank"],
        allocated_bytes=trial.get("peak_allocated_bytes", 0),
        reserved_bytes=trial.get("peak_reserved_bytes", 0),
        device_used_bytes=trial.get("device_used_bytes", 0),
        step_time_s=median(times[1:]),
        estimate=_estimate(trial, gpu=gpu),
    )


def _estimate(trial: dict[str, Any], *, gpu: str) -> Estimate:
    """The planner's answer for the same configuration."""
    world, tensor = trial["world_size"], trial["tensor_parallel_size"]
    spec = ClusterSpec(
        gpu=load_gpu(gpu),
        nodes=max(world // 8, 1),
        gpus_per_node=min(world, 8),
        intra_node_link=load_link("nvlink4"),
        inter_node_link=load_link("infiniband-ndr"),
        host_memory_bytes=2 * 2**40,
    )
    asked = columns(
        data_parallel_size=world // tensor,
        tensor_parallel_size=tensor,
        micro_batch_size=trial["micro_batch_size"],
        gradient_accumulation_steps=trial["gradient_accumulation_steps"],
        zero_stage=trial["zero_stage"],
        precision=trial["precision"],
        checkpointing=trial["activation_checkpointing"],
        attention=trial["attention"],
    )
    result = estimate_columns(
        asked,
        model=_model(trial["model_config"]),
        training=TrainingSpec(seq_len=trial["seq_len"], global_batch_size=1),
        cluster=spec,
        profile=replace(DEEPSPEED, compiled=trial["torch_compile"]),
    )
    return result.record_at(0)
