"""Plots as lines of plain characters, for Markdown and terminals alike."""

from __future__ import annotations

from planner.report.document import History, Listing, Pass, PointState, Scatter, Schedule
from planner.report.units import printable

SCATTER_COLUMNS, SCATTER_ROWS = 64, 16
SCHEDULE_COLUMNS = 76
HISTORY_COLUMNS = 24

_SIGNS = {
    PointState.TOO_LARGE: "x",
    PointState.FITS: "·",
    PointState.FAILED: "!",
    PointState.EMULATED: "e",
    PointState.MEASURED: "m",
    PointState.CHOSEN: "@",
}  # in the order they cover one another
_SIGN_WORDS = {
    PointState.CHOSEN: "the choice",
    PointState.MEASURED: "measured",
    PointState.EMULATED: "emulated",
    PointState.FAILED: "tried, did not run",
    PointState.FITS: "fits by the model",
    PointState.TOO_LARGE: "not sure to fit",
}


def scatter_lines(plot: Scatter) -> tuple[str, ...]:
    """The plot on a grid of characters, with its axes and what the signs mean."""
    grid = [[" "] * SCATTER_COLUMNS for _ in range(SCATTER_ROWS)]
    for limit in plot.limits:
        if 0 <= limit.at <= 1:
            for row in grid:
                row[_place(limit.at, SCATTER_COLUMNS)] = "|"
    order = list(_SIGNS)
    for point in sorted(plot.points, key=lambda point: order.index(point.state)):
        grid[SCATTER_ROWS - 1 - _place(point.y, SCATTER_ROWS)][_place(point.x, SCATTER_COLUMNS)] = _SIGNS[point.state]
    labels = {SCATTER_ROWS - 1 - _place(tick.at, SCATTER_ROWS): tick.label for tick in plot.y_ticks}
    width = max((len(label) for label in labels.values()), default=0)
    lines = [plot.y_title]
    lines += [f"{labels.get(place, ''):>{width}} |{''.join(row)}" for place, row in enumerate(grid)]
    lines.append(f"{'':>{width}} +{'-' * SCATTER_COLUMNS}")
    lines += [f"{'':>{width}}  {_tick_line(plot)}", f"{'':>{width}}  {plot.x_title}; | {_limits(plot)}"]
    used = {point.state for point in plot.points}
    words = ", ".join(f"{_SIGNS[state]} {word}" for state, word in _SIGN_WORDS.items() if state in used)
    return tuple(line.rstrip() for line in (*lines, words))


def _limits(plot: Scatter) -> str:
    return ", ".join(limit.label for limit in plot.limits if limit.label)


def _tick_line(plot: Scatter) -> str:
    line = [" "] * (SCATTER_COLUMNS + 10)
    end = 0
    for tick in plot.x_ticks:
        place = _place(tick.at, SCATTER_COLUMNS)
        if place >= end and place + len(tick.label) <= len(line):
            line[place : place + len(tick.label)] = tick.label
            end = place + len(tick.label) + 1
    return "".join(line)


def _place(share: float, cells: int) -> int:
    return min(max(int(share * cells), 0), cells - 1)


def history_lines(history: History) -> tuple[str, ...]:
    """A line a trial: a bar as long as what it reached, a mark where a new best came."""
    width = max(len(step.name) for step in history.steps)
    lines, best = list[str](), None
    for step in history.steps:
        bar = "#" * round((step.y or 0.0) * HISTORY_COLUMNS)
        is_new = step.best_y is not None and (best is None or step.best_y > best)
        best = step.best_y
        sign = " best so far" if is_new else ""
        lines.append(f"{step.number:>4}  {step.name:<{width}}  {bar:<{HISTORY_COLUMNS}} {step.text}{sign}")
    return tuple(printable(line) for line in lines)


def schedule_lines(schedule: Schedule) -> tuple[str, ...]:
    """A line a stage: a letter a micro-batch, forward in upper and backward in lower case; the update as `=`."""
    names = list(dict.fromkeys(cell.label for row in schedule.rows for cell in row.cells if cell.label))
    letters = {name: "…" if name == "…" else chr(ord("A") + place % 26) for place, name in enumerate(names)}
    width = max(len(row.label) for row in schedule.rows)
    lines = []
    for row in schedule.rows:
        line = ["."] * SCHEDULE_COLUMNS
        for cell in row.cells:
            letter = letters.get(cell.label, "=")
            letter = letter.lower() if cell.kind is Pass.BACKWARD else letter
            start, end = round(cell.start * SCHEDULE_COLUMNS), round(cell.end * SCHEDULE_COLUMNS)
            line[start : max(end, start + 1)] = letter * (max(end, start + 1) - start)
        lines.append(f"{row.label:<{width}}  {''.join(line[:SCHEDULE_COLUMNS])}")
    numbered = [name for name in names if name != "…"]
    words = f"{letters[numbered[0]]}: micro-batch {numbered[0]}"
    if len(numbered) > 1:
        words = f"{letters[numbered[0]]} to {letters[numbered[-1]]}: micro-batches {numbered[0]} to {numbered[-1]}"
    return (
        *lines,
        f"{words}; upper case forward, lower case backward, = reduce and update, . waiting; {schedule.span}",
    )


def listing_lines(listing: Listing) -> tuple[str, ...]:
    """The file with its reasons behind the lines; those that the file itself says in a comment are not repeated."""
    whole = " ".join(line.text.strip("# ") for line in listing.lines)
    reasons = [line.why if line.why and line.why not in whole else "" for line in listing.lines]
    width = min(max((len(line.text) for line, why in zip(listing.lines, reasons) if why), default=0), 60)
    return tuple(
        printable(f"{line.text:<{width}}  <- {why}" if why else line.text) for line, why in zip(listing.lines, reasons)
    )
