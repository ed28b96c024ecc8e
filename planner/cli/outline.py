"""What a search is about to do, in lines: said at its start, and all that `--dry-run` prints."""

from __future__ import annotations

from rich.table import Table

from planner.app.progress import SearchOutline
from planner.cli.tables import add_cells, new_table
from planner.report.units import (
    format_bytes,
    format_count,
    format_duration_limit,
    format_rate_short,
    one_line,
    plural,
)
from planner.spec.kinds import TrialMode


def outline_lines(outline: SearchOutline) -> tuple[str, ...]:
    """What will be tried and at most how long it takes, in two to four lines."""
    legal = plural(outline.num_candidates, "legal candidate")
    lines = [f"{one_line(outline.job_name)}: {legal} of {plural(outline.num_combinations, 'combination')}"]
    if outline.num_screened:
        lines[0] += f"; {format_count(outline.num_screened)} cannot fit and will not be tried"
    if outline.num_alike and outline.mode is not TrialMode.NONE:
        lines.append(
            f"{format_count(outline.num_alike)} not tried: with one data-parallel rank one ZeRO stage stands for all"
        )
    lines.append(_trials_line(outline))
    if outline.num_trials_done:
        lines.append(f"{plural(outline.num_trials_done, 'trial')} kept from an earlier run")
    if outline.trials_note:
        lines.append(one_line(outline.trials_note))
    return tuple(lines)


def outline_tables(outline: SearchOutline) -> tuple[Table, ...]:
    """The candidates to be tried first, what the rules refused, and the axes left out; only those with a row."""
    first = new_table("first to try", "tokens/s", "memory (computed)", "origin")
    for row in outline.first_candidates:
        memory = format_bytes(row.device_used_bytes)
        add_cells(first, row.name, format_rate_short(row.tokens_per_s), memory, str(row.kind))
    refused = new_table("refused by rule", "combinations")
    for rule, count in outline.rejected:
        add_cells(refused, rule, format_count(count))
    left_out = new_table("axis left out", "why")
    for axis, reason in outline.left_out_axes:
        add_cells(left_out, axis, reason)
    return tuple(table for table in (first, refused, left_out) if table.row_count)


def _trials_line(outline: SearchOutline) -> str:
    devices = f"{format_count(outline.world_size)} x {one_line(outline.device_name)}"
    devices += f" ({format_bytes(outline.usable_bytes)} usable each)"
    if outline.mode is TrialMode.NONE:
        return f"no trials: the model alone decides, for {devices}"
    if not outline.max_trials:
        return f"no trial is left to run, for {devices}"
    trials = plural(outline.max_trials, f"{outline.mode} trial")
    limit = f"at most {format_duration_limit(outline.longest_s)} in all"
    made_of = f" ({one_line(outline.longest_note)})" if outline.longest_note else ""
    return f"at most {trials} for {devices}, {limit}{made_of}"
