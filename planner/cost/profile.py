"""What differs between training runtimes, as a few constants each.

DeepSpeed is what the product plans. FSDP and Megatron exist so that the same formulas can be held against what others
published; they are not other models. Every constant says where it was read.
"""

from __future__ import annotations

from planner.spec._record import record
from planner.spec.kinds import Runtime


@record
class RuntimeProfile:
    """Constants of one runtime. Memory first, then time."""

    runtime: Runtime
    # -- what lives on the device
    master_weights: bool = True  # a separate fp32 copy beside 16-bit weights
    fp32_gradients: bool = False  # gradients accumulate in an fp32 buffer of the whole (local) model
    sharded_gradients_in_fp32: bool = False
    bucket_elements: float = 5.0e8  # reduce and all-gather bucket; 0: none
    buckets_capped_to_parameters: bool = False  # the emitted config never asks for more than the rank's parameters
    live_elements_limit: float = 1.0e9  # ZeRO-3: stage3_max_live_parameters; 0: layer by layer
    prefetch_elements: float = 5.0e7  # ZeRO-3: stage3_prefetch_bucket_size
    vocabulary_parallel: bool = False  # embedding split, logits never whole under tensor parallelism
    norm_saves_fp32_input: bool = True  # Hugging Face's RMSNorm upcasts and autograd keeps the copy
    fused_gated_activation: bool = False  # keeps gate and up, recomputes their product's factor
    fused_mlp_activation: bool = False  # non-gated: one saved input, whatever the formula
    fused_cross_entropy: bool = False  # gradient written over the logits
    compiled: bool = False  # torch.compile: elementwise chains fused, their inputs recomputed
    communication_buffer_bytes: float = 0.0  # NCCL, per communicator
    # -- what shows in time
    elementwise_fraction: float = 1.0  # memory traffic between matrix products, relative to eager Hugging Face code
    overlap_gradients_fraction: float = 0.0  # of gradient reduction hidden behind backward, ZeRO 0-2
    overlap_gather_fraction: float = 0.8  # of ZeRO-3's gathers and reductions hidden behind compute
    overlap_tensor_fraction: float = 0.0
    host_launch_s: float = 9.0e-6  # host time of one kernel launch, Python included
    kernels_per_layer: float = 60.0  # forward, unfused


_MIB = float(2**20)

# DeepSpeed 0.19.8 with its own defaults (zero/config.py) around Hugging Face's model code and DeepSpeed's AutoTP, which
# leaves the embedding whole and gathers the logits. Overlap: overlap_comm is unset, hence off, below stage 3.
DEEPSPEED = RuntimeProfile(runtime=Runtime.DEEPSPEED, communication_buffer_bytes=64 * _MIB)

# What the product itself emits and runs: buckets no larger than the model, vocabulary-parallel embedding and loss.
REFERENCE_TRAINER = RuntimeProfile(
    runtime=Runtime.DEEPSPEED,
    communication_buffer_bytes=64 * _MIB,
    buckets_capped_to_parameters=True,
    vocabulary_parallel=True,
)

# PyTorch FSDP2 as torchtitan and torchtune use it: fp32 shards are the master weights, reduction in fp32, one block
# gathered ahead, RMSNorm fused (torch.nn.RMSNorm), block-wise torch.compile common but not assumed.
FSDP = RuntimeProfile(
    runtime=Runtime.FSDP,
    bucket_elements=0.0,
    live_elements_limit=0.0,
    prefetch_elements=0.0,
    vocabulary_parallel=True,
    norm_saves_fp32_input=False,
    sharded_gradients_in_fp32=True,
    communication_buffer_bytes=64 * _MIB,
    elementwise_fraction=0.6,
    overlap_gradients_fraction=0.8,
    overlap_gather_fraction=0.9,
    kernels_per_layer=40.0,
)

# Megatron-Core: fp32 main gradients for the whole local model (DistributedDataParallel), distributed optimizer as
# ZeRO-1, fused kernels (bias-swiglu, norm, cross-entropy in place), vocabulary-parallel embedding and loss.
MEGATRON = RuntimeProfile(
    runtime=Runtime.MEGATRON,
    fp32_gradients=True,
    bucket_elements=0.0,
    live_elements_limit=0.0,
    prefetch_elements=0.0,
    vocabulary_parallel=True,
    norm_saves_fp32_input=False,
    fused_gated_activation=True,
    fused_mlp_activation=True,
    communication_buffer_bytes=96 * _MIB,
    elementwise_fraction=0.35,
    overlap_gradients_fraction=0.0,
    overlap_gather_fraction=0.8,
    host_launch_s=6.0e-6,
    kernels_per_layer=25.0,
)

PROFILES: dict[Runtime, RuntimeProfile] = {
    Runtime.DEEPSPEED: DEEPSPEED,
    Runtime.FSDP: FSDP,
    Runtime.MEGATRON: MEGATRON,
}
