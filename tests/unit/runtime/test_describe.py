"""Tracing a factory's module finds its sizes, and a factory that cannot be used is refused with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch

from planner.errors import InputError
from planner.runtime.describe import describe_factory
from planner.spec import TracedModule
from planner.spec.codec import from_plain
from tests.distributed.factories import Regressor
from tests.distributed.layouts import ROOT

HERE = "tests.distributed.factories"
WIDTH, DEPTH = 16, 3


@pytest.mark.parametrize("factory", ["regressor", "scored_regressor", "peeking_regressor", "particular_regressor"])
def test_describe_known_module_counts_parameters_flops_and_saved_bytes(factory: str) -> None:
    traced = describe_factory(f"{HERE}:{factory}", seq_len=10)

    assert traced.num_parameters == sum(parameter.numel() for parameter in Regressor().parameters())
    assert traced.largest_parameter == 2 * WIDTH * WIDTH
    # 2 FLOP per weight of a matrix and position
    assert traced.forward_flops_per_sample == 10 * 2 * (DEPTH * 4 * WIDTH * WIDTH + WIDTH)
    # per block and position: input of gelu and its output (2 widths each); the input of the next layer
    least = 4 * 10 * DEPTH * 5 * WIDTH
    assert least <= traced.saved_bytes_per_sample_fp32 <= 1.2 * least
    assert traced.tokens_per_sample == 10


def test_describe_saved_bytes_grow_with_sequence() -> None:
    short, long = (describe_factory(f"{HERE}:regressor", seq_len=n).saved_bytes_per_sample_fp32 for n in (8, 16))
    assert long == pytest.approx(2 * short, rel=0.05)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        (f"{HERE}:missing", "cannot be imported"),
        ("no_such_package.models:build", "cannot be imported"),
        ("just_a_name", "does not name a factory"),
        (f"{HERE}:not_a_function", "no function"),
        (f"{HERE}:not_a_module", "not an nn.Module"),
        (f"{HERE}:without_loss", "gives no loss"),
        (f"{HERE}:with_stray_tensor", "scale has shape"),
    ],
)
def test_describe_unusable_factory_refused_with_reason(factory: str, reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        describe_factory(factory, seq_len=8)


def test_describe_program_prints_only_the_record() -> None:
    command = [sys.executable, "-m", "planner.runtime.describe", "--factory", f"{HERE}:regressor", "--seq-len", "8"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert from_plain(TracedModule, json.loads(ended.stdout)) == describe_factory(f"{HERE}:regressor", seq_len=8)
    assert not torch.cuda.is_initialized()
