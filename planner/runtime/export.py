"""The trained model as Hugging Face safetensors, from any layout: each parameter is put together, one at a time, from
the ranks that hold its parts.

Owns gathering (ZeRO-3 shards, tensor-parallel pieces, pipeline stages), merging adapters, and files that are there
whole or not at all. Only the weights and the config are written; the tokenizer stays where it is.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import deepspeed
import torch
from safetensors.torch import save_file
from torch import distributed, nn

from planner.errors import InputError
from planner.runtime.grid import TensorGroup, coordinates_of
from planner.runtime.lora import is_transposed
from planner.runtime.lora_names import DOWN, UP
from planner.runtime.pretrained import INDEX
from planner.runtime.session import TrainingSession
from planner.runtime.tensor_parallel import Shard
from planner.spec import TrialTask

FILE_BYTES = 4 << 30  # of one safetensors file, about


def refuse_export(task: TrialTask, folder: Path) -> None:
    """Raise InputError for a model that transformers would not know, or a folder that exists: asked before the first
    step, because the export comes after the last one."""
    if not task.model.config_json:
        raise InputError(
            f"{task.model.name} cannot be exported to Hugging Face's format",
            why="it comes from a factory, so transformers has no class for it",
            fix="read its weights from the checkpoint",
        )
    if folder.exists():
        raise InputError(f"{folder} exists", why="an export never writes over anything", fix="name a new folder")


def export_model(session: TrainingSession, task: TrialTask, folder: Path) -> None:
    """Write the model into `folder`, which does not exist yet. All ranks call it; the folder lies on a file system that
    all of them see. Raises InputError as `refuse_export` does."""
    refuse_export(task, folder)
    draft = folder.with_name(f".{folder.name}.draft")
    if distributed.get_rank() == 0:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(parents=True)
    distributed.barrier()
    writer = _Writer(draft, rank=distributed.get_rank())
    place = coordinates_of(distributed.get_rank(), task.candidate.layout)
    writes = place.data_rank == 0 and place.tensor_rank == 0
    for name, tensor in full_tensors(session.engine.module, session.tensor_group):
        if writes:
            writer.add(name, tensor)
    writer.flush()
    _finish(draft, folder, writer.files, config_json=task.model.config_json)


def full_tensors(module: nn.Module, group: TensorGroup) -> Iterator[tuple[str, torch.Tensor]]:
    """Every parameter of this rank's part of the model by its transformers name, whole, adapters merged. The ranks of a
    data- or tensor-parallel group have to walk through it together."""
    seen: set[str] = set()
    for path, owner in module.named_modules():
        for attribute, parameter in owner.named_parameters(recurse=False):
            name = getattr(parameter, "canonical", "") or _whole_name(path, attribute)
            if attribute in (DOWN, UP) or name in seen:
                continue
            seen.add(name)
            tensor = _full(parameter, group)
            if attribute == "weight" and hasattr(owner, DOWN):
                tensor = _merged(owner, tensor, group)
            yield name, tensor
        for attribute, buffer in owner.named_buffers(recurse=False):
            if path.startswith("model.") and attribute not in owner._non_persistent_buffers_set:
                yield _whole_name(path, attribute), buffer


def _whole_name(path: str, attribute: str) -> str:
    """Models that are trained whole stand under `model` in the module that gives their loss."""
    return ".".join(part for part in (path.removeprefix("model").removeprefix("."), attribute) if part)


def _merged(owner: nn.Module, weight: torch.Tensor, group: TensorGroup) -> torch.Tensor:
    update = _full(getattr(owner, UP), group).float() @ _full(getattr(owner, DOWN), group).float()
    return (weight.float() + (update.t() if is_transposed(owner) else update)).to(weight.dtype)


def _full(parameter: Any, group: TensorGroup) -> torch.Tensor:
    """One parameter put together from all ranks that hold parts of it."""
    if hasattr(parameter, "ds_tensor"):
        with deepspeed.zero.GatheredParameters([parameter]):
            local = parameter.detach().clone()
    else:
        local = parameter.detach()
    shard: Shard | None = getattr(parameter, "shard", None)
    if shard is None or group.size == 1:
        return local
    parts = [torch.empty_like(local) for _ in range(group.size)]
    distributed.all_gather(parts, local.contiguous(), group=group.process_group)
    full = torch.empty(shard.full_shape, dtype=local.dtype, device=local.device)
    for rank, part in enumerate(parts):
        offset = 0
        for start, stop in shard.pieces:
            width = stop - start  # sections are cut evenly, so another rank's piece lies whole shares away
            there = start + (rank - group.rank) * width
            full.narrow(shard.dim, there, width).copy_(part.narrow(shard.dim, offset, width))
            offset += width
    return full


class _Writer:
    """Collects tensors in host memory and writes a file when there are enough of them."""

    def __init__(self, folder: Path, *, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self._tensors: dict[str, torch.Tensor] = {}
        self._bytes = 0
        self.files: list[tuple[str, tuple[str, ...], int]] = []  # name, tensors, bytes

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """One more tensor."""
        held = tensor.to("cpu", copy=True).contiguous()
        self._tensors[name] = held
        self._bytes += held.numel() * held.element_size()
        if self._bytes >= FILE_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if not self._tensors:
            return
        name = f"part-{self._rank:05d}-{len(self.files):05d}.safetensors"
        save_file(self._tensors, self._folder / name, metadata={"format": "pt"})
        self.files.append((name, tuple(self._tensors), self._bytes))
        self._tensors, self._bytes = {}, 0


def _finish(draft: Path, folder: Path, files: list[tuple[str, tuple[str, ...], int]], *, config_json: str) -> None:
    """Rank 0 names the files as transformers does, writes index and config, and gives the folder its name."""
    gathered: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(gathered, files)
    if distributed.get_rank() == 0:
        parts = [part for rank_files in gathered for part in rank_files]
        weight_map: dict[str, str] = {}
        for number, (name, tensors, _bytes) in enumerate(parts, start=1):
            final = f"model-{number:05d}-of-{len(parts):05d}.safetensors" if len(parts) > 1 else "model.safetensors"
            (draft / name).rename(draft / final)
            weight_map.update(dict.fromkeys(tensors, final))
        if len(parts) > 1:
            total = sum(part[2] for part in parts)
            index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
            (draft / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
        (draft / "config.json").write_text(json.dumps(json.loads(config_json), indent=2) + "\n", encoding="utf-8")
        draft.rename(folder)
    distributed.barrier()
