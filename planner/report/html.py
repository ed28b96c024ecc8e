"""A report document as one HTML file that opens offline: no network, no script made from data, every value escaped.

Markup is made by one Jinja template with autoescaping; data for the page's script travels as JSON in a block that is no
script, with `<` escaped. The content security policy in the file lets only the page's own script run (by its hash), so
that text from a model's name, a log or a config could not become one even if it got out of its place.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.report.document import TRIED_STATES, Document, History, HistoryStep, Point, PointState, Scatter, Section
from planner.report.units import printable

if TYPE_CHECKING:
    from jinja2 import Environment

_PAGE = Path(__file__).parent / "page"


def render_html(document: Document) -> str:
    """The whole page as text."""
    script = (_PAGE / "report.js").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template("report.html")
        .render(
            document=document,
            anchors=_anchors(document.sections),
            style=(_PAGE / "report.css").read_text(encoding="utf-8"),
            script=script,
            policy=f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; base-uri 'none'; "
            "form-action 'none'",
        )
    )


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader  # Keep here: the command line starts without it

    environment = Environment(
        loader=FileSystemLoader(_PAGE),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda value: printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "ensure_ascii": False}
    environment.filters.update(
        kind=lambda block: type(block).__name__, percent=_percent, dots=_dots, plot_data=_plot_data, marks=_marks
    )
    environment.filters.update(best_line=_best_line, states=_states)
    return environment


def _anchors(sections: tuple[Section, ...]) -> tuple[str, ...]:
    return tuple("".join(c if c.isalnum() else "-" for c in section.title.lower()) for section in sections)


def _percent(share: float) -> str:
    return f"{share * 100:.3f}%"


def _marks(plot: Scatter) -> list[Any]:
    """The points that are buttons of their own: what was tried and the choice, which is drawn last."""
    tried = [point for point in plot.points if point.state in TRIED_STATES]
    return sorted(tried, key=lambda point: (point.state is PointState.CHOSEN, point.x))


def _states(points: tuple[Point | HistoryStep, ...]) -> list[str]:
    """The states of what was tried that occur, for the key."""
    return [state.value for state in TRIED_STATES if any(point.state is state for point in points)]


def _dots(plot: Scatter) -> list[tuple[str, int, str]]:
    """(state, colour, path) of the candidates that only the model knows: one path draws all dots of one kind."""
    paths: dict[tuple[str, int], list[str]] = {}
    first = plot.filters[0].values if plot.filters else ()
    for point in plot.points:
        if point.state not in TRIED_STATES:
            colour = first.index(point.choices[0]) if first else 0
            place = f"M{point.x * 1000:.1f} {(1 - point.y) * 1000:.1f}h0"
            paths.setdefault((point.state.value.replace(" ", "-"), colour), []).append(place)
    return [(state, colour, "".join(path)) for (state, colour), path in sorted(paths.items())]


def _plot_data(plot: Scatter) -> dict[str, Any]:
    """What the page's script needs of a plot, for its filters and its tooltip."""
    return {
        "points": [
            [
                round(point.x, 4),
                round(point.y, 4),
                point.state.value.replace(" ", "-"),
                printable(point.name),
                list(point.choices),
                [printable(fact) for fact in point.facts],
            ]
            for point in (*(point for point in plot.points if point.state not in TRIED_STATES), *_marks(plot))
        ],
        "filters": [[one.name, list(one.values)] for one in plot.filters],
        "counts": Counter(point.state.value for point in plot.points),
    }


def _best_line(history: History) -> str:
    """The best so far as a stepped line: each value holds from its trial to the next."""
    count, parts = len(history.steps), list[str]()
    for place, step in enumerate(history.steps):
        if step.best_y is not None:
            x, y = (place + 0.5) / count * 1000, (1 - step.best_y) * 1000
            parts.append(f"H{x:.1f}V{y:.1f}" if parts else f"M{x:.1f} {y:.1f}")
    return "".join([*parts, "H1000"]) if parts else ""
