"""Weights to start from: safetensors in a local folder, read slice by slice, so that loading needs no more memory than
one block of rows beside what the rank keeps.

Owns finding a parameter in the files by the name transformers gives it (and by the names that older files have), and
refusing files that are not this model's. Leaves cutting and placing to `initialisation`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from planner.errors import InputError, did_you_mean

INDEX = "model.safetensors.index.json"
_EXPERTS = re.compile(r"(.*)\.mlp\.experts\.(gate_up_proj|down_proj)\Z")
# How files on the disk name one expert's matrices: (prefix of the layer's experts, gate, up, down).
_EXPERT_FORMS = (
    ("{}.mlp.experts.{}", "gate_proj.weight", "up_proj.weight", "down_proj.weight"),
    ("{}.block_sparse_moe.experts.{}", "w1.weight", "w3.weight", "w2.weight"),
)


class Weights:
    """The tensors of one folder. Raises InputError for a folder that holds none, or holds them unreadably."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file_of = _files_by_name(folder)
        self._open: dict[str, Any] = {}

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The full shape of a parameter; None when the folder does not have it."""
        stored = self._stored(name)
        if stored is not None:
            return tuple(self._slice(stored).get_shape())
        experts = self._experts(name)
        if experts is None:
            return None
        matrices = [tuple(self._slice(matrix).get_shape()) for matrix in experts[0]]
        return (len(experts), sum(shape[0] for shape in matrices), matrices[0][1])

    def rows(self, name: str, start: int, stop: int) -> torch.Tensor:
        """The rows `start` to `stop` of a parameter that the folder has, on CPU, in the files' type."""
        stored = self._stored(name)
        if stored is not None:
            return self._slice(stored)[start:stop]
        experts = self._experts(name)
        if experts is None:
            raise KeyError(name)
        chosen = experts[start:stop]
        return torch.stack([torch.cat([self._slice(matrix)[:] for matrix in expert]) for expert in chosen])

    def scalar(self, name: str) -> torch.Tensor:
        """A parameter without dimensions."""
        stored = self._stored(name)
        if stored is None:
            raise KeyError(name)
        file = self._open_file(self._file_of[stored])
        return file.get_tensor(stored)

    def missing(self, name: str) -> InputError:
        """What to say of a parameter that the folder should have."""
        return InputError(
            f"{self._folder} has no weights for {name}",
            why=f"its safetensors hold {len(self._file_of)} tensors, and none of this name",
            fix=f"name a folder of this very model; {did_you_mean(name, list(self._file_of)[:2000])}",
        )

    def _stored(self, name: str) -> str | None:
        """The tensor's name in the files: some were saved from the model without its head, one prefix shorter."""
        shorter = name.partition(".")[2]
        return next((known for known in (name, shorter) if known in self._file_of), None)

    def _experts(self, name: str) -> list[list[str]] | None:
        """For matrices of all experts in one parameter: each expert's matrices as files have them."""
        found = _EXPERTS.match(name)
        if found is None:
            return None
        layer, which = found.groups()
        for prefix, gate, up, down in _EXPERT_FORMS:
            parts = (gate, up) if which == "gate_up_proj" else (down,)
            experts: list[list[str]] = []
            while f"{prefix.format(layer, len(experts))}.{parts[0]}" in self._file_of:
                experts.append([f"{prefix.format(layer, len(experts))}.{part}" for part in parts])
            if experts:
                return experts
        return None

    def _slice(self, stored: str) -> Any:
        return self._open_file(self._file_of[stored]).get_slice(stored)

    def _open_file(self, name: str) -> Any:
        if name not in self._open:
            self._open[name] = safe_open(self._folder / name, framework="pt", device="cpu")
        return self._open[name]


def open_weights(folder: str) -> Weights | None:
    """The weights that a job names; None where it names none."""
    return Weights(Path(folder)) if folder else None


def _files_by_name(folder: Path) -> dict[str, str]:
    """Which file holds which tensor."""
    try:
        if (folder / INDEX).is_file():
            found: dict[str, str] = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
            for name in sorted(set(found.values())):
                with safe_open(folder / name, framework="pt", device="cpu"):
                    pass  # that it is there and whole is known before a minute of building
        else:
            found = {}
            for path in sorted(folder.glob("*.safetensors")):
                with safe_open(path, framework="pt", device="cpu") as file:
                    found.update(dict.fromkeys(file.keys(), path.name))
    except (OSError, SafetensorError, KeyError, TypeError, json.JSONDecodeError) as problem:
        raise _unreadable(folder, f"{type(problem).__name__}: {problem}") from problem
    if not found:
        raise _unreadable(folder, "it holds no *.safetensors files")
    return found


def _unreadable(folder: Path, why: str) -> InputError:
    return InputError(
        f"no weights can be read from {folder}",
        why=why,
        fix="training.pretrained names a local folder with model.safetensors, or its parts and their index",
    )
