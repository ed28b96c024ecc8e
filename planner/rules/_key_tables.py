"""What each key of DeepSpeed's configuration takes. Read from the released sources; nothing here is decided.

In which releases a key exists is in the generated `key_history.json`.
"""

from __future__ import annotations

from planner.rules.keys import Block, Key, Kind, anything, blocks, booleans, integer, number, text


def _gone(name: str, why: str) -> Key:
    return Key(name=name, removed_why=why)


# runtime/constants.py, runtime/config.py, monitor/config.py; removals: runtime/config.py _REMOVED_TOP_LEVEL_CONFIG_KEYS
_TOP = Block(
    path="",
    keys=(
        integer("train_batch_size", lowest=1),
        integer("train_micro_batch_size_per_gpu", lowest=1),
        integer("gradient_accumulation_steps", lowest=1),
        number("gradient_clipping", lowest=0),
        number("gradient_predivide_factor"),
        text("gradient_allreduce_op", choices=("mean", "sum")),
        text("communication_data_type", choices=("fp16", "bf16", "fp32"), nullable=True),
        text("seq_parallel_communication_data_type", choices=("fp16", "bf16", "fp32"), nullable=True),
        Key(name="steps_per_print", kind=Kind.INTEGER, nullable=True),
        *booleans("managed_gradient_accumulation", "prescale_gradients", "disable_allgather", "dump_state"),
        *booleans("zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "wall_clock_breakdown"),
        *booleans("memory_breakdown", "dataloader_drop_last", "use_data_before_expert_parallelism"),
        Key(name="disable_python_gc", kind=Kind.BOOLEAN),
        integer("sequence_parallel_size", lowest=1),
        integer("data_parallel_size", lowest=1),
        *anything("vocabulary_size", "log_level", "datastates_ckpt", "allgather_size"),
        # Keep: Kind.ANY, because DeepSpeed still takes the old boolean form.
        Key(name="zero_optimization"),
        *blocks("optimizer", "scheduler", "fp16", "data_types", "torch_autocast", "activation_checkpointing"),
        Key(name="bf16", kind=Kind.BLOCK, aliases=("bfloat16",), nullable=True),
        *blocks("pipeline", "tensor_parallel", "compile", "flops_profiler", "comms_logger"),
        *(Key(name=name, kind=Kind.BLOCK, nullable=True) for name in ("aio", "expert_parallel")),
        *blocks("autotuning", "checkpoint", "tensorboard", "wandb", "csv_monitor", "comet", "timers", "hybrid_engine"),
        *blocks("data_efficiency", "weight_quantization"),
        _gone("nebula", "Nebula checkpointing was removed"),
        _gone("compression_training", "the compression library was removed"),
        _gone("quantize_training", "mixture-of-quantization was removed"),
        _gone("sparse_attention", "sparse attention was removed"),
        _gone("amp", "Apex AMP was removed; use fp16, bf16 or torch_autocast"),
        _gone("sparse_gradients", "sparse gradients of dense embeddings were removed"),
        _gone("eigenvalue", "mixture-of-quantization was removed"),
        _gone("elasticity", "elastic training was removed; set the batch keys directly"),
        _gone("graph_harvesting", "graph harvesting was removed"),
        _gone("curriculum_learning", "use data_efficiency.data_sampling.curriculum_learning"),
        _gone("progressive_layer_drop", "progressive layer dropping was removed"),
    ),
)


def _stage3(name: str, kind: Kind = Kind.BOOLEAN) -> Key:
    lowest = 0 if kind is Kind.INTEGER else None
    return Key(name=f"stage3_{name}", kind=kind, aliases=(name,), lowest=lowest)


def _deprecated(name: str, replaced_by: str) -> Key:
    nullable = name.startswith("cpu_offload")
    return Key(name=name, kind=Kind.BOOLEAN, nullable=nullable, replaced_by=replaced_by)


# runtime/zero/config.py
_ZERO = Block(
    path="zero_optimization",
    strict=True,
    keys=(
        integer("stage", lowest=0, highest=3),
        *booleans("contiguous_gradients", "reduce_scatter", "use_multi_rank_bucket_allreduce", "allgather_partitions"),
        *booleans("load_from_fp32_weights", "elastic_checkpoint", "ignore_unused_parameters", "legacy_stage1"),
        *booleans("round_robin_gradients", "zero_quantized_weights", "zero_quantized_nontrainable_weights"),
        *booleans("zero_quantized_gradients", "memory_efficient_linear", "pipeline_loading_checkpoint"),
        *booleans("override_module_apply", "log_trace_cache_warnings", "enable_sanity_checks"),
        *booleans("save_muon_momentum_buffer_in_memory"),
        Key(name="overlap_comm", kind=Kind.BOOLEAN, nullable=True),
        Key(name="compute_grad_norm", kind=Kind.BOOLEAN),
        Key(name="parameter_alignment", kind=Kind.BOOLEAN),
        integer("reduce_bucket_size", lowest=1),
        integer("allgather_bucket_size", lowest=0),
        integer("sub_group_size", lowest=0),
        integer("zero_hpz_partition_size", lowest=0),
        _stage3("prefetch_bucket_size", Kind.INTEGER),
        _stage3("param_persistence_threshold", Kind.INTEGER),
        _stage3("model_persistence_threshold", Kind.INTEGER),
        _stage3("max_live_parameters", Kind.INTEGER),
        _stage3("max_reuse_distance", Kind.INTEGER),
        _stage3("gather_16bit_weights_on_model_save"),
        integer("stage3_module_granularity_threshold", aliases=("module_granularity_threshold",)),
        _stage3("use_all_reduce_for_fetch_params"),
        _stage3("allgather_sequential"),
        *(
            Key(name=name, kind=Kind.BLOCK, nullable=True)
            for name in ("offload_param", "offload_optimizer", "zenflow", "leaf_module")
        ),
        _deprecated("cpu_offload", "offload_optimizer"),
        _deprecated("cpu_offload_param", "offload_param"),
        _deprecated("cpu_offload_use_pin_memory", "offload_optimizer.pin_memory"),
        _deprecated("stage3_gather_fp16_weights_on_model_save", "stage3_gather_16bit_weights_on_model_save"),
        _gone("mics_shard_size", "MiCS was removed"),
        _gone("mics_hierarchical_params_gather", "MiCS was removed"),
        _gone("zeropp_loco_param", "LoCo-Zero++ was removed"),
    ),
)

_DEVICES = ("none", "cpu", "nvme")

# runtime/zero/offload_config.py
_OFFLOAD_PARAM = Block(
    path="zero_optimization.offload_param",
    strict=True,
    keys=(
        text("device", choices=_DEVICES),
        text("nvme_path", nullable=True),
        integer("buffer_count", lowest=0),
        integer("buffer_size", lowest=0),
        integer("max_in_cpu", lowest=0),
        *booleans("pin_memory"),
    ),
)
_OFFLOAD_OPTIMIZER = Block(
    path="zero_optimization.offload_optimizer",
    strict=True,
    keys=(
        text("device", choices=_DEVICES),
        text("nvme_path", nullable=True),
        integer("buffer_count", lowest=0),
        *booleans("pin_memory", "pipeline_read", "pipeline_write", "fast_init", "super_offload"),
        number("ratio", lowest=0, highest=1),
        number("cpuadam_cores_perc", lowest=0, highest=1),
    ),
)

# runtime/zenflow/zenflow_config.py, runtime/zero/leaf_module_config.py
_ZENFLOW = Block(
    path="zero_optimization.zenflow",
    strict=True,
    keys=(
        Key(name="topk_ratio", kind=Kind.NUMBER, lowest=0, highest=1, exclusive=True, refuses_boolean=True),
        text("select_strategy", choices=("auto", "step", "epoch")),
        integer("select_interval"),
        integer("update_interval", lowest=1),
        Key(name="steps_per_epoch", kind=Kind.INTEGER, nullable=True),
        *booleans("overlap_step", "offload"),
        number("auto_ratio", lowest=0, highest=1),
        integer("full_warm_up_rounds"),
        number("pt_reserved_cores_perc", lowest=0, highest=1),
    ),
)
_LEAF_MODULE = Block(
    path="zero_optimization.leaf_module", strict=True, keys=anything("classes", "names", "name_suffixes")
)

# runtime/precision_config.py
_FP16 = Block(
    path="fp16",
    strict=True,
    keys=(
        *booleans("enabled", "auto_cast", "consecutive_hysteresis", "fp16_master_weights_and_grads"),
        Key(name="loss_scale", kind=Kind.NUMBER, lowest=0, refuses_boolean=True),
        integer("initial_scale_power"),
        Key(name="loss_scale_window", kind=Kind.INTEGER, refuses_boolean=True),
        integer("hysteresis"),
        Key(name="min_loss_scale", kind=Kind.INTEGER, refuses_boolean=True),
    ),
)
_BF16 = Block(
    path="bf16",
    strict=True,
    keys=booleans(
        "enabled",
        "immediate_grad_update",
        "check_grad_overflow",
        "bf16_master_weights_and_grads",
        "bf16_optimizer_states",
    ),
)

# runtime/config.py
_DTYPES = ("fp32", "fp16", "bf16", "float32", "float16", "bfloat16", "float", "half", "int8")
_DATA_TYPES = Block(
    path="data_types",
    keys=(
        *(text(name, choices=_DTYPES, nullable=True) for name in ("grad_accum_dtype", "param_dtype", "buffer_dtype")),
        Key(name="keep_in_fp32_modules"),
    ),
)
_AUTOCAST = Block(
    path="torch_autocast",
    keys=(
        *booleans("enabled"),
        text("dtype", choices=(*_DTYPES, *(f"torch.{name}" for name in ("float16", "float32", "bfloat16", "int8")))),
        Key(name="lower_precision_safe_modules", kind=Kind.LIST, nullable=True),
    ),
)
_OPTIMIZER = Block(path="optimizer", keys=(text("type"), *blocks("params"), *booleans("legacy_fusion")))
_SCHEDULER = Block(path="scheduler", keys=(text("type", nullable=True), *blocks("params")))
_CHECKPOINT = Block(
    path="checkpoint",
    keys=(
        text("tag_validation", choices=("Ignore", "Warn", "Fail", "ignore", "warn", "fail", "IGNORE", "WARN", "FAIL")),
        *anything("checkpoint_serialization"),
        *blocks("writer", "parallel_write"),
        *booleans("load_universal", "use_node_local_storage"),
    ),
)
_CHECKPOINT_PARTS = (
    Block(path="checkpoint.parallel_write", keys=booleans("pipeline_stage")),
    Block(
        path="checkpoint.writer",
        keys=(
            *anything("type", "io_buffer_size", "io_buffer_double", "show_statistics", "data_parallel"),
            *anything("decoupled", "io_multiplier"),
        ),
    ),
)
_PIPELINE = Block(
    path="pipeline",
    keys=(
        integer("activation_checkpoint_interval", lowest=0),
        *booleans("pipe_partitioned", "grad_partitioned", "use_reentrant"),
        *anything("stages", "partition", "seed_layers"),
    ),
)

# runtime/activation_checkpointing/config.py
_CHECKPOINTING = Block(
    path="activation_checkpointing",
    keys=(
        *booleans("partition_activations", "contiguous_memory_optimization", "synchronize_checkpoint_boundary"),
        *booleans("profile", "cpu_checkpointing"),
        Key(name="number_checkpoints", kind=Kind.INTEGER, nullable=True),
    ),
)

# runtime/tensor_parallel/config.py
_TENSOR_PARALLEL = Block(
    path="tensor_parallel",
    strict=True,
    keys=(
        integer("autotp_size", lowest=0),
        *booleans("tp_overlap_comm", "keep_module_on_host"),
        Key(name="vocab_parallel_lm_head", kind=Kind.BOOLEAN, nullable=True),
        Key(name="vocab_parallel_ce_backend", kind=Kind.TEXT, choices=("torch", "liger")),
        Key(name="tp", kind=Kind.BLOCK, aliases=("tensor_parallel",)),
        Key(name="kernel_inject", kind=Kind.BOOLEAN, aliases=("replace_with_kernel_inject",)),
        Key(name="dtype", kind=Kind.UNWRITABLE),
        Key(name="injection_policy_tuple", kind=Kind.LIST, nullable=True),
        Key(name="partition_config", kind=Kind.BLOCK, nullable=True),
        text("preset_model", nullable=True),
    ),
)
_TP = Block(
    path="tensor_parallel.tp",
    strict=True,
    keys=(integer("tp_size", lowest=1), integer("tp_grain_size", lowest=1), *anything("mpu", "tp_group")),
)

# module_inject/auto_ep_config.py
_EXPERT_PARALLEL = Block(
    path="expert_parallel",
    keys=(
        *booleans("enabled", "use_grouped_mm", "disable_triton_grouped_mm", "validate_folding_routing"),
        integer("autoep_size", lowest=1),
        integer("expert_tensor_parallel_size", lowest=1),
        *anything("preset_model", "moe_layer_pattern", "expert_pattern", "router_pattern", "route_norm", "route_scale"),
        *anything("score_apply", "combine_impl", "num_expert_groups", "num_limited_groups", "score_func", "top_k"),
        *anything("routed_scaling_factor", "load_balance_coeff", "expert_w1", "expert_w2", "expert_w3"),
        *anything("num_experts_attr", "top_k_attr", "has_shared_experts", "shared_experts_pattern"),
        *anything("shared_experts_gate_pattern"),
        *anything("comm_backend", "comm_num_sm", "comm_qp_margin", "comm_max_tokens_per_rank"),
        *anything("async_split_plan", "row_weighting_impl", "gate_up_impl", "expert_activation"),
    ),
)

# compile/config.py
_COMPILE = Block(
    path="compile",
    strict=True,
    keys=(
        *booleans("deepcompile", "free_activation", "offload_activation", "offload_activation_pin_memory"),
        *booleans("offload_opt_states", "double_buffer", "symmetric_memory", "debug_log", "offload_parameters"),
        *booleans("sync_before_reduce", "sync_after_reduce", "sync_before_allgather", "sync_after_allgather"),
        *booleans("keep_int_input_tensors", "keep_all_input_tensors"),
        integer("free_activation_threshold"),
        # Before 0.14.4 the block switched torch.compile; those keys have no successor in the file.
        *(
            Key(name=name, removed_why="the block now configures DeepCompile; compile in code: engine.compile(...)")
            for name in ("enabled", "backend", "kwargs", "disable")
        ),
        Key(name="passes", kind=Kind.LIST, nullable=True),
        Key(name="autoep_non_moe", kind=Kind.BOOLEAN),
    ),
)

# profiling/config.py, comm/config.py, swap_tensor/constants.py, monitor/config.py, utils/config.py
_FLOPS_PROFILER = Block(
    path="flops_profiler",
    keys=(
        *booleans("enabled", "detailed"),
        *anything("recompute_fwd_factor", "profile_step", "module_depth", "top_modules", "output_file"),
    ),
)
_COMMS_LOGGER = Block(
    path="comms_logger",
    strict=True,
    keys=(*booleans("enabled", "prof_all", "verbose", "debug"), Key(name="prof_ops", kind=Kind.LIST)),
)
_AIO = Block(
    path="aio",
    keys=(
        integer("block_size", lowest=1),
        integer("queue_depth", lowest=1),
        integer("intra_op_parallelism", lowest=1),
        Key(name="thread_count", removed_why="it is called intra_op_parallelism now"),
        *booleans("single_submit", "overlap_events", "use_gds"),
    ),
)
_MONITORS = (
    *(
        Block(path=path, strict=True, keys=(*booleans("enabled"), text("output_path"), text("job_name")))
        for path in ("tensorboard", "csv_monitor")
    ),
    Block(
        path="wandb",
        strict=True,
        keys=(*booleans("enabled"), text("group", nullable=True), text("team", nullable=True), text("project")),
    ),
    Block(
        path="comet",
        strict=True,
        keys=(
            *booleans("enabled"),
            integer("samples_log_interval"),
            *(text(name, nullable=True) for name in ("project", "workspace", "api_key", "experiment_name")),
            *(text(name, nullable=True) for name in ("experiment_key", "mode")),
            Key(name="online", kind=Kind.BOOLEAN, nullable=True),
        ),
    ),
)
_TIMERS = (
    Block(path="timers", keys=blocks("throughput")),
    Block(path="timers.throughput", strict=True, keys=booleans("enabled", "synchronized")),
)
_HYBRID_ENGINE = Block(
    path="hybrid_engine",
    strict=True,
    keys=(
        *booleans("enabled", "release_inference_cache", "pin_parameters", "enable_cuda_graph"),
        integer("max_out_tokens", lowest=1),
        integer("inference_tp_size"),
        integer("tp_gather_partition_size"),
    ),
)

# elasticity/config.py and elasticity/elasticity.py; autotuning/config.py
_ELASTICITY = Block(
    path="elasticity",
    keys=(
        *booleans("enabled", "prefer_larger_batch", "ignore_non_elastic_batch_info"),
        integer("max_train_batch_size", lowest=1),
        Key(name="micro_batch_sizes", kind=Kind.LIST),
        integer("min_gpus", lowest=1),
        integer("max_gpus", lowest=1),
        integer("num_gpus_per_node", lowest=1),
        integer("model_parallel_size", lowest=1),
        *anything("min_time", "version"),
    ),
)
_AUTOTUNING = Block(
    path="autotuning",
    keys=(
        *booleans("enabled", "fast", "overwrite"),
        *anything("arg_mappings", "metric", "metric_path", "model_info", "model_info_path", "mp_size"),
        *anything("start_profile_step", "end_profile_step", "results_dir", "exps_dir"),
        *anything("tuner_type", "tuner_early_stopping", "tuner_num_trials", "num_tuning_micro_batch_sizes"),
        *anything("min_train_batch_size", "max_train_batch_size"),
        *anything("min_train_micro_batch_size_per_gpu", "max_train_micro_batch_size_per_gpu"),
    ),
)

# Blocks whose inside belongs to other programs or is free-form: any key is taken.
_OPEN = tuple(
    Block(path=path, open=True, keys=())
    for path in (
        *("optimizer.params", "scheduler.params", "data_efficiency", "weight_quantization"),
        *("autotuning.arg_mappings", "autotuning.model_info"),
        *("amp", "sparse_attention", "curriculum_learning", "compression_training", "quantize_training"),
        *("progressive_layer_drop", "eigenvalue", "nebula"),
    )
)

BLOCKS: tuple[Block, ...] = (
    _TOP,
    _ZERO,
    _OFFLOAD_PARAM,
    _OFFLOAD_OPTIMIZER,
    _ZENFLOW,
    _LEAF_MODULE,
    _FP16,
    _BF16,
    _DATA_TYPES,
    _AUTOCAST,
    _OPTIMIZER,
    _SCHEDULER,
    _CHECKPOINT,
    *_CHECKPOINT_PARTS,
    _PIPELINE,
    _CHECKPOINTING,
    _TENSOR_PARALLEL,
    _TP,
    _EXPERT_PARALLEL,
    _COMPILE,
    _FLOPS_PROFILER,
    _COMMS_LOGGER,
    _AIO,
    *_MONITORS,
    *_TIMERS,
    _HYBRID_ENGINE,
    _ELASTICITY,
    _AUTOTUNING,
    *_OPEN,
)
