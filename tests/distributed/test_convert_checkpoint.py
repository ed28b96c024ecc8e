"""A training saved under one layout, converted, goes on under another with the losses of one that never stopped."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.runtime.convert_checkpoint import convert, main
from planner.spec import TrialTask
from planner.spec.codec import to_plain
from tests.distributed.layouts import ADAMW, SGD, make_task, run_layouts
from tests.distributed.test_whole import factory_model, with_model

TOLERANCE = {"fp32": 1e-4, "bf16": 1e-3}  # as between layouts that never stop, see test_same_result
SAVED = 3  # steps before the checkpoint, of 5
Axes = dict[str, Any]
Pair = tuple[str, Axes, Axes, Axes]  # name, what both have, saved under, continued under

LLAMA: Axes = {"model": "llama-tied", "optimizer": ADAMW, "micro_batch_size": 1}
BF16: Axes = {"model": "llama", "optimizer": ADAMW, "precision": "bf16"}
GPT2: Axes = {"model": "gpt2", "optimizer": SGD}  # q, k and v fused in one matrix, tied ends
PAIRS: tuple[Pair, ...] = (
    ("zero-1 data-2 to zero-2", LLAMA, {"zero": 1, "data": 2}, {"zero": 2}),
    ("zero-3 data-2 to zero-1 tensor-2", LLAMA, {"zero": 3, "data": 2}, {"zero": 1, "tensor": 2}),
    ("tensor-2 to pipeline-2", LLAMA, {"tensor": 2}, {"pipeline": 2}),
    ("pipeline-2 zero-1 to zero-3 data-2", LLAMA, {"pipeline": 2, "zero": 1}, {"zero": 3, "data": 2}),
    ("data-2 to zero-1 data-4", LLAMA, {"data": 2}, {"zero": 1, "data": 4}),
    ("bf16 tensor-2 pipeline-2 zero-1 to zero-3", BF16, {"tensor": 2, "pipeline": 2, "zero": 1}, {"zero": 3}),
    ("bf16 plain to pipeline-2", BF16, {}, {"pipeline": 2}),
    ("bf16 pipeline-2 to zero-2 data-2", BF16, {"pipeline": 2}, {"zero": 2, "data": 2}),
    ("fused tensor-2 to uneven stages", GPT2, {"tensor": 2}, {"pipeline": 2, "stage_layers": (1, 3)}),
)


def losses_of(results: dict[str, list[dict[str, Any]]], name: str) -> list[float]:
    wrong = [rank for rank in results[name] if "losses" not in rank]
    assert not wrong, wrong
    losses: list[float] = results[name][0]["losses"]
    return losses


def assert_goes_on(pairs: tuple[Pair, ...], folder: Path) -> None:
    """Each pair: saved under the first layout, converted, continued under the second, held against one plain run."""
    begun: dict[str, TrialTask] = {}
    resumed = {}
    for name, common, before, after in pairs:
        place = str(folder / name)
        begun[whole_name(common)] = make_task(**common)
        begun[name] = make_task(**common, **before, steps=SAVED, checkpoint_dir=place)
        resumed[name] = make_task(**common, **after, checkpoint_dir=place)
    first = run_layouts(begun, folder / "begun")
    for name, *_ in pairs:
        assert convert(folder / name) == f"portable_step{SAVED}"
    second = run_layouts(resumed, folder / "resumed")
    wrong = {}
    for name, common, _, _ in pairs:
        whole = losses_of(first, whole_name(common))
        stitched = losses_of(first, name) + losses_of(second, name)
        if stitched != pytest.approx(whole, rel=TOLERANCE[common.get("precision", "fp32")]):
            wrong[name] = (whole, stitched)
    assert not wrong


def whole_name(common: Axes) -> str:
    return f"whole {common['model']} {common.get('precision', 'fp32')}"


@pytest.mark.timeout(900)
def test_convert_between_layouts_loss_goes_on(tmp_path: Path) -> None:
    assert_goes_on(PAIRS, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("model", ["mixtral", "qwen3", "phi3", "gpt2"])
def test_convert_other_families_loss_goes_on(model: str, tmp_path: Path) -> None:
    wide = {"model": model, "optimizer": ADAMW, "micro_batch_size": 1}
    assert_goes_on(tuple((name, wide, *axes) for name, common, *axes in PAIRS if common is not BF16), tmp_path)


def test_convert_buffers_and_lost_moments_both_show_in_the_loss(tmp_path: Path) -> None:
    """The control: what a conversion that forgot something would do to the losses is far above the tolerance."""
    model = factory_model("averaging_regressor")
    common = {"model": "llama", "optimizer": ADAMW}
    folder, lost = tmp_path / "whole", tmp_path / "lost"
    begun = {
        "whole": with_model(make_task(**common), model),
        "begun": with_model(make_task(**common, steps=SAVED, checkpoint_dir=str(folder)), model),
    }
    first = run_layouts(begun, tmp_path / "begun")
    made = folder / convert(folder)
    shutil.copytree(folder, lost)
    moments = lost / made.name / "exp_avg.f32"
    moments.write_bytes(bytes(moments.stat().st_size))
    resumed = {
        "resumed": with_model(make_task(**common, zero=2, checkpoint_dir=str(folder)), model),
        "without moments": with_model(make_task(**common, zero=2, checkpoint_dir=str(lost)), model),
    }
    second = run_layouts(resumed, tmp_path / "resumed")
    whole = losses_of(first, "whole")
    assert losses_of(first, "begun") + losses_of(second, "resumed") == pytest.approx(whole, rel=1e-4)
    assert losses_of(second, "without moments")[1] != pytest.approx(whole[SAVED + 1], rel=1e-3)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint folder with two checkpoints of ZeRO-2 on two ranks."""
    place = tmp_path_factory.mktemp("saved") / "checkpoints"
    tasks = {
        f"to step {steps}": make_task("llama", zero=2, data=2, steps=steps, optimizer=ADAMW, checkpoint_dir=str(place))
        for steps in (1, 2)
    }
    for ranks in run_layouts(tasks, place.parent / "run").values():
        assert "losses" in ranks[0], ranks
    return place


@pytest.fixture
def checkpoints(saved: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def test_convert_twice_and_beside_the_old_one_changes_nothing_more(checkpoints: Path) -> None:
    before = {path: path.read_bytes() for path in (checkpoints / "global_step2").iterdir()}
    name = convert(checkpoints)
    index = (checkpoints / name / "planner_portable.json").stat()
    assert convert(checkpoints) == name
    assert (checkpoints / "latest").read_text() == name
    assert (checkpoints / name / "planner_portable.json").stat() == index
    assert {path: path.read_bytes() for path in (checkpoints / "global_step2").iterdir()} == before


def test_convert_puts_whole_parameters_together(checkpoints: Path) -> None:
    folder = checkpoints / convert(checkpoints)
    index = json.loads((folder / "planner_portable.json").read_text())
    named = {one["name"]: one for one in index["parameters"]}
    assert named["model.layers.3.mlp.down_proj.weight"]["shape"] == [32, 64]
    assert index["position"]["steps_done"] == 2
    assert {one["step"] for one in index["parameters"]} == {2}
    weights = np.fromfile(folder / "weights.f32", dtype="<f4")
    assert len(weights) == index["num_elements"] == len(np.fromfile(folder / "exp_avg_sq.f32", dtype="<f4"))
    assert np.isfinite(weights).all()
    norm = named["model.norm.weight"]
    assert weights[norm["offset"] : norm["offset"] + 32] == pytest.approx(1.0, abs=0.05)


def test_convert_by_task_does_only_what_is_needed(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for zero, expected in ((2, "nothing to convert"), (1, "loads under every layout"), (3, "nothing to convert")):
        task = make_task("llama", zero=zero, data=2, checkpoint_dir=str(checkpoints))
        (tmp_path / "task.json").write_text(json.dumps(to_plain(task)))
        assert main(["--task", str(tmp_path / "task.json")]) == 0
        assert expected in capsys.readouterr().out


DAMAGES = {
    "a file cut short": (
        lambda folder: truncate(folder / "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        "zero_pp_rank_1_mp_rank_00_optim_states.pt has",
    ),
    "a file lost": (
        lambda folder: (folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt").unlink(),
        "zero_pp_rank_0_mp_rank_00_optim_states.pt is missing",
    ),
    "a file of zeros": (
        lambda folder: zero_out(folder / "zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        "zero_pp_rank_0_mp_rank_00_optim_states.pt: ",
    ),
    "no parts": (lambda folder: (folder / "planner_parts_00001.json").unlink(), "planner_parts_00001.json"),
    "half a manifest": (lambda folder: truncate(folder / "planner_checkpoint.json"), "planner_checkpoint.json: "),
    "a newer manifest": (lambda folder: raise_format(folder / "planner_checkpoint.json"), "has format 99"),
}


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def zero_out(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def raise_format(path: Path) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 99}))


@pytest.mark.parametrize("damage", DAMAGES)
def test_convert_damaged_checkpoint_says_what_and_changes_nothing(
    damage: str, checkpoints: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoil, expected = DAMAGES[damage]
    spoil(checkpoints / "global_step2")
    assert main([str(checkpoints)]) == 2
    said = capsys.readouterr().err
    assert [line.split(":")[0] for line in said.splitlines()] == ["error", "why", "fix"]
    assert expected in said
    assert "go on from global_step1, which is whole" in said
    assert (checkpoints / "latest").read_text() == "global_step2"
    assert sorted(path.name for path in checkpoints.iterdir() if path.is_dir()) == ["global_step1", "global_step2"]


def test_convert_without_a_checkpoint_of_ours_is_refused(
    checkpoints: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    for place in (tmp_path / "empty", tmp_path / "nowhere"):
        assert main([str(place)]) == 2
        assert "there is no checkpoint in" in capsys.readouterr().err
    (checkpoints / "global_step2" / "planner_checkpoint.json").unlink()
    assert main([str(checkpoints)]) == 2
    assert "is not one that this meshplan wrote" in capsys.readouterr().err


def test_resume_from_damaged_checkpoints_says_so(checkpoints: Path, tmp_path: Path) -> None:
    """Of DeepSpeed's own and of a portable one; every rank that ends ends with our sentence."""
    own, portable, other = (tmp_path / name for name in ("own", "portable", "other"))
    for place in (own, portable, other):
        shutil.copytree(checkpoints, place)
    truncate(own / "global_step2" / "zero_pp_rank_1_mp_rank_00_optim_states.pt")
    truncate(portable / convert(portable) / "exp_avg.f32")
    convert(other)
    common = {"zero": 2, "data": 2, "optimizer": ADAMW}
    tasks = {
        "own": make_task("llama", **common, checkpoint_dir=str(own)),
        "portable": make_task("llama", **common, checkpoint_dir=str(portable)),
        "other": make_task("gpt2", **common, checkpoint_dir=str(other)),
    }
    results = run_layouts(tasks, tmp_path / "run")
    said = {name: " ".join(rank["error"] for rank in ranks) for name, ranks in results.items()}
    assert "global_step2 is damaged" in said["own"]
    assert "go on from global_step1, which is whole" in said["own"]
    assert "portable_step2 is damaged" in said["portable"]
    assert "exp_avg.f32 has" in said["portable"]
    assert "is of another model" in said["other"]
