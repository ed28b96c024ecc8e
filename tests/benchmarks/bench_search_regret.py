"""How near the best the search ends, beside Optuna's TPE and random search over the same legal candidates.

    python -m tests.benchmarks.bench_search_regret [--seeds 20]

Regret: by what share the winner is slower than the best of the whole space, which is known here. Each search may try
15 % of the candidates (made-up spaces: at most 24) and does not end early; `ending` is the guided search that may.
Sweeps are those of tests/data/sweeps with the cost model's prior (`*.jsonl`: run by `sweep_gpu`); made-up machines are
those of the search's tests, their prior off by about a third in every coefficient. Nothing is run: outcomes come from
tables.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from planner.search import SearchResult, run_search
from tests.unit.search.kept_sweeps import load_kept_sweeps
from tests.unit.search.landscapes import (
    EIGHT_NODES,
    ONE_GPU,
    ONE_GPU_FINE,
    ONE_NODE,
    Shape,
    TableEvaluator,
    find_row,
    make_landscape,
    memory_ports,
)
from tests.unit.search.real_sweeps import Sweep, load_sweeps

_SAMPLERS = ("guided", "tpe", "random")
_MADE_UP = {"one GPU": ONE_GPU, "one GPU, fine": ONE_GPU_FINE, "one node": ONE_NODE, "eight nodes": EIGHT_NODES}


def _sweep_once(sweep: Sweep, sampler: str, seed: int, *, early_end: bool) -> tuple[float, int]:
    result = run_search(sweep.problem(seed=seed, sampler=sampler, early_end=early_end), ports=memory_ports(sweep))
    return (sweep.regret(result.choice.winner.candidate) if result.choice else 1.0), len(result.trials)


def _made_up_once(shape: Shape, sampler: str, seed: int, *, early_end: bool) -> tuple[float, int]:
    landscape = make_landscape(shape, seed=seed)
    max_trials = min(24, int(0.15 * len(landscape.columns)))
    space = landscape.problem(max_trials=max_trials, seed=seed, sampler=sampler, early_end=early_end)
    result: SearchResult = run_search(space, ports=memory_ports(TableEvaluator(landscape, noise_seed=seed)))
    if result.choice is None:
        return 1.0, len(result.trials)
    return landscape.regret(find_row(landscape.columns, result.choice.winner.candidate)), len(result.trials)


def _rank_correlation(sweep: Sweep) -> float:
    ran = sweep.tokens_per_s > 0
    ranks = [np.argsort(np.argsort(column[ran])) for column in (sweep.priors.tokens_per_s, sweep.tokens_per_s)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _prior_alone(sweep: Sweep) -> float:
    keeps = sweep.priors.high_bytes <= 0.95 * sweep.usable_bytes
    row = int(np.argmax(np.where(keeps, sweep.priors.tokens_per_s, 0.0)))
    return 1.0 - float(sweep.tokens_per_s[row]) / sweep.best_tokens_per_s


def _cell(regrets: list[float]) -> str:
    return f"{np.median(regrets):7.1%} {np.quantile(regrets, 0.9):6.1%}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seeds", type=int, default=20)
    seeds = range(parser.parse_args().seeds)
    started_s = time.monotonic()
    print(f"regret, median and 90th percentile of {len(seeds)} seeds")
    head = "".join(f"{name:>16}" for name in (*_SAMPLERS, "ending"))
    print(f"{'space':32}{'size':>5}{'trials':>7}{'prior: order, alone':>21}{head}  (trials)")
    for sweep in (*load_kept_sweeps(), *load_sweeps()):
        runs = {name: [_sweep_once(sweep, name, seed, early_end=False)[0] for seed in seeds] for name in _SAMPLERS}
        ending = [_sweep_once(sweep, "guided", seed, early_end=True) for seed in seeds]
        cells = "".join(f"{_cell(runs[name]):>16}" for name in _SAMPLERS) + f"{_cell([one[0] for one in ending]):>16}"
        prior = f"{_rank_correlation(sweep):13.2f} {_prior_alone(sweep):6.0%} "
        mean = np.mean([one[1] for one in ending])
        print(f"{sweep.name:32}{len(sweep.columns):5}{sweep.num_trials:7}{prior}{cells}  ({mean:.1f})", flush=True)
    for label, shape in _MADE_UP.items():
        runs = {name: [_made_up_once(shape, name, seed, early_end=False)[0] for seed in seeds] for name in _SAMPLERS}
        ending = [_made_up_once(shape, "guided", seed, early_end=True) for seed in seeds]
        size = len(make_landscape(shape, seed=0).columns)
        cells = "".join(f"{_cell(runs[name]):>16}" for name in _SAMPLERS) + f"{_cell([one[0] for one in ending]):>16}"
        mean = np.mean([one[1] for one in ending])
        trials = min(24, int(0.15 * size))
        print(f"{'made up: ' + label:32}{size:5}{trials:7}{'':21}{cells}  ({mean:.1f})", flush=True)
    print(f"{time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main()
