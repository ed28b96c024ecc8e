"""accelerate's own file (`accelerate config`): read, told from a DeepSpeed file, turned into what it means."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from planner.catalog.yaml_text import parse_yaml
from planner.errors import InputError
from planner.lint.document import Document, Place
from planner.rules import ACCELERATE_MEANS, AUTO, accelerate_block, merged
from planner.rules.patches import put
from planner.spec._record import record

_MARKS = ("deepspeed_config", "compute_environment", "distributed_type", "main_training_function")
_LINE = re.compile(r" line (\d+)$")
_BLOCK_KEYS = frozenset(ACCELERATE_MEANS) | {"deepspeed_config_file", "zero3_init_flag"}


@record
class AccelerateFile:
    """`value`: the file; `places`: line and column of each of its keys by path; `text`: its lines."""

    label: str
    value: Mapping[str, Any]
    places: Mapping[str, Place]
    text: tuple[str, ...]


def read_accelerate(text: str, *, label: str) -> AccelerateFile:
    """Read accelerate's file, or its `deepspeed_config` block alone. InputError for what is no mapping in YAML."""
    document = parse_yaml(text, label=label)
    value = document.value
    if not isinstance(value, dict):
        raise InputError(
            f"{label} is no file of accelerate",
            why="such a file holds keys like distributed_type and deepspeed_config",
            fix="give the file that `accelerate config` wrote",
        )
    places: dict[str, Place] = {}
    for path, origin in document.origins.items():
        line = _LINE.search(origin)
        if path and line is not None:
            places[".".join(str(part) for part in path)] = (int(line[1]), 1)
    if not set(_MARKS) & set(value) and _BLOCK_KEYS & set(value):
        value = {"deepspeed_config": value}
        places = {f"deepspeed_config.{path}": place for path, place in places.items()}
    return AccelerateFile(label=label, value=value, places=places, text=tuple(text.splitlines()))


def looks_like_accelerate(value: Any) -> bool:
    """Whether a mapping is accelerate's file and not DeepSpeed's."""
    return isinstance(value, Mapping) and len(set(_MARKS) & set(value)) > 0


def as_deepspeed(file: AccelerateFile) -> Document:
    """The configuration that accelerate makes of its own block; every key has the line of the one it comes from."""
    block = accelerate_block(file.value)
    config: dict[str, Any] = {
        "train_batch_size": AUTO,
        "train_micro_batch_size_per_gpu": AUTO,
        "zero_optimization": {"stage": 2},  # accelerate's default
    }
    places = dict(file.places)
    for name, target in ACCELERATE_MEANS.items():
        value = block.get(name)
        if value is None or (name.endswith("_path") and block.get(name.replace("nvme_path", "device")) != "nvme"):
            continue
        config = merged(config, put(target, value))
        place = file.places.get(f"deepspeed_config.{name}")
        if place is not None:
            places[target] = place
            places.setdefault(target.rpartition(".")[0], place)
    precision = file.value.get("mixed_precision")
    if precision in ("fp16", "bf16"):
        config = merged(config, put(f"{precision}.enabled", True))
    return Document(value=json.loads(json.dumps(config, default=str)), lines=file.text, places=places)
