"""Whole parameters from parts in files: put together, or refused with what is missing. No engine is needed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from planner.errors import InputError
from planner.runtime.checkpoint_files import (
    FORMAT,
    Manifest,
    Position,
    RankParts,
    SavedPart,
    SavedTensor,
    ShardedName,
    parts_name,
    place,
    require_portable,
    write_record,
)
from planner.runtime.portable_write import write_portable
from planner.spec.checkpoint import CheckpointLayout, RunIdentity

NAME = "global_step5"
MANIFEST = Manifest(
    format=FORMAT,
    layout=CheckpointLayout(
        zero_stage=1, precision="fp32", tensor_parallel_size=2, stage_layers=(1,), data_parallel_size=1
    ),
    run=RunIdentity(seed=1, seq_len=8, global_batch_size=2, data=""),
    position=Position(steps_done=5, samples_done=10, skipped_steps=0, schedule_step=5),
    ranks=(0, 1),
    files=(),
)
# A matrix of 2 rows split by columns over two tensor-parallel ranks, and a norm that rank 0 writes down.
WHOLE = torch.arange(8.0).view(2, 4)
NORM = torch.tensor([7.0, 8.0, 9.0])


def rank_parts(rank: int) -> RankParts:
    matrix = ShardedName(name="m", shape=(2, 4), dim=1, pieces=((2 * rank, 2 * rank + 2),))
    parts = [SavedPart(parameter=0, start=0, count=4, tensor=0, offset=0)]
    parameters = [matrix]
    if rank == 0:
        parameters.append(ShardedName(name="n", shape=(3,)))
        parts.append(SavedPart(parameter=1, start=0, count=3, tensor=0, offset=4))
    file = f"rank_{rank}.pt"
    return RankParts(
        format=FORMAT,
        rank=rank,
        refusal="",
        parameters=tuple(parameters),
        tensors=(
            SavedTensor(
                weights=place(file, "flat", 0),
                states_at=place(file, "state", 0),
                states=("exp_avg",),
                counts_steps=True,
            ),
        ),
        parts=tuple(parts),
    )


def save(folder: Path, *, change: int = -1, parts: RankParts | None = None) -> None:
    """The checkpoint's files; `parts` in the place of those of rank `change`."""
    (folder / NAME).mkdir()
    for rank in (0, 1):
        flat = torch.cat([WHOLE[:, 2 * rank : 2 * rank + 2].reshape(-1), *([NORM] if rank == 0 else [])])
        content = {"flat": [flat], "state": {0: {"exp_avg": -flat, "step": torch.tensor(5.0)}}}
        torch.save(content, folder / NAME / f"rank_{rank}.pt")
        written = parts if parts is not None and rank == change else rank_parts(rank)
        write_record(folder / NAME / parts_name(rank), written)
    (folder / "target").mkdir()


def test_write_portable_puts_shards_together(tmp_path: Path) -> None:
    save(tmp_path)
    write_portable(tmp_path, NAME, MANIFEST, tmp_path / "target")
    index = require_portable(tmp_path, "target")
    assert [(one.name, one.shape, one.offset, one.step) for one in index.parameters] == [
        ("m", (2, 4), 0, 5),
        ("n", (3,), 8, 5),
    ]
    weights = np.fromfile(tmp_path / "target" / "weights.f32", dtype="<f4")
    assert weights.tolist() == [*WHOLE.flatten().tolist(), *NORM.tolist()]
    assert np.array_equal(np.fromfile(tmp_path / "target" / "exp_avg.f32", dtype="<f4"), -weights)
    assert (index.made_from, index.position) == (NAME, MANIFEST.position)


def test_write_portable_refuses_a_gap_and_says_where(tmp_path: Path) -> None:
    parts = rank_parts(1)
    shorter = replace(parts, parts=(replace(parts.parts[0], count=3),))
    save(tmp_path, change=1, parts=shorter)
    with pytest.raises(InputError, match="damaged") as caught:
        write_portable(tmp_path, NAME, MANIFEST, tmp_path / "target")
    assert "1 values of weights of m are in none of its files" in caught.value.why


def test_write_portable_refuses_files_that_hold_something_else(tmp_path: Path) -> None:
    parts = rank_parts(1)
    tensor = replace(parts.tensors[0], weights=place("rank_1.pt", "flat", 3))
    save(tmp_path, change=1, parts=replace(parts, tensors=(tensor,)))
    with pytest.raises(InputError, match="damaged") as caught:
        write_portable(tmp_path, NAME, MANIFEST, tmp_path / "target")
    assert "rank_1.pt does not hold what it should" in caught.value.why


def test_write_portable_of_a_checkpoint_that_cannot_be_taken_apart_says_why(tmp_path: Path) -> None:
    refused = replace(rank_parts(0), refusal="the optimizer Muon keeps states that belong to whole matrices")
    save(tmp_path, change=0, parts=refused)
    with pytest.raises(InputError, match="cannot be converted") as caught:
        write_portable(tmp_path, NAME, MANIFEST, tmp_path / "target")
    assert "Muon" in caught.value.why


class _Deed:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


def test_object_that_would_run_code_is_refused_and_does_not_run(tmp_path: Path) -> None:
    save(tmp_path)
    file = tmp_path / NAME / "rank_0.pt"
    torch.save(torch.load(file) | {"evil": _Deed(tmp_path / "ran")}, file)
    with pytest.raises(InputError, match="is damaged") as caught:
        write_portable(tmp_path, NAME, MANIFEST, tmp_path / "target")
    assert "something else than tensors" in caught.value.why
    assert not (tmp_path / "ran").exists()
