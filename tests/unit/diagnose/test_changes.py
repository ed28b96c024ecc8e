"""Changes of a config: the global batch is kept, whatever the file says; prices order the fixes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.app.diagnose import diagnose_logs
from planner.app.diagnose_request import DiagnoseRequest
from planner.app.diagnose_setting import gather
from planner.diagnose.config_change import (
    batch_change,
    config_part,
    global_batch_kept,
    laid_over,
    smaller_micro_batches,
)
from planner.diagnose.config_reading import read_memory_config
from planner.diagnose.pricing import price_variants
from planner.diagnose.records import LogFacts
from planner.diagnose.variants import best_of, device_variants
from planner.errors import InputError
from tests.unit.diagnose.reading import oom_text

_BATCH_OOM = 'Traceback (most recent call last):\n  File "/u/m.py", line 2, in forward\n' + oom_text(
    request=1.75, total=79.15, free=1.2, live=75.3, idle=0.6, in_use=77.9
)


def _global_batch(config: dict[str, Any], world: int) -> int:
    """What DeepSpeed makes of the triple (runtime/config.py, `_set_batch_related_parameters`)."""
    train, micro, accumulation = (
        config.get(key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    )
    if train and micro and accumulation:
        assert train == micro * accumulation * world
    if train:
        return int(train)
    return int(micro or 0) * int(accumulation or 1) * world


@settings(deadline=None)
@given(
    micro=st.integers(1, 64),
    accumulation=st.integers(1, 32),
    world=st.integers(1, 64),
    written=st.sampled_from(
        ["micro accumulation", "micro", "train micro", "train accumulation", "train micro accumulation"]
    ),
)
def test_smaller_micro_batch_keeps_the_global_batch(micro: int, accumulation: int, world: int, written: str) -> None:
    if written == "micro":
        accumulation = 1
    values = {
        "train_batch_size": micro * accumulation * world,
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": accumulation,
    }
    config: dict[str, Any] = {
        key: value for key, value in values.items() if any(word in key for word in written.split())
    }
    read = read_memory_config(config)
    for smaller in smaller_micro_batches(micro):
        change = batch_change(read, micro_batch_size=smaller, old_micro_batch_size=micro, old_accumulation=accumulation)
        changed = laid_over(config, change)
        assert _global_batch(changed, world) == _global_batch(config, world)
        assert global_batch_kept(read, read_memory_config(changed))


def test_changed_batch_is_noticed() -> None:
    old = read_memory_config({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2})
    new = read_memory_config({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2})
    assert not global_batch_kept(old, new)


def test_change_laid_over_a_config_leaves_both_as_they_were() -> None:
    config = {"a": 1, "zero_optimization": {"stage": 1, "overlap_comm": True}}
    change = {"zero_optimization": {"stage": 2}, "env": {"X": "1"}}
    assert laid_over(config, config_part(change)) == {"a": 1, "zero_optimization": {"stage": 2, "overlap_comm": True}}
    assert config["zero_optimization"] == {"stage": 1, "overlap_comm": True}


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["train_batch_size", "zero_optimization", "bf16", "optimizer", "tensor_parallel"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["stage", "enabled", "offload_param", "type", "reduce_bucket_size"]),
                    inner,
                    max_size=4,
                )
            ),
            max_leaves=10,
        ),
    )
)
def test_any_config_is_read(config: dict[str, Any]) -> None:
    assert 0 <= read_memory_config(config).zero_stage <= 3


def _request(tmp_path: Path, config: dict[str, Any], **changes: Any) -> DiagnoseRequest:
    log, file = tmp_path / "run.log", tmp_path / "ds.json"
    log.write_text(_BATCH_OOM)
    file.write_text(json.dumps(config))
    return DiagnoseRequest(paths=(log,), config=file, **changes)


_CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2, "overlap_comm": True},
}
_MODEL = {"model": "llama-3.1-8b", "gpu": "a100-80gb", "world_size": 8, "seq_len": 4096}


def test_fixes_of_a_known_model_carry_what_they_free_and_cost(tmp_path: Path) -> None:
    document = diagnose_logs(_request(tmp_path, _CONFIG, **_MODEL)).document
    assert document["cause"] == "batch-too-large"
    assert document["fixes"]
    for fix in document["fixes"]:
        assert fix["frees_bytes"] > 0
        assert isinstance(fix["slows_fraction"], float)
        change = fix["change"]
        micro, accumulation = (
            change.get("train_micro_batch_size_per_gpu", 8),
            change.get("gradient_accumulation_steps", 4),
        )
        assert micro * accumulation == 32
    fits = [fix["fits"] for fix in document["fixes"]]
    assert fits == sorted(fits, reverse=True)
    assert fits[0]


def test_first_fix_as_priced_is_what_estimate_says_of_the_changed_config(tmp_path: Path) -> None:
    request = _request(tmp_path, _CONFIG, **_MODEL)
    first = diagnose_logs(request).document["fixes"][0]
    assert request.config is not None
    request.config.write_text(json.dumps(laid_over(_CONFIG, config_part(first["change"]))))
    again = diagnose_logs(request).document
    assert again["computed"]["high_bytes"] <= again["computed"]["usable_bytes"]


def test_best_variants_rank_fitting_ones_first_and_never_repeat_a_set_of_axes(tmp_path: Path) -> None:
    setting = gather(_request(tmp_path, _CONFIG, **_MODEL), LogFacts()).setting
    assert setting is not None
    prices = price_variants(setting, device_variants(setting))
    best = best_of(prices, most=6)
    names = [frozenset(name for name, _ in price.variant.axes) for price in best]
    assert len(set(zip(names, [(p.variant.bucket_elements, p.variant.live_elements) for p in best]))) == len(best)
    fastest = min((price.step_time_s for price in prices if price.fits and price.frees_bytes > 0), default=None)
    assert fastest is not None
    assert any(price.step_time_s <= 1.1 * fastest for price in best)


def test_apply_writes_the_config_whole_and_keeps_the_global_batch(tmp_path: Path) -> None:
    request = _request(tmp_path, _CONFIG, apply=True, **_MODEL)
    result = diagnose_logs(request)
    assert result.applied is not None and request.config is not None
    written = json.loads(request.config.read_text())
    assert written == laid_over(_CONFIG, result.applied.change)
    assert _global_batch(written, 8) == _global_batch(_CONFIG, 8)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ds.json", "run.log"]


def test_apply_elsewhere_leaves_the_config_as_it_was(tmp_path: Path) -> None:
    request = _request(tmp_path, _CONFIG, apply=True, out_path=tmp_path / "new.json", **_MODEL)
    diagnose_logs(request)
    assert request.config is not None
    assert json.loads(request.config.read_text()) == _CONFIG
    assert (tmp_path / "new.json").exists()


def test_config_with_auto_is_changed_through_the_trainers_arguments(tmp_path: Path) -> None:
    config = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "zero_optimization": {"stage": 3},
    }
    document = diagnose_logs(_request(tmp_path, config)).document
    assert document["fixes"][0]["change"] == {
        "trainer_args": {"per_device_train_batch_size": "halve", "gradient_accumulation_steps": "double"}
    }


def test_total_alone_is_split_further_by_accumulation(tmp_path: Path) -> None:
    document = diagnose_logs(_request(tmp_path, {"train_batch_size": 64, "zero_optimization": {"stage": 1}})).document
    assert document["fixes"][0]["change"] == {"gradient_accumulation_steps": 2}


def test_config_alone_prices_its_buckets(tmp_path: Path) -> None:
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "fp16": {"enabled": True},
        "zero_optimization": {"stage": 2, "overlap_comm": True},
    }
    document = diagnose_logs(_request(tmp_path, config)).document
    bucket = next(
        fix for fix in document["fixes"] if "reduce_bucket_size" in fix["change"].get("zero_optimization", {})
    )
    assert bucket["frees_bytes"] == 2 * (500_000_000 - 50_000_000) * 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"config": None}, "nothing to change"),
        ({"fix_number": 99}, "there is no fix 99"),
        ({"out_path": Path("/nonexistent-folder/x.json")}, "no folder"),
    ],
)
def test_apply_that_cannot_be_done_is_refused_and_writes_nothing(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    from dataclasses import replace

    request = replace(_request(tmp_path, _CONFIG, apply=True, **_MODEL), **changes)
    with pytest.raises(InputError, match=words):
        diagnose_logs(request)
    assert json.loads((tmp_path / "ds.json").read_text()) == _CONFIG


def test_fix_of_the_environment_is_not_written_into_a_config(tmp_path: Path) -> None:
    log, config = tmp_path / "run.log", tmp_path / "ds.json"
    log.write_text("RuntimeError: DataLoader worker (pid 3) is killed by signal: Bus error.\n")
    config.write_text(json.dumps(_CONFIG))
    with pytest.raises(InputError, match="none of the fixes"):
        diagnose_logs(DiagnoseRequest(paths=(log,), config=config, apply=True))


def test_unreadable_config_and_unknown_model_are_the_users_errors(tmp_path: Path) -> None:
    log, config = tmp_path / "run.log", tmp_path / "ds.json"
    log.write_text(_BATCH_OOM)
    config.write_text('{"train_batch_size": [1, }')
    with pytest.raises(InputError):
        diagnose_logs(DiagnoseRequest(paths=(log,), config=config))
    with pytest.raises(InputError):
        diagnose_logs(DiagnoseRequest(paths=(log,), model="no-such-model"))


def test_visible_devices_map_the_number_in_the_message(tmp_path: Path) -> None:
    log = tmp_path / "run.log"
    log.write_text(
        "cmd: deepspeed --include localhost:3,5 train.py\n"
        + oom_text(request=0.1, total=23.69, free=0.02, live=22.9, idle=0.1)
    )
    document = diagnose_logs(DiagnoseRequest(paths=(log,))).document
    assert document["events"][0]["physical_gpu"] == "3"


_LOSS_OOM = (
    'Traceback (most recent call last):\n  File "/u/m.py", line 2, in compute_loss\n    loss = ce(logits.float())\n'
    + oom_text(request=7.83, total=79.10, free=3.2, live=73.1, idle=0.8, in_use=75.9)
)
_BOTH = {"bf16": {"enabled": True}, "fp16": {"enabled": True}}


def _told(tmp_path: Path, config: dict[str, Any] | None, *, text: str = _LOSS_OOM) -> dict[str, Any]:
    log, file = tmp_path / "train.log", tmp_path / "ds.json"
    log.write_text(text)
    if config is None:
        return dict(diagnose_logs(DiagnoseRequest(paths=(log,))).document)
    file.write_text(json.dumps(config))
    request = DiagnoseRequest(
        paths=(log,),
        config=file,
        model="llama-3.1-8b",
        gpu="h100",
        seq_len=4096,
        world_size=8,
        activation_checkpointing="full",
    )
    return dict(diagnose_logs(request).document)


def test_fixes_share_one_base_and_fit_only_with_headroom(tmp_path: Path) -> None:
    config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    document = _told(tmp_path, config)
    priced = [fix for fix in document["fixes"] if fix["basis"] == "computed" and "then up to" in fix["why"]]
    bases, usable = [], document["computed"]["usable_bytes"] / 2**30
    for fix in priced:
        after = float(fix["why"].partition("then up to ")[2].partition(" GiB")[0])
        bases.append(fix["frees_bytes"] / 2**30 + after)
        assert fix["fits"] == ("(fits)" in fix["why"])
        assert not fix["fits"] or after <= 0.95 * usable + 0.01
        assert ("(may fit" in fix["why"]) == (0.95 * usable < after <= usable)
    assert len(priced) > 2
    assert max(bases) - min(bases) < 0.02
    assert any("may fit" in fix["why"] for fix in priced)


def test_logits_that_do_not_fit_may_be_made_in_chunks(tmp_path: Path) -> None:
    config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    for document in (_told(tmp_path, config), _told(tmp_path, None)):
        assert any("Liger" in str(fix["change"].get("code")) for fix in document["fixes"])


def test_without_a_config_the_stage_is_proposed_on_a_condition(tmp_path: Path) -> None:
    (stage,) = [fix for fix in _told(tmp_path, None)["fixes"] if "stage" in fix["change"].get("zero_optimization", {})]
    assert stage["why"].startswith("if the run is below it now")


def test_errors_of_the_config_itself_are_told_in_one_line(tmp_path: Path) -> None:
    document = _told(tmp_path, {"train_micro_batch_size_per_gpu": 8, **_BOTH})
    assert f"the config itself has 1 error: planner check {tmp_path / 'ds.json'}" in document["notes"]
