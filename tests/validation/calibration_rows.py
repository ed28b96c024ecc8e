"""What a few trials teach the model: rows of one machine and model, some taken as trials, the error of the rest.

Every choice of trials is drawn at random many times over with one seed; figures are medians over all draws and all rows
left out. A sweep is one model on one set of devices, as a search meets it.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from planner.cost import corrected_time_s, fit_calibration
from planner.spec import Estimate, Measured, RankReport
from planner.spec._record import record
from tests.validation import h200_rows, published_rows, trainer_rows

DRAWS, SEED = 40, 20
TRIALS = (3, 6)
LEFT_OUT_ROWS = 2  # at least so many rows are judged


@record
class Known:
    """One row: the uncorrected estimate and what was measured."""

    estimate: Estimate
    measured: Measured


@record
class Learning:
    """Median errors of step time over the rows left out, before and after; rank correlation likewise; -1: too few
    rows for an order."""

    title: str
    trials: int
    sweeps: int
    before: float
    after: float
    order_before: float
    order_after: float


def sweeps() -> dict[str, list[list[Known]]]:
    """The sweeps by where they come from."""
    trainer = [Known(estimate=e, measured=_measured(time)) for _, time, _, e in trainer_rows.rows()]
    return {
        "H200, one model each": [*_h200("h200-sxm-141gb"), trainer],
        "the same, priced by an A100's data sheet": _h200("a100-sxm-80gb"),
        "vTrain, one model and number of A100 each": _published("vtrain_measured"),
        "ultrascale, one model and number of H100 each": _published("ultrascale_runs"),
    }


def _h200(gpu: str) -> list[list[Known]]:
    found: dict[str, list[Known]] = defaultdict(list)
    for row in h200_rows.rows(priced_as=gpu):
        if not row.ran_out and not row.emulated:
            measured = _measured(row.step_time_s, allocated_bytes=row.allocated_bytes)
            found[row.name.split()[0]].append(Known(estimate=row.estimate, measured=measured))
    return list(found.values())


def _published(source: str) -> list[list[Known]]:
    found: dict[str, list[Known]] = defaultdict(list)
    for row in published_rows.rows(source):
        if row.step_time_s:
            found[row.sweep].append(Known(estimate=row.estimate, measured=_measured(row.step_time_s)))
    return list(found.values())


def _measured(step_time_s: float, *, allocated_bytes: int = 0) -> Measured:
    rank = RankReport(
        rank=0,
        initialised_bytes=0,
        peak_allocated_bytes=allocated_bytes,
        peak_reserved_bytes=0,
        device_used_bytes=0,
        host_peak_bytes=0,
        build_s=0.0,
        engine_s=0.0,
        step_times_s=(),
        forward_s=0.0,
        backward_s=0.0,
        optimizer_s=0.0,
        losses=(),
        sequences_per_step=1,
        skipped_steps=0,
        allocator_retries=0,
    )
    return Measured(step_time_s=step_time_s, step_time_spread_s=0.0, tokens_per_s=1.0, ranks=(rank,))


def learning() -> tuple[Learning, ...]:
    """All figures of the table."""
    return tuple(
        _learn(title, trials=trials, groups=[group for group in groups if len(group) >= trials + LEFT_OUT_ROWS])
        for title, groups in sweeps().items()
        for trials in TRIALS
    )


def _learn(title: str, *, trials: int, groups: list[list[Known]]) -> Learning:
    errors: tuple[list[float], list[float]] = ([], [])
    orders: tuple[list[float], list[float]] = ([], [])
    chooser = np.random.default_rng(SEED)
    for group in groups:
        for _ in range(DRAWS):
            chosen = set(chooser.permutation(len(group))[:trials].tolist())
            fitted = fit_calibration([(group[i].estimate, group[i].measured) for i in sorted(chosen)])
            rest = [known for index, known in enumerate(group) if index not in chosen]
            seen = [known.measured.step_time_s for known in rest]
            before = [known.estimate.step_time_s for known in rest]
            after = [corrected_time_s(known.estimate, fitted) for known in rest]
            for which, times in enumerate((before, after)):
                errors[which].extend(abs(time / truth - 1) for time, truth in zip(times, seen))
                if len(rest) >= 5:
                    orders[which].append(_order(times, seen))
    return Learning(
        title=title,
        trials=trials,
        sweeps=len(groups),
        before=round(float(np.median(errors[0])), 4),
        after=round(float(np.median(errors[1])), 4),
        order_before=round(float(np.mean(orders[0])), 3) if orders[0] else -1.0,
        order_after=round(float(np.mean(orders[1])), 3) if orders[1] else -1.0,
    )


def _order(one: list[float], other: list[float]) -> float:
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def learning_table(rows: tuple[Learning, ...]) -> str:
    """The figures as a Markdown table."""
    lines = [
        "| rows | sweeps | trials | step time before | after | order before | after |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        orders = (f"{row.order_before:.3f}", f"{row.order_after:.3f}") if row.order_before >= 0 else ("–", "–")
        cells = (row.title, str(row.sweeps), str(row.trials), f"{row.before:.1%}", f"{row.after:.1%}", *orders)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)
