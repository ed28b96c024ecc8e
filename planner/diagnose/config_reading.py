"""An existing DeepSpeed config as far as memory goes: what is written, what is `auto`, what is left out. Pure.

Owns reading a dict that may hold anything. Checking a config is `rules`' and the linter's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.spec._record import record

AUTO = "auto"
_MOST = 10**12


@record
class MemoryConfig:
    """The settings that decide memory; 0 or "" where the file does not say. `is_auto`: a batch key is left to Hugging
    Face's Trainer. Bucket sizes in elements, with DeepSpeed's defaults filled in (0.19.8, zero/config.py)."""

    micro_batch_size: int
    gradient_accumulation_steps: int
    train_batch_size: int
    is_auto: bool
    zero_stage: int
    precision: str
    optimizer: str
    offload_optimizer: str
    offload_param: str
    pins_optimizer: bool
    pins_param: bool
    reduce_bucket_size: int
    allgather_bucket_size: int
    overlaps: bool
    contiguous: bool
    max_live_parameters: int
    gathers_on_save: bool
    tensor_parallel_size: int
    sequence_parallel_size: int
    checkpoints_activations: bool

    @property
    def element_bytes(self) -> int:
        """Bytes of one parameter in the working precision."""
        return 4 if self.precision == "fp32" else 2

    @property
    def reduce_buffer_bytes(self) -> int:
        """What stages 1 and 2 hold for reducing contiguous gradients: a bucket, a second to overlap with: B e (1 + o).

        Measured (deepspeedai/DeepSpeed#1302, 5e8 elements in 16 bit): 954 MiB for the second, 1905 MiB for both.
        """
        if self.zero_stage not in (1, 2) or not self.contiguous:
            return 0
        return self.reduce_bucket_size * self.element_bytes * (2 if self.overlaps else 1)


def read_memory_config(config: Mapping[str, Any]) -> MemoryConfig:
    """The settings of `config`; what is malformed is taken as left out."""
    zero = _block(config, "zero_optimization")
    optimizer, param = _offload(zero, "offload_optimizer"), _offload(zero, "offload_param")
    batch_keys = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "train_batch_size")
    stage = _count(zero.get("stage"), default=0)
    return MemoryConfig(
        micro_batch_size=_count(config.get(batch_keys[0])),
        gradient_accumulation_steps=_count(config.get(batch_keys[1])),
        train_batch_size=_count(config.get(batch_keys[2])),
        is_auto=any(config.get(key) == AUTO for key in batch_keys),
        zero_stage=min(stage, 3),
        precision=_precision(config),
        optimizer=str(_block(config, "optimizer").get("type", "")).lower()[:40],
        offload_optimizer=_device(optimizer) or ("cpu" if zero.get("cpu_offload") is True else ""),
        offload_param=_device(param) or ("cpu" if zero.get("cpu_offload_params") is True else ""),
        pins_optimizer=optimizer.get("pin_memory") is True,
        pins_param=param.get("pin_memory") is True,
        reduce_bucket_size=_count(zero.get("reduce_bucket_size"), default=500_000_000),
        allgather_bucket_size=_count(zero.get("allgather_bucket_size"), default=500_000_000),
        overlaps=zero.get("overlap_comm", stage == 3) is True,
        contiguous=zero.get("contiguous_gradients", True) is not False,
        max_live_parameters=_count(zero.get("stage3_max_live_parameters"), default=1_000_000_000),
        gathers_on_save=zero.get("stage3_gather_16bit_weights_on_model_save") is True,
        tensor_parallel_size=_count(_block(config, "tensor_parallel").get("autotp_size"), default=1) or 1,
        sequence_parallel_size=_count(config.get("sequence_parallel_size"), default=1) or 1,
        checkpoints_activations=bool(_block(config, "activation_checkpointing")),
    )


def _block(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    return value if isinstance(value, Mapping) else {}


def _offload(zero: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = zero.get(key)
    return value if isinstance(value, Mapping) else {}


def _device(block: Mapping[str, Any]) -> str:
    device = block.get("device")
    return device if device in ("cpu", "nvme") else ""


def _count(value: Any, *, default: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        return default
    return int(value)


def _precision(config: Mapping[str, Any]) -> str:
    for name in ("bf16", "bfloat16", "fp16"):
        block = _block(config, name)
        if block.get("enabled") in (True, AUTO, "true"):
            return "bf16" if name.startswith("bf") else "fp16"
    return "fp32"
