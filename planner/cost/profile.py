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
    fp32_gradients: bool = False  # gradients accumulate in an fp32 buffer of the whole (local) model
    bucket_elements: float = 5.0e8  # ZeRO: reduce_bucket_size
    buckets_capped_to_parameters: bool = False  # the emitted config never asks for more than the rank's parameters
    live_elements_limit: float = 1.0e9  # ZeRO-3: stage3_max_live_parameters
    prefetch_elements: float = 5.0e7  # ZeRO-3: stage3_prefetch_bucket_size
    vocabulary_parallel: bool = False  # embedding split, logits never whole under tensor parallelism
    norm_saves_fp32_input: bool = True  # Hugging Face's RMSNorm upcasts and autograd keeps the copy
    fused_activation: bool = False  # the MLP's activation is one kernel that keeps only its input
    loss_in_place: bool = False  # fp32 softmax over the logits' own copy
    split_loss_bytes: float = 0.0  # per logit at the loss's peak where the vocabulary is split; 0: as unsplit
    fused_cross_entropy: bool = False  # gradient written over the logits
    compiled: bool = False  # torch.compile: elementwise chains fused, their inputs recomputed
    communication_buffer_bytes: float = 0.0  # NCCL, per communicator
    # -- what shows in time
    elementwise_fraction: float = 1.0  # memory traffic between matrix products, relative to eager Hugging Face code
    overlap_gradients_fraction: float = 0.0  # of gradient reduction hidden behind backward, ZeRO 0-2
    overlap_gather_fraction: float = 0.8  # of ZeRO-3's gathers and reductions hidden behind compute
    overlap_tensor_fraction: float = 0.0
    recomputes_attention_core: bool = False  # what `selective` means, and 16-bit fused softmax with it
    layer_host_s: float = 2.2e-3  # Python and launches of one layer, forward and backward
    tensor_layer_host_s: float = 0.8e-3  # more under tensor parallelism: launching its collectives
    gathered_layer_host_s: float = 8.0e-3  # more for ZeRO-3's hooks: fetch and release around every submodule
    tensor_update_host_s: float = 1.5e-4  # per parameter tensor in the update: norms, overflow checks, copies
    micro_batch_host_s: float = 4.0e-3  # once per micro-batch
    # Bytes moved per owned parameter around the update, beside the states: gradient norm in fp64 (18), overflow check
    # (2), bucket and partition copies (12), flattening and upcast (10), clipping (8), write-back (6): stage_1_and_2.py.
    update_copy_bytes: float = 56.0


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
    split_loss_bytes=10.0,  # runtime/tensor_parallel.py: probabilities and their gradient in fp32, then in 16 bit
)

# PyTorch FSDP2 as torchtitan and torchtune use it: fp32 shards are the master weights, reduction in fp32, one block
# gathered ahead, RMSNorm fused (torch.nn.RMSNorm), block-wise torch.compile common but not assumed.
FSDP = RuntimeProfile(
    runtime=Runtime.FSDP,
    vocabulary_parallel=True,
    norm_saves_fp32_input=False,
    communication_buffer_bytes=64 * _MIB,
    elementwise_fraction=0.6,
    overlap_gradients_fraction=0.8,
    overlap_gather_fraction=0.9,
    layer_host_s=1.2e-3,
    gathered_layer_host_s=0.6e-3,
    tensor_update_host_s=1.0e-5,
    micro_batch_host_s=1.0e-3,
    update_copy_bytes=8.0,
)

# Megatron-Core: fp32 main gradients for the whole local model (DistributedDataParallel), distributed optimizer as
# ZeRO-1, fused kernels (bias-swiglu, norm, cross-entropy in place), vocabulary-parallel embedding and loss.
MEGATRON = RuntimeProfile(
    runtime=Runtime.MEGATRON,
    fp32_gradients=True,
    vocabulary_parallel=True,
    norm_saves_fp32_input=False,
    fused_activation=True,
    loss_in_place=True,
    communication_buffer_bytes=96 * _MIB,
    elementwise_fraction=0.5,
    overlap_gradients_fraction=0.0,
    overlap_gather_fraction=0.8,
    recomputes_attention_core=True,
    layer_host_s=2.6e-3,
    gathered_layer_host_s=0.5e-3,
    tensor_update_host_s=1.0e-5,
    micro_batch_host_s=1.0e-3,
    update_copy_bytes=8.0,
)

PROFILES: dict[Runtime, RuntimeProfile] = {
    Runtime.DEEPSPEED: DEEPSPEED,
    Runtime.FSDP: FSDP,
    Runtime.MEGATRON: MEGATRON,
}
