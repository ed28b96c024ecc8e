"""The learning rate rises over the warm-up, falls over half a cosine, and survives a checkpoint."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from planner.runtime.schedule import WarmupCosine, learning_rate_fraction
from planner.spec import TrainingSpec

TRAINING = TrainingSpec(seq_len=8, global_batch_size=4, steps=100, warmup_steps=10, min_learning_rate_fraction=0.1)


def test_learning_rate_fraction_whole_run_warms_up_then_falls_to_floor() -> None:
    rates = [learning_rate_fraction(step, TRAINING) for step in range(130)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1.0
    assert all(later < earlier for earlier, later in pairwise(rates[10:101]))
    assert rates[55] == pytest.approx(0.55)  # half way between peak and floor
    assert rates[100:] == pytest.approx([0.1] * 30)


def test_warmup_cosine_state_loaded_continues_where_it_stopped() -> None:
    def fresh() -> WarmupCosine:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.2)
        schedule = WarmupCosine(optimizer, TRAINING)
        assert optimizer.param_groups[0]["lr"] == schedule.get_last_lr()[0]
        return schedule

    whole, begun, resumed = fresh(), fresh(), fresh()
    for _ in range(37):
        whole.step()
        begun.step()
    resumed.load_state_dict(begun.state_dict())
    whole.step()
    resumed.step()
    assert resumed.get_last_lr() == whole.get_last_lr() == [0.2 * learning_rate_fraction(38, TRAINING)]
