"""Checkpoints and failures: the interval is the best one, and more nodes fail more often."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.catalog import load_model
from planner.cost import Failures, Target
from planner.cost.failures import DEFAULT_MTBF_S, checkpoint_bytes
from planner.spec import Precision, TrainingSpec

HOUR_S, DAY_S = 3600.0, 86_400.0


def _expected_loss(failures: Failures, *, interval_s: float, nodes: float) -> float:
    """Share lost with any interval: writing, and half an interval for each failure."""
    asked = np.array([nodes])
    return float(failures.write_s(asked)[0] / interval_s + interval_s / 2.0 / failures.between_s(asked)[0])


@given(st.floats(1e8, 1e14), st.floats(HOUR_S, 1e8), st.floats(1e8, 1e12), st.floats(1, 1e4), st.floats(0.2, 5.0))
def test_interval_loses_no_more_than_any_other(
    size: float, mtbf_s: float, speed: float, nodes: float, factor: float
) -> None:
    failures = Failures(checkpoint_bytes=size, mtbf_s=mtbf_s, write_bytes_per_s=speed)
    best = float(failures.interval_s(np.array([nodes]))[0])
    ours = _expected_loss(failures, interval_s=best, nodes=nodes)
    assert ours <= _expected_loss(failures, interval_s=best * factor, nodes=nodes) * (1 + 1e-9)


def test_interval_of_a_known_case() -> None:
    """C = 60 s, M = 24 h: sqrt(2 x 60 x 86,400) = 3,220 s."""
    failures = Failures(checkpoint_bytes=60e9, mtbf_s=10 * DAY_S, write_bytes_per_s=0.1e9)
    asked = np.array([10.0])
    assert failures.write_s(asked)[0] == pytest.approx(60.0)
    assert failures.between_s(asked)[0] == pytest.approx(DAY_S)
    assert failures.interval_s(asked)[0] == pytest.approx(3220, rel=1e-3)


def test_default_rate_is_that_of_its_source() -> None:
    """2,048 nodes: an interruption every 54 days / 419 = 3.09 hours."""
    failures = Failures(checkpoint_bytes=1.0)
    assert failures.between_s(np.array([2048.0]))[0] / HOUR_S == pytest.approx(3.09, rel=1e-2)
    assert pytest.approx(264, rel=1e-2) == DEFAULT_MTBF_S / DAY_S


def test_checkpoint_holds_weights_masters_and_moments() -> None:
    model, training = load_model("llama-3.1-8b"), TrainingSpec(seq_len=1, global_batch_size=1)
    assert checkpoint_bytes(model, training=training, precision=Precision.BF16) == 14 * model.num_parameters
    assert checkpoint_bytes(model, training=training, precision=Precision.FP32) == 12 * model.num_parameters


@given(st.floats(1e10, 1e14), st.floats(1.0, 1e9), st.floats(1.0, 1e9), st.floats(1.1, 10.0))
def test_later_deadline_is_never_harder(tokens: float, within_s: float, speed: float, factor: float) -> None:
    failures = Failures(checkpoint_bytes=1e11)
    early = Target(tokens=tokens, within_s=within_s, failures=failures, gpus_per_node=8)
    late = Target(tokens=tokens, within_s=within_s * factor, failures=failures, gpus_per_node=8)
    log_speed, world = np.array([np.log(speed)]), np.array([64.0])
    assert late.slack(log_speed, world)[0] > early.slack(log_speed, world)[0]
