"""What the child programs printed, to records: the staircase and the all-reduce by message size. Pure."""

from __future__ import annotations

import json
import math
from typing import Any

from planner.probe.records import BandwidthRow, LinkMeasurement, StaircaseResult

_GATHERS = 2  # a step has all-gathers and reduce-scatters beside all-reduces; the two run alike


class Unusable(ValueError):
    """A child's answer that is none."""


def parse_staircases(said: str) -> tuple[StaircaseResult, ...]:
    """One entry a device. Unusable for anything else."""
    entries = _answer(said)
    if not isinstance(entries, list):
        raise Unusable("the staircase printed no list")
    try:
        return tuple(
            StaircaseResult(**{**entry, "steps": tuple((int(batch), int(peak)) for batch, peak in entry["steps"])})
            for entry in entries
        )
    except (TypeError, KeyError, ValueError) as problem:
        raise Unusable(f"the staircase printed something else ({problem})") from None


def parse_link(said: str) -> LinkMeasurement:
    """The measurement with its two figures. Unusable for anything else.

    Bandwidth: the mean over all-reduce, all-gather and reduce-scatter of large messages, as the catalog's links have it
    (a switch that adds up makes all-reduce alone faster than the rest). Latency of one step: the shortest time of a
    small message over the steps of a tree or ring, whichever is fewer (`planner/cost/links.py`).
    """
    answer = _answer(said)
    try:
        rows = tuple(
            BandwidthRow(
                message_bytes=int(row["message_bytes"]),
                time_s=float(row["time_s"]),
                bus_bytes_per_s=float(row["bus_bytes_per_s"]),
            )
            for row in answer["rows"]
        )
        ranks, gathered = int(answer["ranks"]), float(answer["all_gather_bytes_per_s"])
        reduced = max(row.bus_bytes_per_s for row in rows[-2:])
        steps = min(2 * (ranks - 1), 2 * math.log2(ranks))
        return LinkMeasurement(
            backend=str(answer["backend"]),
            ranks=ranks,
            rows=rows,
            bandwidth_bytes_per_s=(reduced + _GATHERS * gathered) / (1 + _GATHERS),
            latency_s=min(row.time_s for row in rows) / steps,
        )
    except (TypeError, KeyError, ValueError, IndexError, ArithmeticError) as problem:
        raise Unusable(f"the all-reduce printed something else ({problem})") from None


def _answer(said: str) -> Any:
    lines = said.strip().splitlines()
    if not lines:
        raise Unusable("it printed nothing")
    try:
        return json.loads(lines[-1])
    except (ValueError, RecursionError):
        raise Unusable("it printed no JSON") from None
