"""One estimate for people: where memory and time go, and whether it fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.cli.tables import new_table
from planner.report.units import format_bytes, format_fraction, format_seconds, format_tokens_per_s, one_line, plural
from planner.report.wording import MEMORY_LABELS, TIME_LABELS

_BAR_WIDTH = 30
# What a row that does not say is taken to mean; a test holds it to the use case's own defaults.
_ASSUMED = (
    ("micro_batch_size", "micro-batch 1"),
    ("activation_checkpointing", "no checkpointing"),
)


def estimate_view(result: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[RenderableType, ...]:
    """The tables and the verdict of a result of `estimate`; reasons alone where a rule forbids the configuration.

    `row`: what was asked, so that what was not is told as assumed.
    """
    if not result["feasible"]:
        reasons = (Text(f"- {one_line(reason)}") for reason in result["reasons"])
        return (Text("not legal:", style="bold red"), *reasons)
    verdict = estimate_verdict(result)
    return (
        *_assumed(row),
        _memory_table(result, num_stages=row.get("pipeline_parallel_size", 1)),
        _memory_words(result["memory"]),
        Text(),
        _time_table(result),
        _time_words(result),
        Text(),
        Text(verdict, style="bold green" if result["fits"] else "bold red"),
    )


def estimate_verdict(result: Mapping[str, Any]) -> str:
    """`fits with 16 GiB to spare`, `does not fit by 12 GiB`, or that it is not legal, in one line."""
    if not result["feasible"]:
        return "not legal: " + "; ".join(one_line(reason) for reason in result["reasons"])
    memory = result["memory"]
    over_bytes = memory["high_bytes"] - memory["usable_bytes"]
    spare_bytes = memory["usable_bytes"] - max(memory["high_bytes"], memory["device_used_bytes"])
    over_host_bytes = memory["host_bytes"] - memory["host_usable_bytes"]
    if result["fits"]:
        if spare_bytes < 0:  # the allocator gives its cached blocks back before it fails
            return f"fits with nothing to spare: cached blocks fill the device ({result['kind']})"
        return f"fits with {format_bytes(spare_bytes)} to spare ({result['kind']})"
    if over_bytes > 0:
        return f"does not fit by {format_bytes(over_bytes)} ({result['kind']})"
    return f"does not fit the host's memory by {format_bytes(over_host_bytes)} ({result['kind']})"


def _assumed(row: Mapping[str, Any]) -> tuple[Text, ...]:
    """What the row leaves to its defaults, in one line; nothing where it says all of it."""
    said = []
    if "world_size" not in row:
        if "nodes" not in row or "gpus_per_node" not in row:
            gpus = f"{row.get('gpus_per_node', 8)} GPUs"
            said.append(
                f"{plural(row.get('nodes', 1), 'node')} of {gpus}" + ("" if "gpu" in row else " (h100-sxm-80gb)")
            )
        elif "gpu" not in row:
            said.append("h100-sxm-80gb")
    said += [words for key, words in _ASSUMED if key not in row]
    return (Text(f"assumed: {', '.join(said)}", style="dim"),) if said else ()


def _memory_table(result: Mapping[str, Any], *, num_stages: int) -> Table:
    memory = result["memory"]
    rows = [(label, memory["breakdown"][field]) for field, label in MEMORY_LABELS]
    title = "memory of the worst rank"
    if num_stages > 1:
        title += f" (pipeline stage {memory['worst_stage']})"
    return _breakdown_table(title, rows, total=memory["device_used_bytes"], render=format_bytes)


def _memory_words(memory: Mapping[str, Any]) -> Text:
    lines = [
        f"usable {format_bytes(memory['usable_bytes'])}; it cannot do without "
        f"{format_bytes(memory['low_bytes'])} to {format_bytes(memory['high_bytes'])}",
        f"allocated {format_bytes(memory['allocated_bytes'])}, reserved {format_bytes(memory['reserved_bytes'])}, "
        f"host {format_bytes(memory['host_bytes'])} of {format_bytes(memory['host_usable_bytes'])}",
    ]
    if memory["disk_bytes"]:
        lines[-1] += f", disk {format_bytes(memory['disk_bytes'])}"
    return Text("\n".join(lines), style="dim")


def _time_table(result: Mapping[str, Any]) -> Table:
    labels = dict(TIME_LABELS)
    rows = [(labels.get(field, field), amount) for field, amount in result["time_breakdown"].items()]
    return _breakdown_table("time of one optimizer step", rows, total=result["step_time_s"], render=format_seconds)


def _time_words(result: Mapping[str, Any]) -> Text:
    speed = format_tokens_per_s(result["tokens_per_s"])
    per_gpu = format_tokens_per_s(result["tokens_per_s_per_gpu"])
    return Text(f"{speed}, {per_gpu} per GPU, {format_fraction(result['mfu'])} of the peak (MFU)", style="dim")


def _breakdown_table(title: str, rows: list[tuple[str, float]], *, total: float, render: Any) -> Table:
    """Parts that are not zero, their amounts, shares as bars, and the total they sum to."""
    table = new_table(title, "", "share")
    table.add_column()
    largest = max([amount for _, amount in rows], default=0) or 1
    for label, amount in rows:
        if amount:
            cells = (label, render(amount), format_fraction(amount / total) if total else "")
            table.add_row(
                *(Text(cell) for cell in cells), Text("█" * round(amount / largest * _BAR_WIDTH), style="cyan")
            )
    table.add_row(*(Text(cell, style="bold") for cell in ("total", render(total), "", "")))
    return table
