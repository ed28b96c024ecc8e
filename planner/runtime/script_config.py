"""Holds the engine that a script made against the plan's config: one that ignores it measures something else."""

from __future__ import annotations

from typing import Any

from planner.runtime.script_run import ScriptProblem
from planner.spec import Precision, TrialTask


def other_config(engine: Any, task: TrialTask) -> ScriptProblem | None:
    """Every value of the engine that is not the plan's, and how the plan's could reach the script; None: all agree."""
    candidate = task.candidate
    layout, batch = candidate.layout, candidate.batch
    rows = (
        ("ZeRO stage", int(engine.zero_optimization_stage()), candidate.zero_stage, ""),
        ("precision", _precision_of(engine), candidate.precision.value, ""),
        ("micro-batch size", engine.train_micro_batch_size_per_gpu(), batch.micro_batch_size, "micro_batch_size"),
        (
            "accumulation",
            engine.gradient_accumulation_steps(),
            batch.gradient_accumulation_steps,
            "gradient_accumulation_steps",
        ),
        ("data-parallel size", int(engine.dp_world_size), layout.data_parallel_size, _splitting_slot(task)),
        (
            "pipeline stages",
            int(getattr(engine, "num_stages", 1)),
            layout.pipeline_parallel_size,
            _splitting_slot(task),
        ),
    )
    wrong = [(name, seen, planned, slot) for name, seen, planned, slot in rows if seen != planned]
    if not wrong:
        return None
    differs = ", ".join(f"{name} {seen} instead of {planned}" for name, seen, planned, _slot in wrong)
    slots = sorted({f"{{{slot}}}" for *_row, slot in wrong if slot})
    hint = f"; pass {' and '.join(slots)} on to the script in launch.command" if slots else ""
    return ScriptProblem(
        f"the script's engine does not run the plan's config: {differs}. Give deepspeed.initialize the file of "
        f"{{deepspeed_config}} and nothing that overrides it{hint}"
    )


def _precision_of(engine: Any) -> str:
    if engine.bfloat16_enabled():
        return Precision.BF16.value
    return Precision.FP16.value if engine.fp16_enabled() else Precision.FP32.value


def _splitting_slot(task: TrialTask) -> str:
    return "tensor_parallel_size" if task.candidate.layout.pipeline_parallel_size == 1 else "pipeline_parallel_size"
