"""The search replayed on sweeps that somebody ran: near the best after a seventh of the trials."""

from __future__ import annotations

import numpy as np

from planner.search import run_search
from tests.unit.search.landscapes import memory_ports
from tests.unit.search.real_sweeps import Sweep, load_sweeps

_NUM_SEEDS = 3


def _median_regret(sweep: Sweep, *, sampler: str) -> float:
    regrets = []
    for seed in range(_NUM_SEEDS):
        choice = run_search(sweep.problem(seed=seed, sampler=sampler), ports=memory_ports(sweep)).choice
        regrets.append(sweep.regret(choice.winner.candidate) if choice else 1.0)
    return float(np.median(regrets))


def test_guided_is_within_one_percent_on_most_sweeps_and_ahead_of_tpe_and_random() -> None:
    sweeps = load_sweeps()
    assert len(sweeps) == 10
    regrets = {name: [_median_regret(sweep, sampler=name) for sweep in sweeps] for name in ("guided", "tpe", "random")}
    assert np.sum(np.array(regrets["guided"]) <= 0.01) >= 8, regrets["guided"]
    assert np.mean(regrets["guided"]) < 0.5 * min(np.mean(regrets["tpe"]), np.mean(regrets["random"]))
