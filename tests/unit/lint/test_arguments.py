"""The Trainer's arguments and accelerate's file, as people have them."""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.lint import as_deepspeed, looks_like_accelerate, read_accelerate, read_trainer_arguments

EIGHT = {"per_device_train_batch_size": 8, "bf16": True, "learning_rate": 1e-4, "lr_scheduler_type": "cosine"}


@pytest.mark.parametrize(
    "text",
    [
        "--per_device_train_batch_size 8 --bf16 --learning_rate 1e-4 --lr_scheduler_type cosine",
        "--per-device-train-batch-size=8 --bf16 True --learning-rate=0.0001 --lr_scheduler_type 'cosine'",
        "deepspeed train.py \\\n  --per_device_train_batch_size 8 \\\n  --bf16 true \\\n  --learning_rate 1e-4 "
        "--lr_scheduler_type cosine  # tuned",
        '{"per_device_train_batch_size": 8, "bf16": true, "learning_rate": 1e-4, "lr_scheduler_type": "cosine"}',
        "per_device_train_batch_size: 8\nbf16: true\nlearning_rate: 1.0e-4\nlr_scheduler_type: cosine\n",
        "micro_batch_size: 8\nbf16: true\nlr: 1e-4\nlr_scheduler: cosine\n",
    ],
)
def test_arguments_are_read_from_every_form(text: str) -> None:
    assert read_trainer_arguments(text, label="arguments") == EIGHT


def test_a_quote_that_never_ends_does_not_end_the_reading() -> None:
    assert read_trainer_arguments("--fp16 'x --max_grad_norm 1.0", label="arguments")["max_grad_norm"] == 1


@pytest.mark.parametrize("text", ["just words", "[1, 2]", '{"a": ', "a: [1"])
def test_what_holds_no_arguments_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_trainer_arguments(text, label="arguments")


ACCELERATE = """compute_environment: LOCAL_MACHINE
deepspeed_config:
  zero_stage: 3
  offload_optimizer_device: cpu
  gradient_accumulation_steps: 2
distributed_type: DEEPSPEED
mixed_precision: bf16
"""


def test_accelerates_block_is_the_configuration_that_accelerate_makes_of_it() -> None:
    file = read_accelerate(ACCELERATE, label="accelerate.yaml")
    assert looks_like_accelerate(file.value)
    document = as_deepspeed(file)
    assert document.value["zero_optimization"] == {"stage": 3, "offload_optimizer": {"device": "cpu"}}
    assert document.value["gradient_accumulation_steps"] == 2
    assert document.value["bf16"] == {"enabled": True}
    assert document.line_of("zero_optimization.offload_optimizer.device") == 4


def test_the_block_alone_is_taken_too() -> None:
    file = read_accelerate("zero_stage: 3\noffload_param_device: cpu\n", label="block.yaml")
    assert as_deepspeed(file).value["zero_optimization"]["offload_param"] == {"device": "cpu"}


@pytest.mark.parametrize("text", ["- a\n- b\n", "a: &x [*x]", "!!python/object/apply:os.system ['true']", "a: 1\na: 2"])
def test_yaml_that_is_no_accelerate_file_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_accelerate(text, label="accelerate.yaml")


def test_deepspeeds_own_file_is_not_taken_for_accelerates() -> None:
    assert not looks_like_accelerate({"train_batch_size": 8, "zero_optimization": {"stage": 2}})
