"""`check_config`: each rule finds its breach, and files that DeepSpeed takes as written raise no alarm."""

from __future__ import annotations

import copy

import pytest

from planner.rules import RULES, ConfigContext, Consumer, Finding, ModelFacts, Severity, check_config
from planner.spec import DeviceKind

BATCH = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
ADAMW = {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}
PLAIN = {**BATCH, "gradient_clipping": 1.0, "optimizer": ADAMW}
CPU_OFFLOAD = {"device": "cpu", "pin_memory": True}
TRAINER = {"consumer": Consumer.HUGGINGFACE}


def config(zero: dict | None = None, **more: object) -> dict:
    """A valid configuration for 8 ranks, changed where the arguments say so."""
    stage = {"stage": 1, "overlap_comm": False, **(zero or {})}
    return {**copy.deepcopy(PLAIN), "zero_optimization": stage, **more}


def context(**more: object) -> ConfigContext:
    return ConfigContext(**{"world_size": 8, **more})  # type: ignore[arg-type]


def codes(findings: tuple[Finding, ...], *, at_least: Severity = Severity.INFO) -> set[str]:
    order = list(Severity)
    return {item.code for item in findings if order.index(item.severity) <= order.index(at_least)}


# rule, configuration, context, key of the finding, severity
BREACHES = [
    (
        "pipeline-needs-zero-0-or-1",
        config({"stage": 2}),
        {"pipeline_parallel_size": 2},
        "zero_optimization.stage",
        "error",
    ),
    ("offload-param-needs-zero-3", config({"stage": 2, "offload_param": CPU_OFFLOAD}), {}, None, "warning"),
    ("offload-optimizer-needs-zero", config({"stage": 0, "offload_optimizer": CPU_OFFLOAD}), {}, None, "warning"),
    (
        "offload-nvme-needs-zero-3",
        config({"stage": 2, "offload_optimizer": {"device": "nvme", "pin_memory": True}}),
        {},
        None,
        "warning",
    ),
    ("key-unknown-refused", config({"stage3_param_persitence_threshold": 1}), {}, None, "error"),
    ("key-unknown-refused", config(bf16={"enabled": True, "loss_scale": 0}), {}, "bf16.loss_scale", "error"),
    ("key-unknown-ignored", config(gradient_clip=1.0), {}, "gradient_clip", "warning"),
    ("key-unknown-ignored", config(_comment="tuned in May"), {}, "_comment", "info"),
    ("key-removed", config(amp={"enabled": False}), {}, "amp", "error"),
    ("key-removed", config({"mics_shard_size": 8}), {}, "zero_optimization.mics_shard_size", "error"),
    ("key-too-new", config({"compute_grad_norm": True}), {"deepspeed_version": "0.19.6"}, None, "error"),
    ("key-deprecated", config({"cpu_offload": True}), {}, "zero_optimization.cpu_offload", "warning"),
    ("key-deprecated", config({"cpu_offload": True, "offload_optimizer": CPU_OFFLOAD}), {}, None, "error"),
    ("block-not-mapping", config(fp16=True), {}, "fp16", "error"),
    ("block-not-mapping", config({"offload_optimizer": "cpu"}), {}, None, "error"),
    ("block-not-mapping", {**PLAIN, "zero_optimization": 2}, {}, "zero_optimization", "error"),
    ("zero-as-boolean", {**PLAIN, "zero_optimization": True}, {}, "zero_optimization", "warning"),
    ("value-auto", config(train_batch_size="auto"), {}, "train_batch_size", "error"),
    ("value-auto", config({"stage": "auto"}), {}, "zero_optimization.stage", "error"),
    ("value-auto", config({"reduce_bucket_size": "auto"}), {}, "zero_optimization.reduce_bucket_size", "warning"),
    ("value-auto", config(wall_clock_breakdown="auto"), {"consumer": Consumer.HUGGINGFACE}, None, "error"),
    ("value-wrong-kind", config({"stage3_prefetch_bucket_size": 15099494.4}), {}, None, "error"),
    ("value-wrong-kind", config(gradient_accumulation_steps="4"), {}, "gradient_accumulation_steps", "error"),
    ("value-wrong-kind", config({"stage": 4}), {}, "zero_optimization.stage", "error"),
    ("value-wrong-kind", config({"offload_optimizer": {"device": "gpu"}}), {}, None, "error"),
    ("value-wrong-kind", config({"offload_optimizer": {"device": "CPU"}}), {}, None, "error"),
    ("value-wrong-kind", config({"reduce_bucket_size": "5e8"}), {}, None, "error"),
    ("value-wrong-kind", config(wall_clock_breakdown="sometimes"), {}, "wall_clock_breakdown", "error"),
    ("value-wrong-kind", config(memory_breakdown="sometimes"), {}, "memory_breakdown", "warning"),
    ("block-not-mapping", config(optimizer=None), {}, "optimizer", "error"),
    ("value-quoted-boolean", config(bf16={"enabled": "true"}), {}, "bf16.enabled", "warning"),
    (
        "optimizer-parameter-quoted",
        config(optimizer={"type": "AdamW", "params": {"lr": "1e-4"}}),
        {},
        "optimizer.params.lr",
        "error",
    ),
    ("default-drifted", {**BATCH, "optimizer": ADAMW}, {}, "gradient_clipping", "info"),
    ("default-drifted", config(bf16={"enabled": True}), {}, "bf16.check_grad_overflow", "note"),
    ("batch-missing", {"gradient_accumulation_steps": 4, "gradient_clipping": 1.0}, {}, None, "warning"),
    ("batch-triple", config(train_batch_size=256), {}, "train_batch_size", "error"),
    ("batch-triple", {"train_batch_size": 10, "gradient_clipping": 1.0}, {}, "train_batch_size", "error"),
    ("world-indivisible", config(), {"pipeline_parallel_size": 3}, None, "error"),
    ("autotp-batch-counts-ranks", config(tensor_parallel={"autotp_size": 2}), {}, "train_batch_size", "warning"),
    ("sequence-parallel-alone", config(sequence_parallel_size=2), {}, "sequence_parallel_size", "warning"),
    (
        "offload-nvme-without-path",
        config({"stage": 3, "offload_param": {"device": "nvme", "pin_memory": True}}),
        {},
        None,
        "error",
    ),
    ("offload-ratio-needs-zero-3", config({"offload_optimizer": {**CPU_OFFLOAD, "ratio": 0.3}}), {}, None, "error"),
    ("legacy-stage-1", config({"legacy_stage1": True}), {}, None, "error"),
    ("reduce-scatter-scaling", config({"stage": 2}, prescale_gradients=True), {}, "prescale_gradients", "error"),
    ("reduce-scatter-scaling", config({"stage": 3}, gradient_predivide_factor=2.0), {}, None, "error"),
    ("sum-reduce-unsupported", config({"stage": 3}, gradient_allreduce_op="SUM"), {}, None, "error"),
    ("allgather-bucket-odd", config({"allgather_bucket_size": 1001}), {}, None, "error"),
    ("grad-norm-off", config({"compute_grad_norm": False}), {}, "gradient_clipping", "error"),
    ("zenflow-needs-offload", config({"stage": 2, "zenflow": {"topk_ratio": 0.1}}), {}, None, "error"),
    ("stage-3-key-unused", config({"stage3_max_live_parameters": 1e9}), {}, None, "info"),
    ("stage-3-key-unused", config({"zero_hpz_partition_size": 8}), {}, None, "warning"),
    ("hpz-divides-world", config({"stage": 3, "zero_hpz_partition_size": 3}), {}, None, "error"),
    (
        "quantized-gradients-need-reduce-scatter",
        config({"stage": 3, "zero_quantized_gradients": True, "reduce_scatter": False}),
        {},
        None,
        "error",
    ),
    (
        "contiguous-gradients-forced",
        config({"contiguous_gradients": False, "offload_optimizer": CPU_OFFLOAD}),
        {},
        None,
        "info",
    ),
    (
        "overlap-in-pipeline",
        config({"overlap_comm": True}, train_batch_size=32),
        {"pipeline_parallel_size": 2},
        None,
        "info",
    ),
    (
        "precision-both",
        config(fp16={"enabled": True}, bf16={"enabled": True, "check_grad_overflow": True}),
        {},
        None,
        "error",
    ),
    ("precision-fp16-on-cpu", config(fp16={"enabled": True}), {"device": DeviceKind.CPU}, None, "warning"),
    (
        "precision-16-bit-masters",
        config(fp16={"enabled": True, "fp16_master_weights_and_grads": True}),
        {},
        None,
        "error",
    ),
    (
        "precision-accumulation-type",
        config(
            {"stage": 0}, bf16={"enabled": True, "check_grad_overflow": True}, data_types={"grad_accum_dtype": "fp32"}
        ),
        {},
        "data_types.grad_accum_dtype",
        "error",
    ),
    ("loss-scale", config(fp16={"enabled": True, "loss_scale": 1.0}), {}, "fp16.loss_scale", "info"),
    ("loss-scale", config(fp16={"enabled": True, "initial_scale_power": 32}), {}, "fp16.initial_scale_power", "info"),
    (
        "loss-scale",
        config(
            {"stage": 0}, fp16={"enabled": True, "loss_scale": 1.0}, optimizer={"type": "Lamb", "params": {"lr": 1e-3}}
        ),
        {},
        "fp16.loss_scale",
        "error",
    ),
    ("optimizer-missing", config(optimizer={}), {"client_optimizer": False}, "optimizer", "error"),
    ("optimizer-unknown", config(optimizer={"type": "Adam8bit"}), {}, "optimizer.type", "error"),
    ("optimizer-unknown", config(optimizer={"type": "OneBitAdam"}), {}, "optimizer.type", "error"),
    ("optimizer-unknown", config(optimizer={"type": "OneBitAdam"}), {"deepspeed_version": "0.19.6"}, None, "error"),
    ("optimizer-untested", config(optimizer={"type": "SGD", "params": {"lr": 0.1}}), {}, None, "error"),
    (
        "optimizer-max-grad-norm",
        config(optimizer={"type": "Adam", "params": {"max_grad_norm": 1.0}}),
        {},
        None,
        "error",
    ),
    ("optimizer-client-offload", config({"offload_optimizer": CPU_OFFLOAD}), {"client_optimizer": True}, None, "error"),
    (
        "muon-reduce-scatter",
        config({"stage": 3}, optimizer={"type": "Muon", "params": {"lr": 0.02}}),
        {},
        None,
        "error",
    ),
    ("schedule-unknown", config(scheduler={"type": "cosine"}), {}, "scheduler.type", "error"),
    (
        "schedule-overrules-lr",
        config(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 9}}),
        {},
        None,
        "warning",
    ),
    (
        "autotp-sizes-differ",
        config(tensor_parallel={"autotp_size": 2, "tp": {"tp_size": 4}}),
        {},
        "tensor_parallel.tp.tp_size",
        "error",
    ),
    ("autotp-in-pipeline", config(tensor_parallel={"autotp_size": 2}), {"pipeline_parallel_size": 2}, None, "error"),
    ("pipeline-key-unread", config(pipeline={"stages": 2}), {}, "pipeline.stages", "warning"),
    ("checkpointing-block-inert", config(activation_checkpointing={"partition_activations": True}), {}, None, "info"),
    (
        "checkpointing-block-inert",
        config(activation_checkpointing={"contiguous_memory_optimization": True}),
        {},
        "activation_checkpointing.contiguous_memory_optimization",
        "error",
    ),
    (
        "accumulation-unmanaged",
        config(managed_gradient_accumulation=False),
        {"pipeline_parallel_size": 2},
        "managed_gradient_accumulation",
        "error",
    ),
    ("compile-conflict", config(compile={"passes": ["autotp", "z1"]}), {}, "compile.passes", "error"),
    ("key-with-blank", config(autotuning={"arg_mappings": {"a ": "--a"}}), {}, "autotuning.arg_mappings.a ", "warning"),
    ("value-placeholder", config(train_batch_size="${BATCH}"), {}, "train_batch_size", "error"),
    ("value-placeholder", config({"stage": "ZERO_STAGE"}), {}, "zero_optimization.stage", "error"),
    ("value-quoted-number", config({"reduce_bucket_size": "500"}), {}, "zero_optimization.reduce_bucket_size", "info"),
    ("batch-micro-derived", {"train_batch_size": 8192, "gradient_clipping": 1.0}, {}, None, "info"),
    ("elastic-batch", config(elasticity={"enabled": True}), {"deepspeed_version": "0.19.6"}, None, "error"),
    (
        "elastic-batch",
        {"elasticity": {"enabled": True, "max_train_batch_size": 64, "micro_batch_sizes": [2], "max_gpus": 4}},
        {"deepspeed_version": "0.19.6"},
        "elasticity.max_gpus",
        "error",
    ),
    (
        "zenflow-overwrites-accumulation",
        config({"stage": 2, "offload_optimizer": CPU_OFFLOAD, "zenflow": {"topk_ratio": 0.1}}),
        {},
        "gradient_accumulation_steps",
        "warning",
    ),
    (
        "super-offload-needs-zero-3",
        config({"stage": 2, "offload_optimizer": {**CPU_OFFLOAD, "super_offload": True}}),
        {},
        None,
        "error",
    ),
    ("precision-bf16-on-gpu", config(bf16={"enabled": True}), {"gpu_has_bf16": False}, "bf16.enabled", "error"),
    (
        "precision-autocast",
        config({"stage": 3, "zero_quantized_weights": True}, torch_autocast={"enabled": True}),
        {},
        None,
        "error",
    ),
    ("precision-parameter-type", config(data_types={"param_dtype": "bf16"}), {}, "data_types.param_dtype", "error"),
    ("precision-amp", config(amp={"enabled": True}), {"deepspeed_version": "0.19.6"}, "amp.enabled", "error"),
    (
        "optimizer-parameter-unknown",
        config(optimizer={"type": "AdamW", "params": {"lr": 1e-4, "learning_rate": 1e-4}}),
        {},
        "optimizer.params.learning_rate",
        "error",
    ),
    (
        "optimizer-adam-is-adamw",
        config(optimizer={"type": "Adam", "params": {"lr": 1e-4, "weight_decay": 0.1}}),
        {},
        "optimizer.type",
        "info",
    ),
    ("optimizer-block-unused", config(), {"client_optimizer": True}, "optimizer", "warning"),
    (
        "optimizer-slow-on-cpu",
        {
            **BATCH,
            "zero_optimization": {"stage": 2, "offload_optimizer": CPU_OFFLOAD},
            "zero_force_ds_cpu_optimizer": False,
        },
        {},
        "zero_force_ds_cpu_optimizer",
        "info",
    ),
    (
        "schedule-parameter",
        config(scheduler={"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-4, "total_steps": 9}}),
        {},
        "scheduler.params.total_num_steps",
        "error",
    ),
    (
        "schedule-warmup-steps",
        config(scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4, "warmup_num_steps": 0}}),
        {},
        "scheduler.params.warmup_num_steps",
        "error",
    ),
    (
        "autotp-heads",
        config(tensor_parallel={"autotp_size": 4}),
        {"model": ModelFacts(num_heads=6)},
        "tensor_parallel.autotp_size",
        "warning",
    ),
    (
        "autotp-vocab-parallel-loss",
        config(tensor_parallel={"vocab_parallel_ce_backend": "liger"}),
        {},
        None,
        "error",
    ),
    ("compile-stage", config({"stage": 0}, compile={"deepcompile": True}), {}, "compile.deepcompile", "warning"),
    ("autoep-values", config(expert_parallel={"score_func": "tanh"}), {}, "expert_parallel.score_func", "error"),
    (
        "autoep-layout",
        config(expert_parallel={"enabled": True, "autoep_size": 3}),
        {},
        "expert_parallel.autoep_size",
        "error",
    ),
    (
        "autoep-compiled-rest",
        config({"stage": 3}, compile={"autoep_non_moe": True}),
        {},
        "compile.autoep_non_moe",
        "error",
    ),
    ("buffers-exceed-default", config({"reduce_bucket_size": 1e9}), {}, None, "info"),
    (
        "buffers-large-for-gpu",
        config({"overlap_comm": True}),
        {"gpu_memory_bytes": 16 * 10**9},
        "zero_optimization.reduce_bucket_size",
        "warning",
    ),
    ("zero3-thresholds-at-zero", config({"stage": 3, "max_live_parameters": 0}), {}, None, "info"),
    (
        "offload-host-memory",
        config({"stage": 3, "offload_optimizer": CPU_OFFLOAD, "offload_param": CPU_OFFLOAD}),
        {},
        "zero_optimization.offload_optimizer",
        "info",
    ),
    (
        "zero3-weights-not-saved",
        config({"stage": 3, "stage3_gather_16bit_weights_on_model_save": False}),
        {"consumer": Consumer.HUGGINGFACE},
        None,
        "warning",
    ),
    ("moe-zero-stage", config({"stage": 3}), {"native_moe": True}, "zero_optimization.stage", "error"),
    ("elastic-checkpoint-zero-3", config({"stage": 3, "elastic_checkpoint": True}), {}, None, "warning"),
    ("trainer-mismatch", config(), {**TRAINER, "trainer_args": {"max_grad_norm": 0.5}}, "gradient_clipping", "error"),
    (
        "sequence-parallel-heads",
        config(train_batch_size=16),
        {"sequence_parallel_size": 4, "model": ModelFacts(num_heads=6)},
        None,
        "error",
    ),
    ("compile-in-code", config(compile={"deepcompile": True}), {}, "compile.deepcompile", "note"),
    ("gds-needs-cuda", config(aio={"use_gds": True}), {"device": DeviceKind.CPU}, "aio.use_gds", "error"),
    (
        "zenflow-needs-offload",
        config({"stage": 2, "offload_optimizer": CPU_OFFLOAD, "zenflow": {"offload": True}}),
        {},
        "zero_optimization.overlap_comm",
        "error",
    ),
    (
        "zenflow-needs-offload",
        config(
            {
                "stage": 2,
                "offload_optimizer": CPU_OFFLOAD,
                "zenflow": {"select_strategy": "step", "select_interval": 2, "update_interval": 4},
            }
        ),
        {},
        "zero_optimization.zenflow.select_interval",
        "error",
    ),
    ("trainer-default", config(bf16={"enabled": True}), {**TRAINER, "trainer_args": {}}, "bf16.enabled", "info"),
    (
        "trainer-schedule-overruled",
        config(scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-4}}),
        {**TRAINER, "trainer_args": {"lr_scheduler_type": "cosine"}},
        "scheduler.type",
        "warning",
    ),
    (
        "trainer-optimizer-overruled",
        config(),
        {**TRAINER, "trainer_args": {"optim": "adafactor"}},
        "optimizer.type",
        "warning",
    ),
    (
        "trainer-batch-search",
        config({"stage": 3}),
        {**TRAINER, "trainer_args": {"auto_find_batch_size": True}},
        "zero_optimization.stage",
        "error",
    ),
    (
        "auto-needs-hidden-size",
        config({"reduce_bucket_size": "auto"}),
        {**TRAINER, "model": ModelFacts()},
        None,
        "error",
    ),
    ("consumer-guessed", config(train_batch_size="auto"), TRAINER, "train_batch_size", "note"),
    ("accelerate-needs-zero", PLAIN, TRAINER, "zero_optimization", "note"),
    (
        "auto-prefetch-fraction",
        config({"stage": 3, "stage3_prefetch_bucket_size": "auto"}),
        TRAINER,
        "zero_optimization.stage3_prefetch_bucket_size",
        "note",
    ),
    (
        "accelerate-key-unknown",
        config(),
        {**TRAINER, "accelerate": {"deepspeed_config": {"zero_stages": 2}}},
        "deepspeed_config.zero_stages",
        "warning",
    ),
    (
        "accelerate-decided-twice",
        config(),
        {**TRAINER, "accelerate": {"deepspeed_config": {"zero_stage": 2}}},
        "deepspeed_config.zero_stage",
        "error",
    ),
    (
        "accelerate-decided-twice",
        config(),
        {
            **TRAINER,
            "from_accelerate": True,
            "accelerate": {"deepspeed_config": {"zero_stage": 2, "deepspeed_config_file": "gone.json"}},
        },
        "deepspeed_config.zero_stage",
        "error",
    ),
    (
        "accelerate-precision",
        config(bf16={"enabled": True}),
        {**TRAINER, "accelerate": {"mixed_precision": "fp16"}},
        "bf16.enabled",
        "error",
    ),
    (
        "accelerate-not-deepspeed",
        config(),
        {**TRAINER, "accelerate": {"distributed_type": "FSDP"}},
        "distributed_type",
        "warning",
    ),
    ("accelerate-processes", config(), {**TRAINER, "accelerate": {"num_processes": 4}}, "num_processes", "warning"),
    (
        "accelerate-zero3-only",
        config(),
        {**TRAINER, "accelerate": {"deepspeed_config": {"zero3_init_flag": True}}},
        "deepspeed_config.zero3_init_flag",
        "info",
    ),
]


@pytest.mark.parametrize(("code", "broken", "situation", "key", "severity"), BREACHES)
def test_breach_is_found_at_its_key_with_its_severity(code, broken, situation, key, severity) -> None:
    found = [item for item in check_config(broken, context(**situation)) if item.code == code]
    assert found
    worst = found[0]  # errors first
    assert worst.severity == severity
    assert key is None or key in {item.key for item in found}
    assert all((item.message, item.why, item.fix) for item in found)


def test_every_rule_about_configurations_has_a_breach() -> None:
    told_by_the_values = {rule.name for rule in RULES if rule.check and not rule.name.startswith("syntax-")}
    assert told_by_the_values == {code for code, *_rest in BREACHES}  # the text's own: tests/unit/lint


BF16 = {"enabled": True, "check_grad_overflow": True}
VALID = [
    (config(), {}),
    (config({"stage": 0}), {}),
    (config({"stage": 2}, bf16=BF16), {}),
    (config({"stage": 3, "stage3_max_live_parameters": 1e9, "reduce_bucket_size": 5e8}, bf16=BF16), {}),
    # The spelling without stage3_ is accepted.
    (config({"stage": 3, "max_live_parameters": 0, "gather_16bit_weights_on_model_save": True}), {}),
    # Stage 1 with CPU offload works, whatever older documentation says.
    (config({"offload_optimizer": CPU_OFFLOAD}), {}),
    (config({"stage": 3, "offload_optimizer": {**CPU_OFFLOAD, "ratio": 0.3}}), {}),
    (config({"stage": 3, "offload_optimizer": {"device": "none"}, "offload_param": {"device": "none"}}), {}),
    (
        config(
            {"stage": 2, "offload_optimizer": CPU_OFFLOAD, "zenflow": {"topk_ratio": 0.1, "update_interval": 4}},
            train_batch_size=16,
            gradient_accumulation_steps=1,
        ),
        {},
    ),
    (config(train_batch_size=16), {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}),
    (config(optimizer={"type": "SGD", "params": {"lr": 0.1}}, zero_allow_untested_optimizer=True), {}),
    (config({"stage": 0}, optimizer={"type": "SGD", "params": {"lr": 0.1}}), {}),
    (config({"stage": 3, "reduce_scatter": False}, optimizer={"type": "Muon", "params": {"lr": 0.02}}), {}),
    (config({"stage": 3}, compile={"deepcompile": True}), {}),
    (config(bf16=BF16, data_types={"grad_accum_dtype": "fp32"}), {}),
    (config(seq_parallel_communication_data_type="bf16"), {}),
    (config({"stage": 1}, fp16={"enabled": True, "loss_scale": 0, "initial_scale_power": 12}), {}),
    (config(amp={"enabled": False}), {"deepspeed_version": "0.19.6"}),
    (config({"stage": 2}, optimizer={}), {"client_optimizer": True}),
]


@pytest.mark.parametrize(("valid", "situation"), VALID)
def test_valid_configuration_raises_no_alarm(valid, situation) -> None:
    assert codes(check_config(valid, context(**situation)), at_least=Severity.WARNING) == set()


def test_auto_is_hugging_faces_own() -> None:
    auto = config(
        {"stage": 3, "reduce_bucket_size": "auto", "stage3_prefetch_bucket_size": "auto"},
        train_batch_size="auto",
        train_micro_batch_size_per_gpu="auto",
        gradient_accumulation_steps="auto",
        gradient_clipping="auto",
        bf16={"enabled": "auto"},
        optimizer={"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"}},
    )
    found = check_config(auto, context(consumer=Consumer.HUGGINGFACE))
    assert {finding.severity for finding in found} == {Severity.NOTE}
    found = [item.key for item in check_config(auto, context()) if item.code == "value-auto"]
    assert len(found) == len(set(found)) == 11


def test_batch_triple_names_the_sizes_that_would_close_it() -> None:
    seven = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 18}
    (finding,) = [f for f in check_config(seven, context(world_size=7)) if f.code == "batch-triple"]
    assert "252" in finding.message
    assert "252 or 266" in finding.fix


def test_batch_triple_names_the_accumulation_that_would_close_it() -> None:
    off = {"train_batch_size": 256, "train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 1}
    (finding,) = [f for f in check_config(off, context()) if f.code == "batch-triple"]
    assert finding.fix == "write gradient_accumulation_steps: 4"


def test_misplaced_key_is_told_its_place_and_misspelt_key_its_name() -> None:
    slips = config(
        {"stage": 3, "offload_param": {"device": "cpu", "pin_memory": True, "fast_init": False}, "overlap_com": True}
    )
    fixes = {item.key: item.fix for item in check_config(slips, context()) if item.code == "key-unknown-refused"}
    assert "zero_optimization.offload_optimizer.fast_init" in fixes["zero_optimization.offload_param.fast_init"]
    assert "overlap_comm" in fixes["zero_optimization.overlap_com"]


def test_findings_come_errors_first() -> None:
    found = check_config(config({"stage": 4}, gradient_clip=1.0, amp={}), context())
    severities = [list(Severity).index(item.severity) for item in found]
    assert severities == sorted(severities)
    assert {"value-wrong-kind", "key-removed", "key-unknown-ignored"} <= codes(found)


def test_check_leaves_the_configuration_as_it_was() -> None:
    given = config({"stage": 3, "offload_param": dict(CPU_OFFLOAD)})
    before = copy.deepcopy(given)
    check_config(given, context())
    assert given == before


def test_states_on_nvme_are_not_said_to_fill_host_memory() -> None:
    nvme = {"device": "nvme", "nvme_path": "/local_nvme", "pin_memory": True}
    on_disk = config({"stage": 3, "offload_optimizer": nvme, "offload_param": nvme})
    in_memory = config({"stage": 3, "offload_optimizer": CPU_OFFLOAD, "offload_param": CPU_OFFLOAD})
    assert "offload-host-memory" not in codes(check_config(on_disk, context()))
    assert "offload-host-memory" in codes(check_config(in_memory, context()))


@pytest.mark.parametrize(
    ("name", "meant", "is_renamed"),
    [
        ("learning_rate", "lr", True),
        ("adam_epsilon", "eps", True),
        ("beta1", "betas", False),
        ("weigth_decay", "weight_decay", False),
    ],
)
def test_other_programs_names_of_optimizer_parameters_are_translated(name: str, meant: str, is_renamed: bool) -> None:
    broken = config(optimizer={"type": "AdamW", "params": {name: 0.5}})
    (finding,) = [item for item in check_config(broken, context()) if item.code == "optimizer-parameter-unknown"]
    assert finding.fix == f"write {meant!r}"
    assert (finding.patch is not None) == is_renamed
    if is_renamed:
        assert finding.patch == {"optimizer": {"params": {name: None, meant: 0.5}}}


def test_renamed_key_keeps_its_value() -> None:
    old = config(aio={"thread_count": 4})
    (finding,) = [item for item in check_config(old, context()) if item.code == "key-removed"]
    assert finding.patch == {"aio": {"thread_count": None, "intra_op_parallelism": 4}}
    assert "intra_op_parallelism" in finding.fix


def test_values_are_shown_as_json_spells_them() -> None:
    arguments = {"fp16": True, "bf16": False}
    findings = check_config(config(bf16={"enabled": True}), context(trainer_args=arguments, **TRAINER))
    (finding,) = [item for item in findings if item.key == "bf16.enabled" and item.code == "trainer-mismatch"]
    assert (finding.message, finding.fix) == (
        "the file says true, the Trainer's bf16 is false",
        'write "auto" here, or false',
    )
