"""`launch.command` as a trial runs it: what follows the plan, what accelerate gets, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from planner.emit import following_notes, render_ds_config, script_call, without_auto
from planner.emit.command import read_command
from planner.errors import InputError, NotExpressible
from planner.spec import Launcher, LaunchSpec, Precision, ScriptCall, ScriptKind
from planner.spec.script import CONFIG_MARK
from tests.unit.emit.samples import DEEPSPEED_VERSION, make_candidate, make_job

TRAINER = (
    "train.py --deepspeed {deepspeed_config} --per_device_train_batch_size 8 --gradient-accumulation-steps=4 --bf16 "
    "--fp16 False --gradient_checkpointing --output_dir out"
)


def call_of(command: str, kind: ScriptKind = ScriptKind.DEEPSPEED, **candidate: Any) -> ScriptCall:
    job = make_job(launch=LaunchSpec(command=command, script_kind=kind, folder="/project"))
    call = script_call(job, make_candidate(micro=2, accumulation=2, data=4, **candidate))
    assert call is not None
    return call


def test_reference_trainer_has_no_script_call() -> None:
    assert script_call(make_job(), make_candidate()) is None


def test_trainers_batch_arguments_follow_the_plan_and_all_else_stays() -> None:
    words = call_of(TRAINER, ScriptKind.HUGGINGFACE, checkpointing="full").words
    assert words == (
        *("train.py", "--deepspeed", CONFIG_MARK, "--per_device_train_batch_size=2", "--gradient-accumulation-steps=2"),
        *("--bf16=True", "--fp16=False", "--gradient_checkpointing=True", "--output_dir", "out"),
    )
    fp32 = call_of(TRAINER, ScriptKind.HUGGINGFACE, precision=Precision.FP32).words
    assert "--bf16=False" in fp32 and "--gradient_checkpointing=False" in fp32


def test_arguments_of_other_scripts_are_their_own() -> None:
    assert "8" in call_of(TRAINER).words
    assert following_notes(LaunchSpec(command=TRAINER)) == ()


def test_what_follows_is_told_unless_it_was_a_slot_already() -> None:
    notes = following_notes(LaunchSpec(command=TRAINER, script_kind=ScriptKind.HUGGINGFACE))
    assert len(notes) == 5 and "--per_device_train_batch_size 8; it follows" in notes[0]
    slots = "t.py {deepspeed_config} --per_device_train_batch_size {micro_batch_size}"
    assert following_notes(LaunchSpec(command=slots, script_kind=ScriptKind.HUGGINGFACE)) == ()


@pytest.mark.parametrize("start", ["accelerate", "/venv/bin/accelerate"])
def test_accelerate_options_are_kept_apart_from_the_script(start: str) -> None:
    command = (
        f"{start} launch --config_file my.yaml --deepspeed_config_file {{deepspeed_config}} t.py --num_processes 3"
    )
    call = call_of(command, ScriptKind.ACCELERATE)
    assert call.uses_accelerate and call.words == ("t.py", "--num_processes", "3")
    assert call.accelerate_words == ("--config_file", "my.yaml", "--deepspeed_config_file", CONFIG_MARK)
    module = call_of("accelerate launch --deepspeed_config_file {deepspeed_config} -m pkg.train --x 1")
    assert (module.is_module, module.words) == (True, ("pkg.train", "--x", "1"))


@pytest.mark.parametrize(
    "option", ["--num_processes 2", "--num-machines=1", "--zero_stage 3", "--mixed_precision bf16"]
)
def test_accelerate_options_that_the_plan_decides_are_refused(option: str) -> None:
    command = f"accelerate launch {option} --deepspeed_config_file {{deepspeed_config}} t.py"
    with pytest.raises(InputError, match=option.split()[0].partition("=")[0]):
        read_command(LaunchSpec(command=command))


def test_deepspeed_launcher_hands_the_local_rank_on_as_it_will() -> None:
    job = make_job(launch=LaunchSpec(command="t.py {deepspeed_config}", launcher=Launcher.DEEPSPEED))
    call = script_call(job, make_candidate())
    assert call is not None and call.passes_local_rank


def test_layout_that_cannot_reach_the_script_is_no_trial() -> None:
    with pytest.raises(NotExpressible, match="pipeline_parallel_size"):
        call_of("t.py {deepspeed_config}", pipeline=2)


def test_files_are_named_once_it_is_known_where_they_lie() -> None:
    call = call_of("t.py --config={deepspeed_config} {{kept}}").filled(config_path="/a b/c.json", task_path="/t.json")
    assert call.words == ("t.py", "--config=/a b/c.json", "{kept}")


@pytest.mark.parametrize("kind", [ScriptKind.HUGGINGFACE, ScriptKind.ACCELERATE])
def test_loops_that_make_their_optimizer_get_none_in_the_config(kind: ScriptKind) -> None:
    job = make_job(launch=LaunchSpec(command="t.py {deepspeed_config}", script_kind=kind))
    config = render_ds_config(make_candidate(stage=2), job=job, deepspeed_version=DEEPSPEED_VERSION)
    assert "optimizer" not in config and config["zero_optimization"]["stage"] == 2
    assert config["gradient_clipping"] == ("auto" if kind is ScriptKind.HUGGINGFACE else 1.0)
    assert "auto" not in json.dumps(without_auto(config))


def test_config_of_ones_own_keeps_all_that_the_plan_does_not_decide() -> None:
    own = {
        "train_batch_size": "auto",
        "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
        "fp16": {"enabled": "auto", "loss_scale": 0},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "scheduler": {"type": "WarmupLR"},
    }
    launch = LaunchSpec(command="t.py {deepspeed_config}", base_config_json=json.dumps(own))
    candidate = make_candidate(data=4, micro=2, accumulation=2, stage=1)
    config = render_ds_config(candidate, job=make_job(launch=launch), deepspeed_version=DEEPSPEED_VERSION)
    assert config["train_batch_size"] == 16 and config["train_micro_batch_size_per_gpu"] == 2
    assert config["zero_optimization"] == {"stage": 1, "reduce_bucket_size": "auto"}
    assert config["fp16"] == {"enabled": False, "loss_scale": 0} and config["bf16"] == {"enabled": True}
    assert (config["optimizer"], config["scheduler"]) == (own["optimizer"], own["scheduler"])
