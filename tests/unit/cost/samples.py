"""Candidates, models and clusters that the cost model's tests share."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from planner.catalog import load_gpu, load_link, load_model, model_from_config
from planner.cost import DEEPSPEED, Calibration, EstimateColumns, RuntimeProfile, estimate_columns
from planner.cost.architecture import architecture_of
from planner.cost.inputs import Inputs
from planner.spec import (
    ActivationCheckpointing,
    Attention,
    ClusterSpec,
    Estimate,
    ModelSpec,
    OffloadDevice,
    Precision,
    TracedModule,
    TrainingSpec,
)
from planner.spec.columns import ATTENTIONS, OFFLOAD_DEVICES, PRECISIONS, CandidateColumns, checkpointing_code
from planner.spec.kinds import ModelFamily

BILLION = load_model("llama-1.3b")


def cluster(*, nodes: int = 8, gpus_per_node: int = 8, **changes: Any) -> ClusterSpec:
    """H100s with NVLink inside and InfiniBand between nodes."""
    spec = ClusterSpec(
        gpu=load_gpu("h100-sxm-80gb"),
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        intra_node_link=load_link("nvlink4"),
        inter_node_link=load_link("infiniband-ndr"),
        host_memory_bytes=2 * 2**40,
    )
    return replace(spec, **changes)


def training(*, seq_len: int = 2048, **changes: Any) -> TrainingSpec:
    """A training setup; the global batch size is what the candidates make it."""
    return TrainingSpec(seq_len=seq_len, global_batch_size=1, **changes)


def columns(**values: Any) -> CandidateColumns:
    """Candidate columns: each keyword a value or a list (words for precision, attention, offload, checkpointing); what
    is left out is 1, or DeepSpeed's plain case. Scalars are repeated to the longest list."""
    plain: dict[str, Any] = {
        "data_parallel_size": 1,
        "tensor_parallel_size": 1,
        "pipeline_parallel_size": 1,
        "sequence_parallel_size": 1,
        "expert_parallel_size": 1,
        "virtual_pipeline_size": 1,
        "tensor_sequence_parallel": False,
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "zero_stage": 0,
        "precision": "bf16",
        "checkpointing": "none",
        "attention": "sdpa",
        "offload_optimizer": "none",
        "offload_param": "none",
    } | values
    length = max(len(value) if isinstance(value, list | tuple) else 1 for value in plain.values())
    spread = {
        name: list(value) if isinstance(value, list | tuple) else [value] * length for name, value in plain.items()
    }
    codes = [checkpointing_code(ActivationCheckpointing.parse(word)) for word in spread.pop("checkpointing")]
    spread["checkpointed_layers"] = codes
    spread["precision"] = [PRECISIONS.index(Precision(word)) for word in spread["precision"]]
    spread["attention"] = [ATTENTIONS.index(Attention(word)) for word in spread["attention"]]
    for name in ("offload_optimizer", "offload_param"):
        spread[name] = [OFFLOAD_DEVICES.index(OffloadDevice(word)) for word in spread[name]]
    ranks = np.prod(
        [spread[f"{kind}_parallel_size"] for kind in ("data", "tensor", "pipeline", "sequence")], axis=0, dtype=np.int64
    )
    split = np.array(spread.pop("tensor_sequence_parallel"), dtype=np.bool_)
    arrays = {name: np.array(value, dtype=np.int64) for name, value in spread.items()}
    arrays.setdefault("tuning", np.zeros(length, dtype=np.int64))
    return CandidateColumns(nodes=-(-ranks // 8), tensor_sequence_parallel=split, **arrays)


def estimates(
    *, model: ModelSpec = BILLION, seq_len: int = 2048, profile: RuntimeProfile = DEEPSPEED, **values: Any
) -> EstimateColumns:
    """Estimates of the candidates that `columns(**values)` makes, on H100s."""
    return estimate_columns(
        columns(**values), model=model, training=training(seq_len=seq_len), cluster=cluster(), profile=profile
    )


def estimate(**values: Any) -> Estimate:
    """The estimate of one candidate; keywords as for `estimates`."""
    return estimates(**values).record_at(0)


def inputs(model: ModelSpec = BILLION, *, seq_len: int = 2048, profile: RuntimeProfile = DEEPSPEED) -> Inputs:
    """What the modules inside the cost model share during one call."""
    return Inputs(
        model=model,
        training=training(seq_len=seq_len),
        cluster=cluster(),
        profile=profile,
        architecture=architecture_of(model, profile=profile),
        calibration=Calibration(),
        moments=8.0,
    )


def traced_model() -> ModelSpec:
    """An arbitrary module as tracing reports it."""
    return ModelSpec(
        name="module",
        family=ModelFamily.MODULE,
        model_type="module",
        factory="package.module:make",
        traced=TracedModule(
            num_parameters=50_000_000,
            largest_parameter=4_000_000,
            saved_bytes_per_sample_fp32=40_000_000,
            fixed_saved_bytes=1_000_000,
            forward_flops_per_sample=10_000_000_000,
            tokens_per_sample=1,
        ),
    )


def small_model(model_type: str = "llama", **changes: Any) -> ModelSpec:
    """The small models whose saved tensors were counted with autograd's hooks."""
    config: dict[str, Any] = {
        "model_type": model_type,
        "hidden_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 704,
        "vocab_size": 512,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
    }
    return model_from_config(config | changes, model_type)
