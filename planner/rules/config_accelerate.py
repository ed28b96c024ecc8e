"""A configuration beside accelerate's own file (`accelerate config`), or that file's `deepspeed_config` block alone.

accelerate 1.15: commands/launch.py hands the names of the block's keys on, utils/dataclasses.py (`DeepSpeedPlugin`)
refuses those that a DeepSpeed file also decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from planner.errors import near_matches
from planner.rules.config_context import Breach, ConfigView, Severity
from planner.rules.config_entries import shown
from planner.rules.known_keys import keys_of_release, parse_release
from planner.rules.patches import put
from planner.rules.rule import Rule

BLOCK = "deepspeed_config"
# What the block's keys become in DeepSpeed's own file.
MEANS: Mapping[str, str] = {
    "zero_stage": "zero_optimization.stage",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
}
_KNOWN = frozenset(MEANS) | {
    *("deepspeed_config_file", "deepspeed_multinode_launcher", "deepspeed_hostfile", "deepspeed_exclusion_filter"),
    *("deepspeed_inclusion_filter", "deepspeed_moe_layer_cls_names", "zero3_init_flag"),
}
_BY_PRECISION = {"fp16": "bf16", "bf16": "fp16", "fp8": "fp16"}  # what excludes what


def _file(view: ConfigView) -> Mapping[str, Any]:
    return view.context.accelerate or {}


def accelerate_block(file: Mapping[str, Any]) -> Mapping[str, Any]:
    """The `deepspeed_config` block; empty where there is none."""
    block = file.get(BLOCK)
    return block if isinstance(block, Mapping) else {}


def _unknown(view: ConfigView) -> Iterable[Breach]:
    tops = keys_of_release(parse_release(view.context.deepspeed_version))[""].keys
    for name in [str(name) for name in accelerate_block(_file(view)) if name not in _KNOWN][:20]:
        near = near_matches(name, _KNOWN, limit=1)
        if name in tops:
            fix = f"write {name} at the top level of a DeepSpeed file, named by deepspeed_config_file"
        else:
            fix = f"write {near[0]!r}" if near else "remove it"
        yield Breach(
            key=f"{BLOCK}.{name}",
            message=f"{shown(name)} in accelerate's {BLOCK} has no effect: nothing reads it there",
            fix=fix,
        )


def _decided_twice(view: ConfigView) -> Iterable[Breach]:
    block = accelerate_block(_file(view))
    if not _has_own_file(view):
        return
    for name in MEANS:
        if name in block:
            yield Breach(
                key=f"{BLOCK}.{name}",
                message=f"{name} {shown(block[name])} in accelerate's file beside a DeepSpeed file, which says "
                + (shown(view.get(MEANS[name])) if view.has(MEANS[name]) else "nothing of it")
                + ": accelerate refuses the two",
                fix=f"remove it there; {MEANS[name]} in the DeepSpeed file decides",
            )


def _has_own_file(view: ConfigView) -> bool:
    """Whether a DeepSpeed file stands beside accelerate's, or is named in it, so that it is not all there is."""
    named = accelerate_block(_file(view)).get("deepspeed_config_file")
    return not view.context.from_accelerate or (isinstance(named, str) and named not in ("", "none"))


def _precision(view: ConfigView) -> Iterable[Breach]:
    asked = _file(view).get("mixed_precision")
    if asked is None or not _has_own_file(view):
        return
    asked = "no" if asked in (False, "no") else str(asked)
    other = _BY_PRECISION.get(asked, "")
    if other and view.flag(f"{other}.enabled"):
        yield Breach(
            key=f"{other}.enabled",
            message=f"accelerate's mixed_precision is {shown(asked)}, the file enables {other}: accelerate refuses it",
            fix=f"write {other}.enabled: false, or mixed_precision: {other}",
            patch=put(f"{other}.enabled", False),
        )
    yield Breach(
        key="mixed_precision",
        message=f"mixed_precision {shown(asked)} in accelerate's file beside a DeepSpeed file: accelerate refuses both",
        fix="remove mixed_precision from accelerate's file; fp16 and bf16 in the DeepSpeed file decide",
    )


def _not_used(view: ConfigView) -> Iterable[Breach]:
    file = _file(view)
    kind = file.get("distributed_type")
    if isinstance(kind, str) and kind.upper() != "DEEPSPEED":
        yield Breach(
            key="distributed_type",
            message=f"accelerate's distributed_type is {shown(kind)}: the DeepSpeed configuration is not used",
            fix="write distributed_type: DEEPSPEED",
        )
    if isinstance(file.get("fsdp_config"), Mapping) and file.get("fsdp_config"):
        yield Breach(
            key="fsdp_config",
            message="accelerate's file has an fsdp_config block beside DeepSpeed",
            fix="remove it: one of the two shards the model",
        )


def _processes(view: ConfigView) -> Iterable[Breach]:
    count = _file(view).get("num_processes")
    world = view.context.world_size
    if isinstance(count, int) and not isinstance(count, bool) and world and count != world:
        yield Breach(
            key="num_processes",
            message=f"accelerate's num_processes is {count}, not {world}: it counts all processes of all machines",
            fix=f"write num_processes: {world}",
        )


def _zero3_only(view: ConfigView) -> Iterable[Breach]:
    block = accelerate_block(_file(view))
    for name in ("zero3_init_flag", "zero3_save_16bit_model"):
        if block.get(name) in (True, "true") and view.zero_stage != 3:
            yield Breach(
                key=f"{BLOCK}.{name}",
                message=f"{name} has no effect at stage {view.zero_stage}",
                fix="remove it, or write zero_stage: 3",
            )


ACCELERATE_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="accelerate-key-unknown",
        severity=Severity.WARNING,
        summary="accelerate copies the block's keys to its launcher's arguments and reads those it knows",
        source="accelerate 1.15, commands/launch.py; utils/launch.py: prepare_deepspeed_cmd_env",
        check=_unknown,
    ),
    Rule(
        name="accelerate-decided-twice",
        severity=Severity.ERROR,
        summary="with a DeepSpeed file accelerate's own keys for the same things must be absent",
        source="accelerate 1.15, utils/dataclasses.py: DeepSpeedPlugin._deepspeed_config_checks",
        check=_decided_twice,
    ),
    Rule(
        name="accelerate-precision",
        severity=Severity.ERROR,
        summary="one precision, decided in one place",
        source="accelerate 1.15, utils/dataclasses.py: DeepSpeedPlugin.set_mixed_precision",
        check=_precision,
    ),
    Rule(
        name="accelerate-not-deepspeed",
        severity=Severity.WARNING,
        summary="accelerate starts what distributed_type says",
        source="accelerate 1.15, commands/launch.py: launch_command",
        check=_not_used,
    ),
    Rule(
        name="accelerate-processes",
        severity=Severity.WARNING,
        summary="the number of processes is the world over which the batch is split",
        source="accelerate 1.15, commands/launch.py",
        check=_processes,
    ),
    Rule(
        name="accelerate-zero3-only",
        severity=Severity.INFO,
        summary="these switches are about parameters that no rank holds whole",
        source="accelerate 1.15, utils/dataclasses.py: DeepSpeedPlugin",
        check=_zero3_only,
    ),
)
