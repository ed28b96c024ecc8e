"""What differs between training runtimes, as a few constants each.

DeepSpeed is what the product plans. FSDP and Megatron exist so that the same formulas can be held against what others
published; they are not other models. Every constant says where it was read.
"""

from __future__ import annotations

from dataclasses import replace

from planner.spec._record import record
from planner.spec.hardware import GpuSpec
from planner.spec.kinds import Attention, Runtime


@record
class RuntimeProfile:
    """Constants of one runtime. Memory first, then time."""

    runtime: Runtime
    shards_optimizer: bool = False  # unasked: where a configuration leaves its ZeRO stage out
    # -- what lives on the device
    fp32_gradients: bool = False  # gradients accumulate in an fp32 buffer of the whole (local) model
    keeps_gradients_twice: bool = False  # and the 16-bit ones that backward writes stay beside it
    bucket_elements: float = 5.0e8  # ZeRO: reduce_bucket_size
    buckets_capped_to_parameters: bool = False  # the emitted config never asks for more than the rank's parameters
    live_elements_limit: float = 1.0e9  # ZeRO-3: stage3_max_live_parameters
    prefetch_elements: float = 5.0e7  # ZeRO-3: stage3_prefetch_bucket_size
    vocabulary_parallel: bool = False  # embedding split, logits never whole under tensor parallelism
    hugging_face_code: bool = True  # RMSNorm upcasts and autograd keeps the copy, GELU and rotary are written in Python
    fused_activation: bool = False  # the MLP's activation is one kernel that keeps only its input
    keeps_gathered_inputs: bool = False  # sequence-split tensor parallelism keeps what it gathered (without a pipeline)
    pipeline_kept_factor: float = 1.0  # activations in flight in a pipeline, relative to what the layers save
    loss_in_place: bool = False  # fp32 softmax over the logits' own copy
    split_loss_bytes: float = 0.0  # per logit at the loss's peak where the vocabulary is split; 0: as unsplit
    loss_bytes: float = 0.0  # per logit at the loss's peak; 0: as counted from the kinds of kernels
    fused_cross_entropy: bool = False  # gradient written over the logits
    compiled: bool = False  # torch.compile: elementwise chains fused, their inputs recomputed
    compiles_loss: bool = True  # where it compiles: the loss too, not the layers alone
    communication_buffer_bytes: float = 0.0  # NCCL, per communicator
    memory_doubt_fraction: float = 0.0  # of allocated bytes, either way, beyond DeepSpeed's; see `interval`
    # -- what shows in time
    backward_traffic_factor: float = 2.0  # of the forward's elementwise traffic; fused kernels read back less
    attention_copy_bytes: float = 0.0  # per element of query, key, value and output: copies between layouts
    gradient_copy_bytes: float = 0.0  # per parameter and micro-batch: adding its gradient to the accumulated one
    attention_fraction: float = 0.5  # of the peak, flash attention forward and backward, up to Hopper
    attention_exponent: float = 0.0  # by which that share falls with the peak above an A100's: kernels made for Ampere
    grouped_fraction: float = 0.55  # of a dense product: HF's grouped_mm over uneven groups (two H200 rows)
    fp8_fraction: float = 0.8  # of fp8's peak, relative to the share of 16 bit's: casts and scaling
    overlaps_sends: bool = False  # interleaved stages send while they compute
    overlap_gradients_fraction: float = 0.0  # of gradient reduction hidden behind backward, ZeRO 0-2
    overlap_gather_fraction: float = 0.8  # of ZeRO-3's gathers and reductions hidden behind compute
    overlap_tensor_fraction: float = 0.0
    network_ring_bytes_per_s: float = (
        0.0  # what one ring between nodes moves at most (see `links.Network`); 0: no limit
    )
    network_step_s: float = 0.0  # of one ring step between nodes, beside the link's own latency
    # Of each message between pipeline stages where a run has so many nodes; 0: none.
    stalled_send_s: float = 0.0
    stalled_from_nodes: float = 0.0
    # Of a layer that is tensor-parallel where there are pipeline stages too: a floor, and more per ring step.
    pipelined_tensor_layer_s: float = 0.0
    pipelined_tensor_step_s: float = 0.0
    recomputes_attention_core: bool = False  # what `selective` means, and 16-bit fused softmax with it
    balances_stages: bool = False  # layers and head are shared out by their weights, not layers by number
    layer_host_s: float = 2.2e-3  # Python and launches of one layer, forward and backward
    tensor_layer_host_s: float = 0.8e-3  # more under tensor parallelism: launching its collectives
    wide_tensor_layer_host_s: float = 0.0  # more where the ranks sit on both sockets of a node: they launch less evenly
    gathered_layer_host_s: float = 0.0  # more where ZeRO-3 gathers block by block
    gathered_module_host_s: float = 0.0  # more for each module with weights: fetch and release around it
    tensor_update_host_s: float = 1.5e-4  # per parameter tensor in the update: norms, overflow checks, copies
    micro_batch_host_s: float = 4.0e-3  # once per micro-batch
    # Bytes moved per owned parameter around the update, beside the states: gradient norm in fp64 (18), overflow check
    # (2), bucket and partition copies (12), flattening and upcast (10), clipping (8), write-back (6): stage_1_and_2.py.
    update_copy_bytes: float = 56.0


_MIB = float(2**20)

# DeepSpeed 0.19.8 with its own defaults (zero/config.py) around Hugging Face's model code and DeepSpeed's AutoTP, which
# leaves the embedding whole and gathers the logits. Overlap: overlap_comm is unset, hence off, below stage 3.
# `gathered_module_host_s`: two ZeRO-3 rows of one H200, 1.5 and 1.8 ms (README, "ZeRO-3 and the host").
DEEPSPEED = RuntimeProfile(
    runtime=Runtime.DEEPSPEED, communication_buffer_bytes=64 * _MIB, gathered_module_host_s=1.55e-3
)

# What the product itself emits and runs: buckets no larger than the model, vocabulary-parallel embedding and loss.
REFERENCE_TRAINER = replace(
    DEEPSPEED,
    buckets_capped_to_parameters=True,
    vocabulary_parallel=True,
    split_loss_bytes=10.0,  # runtime/tensor_parallel.py: probabilities and their gradient in fp32, then in 16 bit
)

# PyTorch FSDP2 as torchtitan and torchtune use it: fp32 shards are the master weights, reduction in fp32, one block
# gathered ahead, RMSNorm fused (torch.nn.RMSNorm), block-wise torch.compile common but not assumed.
FSDP = RuntimeProfile(
    runtime=Runtime.FSDP,
    vocabulary_parallel=True,
    hugging_face_code=False,
    loss_in_place=True,  # torchtitan compiles its loss, torchtune takes it in chunks: no fp32 copies side by side
    communication_buffer_bytes=64 * _MIB,
    memory_doubt_fraction=0.03,
    attention_copy_bytes=4.0,
    gradient_copy_bytes=6.0,
    overlap_gradients_fraction=0.8,
    overlap_gather_fraction=0.9,
    layer_host_s=1.2e-3,
    gathered_layer_host_s=0.6e-3,
    tensor_update_host_s=1.0e-5,
    micro_batch_host_s=1.0e-3,
    update_copy_bytes=8.0,
)

# The same with a flash-attention package before its third version, as llm-foundry ran it: its kernels use Ampere's
# instructions, so that their rate hardly grows on Hopper (Dao 2023, arXiv 2307.08691, section 4: 335 TFLOP/s at most).
# Its loss is that package's too, one fused kernel.
FSDP_AMPERE_ATTENTION = replace(FSDP, attention_fraction=0.33, attention_exponent=0.5, fused_cross_entropy=True)

# Megatron-Core: fp32 main gradients for the whole local model (DistributedDataParallel), distributed optimizer as
# ZeRO-1, fused kernels (bias-swiglu, norm, cross-entropy in place), vocabulary-parallel embedding and loss.
MEGATRON = RuntimeProfile(
    runtime=Runtime.MEGATRON,
    fp32_gradients=True,
    vocabulary_parallel=True,
    hugging_face_code=False,
    fused_activation=True,
    loss_in_place=True,
    communication_buffer_bytes=96 * _MIB,
    memory_doubt_fraction=0.09,
    backward_traffic_factor=1.5,
    attention_copy_bytes=2.0,
    gradient_copy_bytes=10.0,
    # Transformer Engine casts inside the kernels before a product; NVIDIA's Llama-3 runs on H100 (two rows).
    fp8_fraction=1.1,
    grouped_fraction=0.9,  # Megatron-Core's Mixtral on 64 H100 comes within a tenth of its dense models
    overlaps_sends=True,  # `overlap_p2p_comm`, Megatron-Core's default for interleaved stages
    recomputes_attention_core=True,
    layer_host_s=2.6e-3,
    tensor_layer_host_s=0.0,
    wide_tensor_layer_host_s=1.0e-3,  # vTrain's eight ranks a node, 0.4 to 1.6 ms
    gathered_layer_host_s=0.5e-3,
    tensor_update_host_s=1.0e-5,
    micro_batch_host_s=1.0e-3,
    update_copy_bytes=8.0,
)

# A Megatron-like trainer of plain PyTorch modules: nanotron, as its published runs (ultrascale playbook, H100 and EFA)
# show it. Read in nanotron: gradients in both precisions (optim/gradient_accumulator.py), unfused MLP and loss, the
# inputs that tensor parallelism gathered kept, blocks shared out by cost. Fitted to its runs: what pipelines keep, the
# host's and the network's times (README, "nanotron").
MEGATRON_PLAIN = replace(
    MEGATRON,
    keeps_gradients_twice=True,
    fused_activation=False,
    keeps_gathered_inputs=True,
    pipeline_kept_factor=1.2,
    memory_doubt_fraction=0.15,
    loss_in_place=False,
    loss_bytes=14.0,  # logits in 16 bit and fp32, less their maximum in fp32, exponentials in fp32
    backward_traffic_factor=2.0,
    network_ring_bytes_per_s=3.75e11,
    network_step_s=4.7e-5,
    stalled_send_s=0.3,
    stalled_from_nodes=64.0,
    pipelined_tensor_layer_s=5.0e-3,
    pipelined_tensor_step_s=3.1e-4,
    balances_stages=True,
    tensor_layer_host_s=1.75e-3,
    wide_tensor_layer_host_s=0.0,
)

PROFILES: dict[Runtime, RuntimeProfile] = {
    Runtime.DEEPSPEED: DEEPSPEED,
    Runtime.FSDP: FSDP,
    Runtime.MEGATRON: MEGATRON,
}

_HOPPER_BF16_FLOPS_PER_S = 700.0e12  # between the A100's 312 and the H100's 756 (PCIe) and 989 TFLOP/s


def profile_for(
    runtime: Runtime, *, attention: Attention, gpu: GpuSpec, compiled: bool = False, is_plain: bool = True
) -> tuple[RuntimeProfile, Attention]:
    """The profile of a configuration that names its runtime, and the attention kernel that this runtime had.

    Megatron-like runtimes differ by whether they name their kernel. `flash` stands for Megatron-Core with fused kernels
    throughout, `eager` for Megatron-LM before flash attention. One that names none (`sdpa`, what is left out) is taken
    for what was in use on its GPU: before Hopper Megatron-LM without flash attention, from Hopper on a trainer of plain
    modules, unless the configuration uses what only Megatron-Core has (`is_plain` False: fp8, interleaved stages,
    context or expert parallelism).
    """
    profile = PROFILES[runtime]
    if runtime is Runtime.FSDP and attention is Attention.FLASH:
        profile = FSDP_AMPERE_ATTENTION
    if runtime is Runtime.MEGATRON and attention is Attention.SDPA:
        if max(gpu.peak_bf16_flops_per_s, gpu.peak_fp16_flops_per_s) < _HOPPER_BF16_FLOPS_PER_S:
            attention = Attention.EAGER
        elif is_plain:
            profile = MEGATRON_PLAIN
        else:
            attention = Attention.FLASH
    is_core = runtime is Runtime.MEGATRON and attention is Attention.FLASH
    return replace(profile, compiled=compiled, shards_optimizer=is_core), attention
