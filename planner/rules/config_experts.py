"""Expert parallelism (AutoEP) in a configuration: what it takes, and what it refuses to stand beside."""

from __future__ import annotations

from collections.abc import Iterable

from planner.rules.config_context import Breach, ConfigView, Severity
from planner.rules.config_entries import shown
from planner.rules.patches import drop, put
from planner.rules.rule import Rule

_BLOCK = "expert_parallel"
_CHOICES = {
    "comm_backend": ("comm", "deepep"),
    "score_apply": ("auto", "pre", "post"),
    "score_func": ("auto", "softmax", "sigmoid"),
    "combine_impl": ("auto", "weighted_sum", "fused_weighted_sum", "legacy_bmm"),
    "row_weighting_impl": ("auto", "eager", "fused"),
    "gate_up_impl": ("separate", "fused"),
}


def _size(view: ConfigView, name: str) -> int:
    return max(1, int(view.number(f"{_BLOCK}.{name}", 1)))


def _tensor_size(view: ConfigView) -> int:
    return max(1, int(view.number("tensor_parallel.autotp_size", 1)))


def _sequence_size(view: ConfigView) -> int:
    return max(view.context.sequence_parallel_size, int(view.number("sequence_parallel_size", 1)))


def _expert_values(view: ConfigView) -> Iterable[Breach]:
    for name, choices in _CHOICES.items():
        value = view.get(f"{_BLOCK}.{name}")
        if value is not None and value not in choices:
            yield Breach(
                key=f"{_BLOCK}.{name}",
                message=f"{name!r} must be one of {', '.join(choices)}, found {shown(value)}",
                fix=f"write one of {', '.join(choices)}",
            )
    if not view.flag(f"{_BLOCK}.enabled"):
        return
    deepep = view.get(f"{_BLOCK}.comm_backend") == "deepep"
    if deepep and view.number(f"{_BLOCK}.comm_max_tokens_per_rank") <= 0:
        yield Breach(
            key=f"{_BLOCK}.comm_max_tokens_per_rank",
            message="the DeepEP backend without comm_max_tokens_per_rank",
            fix="write the largest number of tokens of a rank: micro-batch x sequence length",
        )
    if view.get(f"{_BLOCK}.gate_up_impl") == "fused" and not view.flag(f"{_BLOCK}.use_grouped_mm", True):
        yield Breach(
            key=f"{_BLOCK}.gate_up_impl",
            message="fused gate and up projections without grouped matrix products",
            fix="write use_grouped_mm: true",
            patch=put(f"{_BLOCK}.use_grouped_mm", True),
        )
    if view.get(f"{_BLOCK}.row_weighting_impl") == "fused" and not (deepep and _size(view, "autoep_size") > 1):
        yield Breach(
            key=f"{_BLOCK}.row_weighting_impl",
            message="fused row weighting runs inside DeepEP with autoep_size above 1 only",
            fix="remove it",
            patch=drop(f"{_BLOCK}.row_weighting_impl"),
        )
    yield from _fused_sum(view, deepep=deepep)


def _fused_sum(view: ConfigView, *, deepep: bool) -> Iterable[Breach]:
    split = _tensor_size(view) > 1 or _size(view, "expert_tensor_parallel_size") > 1
    before = view.get(f"{_BLOCK}.score_apply", "auto") == "pre"
    if view.get(f"{_BLOCK}.combine_impl") == "fused_weighted_sum" and (split or deepep or before):
        yield Breach(
            key=f"{_BLOCK}.combine_impl",
            message="fused_weighted_sum with tensor parallelism, DeepEP or scores applied before the experts",
            fix="remove combine_impl",
            patch=drop(f"{_BLOCK}.combine_impl"),
        )
    if view.flag(f"{_BLOCK}.async_split_plan") and _tensor_size(view) > 1:
        yield Breach(
            key=f"{_BLOCK}.async_split_plan",
            message="async_split_plan with tensor parallelism",
            fix="remove it",
            patch=drop(f"{_BLOCK}.async_split_plan"),
        )


def _expert_layout(view: ConfigView) -> Iterable[Breach]:
    if not view.flag(f"{_BLOCK}.enabled"):
        return
    experts, inner, tensor = _size(view, "autoep_size"), _size(view, "expert_tensor_parallel_size"), _tensor_size(view)
    context = view.context
    stage_ranks = context.world_size // context.pipeline_parallel_size
    model = context.model
    offloads = view.offload_optimizer != "none" or view.offload_param != "none"
    for refused, key, message in (
        (inner > 1, "expert_tensor_parallel_size", "expert_tensor_parallel_size above 1 is not supported yet"),
        (
            bool(context.world_size) and stage_ranks % (experts * inner) != 0,
            "autoep_size",
            f"{stage_ranks} ranks are not a multiple of autoep_size {experts}",
        ),
        (
            model is not None and model.num_experts > 0 and model.num_experts % experts != 0,
            "autoep_size",
            f"{model.num_experts if model else 0} experts are not a multiple of autoep_size {experts}",
        ),
        (view.zero_stage == 3 and _sequence_size(view) > 1, "enabled", "AutoEP at stage 3 with sequence parallelism"),
        (
            view.zero_stage == 3 and view.flag("zero_optimization.zero_quantized_gradients"),
            "enabled",
            "AutoEP at stage 3 with quantized gradients",
        ),
        (
            view.zero_stage == 3 and view.number("zero_optimization.zero_hpz_partition_size", 1) > 1,
            "enabled",
            "AutoEP at stage 3 with a secondary partition (hpZ)",
        ),
        (tensor > 1 and context.pipeline_parallel_size > 1, "enabled", "AutoEP with AutoTP in a pipeline"),
        (tensor > 1 and _sequence_size(view) > 1, "enabled", "AutoEP with AutoTP and sequence parallelism"),
        (tensor > 1 and experts == 1, "autoep_size", "AutoEP with AutoTP needs autoep_size above 1"),
        (tensor > 1 and offloads, "enabled", "AutoEP with AutoTP and offload"),
        (tensor > 1 and view.flag("compile.deepcompile"), "enabled", "AutoEP with AutoTP and DeepCompile"),
        (
            tensor > 1 and view.flag("use_data_before_expert_parallelism"),
            "enabled",
            "AutoEP with AutoTP and use_data_before_expert_parallelism",
        ),
    ):
        if refused:
            yield Breach(key=f"{_BLOCK}.{key}", message=message, fix="use one of them, or a size that divides")


def _compiled_rest(view: ConfigView) -> Iterable[Breach]:
    if not view.flag("compile.autoep_non_moe"):
        return
    for refused, what in (
        (view.zero_stage == 3, "ZeRO stage 3"),
        (_tensor_size(view) > 1, "AutoTP"),
        (_sequence_size(view) > 1, "sequence parallelism"),
        (view.context.pipeline_parallel_size > 1, "pipeline stages"),
        (view.get(f"{_BLOCK}.comm_backend") == "deepep", "the DeepEP backend"),
        (view.flag("compile.deepcompile"), "DeepCompile"),
    ):
        if refused:
            yield Breach(
                key="compile.autoep_non_moe",
                message=f"compile.autoep_non_moe with {what}",
                fix="remove it",
                patch=drop("compile.autoep_non_moe"),
            )


EXPERT_CONFIG_RULES: tuple[Rule, ...] = (
    Rule(
        name="autoep-values",
        severity=Severity.ERROR,
        summary="AutoEP checks its own choices when the engine starts",
        source="DeepSpeed 0.19.8, module_inject/auto_ep_config.py: validate_autoep_config",
        check=_expert_values,
    ),
    Rule(
        name="autoep-layout",
        severity=Severity.ERROR,
        summary="experts are dealt out evenly to groups of ranks, and few other ways of splitting go with it",
        source="DeepSpeed 0.19.8, module_inject/auto_ep_folding.py: validate_folding_global; auto_ep_config.py",
        check=_expert_layout,
    ),
    Rule(
        name="autoep-compiled-rest",
        severity=Severity.ERROR,
        summary="compiling what is not an expert goes with plain AutoEP only",
        source="DeepSpeed 0.19.8, runtime/engine.py: compile",
        check=_compiled_rest,
    ),
)
