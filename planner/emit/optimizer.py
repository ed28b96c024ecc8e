"""The `optimizer` block: the job's optimizer as DeepSpeed 0.19 builds it from JSON.

Owns which optimizers JSON can name and with which parameters. The learning-rate schedule is the trainer's, not JSON's.
What was run on CPU with stages 0 to 3: AdamW (torch's, plain and fused), SGD, Muon. Lion needs a CUDA kernel.
"""

from __future__ import annotations

from typing import Any

from planner.errors import NotExpressible
from planner.spec import (
    Candidate,
    DeviceKind,
    JobSpec,
    OffloadDevice,
    OptimizerKernel,
    OptimizerName,
    OptimizerSpec,
    Precision,
)

OptimizerBlock = dict[str, Any]


def optimizer_block(candidate: Candidate, *, job: JobSpec) -> OptimizerBlock:
    """The block of the job's optimizer. Raises NotExpressible for one that DeepSpeed cannot build here."""
    optimizer = job.training.optimizer
    offloaded = candidate.offload_optimizer is not OffloadDevice.NONE
    on_cuda = job.cluster.gpu.device is DeviceKind.CUDA
    kernel = candidate.tuning.optimizer_kernel
    fused = on_cuda and kernel is OptimizerKernel.TORCH
    if optimizer.name is OptimizerName.ADAMW:
        return _adamw(optimizer, fused=fused, by_torch=not offloaded and kernel is not OptimizerKernel.DEEPSPEED)
    if optimizer.name is OptimizerName.LION:
        return _lion(optimizer, on_cuda=on_cuda)
    if offloaded:
        raise _refusal(optimizer, "only AdamW and Lion have a DeepSpeed optimizer that steps in host memory")
    if optimizer.name is OptimizerName.SGD:
        return _sgd(optimizer, fused=fused)
    if optimizer.name is OptimizerName.MUON:
        return _muon(optimizer, candidate)
    raise _refusal(optimizer, "DeepSpeed's JSON names its own optimizers and torch.optim's; 8-bit Adam is in neither")


def needs_untested_switch(candidate: Candidate, *, job: JobSpec) -> bool:
    """Whether ZeRO asks for `zero_allow_untested_optimizer`: SGD is not on its list (zero/utils.py, 0.19.8)."""
    return candidate.zero_stage > 0 and job.training.optimizer.name is OptimizerName.SGD


def _refusal(optimizer: OptimizerSpec, why: str) -> NotExpressible:
    return NotExpressible(
        f"optimizer {optimizer.name} cannot be written into this plan's DeepSpeed config",
        why=why,
        fix="use training.optimizer.name: adamw, or narrow the search so that this layout is not chosen",
    )


def _adamw(optimizer: OptimizerSpec, *, fused: bool, by_torch: bool) -> OptimizerBlock:
    """torch's AdamW, unless the plan asks for DeepSpeed's FusedAdam: that one is compiled at its first use and needs
    nvcc on every node.

    DeepSpeed hands the remaining parameters to `torch.optim.AdamW`, `fused` among them. With the optimizer in host
    memory DeepSpeed's own CPU Adam is used, the only one that ZeRO-Offload takes without a further switch.
    """
    params: OptimizerBlock = {
        "lr": optimizer.learning_rate,
        "betas": list(optimizer.betas),
        "eps": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "adam_w_mode": True,
        "torch_adam": by_torch,
    }
    if fused and by_torch:
        params["fused"] = True
    return {"type": "AdamW", "params": params}


def _lion(optimizer: OptimizerSpec, *, on_cuda: bool) -> OptimizerBlock:
    if not on_cuda:
        raise _refusal(optimizer, "DeepSpeed's Lion is a CUDA kernel ('not implemented on CPU backend')")
    params = {
        "lr": optimizer.learning_rate,
        "betas": list(optimizer.betas),
        "weight_decay": optimizer.weight_decay,
    }
    return {"type": "Lion", "params": params}


def _sgd(optimizer: OptimizerSpec, *, fused: bool) -> OptimizerBlock:
    """`type` is looked up in torch.optim under this very spelling."""
    params: OptimizerBlock = {
        "lr": optimizer.learning_rate,
        "momentum": optimizer.momentum,
        "weight_decay": optimizer.weight_decay,
    }
    if fused:
        params["fused"] = True
    return {"type": "SGD", "params": params}


def _muon(optimizer: OptimizerSpec, candidate: Candidate) -> OptimizerBlock:
    """Muon for matrices, torch's AdamW (betas, eps) for the rest; DeepSpeed tells them apart by itself."""
    if candidate.layout.tensor_parallel_size > 1:
        raise _refusal(optimizer, "each tensor-parallel rank would orthogonalise its own slice of a matrix")
    pipelined = candidate.layout.pipeline_parallel_size > 1
    if pipelined and candidate.zero_stage == 0 and candidate.precision is Precision.BF16:
        raise _refusal(optimizer, "DeepSpeed's bf16 optimizer for pipelines without ZeRO refuses Muon")
    params = {
        "lr": optimizer.learning_rate,
        "momentum": optimizer.momentum,
        "betas": list(optimizer.betas),
        "eps": optimizer.epsilon,
        "weight_decay": optimizer.weight_decay,
        "torch_adam": True,
    }
    return {"type": "Muon", "params": params}
