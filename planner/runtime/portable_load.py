"""Fills an engine of any layout from a portable checkpoint: weights, their fp32 copies, the optimizer's states, and how
far the training is. Files are mapped, so that a rank reads its own parts only.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import nn

from planner.errors import InputError
from planner.runtime.checkpoint_files import (
    BUFFERS_FILE,
    STEP,
    WEIGHTS,
    PortableIndex,
    PortableParameter,
    Position,
    damaged,
    require_portable,
    values_name,
)
from planner.runtime.live_parts import LiveParts, LiveTensor, NoParts, live_parts, named_parameter
from planner.runtime.shards import copy_part, local_shape


def load_portable(engine: Any, directory: Path, name: str) -> PortableIndex:
    """Bring the engine to the checkpoint's state. Raises InputError when it is damaged or of another model."""
    index = require_portable(directory, name)
    try:
        live = live_parts(engine)
    except NoParts as problem:
        raise InputError(
            f"the checkpoint {directory / name} cannot be loaded into this training",
            why=str(problem),
            fix="train from the beginning into another checkpoint folder",
        ) from None
    values = _Values(directory / name, index)
    with torch.no_grad():
        _fill_tensors(live, values)
        _fill_weights(engine, values)
    _load_buffers(engine.module, directory, name, index)
    _move_on(engine, index.position)
    return index


class _Values:
    """The whole parameters and states, as flat views of mapped files."""

    def __init__(self, folder: Path, index: PortableIndex) -> None:
        self._folder = folder
        self._by_name = {parameter.name: parameter for parameter in index.parameters}
        self.states = index.states
        size = index.num_elements
        self._files = {
            key: torch.from_file(str(folder / values_name(key)), shared=False, size=size, dtype=torch.float32)
            for key in (WEIGHTS, *index.states)
        }

    def entry(self, name: str, shape: tuple[int, ...]) -> PortableParameter:
        """What the checkpoint says of a parameter. Raises InputError when it does not know it."""
        found = self._by_name.get(name)
        if found is None or found.shape != shape:
            known = "has no such parameter" if found is None else f"has it in the shape {list(found.shape)}"
            raise InputError(
                f"the checkpoint {self._folder} is of another model: it {known}: {name} {list(shape)}",
                why="every parameter of the model is filled from it",
                fix="resume with the job that the checkpoint was made with, or train into another checkpoint folder",
            )
        return found

    def of(self, key: str, entry: PortableParameter) -> torch.Tensor:
        """The flattened weights, or one state, of a parameter."""
        return self._files[key][entry.offset : entry.offset + math.prod(entry.shape)]


def _fill_tensors(live: LiveParts, values: _Values) -> None:
    """The fp32 values and the optimizer's states."""
    steps = [-1] * len(live.tensors)
    states = [_state_tensors(tensor, live, values.states) for tensor in live.tensors]
    for part in live.parts:
        entry = values.entry(part.named.name, part.named.shape)
        steps[part.tensor] = max(steps[part.tensor], entry.step)
        targets = {WEIGHTS: live.tensors[part.tensor].master, **states[part.tensor]}
        for key, target in targets.items():
            own = target.view(-1)[part.offset : part.offset + part.count]
            copy_part(values.of(key, entry), own, part.named, start=part.start, to_whole=False)
    for tensor, step in zip(live.tensors, steps):
        if step >= 0:
            live.inner.state[tensor.master][STEP] = _step_count(tensor, live, step)


def _state_tensors(tensor: LiveTensor, live: LiveParts, keys: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """The optimizer's tensors beside a master, made where the first step would have made them."""
    state = live.inner.state[tensor.master]
    for key in keys:
        if not torch.is_tensor(state.get(key)):
            state[key] = torch.zeros_like(tensor.master, requires_grad=False)
    return {key: state[key] for key in keys}


def _step_count(tensor: LiveTensor, live: LiveParts, step: int) -> torch.Tensor | int:
    """The count as torch's optimizers keep it: fp32, beside the parameter only where a fused kernel reads it. Those of
    DeepSpeed keep a number."""
    if type(live.inner).__module__.startswith("deepspeed"):
        return step
    group = next((one for one in live.inner.param_groups if any(p is tensor.master for p in one["params"])), None)
    group = group or live.inner.param_groups[0]  # ZeRO-3 hands its tensors to the optimizer only while it steps
    on_device = bool(group.get("fused") or group.get("capturable"))
    return torch.tensor(float(step), dtype=torch.float32, device=tensor.master.device if on_device else "cpu")


def _fill_weights(engine: Any, values: _Values) -> None:
    """The weights that the model computes with, in its precision; under ZeRO-3 this rank's shard of each."""
    for path, parameter in engine.module.named_parameters():
        named = named_parameter(path, parameter)
        whole = values.of(WEIGHTS, values.entry(named.name, named.shape))
        if hasattr(parameter, "ds_tensor"):
            own = parameter.ds_tensor.data
            count = min(own.numel(), max(parameter.ds_numel - _shard_rank(parameter) * own.numel(), 0))
            copy_part(whole, own[:count], named, start=_shard_rank(parameter) * own.numel(), to_whole=False)
            if parameter.numel() != parameter.ds_numel:
                continue  # not gathered: there is nothing else to fill
        flat = torch.empty(math.prod(local_shape(named)), dtype=parameter.dtype, device=parameter.device)
        copy_part(whole, flat, named, start=0, to_whole=False)
        parameter.data.copy_(flat.view(local_shape(named)))


def _shard_rank(parameter: Any) -> int:
    return int(torch.distributed.get_rank(parameter.ds_process_group))


def _load_buffers(module: nn.Module, directory: Path, name: str, index: PortableIndex) -> None:
    if not index.has_buffers:
        return
    try:
        saved = torch.load(directory / name / BUFFERS_FILE, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError) as problem:
        raise damaged(directory, name, f"{BUFFERS_FILE}: {problem}") from None
    buffers = dict(module.named_buffers())
    for path, value in saved.items():
        if path in buffers:
            buffers[path].data.copy_(value)


def _move_on(engine: Any, position: Position) -> None:
    """Stand where the training stood, so that the next step draws the samples that would have come next."""
    engine.global_steps = position.steps_done
    engine.global_samples = position.samples_done
    engine.skipped_steps = position.skipped_steps
    scheduler = engine.lr_scheduler
    if scheduler is not None:
        scheduler.load_state_dict({**scheduler.state_dict(), "step": position.schedule_step})
