"""Changes of a DeepSpeed config that keep the global batch, and laying a change over a config. Pure.

micro x accumulation x data-parallel = global: a smaller micro-batch always comes with as much more accumulation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.diagnose.config_reading import MemoryConfig

# Keys of a change that are not DeepSpeed's; they are carried out elsewhere.
OUTSIDE_KEYS = frozenset({"env", "trainer_args", "run", "code", "host"})


def smaller_micro_batches(micro_batch_size: int) -> tuple[int, ...]:
    """The micro-batches below this one that divide it, largest first: accumulation then grows by a whole factor."""
    if micro_batch_size > 1_000_000:
        return ()
    return tuple(size for size in range(micro_batch_size // 2, 0, -1) if micro_batch_size % size == 0)


def batch_change(
    config: MemoryConfig | None, *, micro_batch_size: int, old_micro_batch_size: int, old_accumulation: int
) -> dict[str, Any]:
    """The change from the old micro-batch to this smaller divisor of it, the global batch kept.

    Only keys that the file has are changed where the third follows from them: with train_batch_size written and one of
    the others left out, DeepSpeed derives it. A file that leaves the batch to Hugging Face's Trainer is changed through
    the Trainer's arguments.
    """
    accumulation = max(old_accumulation, 1) * (old_micro_batch_size // micro_batch_size)
    if config is not None and config.is_auto:
        return {
            "trainer_args": {
                "per_device_train_batch_size": micro_batch_size,
                "gradient_accumulation_steps": accumulation,
            }
        }
    change: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": micro_batch_size,
        "gradient_accumulation_steps": accumulation,
    }
    if config is not None and config.train_batch_size:
        if config.micro_batch_size and not config.gradient_accumulation_steps:
            del change["gradient_accumulation_steps"]
        elif config.gradient_accumulation_steps and not config.micro_batch_size:
            del change["train_micro_batch_size_per_gpu"]
    return change


def config_part(change: Mapping[str, Any]) -> dict[str, Any]:
    """What of a change is written into a DeepSpeed config."""
    return {key: value for key, value in change.items() if key not in OUTSIDE_KEYS}


def laid_over(config: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A new config: the change's blocks laid over the config's, its values in place of the config's. The key order of
    the config is kept; neither argument is changed."""
    merged = dict(config)
    for key, value in change.items():
        old = merged.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            merged[key] = laid_over(old, value)
        else:
            merged[key] = dict(value) if isinstance(value, Mapping) else value
    return merged


def global_batch_kept(old: MemoryConfig, new: MemoryConfig) -> bool:
    """Whether two configs have the same global batch in any world: the total where it is written, else
    micro x accumulation."""
    if old.train_batch_size != new.train_batch_size or old.is_auto != new.is_auto:
        return False
    if old.is_auto or (old.train_batch_size and not (new.micro_batch_size and new.gradient_accumulation_steps)):
        return True
    return _per_rank(old) == _per_rank(new) or bool(old.train_batch_size and not _is_whole(old))


def _per_rank(config: MemoryConfig) -> int:
    return config.micro_batch_size * max(config.gradient_accumulation_steps, 1)


def _is_whole(config: MemoryConfig) -> bool:
    return bool(config.micro_batch_size and config.gradient_accumulation_steps)
