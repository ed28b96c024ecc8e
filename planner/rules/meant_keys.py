"""What an unknown key was meant to be: another spelling, another place, another program's name for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import SequenceMatcher

from planner.errors import near_matches
from planner.rules.config_context import ConfigView
from planner.rules.config_entries import Entry
from planner.rules.known_keys import KnownBlock, keys_of_release, parse_release
from planner.spec._record import record

_SHORTEST_TELLING = 8  # a shorter name resembles something everywhere
_LONGEST_NAME = 80  # beyond this it is no misspelling

# Names that other programs use for what DeepSpeed calls otherwise; False: the meaning is not quite the same.
_FOREIGN: Mapping[str, tuple[str, bool]] = {
    "per_device_train_batch_size": ("train_micro_batch_size_per_gpu", True),
    "micro_batch_size": ("train_micro_batch_size_per_gpu", True),
    "micro_batch_size_per_gpu": ("train_micro_batch_size_per_gpu", True),
    "train_micro_batch_size": ("train_micro_batch_size_per_gpu", True),
    "global_batch_size": ("train_batch_size", True),
    "batch_size": ("train_batch_size", False),
    "gradient_accumulation": ("gradient_accumulation_steps", True),
    "accumulate_grad_batches": ("gradient_accumulation_steps", True),
    "max_grad_norm": ("gradient_clipping", True),
    "clip_grad": ("gradient_clipping", True),
    "grad_clip": ("gradient_clipping", True),
    "gradient_clip_val": ("gradient_clipping", True),
    "zero_stage": ("zero_optimization.stage", True),
    "zero": ("zero_optimization", True),
    "zero3_save_16bit_model": ("zero_optimization.stage3_gather_16bit_weights_on_model_save", True),
    "offload_optimizer_device": ("zero_optimization.offload_optimizer.device", True),
    "offload_param_device": ("zero_optimization.offload_param.device", True),
    "offload_parameters": ("zero_optimization.offload_param", False),
    "find_unused_parameters": ("zero_optimization.ignore_unused_parameters", False),
    "mixed_precision": ("bf16.enabled", False),
    "learning_rate": ("optimizer.params.lr", True),
    "lr_scheduler": ("scheduler", False),
    "gradient_checkpointing": ("activation_checkpointing", False),
    "bf16_enabled": ("bf16.enabled", True),
    "fp16_enabled": ("fp16.enabled", True),
}
_EVERYWHERE = frozenset({"enabled", "type", "params", "dtype", "mode", "profile", "verbose", "debug", "version"})


@record
class Meaning:
    """`path`: the dotted path that was probably meant, "" none. `certain`: whether that needs no second thought."""

    path: str
    advice: str
    certain: bool


def meaning_of(entry: Entry, view: ConfigView) -> Meaning | None:
    """What the key was meant to be; None when nothing comes near."""
    if len(entry.name) > _LONGEST_NAME:
        return None
    blocks = keys_of_release(parse_release(view.context.deepspeed_version))
    if entry.block.path == "bf16" and entry.name in blocks["fp16"].keys:
        return Meaning(path="", advice="remove it: bf16 has fp16's range and no loss scaling", certain=True)
    return _misplaced(entry, blocks) or _foreign(entry) or _misspelt(entry) or _elsewhere(entry, blocks)


def _places(name: str, blocks: Mapping[str, KnownBlock]) -> Iterator[str]:
    for path, block in blocks.items():
        if name in block.keys and name not in _EVERYWHERE:
            yield f"{path}.{name}" if path else name


def _misplaced(entry: Entry, blocks: Mapping[str, KnownBlock]) -> Meaning | None:
    own = entry.block.path.split(".")

    def shared(path: str) -> int:
        return sum(1 for mine, other in zip(own, path.split(".")) if mine == other)

    places = sorted(_places(entry.name, blocks), key=shared, reverse=True)
    if not places:
        return None
    rivals = [place for place in places if shared(place) == shared(places[0])]
    names = " or ".join(place if "." in place else f"the top level ({place})" for place in rivals[:2])
    return Meaning(path=places[0], advice=f"move it to {names}", certain=len(rivals) == 1)


def _foreign(entry: Entry) -> Meaning | None:
    known = _FOREIGN.get(entry.name.lower())
    if known is None:
        return None
    path, same = known
    return Meaning(
        path=path,
        advice=f"DeepSpeed calls it {path}" if same else f"DeepSpeed has {path}, which is not quite the same",
        certain=same,
    )


def _misspelt(entry: Entry) -> Meaning | None:
    near = near_matches(entry.name, entry.block.keys, limit=2)
    if not near:
        return None
    path = f"{entry.block.path}.{near[0]}" if entry.block.path else near[0]
    clear = _is_close(entry.name, near[0])
    advice = f"write {near[0]!r}" + (f" (or {near[1]!r})" if len(near) > 1 and not clear else "")
    return Meaning(path=path, advice=advice, certain=clear)


def _is_close(name: str, other: str) -> bool:
    """Whether two names differ by a slip of the keyboard."""
    return SequenceMatcher(None, name.lower(), other.lower()).ratio() >= 0.85


def _elsewhere(entry: Entry, blocks: Mapping[str, KnownBlock]) -> Meaning | None:
    """A misspelling of a key of another block."""
    if len(entry.name) < _SHORTEST_TELLING:
        return None
    names = {name: path for path, block in blocks.items() for name in block.keys if name not in _EVERYWHERE}
    near = near_matches(entry.name, names, limit=1)
    if not near or not _is_close(entry.name, near[0]):
        return None
    path = f"{names[near[0]]}.{near[0]}" if names[near[0]] else near[0]
    return Meaning(path=path, advice=f"did you mean {path}?", certain=False)
