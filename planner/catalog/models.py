"""Models: plain Hugging Face config.json files to ModelSpec records with exact parameter counts.

Owns finding and reading the file and choosing the family. The counting is `decoders`' and `encoders`' business. No
weights are read and no code of the model is run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from planner.catalog import decoders, encoders, generic, mixtures
from planner.catalog.config_reader import ConfigReader
from planner.catalog.documents import MAX_DIGITS, MAX_MODEL_CONFIG_BYTES, parse_json_object, read_text
from planner.catalog.entries import default_folders, find_entry, list_entries, unknown_name
from planner.errors import InputError, did_you_mean
from planner.resources import CatalogFolder
from planner.spec import ModelSpec

MAX_CONFIG_DEPTH = 16
MAX_PARAMETERS = 10**15
MAX_CANONICAL_CHARACTERS = 500_000  # a job file, at most 1 MiB, has to hold it

FAMILIES: dict[str, Callable[[ConfigReader, str], ModelSpec]] = {
    "bert": encoders.bert,
    "deepseek_v3": mixtures.deepseek_v3,
    "gemma": decoders.gemma,
    "gemma2": decoders.gemma,
    "gpt2": decoders.gpt2,
    "llama": decoders.llama,
    "mistral": decoders.llama,
    "mixtral": mixtures.mixtral,
    "phi3": decoders.phi3,
    "qwen2": decoders.llama,
    "qwen3": decoders.llama,
    "qwen3_moe": mixtures.qwen3_moe,
    "t5": encoders.t5,
    "vit": encoders.vit,
    generic.MODEL_TYPE: generic.decoder,
}


def load_model(name_or_path: str, *, folders: tuple[CatalogFolder, ...] | None = None) -> ModelSpec:
    """A catalog name, the path of a config.json, or a folder that holds one. InputError for anything else."""
    asked = folders if folders is not None else default_folders()
    entry = find_entry("models", name_or_path, asked)
    if entry is not None:
        return read_model_config(entry.path, name=entry.name)
    path = Path(name_or_path)
    if _exists(path):
        return read_model_config(path)
    if path.suffix == ".json" or "/" in name_or_path:
        raise InputError(
            f"there is no file or folder {name_or_path[:200]!r}",
            why="a model is a catalog name, a config.json or a folder that holds one; nothing is downloaded",
            fix="give the path of the model's config.json on this machine, or a name from `planner list models`",
        )
    raise unknown_name("models", name_or_path, tuple(entry.name for entry in list_entries("models", asked)))


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # too long a name, or a zero byte in it
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def read_model_config(path: Path, *, name: str = "") -> ModelSpec:
    """The model of a config.json, or of the folder that holds it, called `name` (left out: after its file)."""
    file = path / "config.json" if _is_folder(path) else path
    text = read_text(file, what="model config", max_bytes=MAX_MODEL_CONFIG_BYTES)
    usual = file.resolve().parent.name if file.name == "config.json" else file.stem
    return model_from_config(parse_json_object(text, label=str(file)), name or usual or "model")


def model_from_config(config: dict[str, Any], name: str) -> ModelSpec:
    """The record of a Hugging Face config, with exact parameter counts.

    A config without `model_type` is taken as the generic decoder of `planner.catalog.generic`. Raises InputError when a
    needed field is missing or wrong (its name, use and near matches are said) or the type cannot be counted.
    """
    if not isinstance(config, dict):
        raise InputError(f"{name}: a model config is a JSON object", why="its fields have names", fix="give an object")
    kind = config.get("model_type", generic.MODEL_TYPE)
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise _unknown_type(config, name)
    reader = ConfigReader({**config, "model_type": kind}, name=name)
    spec = FAMILIES[kind](reader, canonical_config(reader))
    if spec.num_parameters > MAX_PARAMETERS:
        raise reader.refuse(
            f"the config makes a model of {spec.num_parameters:.1e} parameters",
            why=f"more than {MAX_PARAMETERS:.0e} is beyond any cluster, so a field must be wrong",
            fix="correct the widths, layers, experts or vocabulary in the config",
        )
    return spec


def canonical_config(reader: ConfigReader) -> str:
    """The config as the runtime builds from it: compact JSON with sorted keys, label names reduced to their number.

    InputError for what a plan folder cannot keep: more than half a MiB, deep nesting, numbers without end.
    """
    config = {key: value for key, value in reader.config.items() if key not in ("id2label", "label2id")}
    if "id2label" in reader.config:
        config["num_labels"] = encoders.num_labels(reader)
    try:
        _check_values(config, depth=1)
        text = json.dumps(config, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError) as problem:
        raise _unkeepable(reader, str(problem)[:200]) from None
    if len(text) > MAX_CANONICAL_CHARACTERS:
        raise _unkeepable(reader, f"it is {len(text):,} characters long")
    return text


def _check_values(value: Any, *, depth: int) -> None:
    """ValueError for values that could not be written into a job file and read back."""
    if depth > MAX_CONFIG_DEPTH:
        raise ValueError(f"it is nested deeper than {MAX_CONFIG_DEPTH} levels")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_values(key, depth=depth)
            _check_values(item, depth=depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_values(item, depth=depth + 1)
    elif isinstance(value, str):
        value.encode()  # UnicodeEncodeError, a ValueError, for half a surrogate pair
    elif isinstance(value, int) and abs(value) >= 10 ** (MAX_DIGITS - 1):
        raise ValueError("it holds a whole number of absurd size")


def _unkeepable(reader: ConfigReader, problem: str) -> InputError:
    return reader.refuse(
        f"the model config cannot be kept: {problem}",
        why="the plan folder holds it, and the runtime builds the model from it",
        fix="keep the fields that describe the model: plain numbers, texts, short lists and objects",
    )


def _unknown_type(config: dict[str, Any], name: str) -> InputError:
    kind = str(config.get("model_type"))[:100]
    inner = next((key for key in ("text_config", "llm_config", "language_config") if key in config), None)
    hint = f"; for its language part alone, give the object under {inner!r} as the config" if inner else ""
    return InputError(
        f"{name}: models of type {kind!r} cannot be counted{hint}",
        why="memory and time follow from exact parameter counts, and a wrong count is worse than none",
        fix=did_you_mean(kind, [known for known in FAMILIES if known != generic.MODEL_TYPE])
        + " Any other nn.Module can be planned through `factory:`",
    )
