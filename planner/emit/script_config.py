"""The DeepSpeed config of a script of the user's own: what its loop brings itself is left to it.

Owns the differences from the reference trainer's config: Hugging Face's Trainer and accelerate make the optimizer
themselves, and a config of the user's own keeps all that the plan does not decide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.spec import Candidate, JobSpec, Precision, ScriptKind

DsConfig = dict[str, Any]

AUTO = "auto"
QUIET_STEPS_PER_PRINT = 1_000_000  # the trainer prints its own lines


def without_optimizer(config: DsConfig, *, kind: ScriptKind) -> DsConfig:
    """The config for a loop that makes its own optimizer.

    With an `optimizer` block the Trainer insists that every value of it equals its arguments, and accelerate refuses an
    optimizer made in the code. Clipping is an argument of the Trainer, too (`--max_grad_norm`), which fills in "auto".
    """
    kept = {key: value for key, value in config.items() if key not in ("optimizer", "zero_allow_untested_optimizer")}
    if kind is ScriptKind.HUGGINGFACE:
        kept["gradient_clipping"] = AUTO
    return kept


def over_own_config(base: DsConfig, candidate: Candidate, *, zero: DsConfig) -> DsConfig:
    """The user's config with the keys that the plan decides laid over it: batches, precision, and of ZeRO what `zero`
    holds (its stage at least). "auto" elsewhere stays for Hugging Face to fill in.
    """
    batch = candidate.batch
    config = {
        **base,
        "train_batch_size": batch.global_batch_size,
        "train_micro_batch_size_per_gpu": batch.micro_batch_size,
        "gradient_accumulation_steps": batch.gradient_accumulation_steps,
    }
    own = base.get("zero_optimization")
    config["zero_optimization"] = {**(own if isinstance(own, dict) else {}), **zero}
    for key, precision in (("bf16", Precision.BF16), ("fp16", Precision.FP16)):
        wanted = candidate.precision is precision
        block = base.get(key)
        if wanted or isinstance(block, dict):
            config[key] = {**(block if isinstance(block, dict) else {}), "enabled": wanted}
    return config


def without_auto(value: Any) -> Any:
    """A config without its "auto" values, which Hugging Face replaces before DeepSpeed reads them."""
    if isinstance(value, dict):
        return {key: without_auto(item) for key, item in value.items() if item != AUTO}
    return value


def as_reference(job: JobSpec) -> JobSpec:
    """The job as the reference trainer runs it: for stand-ins, which cannot run the user's script."""
    launch = replace(job.launch, command="", script_kind=ScriptKind.DEEPSPEED, base_config_json="")
    return replace(job, launch=launch)
