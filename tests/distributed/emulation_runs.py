"""Runs tasks on real ranks over gloo and on ranks that are emulated, both through the same recording group, so that
tests can hold one against the other. One child program imports everything once and forks a process per rank."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from planner.spec import DeviceKind, Phase, TrialTask
from planner.spec.codec import from_plain, to_plain
from tests.distributed.layouts import ADAMW, ROOT, make_task

STEPS = 3  # the last is compared: ZeRO-3 gathers ahead from the second step on


def task_of(axes: dict[str, Any]) -> TrialTask:
    """A tiny task; ZeRO-3 keeps no parameter whole, so that it has to gather them."""
    task = make_task("llama", optimizer=ADAMW, **axes)
    config = json.loads(task.ds_config_json)
    config["zero_optimization"]["stage3_param_persistence_threshold"] = 0
    return replace(task, ds_config_json=json.dumps(config))


def with_micro_batches(task: TrialTask, count: int) -> TrialTask:
    """The same task with another number of micro-batches a step."""
    batch = replace(task.candidate.batch, gradient_accumulation_steps=count)
    config = json.loads(task.ds_config_json)
    config |= {"train_batch_size": batch.global_batch_size, "gradient_accumulation_steps": count}
    return replace(
        task,
        training=replace(task.training, global_batch_size=batch.global_batch_size),
        candidate=replace(task.candidate, batch=batch),
        ds_config_json=json.dumps(config),
    )


def run_both(
    tasks: dict[str, TrialTask], *, emulated: dict[str, tuple[int, ...]], folder: Path, real: bool = True
) -> dict[str, dict[str, dict[str, Any]]]:
    """Per task the ranks `real 0`, `real 1`, … and, for those listed in `emulated`, `emulated 0`, …: each what
    `_observe` found, or `error`."""
    folder.mkdir(parents=True, exist_ok=True)
    plain = {name: to_plain(task) for name, task in tasks.items()}
    order = {"tasks": plain, "emulated": emulated, "real": real}
    (folder / "order.json").write_text(json.dumps(order))
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("wb") as log:
        command = [sys.executable, str(Path(__file__)), str(folder)]
        subprocess.run(command, cwd=ROOT, env=environment, stdout=log, stderr=log, check=True)
    return json.loads((folder / "results.json").read_text())


def _start_recorded(task: TrialTask, rank: int, meeting: str, recorder: Any) -> None:
    """Join real peers over gloo through a group that records."""
    import deepspeed
    import torch
    from torch.distributed import Backend, ProcessGroupGloo

    from planner.runtime.distributed import claim_device
    from planner.runtime.emulation_group import RecordedGroup

    world_size = task.candidate.layout.world_size
    claim_device(DeviceKind.CPU, rank=rank, world_size=world_size, local_rank=rank)

    def create(options: Any, _backend_options: Any) -> RecordedGroup:
        peers = ProcessGroupGloo(options.store, options.group_rank, options.group_size, timedelta(seconds=60))
        ranks = options.global_ranks_in_group or range(world_size)
        return RecordedGroup(rank=options.group_rank, ranks=ranks, peers=peers, recorder=recorder)

    Backend.register_backend("recorded", create, extended_api=True, devices=["cpu"])
    torch.distributed.init_process_group("recorded", rank=rank, world_size=world_size, init_method=meeting)
    deepspeed.init_distributed(auto_mpi_discovery=False, verbose=False)


def _real(task: TrialTask, rank: int, place: Path) -> dict[str, Any]:
    from planner.runtime.emulation_record import HostTimeline, Recorder

    recorder = Recorder(HostTimeline())
    _start_recorded(task, rank, f"file://{place}/meeting", recorder)
    return _observe(task, recorder)


def _emulated(task: TrialTask, rank: int, place: Path) -> dict[str, Any]:
    from planner.runtime.emulation import start_emulated
    from planner.runtime.emulation_record import HostTimeline, Recorder

    recorder = Recorder(HostTimeline())
    start_emulated(task, rank=rank, recorder=recorder)
    return _observe(task, recorder)


def _observe(task: TrialTask, recorder: Any) -> dict[str, Any]:
    """Train and look: every step's losses and calls, and the bytes that live before and after the last update."""
    from planner.runtime.emulation_count import ordered_calls
    from planner.runtime.emulation_pipeline import announce_step_end
    from planner.runtime.session import build_session

    before_update: dict[str, int] = {}

    def enter(phase: Phase) -> None:
        recorder.enter(phase)
        if phase is Phase.OPTIMIZER_STEP and session.steps_done == STEPS - 1:
            before_update.update(_bytes_of(session.engine), live=_live_bytes())

    session: Any = None
    session = build_session(task, on_phase=lambda phase: enter(phase) if session else recorder.enter(phase))
    if task.candidate.layout.pipeline_parallel_size > 1:
        announce_step_end(session.engine, enter)
    losses = []
    for _ in range(STEPS):
        losses.append(session.train_step().loss)
        recorder.step_done()
    calls = [(call.kind.value, call.dtype, call.num_bytes, *call.ranks) for call in ordered_calls(recorder)]
    return {
        "losses": losses,
        "calls": calls,
        "skipped": session.skipped_steps,
        "sequences": session.sequences_per_step,
        "before update": before_update,
        "after update": {**_bytes_of(session.engine), "live": _live_bytes()},
    }


def _bytes_of(engine: Any) -> dict[str, int]:
    parameters = list(engine.module.parameters())
    optimizer = engine.optimizer
    inner = getattr(optimizer, "optimizer", optimizer)
    masters = [parameter for group in inner.param_groups for parameter in group["params"]]
    states = [tensor for state in inner.state.values() for tensor in state.values()]
    gradients = [parameter.grad for parameter in parameters + masters]
    gradients += list(_tensors_in(getattr(optimizer, "averaged_gradients", None)))
    gradients += list(_tensors_in(getattr(optimizer, "grad_partitions_flat_buffer", None)))
    return {
        "parameters": _size([getattr(parameter, "ds_tensor", parameter) for parameter in parameters]),
        "optimizer": _size(masters + states),
        "gradients": _size(gradients),
    }


def _tensors_in(value: Any) -> Any:
    import torch

    if torch.is_tensor(value):
        yield value
    elif isinstance(value, dict):
        yield from _tensors_in(list(value.values()))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors_in(item)


def _size(tensors: list[Any]) -> int:
    """Bytes of the storages behind tensors, each counted once."""
    import torch

    storages = [tensor.untyped_storage() for tensor in tensors if torch.is_tensor(tensor)]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _live_bytes() -> int:
    """Of every tensor that Python knows of, meta tensors aside."""
    import torch

    gc.collect()
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor) and not thing.is_meta]
    return _size(found)


_Run = Callable[[TrialTask, int, Path], dict[str, Any]]


def _in_child(run: _Run, task: TrialTask, rank: int, place: Path, name: str) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        result = run(task, rank, place)
    except BaseException as problem:
        traceback.print_exc()
        result = {"error": f"{type(problem).__name__}: {problem}"}
    (place / f"{name}.json").write_text(json.dumps(result))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if "error" in result else 0)


def _wait(pids: dict[int, str]) -> None:
    while pids:
        pid, status = os.wait()
        pids.pop(pid)
        if status:  # its peers would wait for it
            for other in pids:
                os.kill(other, 9)


def _run_task(task: TrialTask, emulated: list[int], real: bool) -> dict[str, dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        names = [f"real {rank}" for rank in range(task.candidate.layout.world_size if real else 0)]
        _wait({_in_child(_real, task, rank, place, name): name for rank, name in enumerate(names)})
        for rank in emulated:
            names.append(f"emulated {rank}")
            _wait({_in_child(_emulated, task, rank, place, names[-1]): names[-1]})
        files = {name: place / f"{name}.json" for name in names}
        return {
            name: json.loads(file.read_text()) if file.exists() else {"error": "killed"} for name, file in files.items()
        }


def _main(folder: Path) -> None:
    import torch

    import planner.runtime.emulation
    import planner.runtime.session  # noqa: F401  the imports that every rank would otherwise pay

    torch.set_num_threads(1)
    order = json.loads((folder / "order.json").read_text())
    results = {
        name: _run_task(from_plain(TrialTask, task), order["emulated"].get(name, []), order["real"])
        for name, task in order["tasks"].items()
    }
    (folder / "results.json").write_text(json.dumps(results))


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
