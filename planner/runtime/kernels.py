"""Which kernels a transformers model computes with: the attention of the candidate, and grouped matrix products for
experts where the device has them."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from planner.errors import InputError
from planner.spec import Attention, DeviceKind, Precision, TrialTask

FLASH = "planner_flash"  # torch's own flash kernel; needs no further package


def choose_kernels(config: Any, task: TrialTask) -> None:
    """Write the candidate's attention, and the expert kernel, into a fresh transformers config.

    Raises InputError for flash attention where torch's kernel cannot run.
    """
    attention = task.candidate.attention
    if attention is Attention.FLASH:
        _require_flash(config, task)
        ALL_ATTENTION_FUNCTIONS.register(FLASH, _flash_attention)
        ALL_MASK_ATTENTION_FUNCTIONS.register(FLASH, sdpa_mask)
    config._attn_implementation = FLASH if attention is Attention.FLASH else str(attention)
    # Grouped products read rows of 16 bytes and, in 16-bit types, need a recent GPU; elsewhere experts run one by one.
    grouped = task.device is DeviceKind.CUDA and task.candidate.precision is not Precision.FP32
    config._experts_implementation = "grouped_mm" if grouped and _has_grouped_products() else "eager"


def _has_grouped_products() -> bool:
    return torch.cuda.get_device_capability() >= (8, 0) and hasattr(torch, "_grouped_mm")


def _flash_attention(*args: Any, **kwargs: Any) -> Any:
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        return sdpa_attention_forward(*args, **kwargs)


def _require_flash(config: Any, task: TrialTask) -> None:
    window = getattr(config, "sliding_window", None)
    reason = ""
    if task.device is DeviceKind.CUDA and task.candidate.precision is Precision.FP32:
        reason = "the flash kernel computes in fp16 and bf16 only"
    elif window is not None and window < task.training.seq_len:
        reason = f"torch's flash kernel has no sliding window, and the model's ({window}) is shorter than seq_len"
    if reason:
        raise InputError(
            "attention flash cannot run this job", why=reason, fix="use attention sdpa, which picks a kernel that can"
        )
