"""Small real tasks: a tiny Llama under ZeRO, and modules of `user_modules`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.spec import (
    ActivationCheckpointing,
    BatchSplit,
    Candidate,
    DeviceKind,
    ModelFamily,
    ModelSpec,
    ParallelLayout,
    Precision,
    TracedModule,
    TrainingSpec,
    TrialTask,
)

USER_MODULES = Path(__file__).parent / "user_modules"

_LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "max_position_embeddings": 128,
}


def tiny_llama(vocab_size: int = 256) -> ModelSpec:
    """Two layers of width 64."""
    return ModelSpec(
        name="tiny-llama",
        family=ModelFamily.DECODER,
        model_type="llama",
        config_json=json.dumps({**_LLAMA, "vocab_size": vocab_size}),
        num_layers=2,
        hidden_size=64,
        num_heads=4,
        num_kv_heads=2,
        head_size=16,
        ffn_hidden_size=128,
        vocab_size=vocab_size,
        gated_mlp=True,
        rms_norm=True,
    )


def user_module(function: str) -> ModelSpec:
    """A factory of `user_modules/misbehaving.py`."""
    traced = TracedModule(
        num_parameters=1153,
        largest_parameter=1024,
        saved_bytes_per_sample_fp32=600,
        fixed_saved_bytes=0,
        forward_flops_per_sample=2200,
        tokens_per_sample=1,
    )
    factory = f"misbehaving:{function}"
    return ModelSpec(name=function, family=ModelFamily.MODULE, model_type="module", factory=factory, traced=traced)


def make_task(
    model: ModelSpec,
    *,
    data_parallel_size: int = 1,
    zero_stage: int = 0,
    global_batch_size: int = 4,
    steps: int = 3,
    **more: Any,
) -> TrialTask:
    """A task on CPU in fp32 with micro-batches of one; `more` goes to the task."""
    accumulation = global_batch_size // data_parallel_size
    config = {
        "train_batch_size": global_batch_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "torch_adam": True}},
        "zero_optimization": {"stage": zero_stage, "reduce_bucket_size": 100_000, "allgather_bucket_size": 100_000},
        "steps_per_print": 1_000_000,
    }
    return TrialTask(
        model=model,
        training=TrainingSpec(seq_len=32, global_batch_size=global_batch_size),
        candidate=Candidate(
            layout=ParallelLayout(
                data_parallel_size=data_parallel_size, stage_layers=(model.num_layers,) if model.num_layers else ()
            ),
            batch=BatchSplit(
                micro_batch_size=1,
                gradient_accumulation_steps=accumulation,
                data_parallel_size=data_parallel_size,
            ),
            zero_stage=zero_stage,
            precision=Precision.FP32,
            activation_checkpointing=ActivationCheckpointing(),
        ),
        device=DeviceKind.CPU,
        ds_config_json=json.dumps(config),
        steps=steps,
        **more,
    )
