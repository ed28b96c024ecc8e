"""A report document as one self-contained HTML file: no network, no script, every value escaped.

Elements are built by `_element`, which escapes whatever is not already `_Markup`; nothing else makes markup, so text
from a model's name, a log or a config cannot become part of the page. A content security policy in the file says the
same to the browser.
"""

from __future__ import annotations

from html import escape

from planner.report.document import Bar, Bars, Block, Command, Document, Paragraph, Section, Segment, Table
from planner.report.style import STYLE
from planner.report.units import printable
from planner.spec._record import record


@record
class _Markup:
    """Text that is HTML already."""

    html: str


def render_html(document: Document) -> str:
    """The whole page as text."""
    body = [_header(document), _navigation(document), *(_section(section) for section in document.sections)]
    head = [
        _void("meta", charset="utf-8"),
        _void("meta", name="viewport", content="width=device-width, initial-scale=1"),
        _void("meta", name="color-scheme", content="light dark"),
        _void("meta", http_equiv="Content-Security-Policy", content="default-src 'none'; style-src 'unsafe-inline'"),
        _element("title", document.title),
        _Markup(html=f"<style>{STYLE}</style>"),
    ]
    page = _element("html", _element("head", *head), _element("body", _element("main", *body)), lang="en")
    return f"<!doctype html>\n{page.html}\n"


def _element(tag: str, /, *children: _Markup | str, **attributes: str) -> _Markup:
    inner = "".join(child.html if isinstance(child, _Markup) else escape(printable(child)) for child in children)
    return _Markup(html=f"<{tag}{_attributes(attributes)}>{inner}</{tag}>")


def _void(tag: str, **attributes: str) -> _Markup:
    return _Markup(html=f"<{tag}{_attributes(attributes)}>")


def _attributes(attributes: dict[str, str]) -> str:
    """Underscores in names stand for hyphens; a trailing one keeps a name off Python's keywords."""
    named = ((name.rstrip("_").replace("_", "-"), value) for name, value in attributes.items())
    return "".join(f' {name}="{escape(printable(value))}"' for name, value in named)


def _header(document: Document) -> _Markup:
    facts = [
        _element(
            "div",
            _element("dt", name),
            _element("dd", value),
            _element("dd", origin, class_="origin"),
        )
        for name, value, origin in document.facts
    ]
    return _element(
        "header",
        _element("h1", document.title),
        _element("p", document.subtitle, class_="subtitle"),
        _element("dl", *facts, class_="facts"),
    )


def _navigation(document: Document) -> _Markup:
    links = [_element("a", section.title, href=f"#{_anchor(section)}") for section in document.sections]
    return _element("nav", *links, aria_label="Sections")


def _section(section: Section) -> _Markup:
    return _element(
        "section", _element("h2", section.title), *(_block(block) for block in section.blocks), id=_anchor(section)
    )


def _anchor(section: Section) -> str:
    return "".join(c if c.isalnum() else "-" for c in section.title.lower())


def _block(block: Block) -> _Markup:
    match block:
        case Paragraph():
            return _element("p", block.text)
        case Table():
            return _table(block)
        case Bars():
            return _bars(block)
        case Command():
            return _element("div", _element("pre", _element("code", block.command)), _element("p", block.does))


def _table(table: Table) -> _Markup:
    classes = [_cell_class(numeric=column.numeric, code=column.code) for column in table.columns]
    head = [_element("th", column.heading, scope="col", class_=name) for column, name in zip(table.columns, classes)]
    rows = [
        _element(
            "tr",
            *(_element("td", text, class_=name) for text, name in zip(row, classes)),
            class_="chosen" if index == table.highlighted else "",
        )
        for index, row in enumerate(table.rows)
    ]
    width = "wide" if len(table.columns) > 5 else "narrow"  # wide ones scroll sideways instead of wrapping
    inner = _element("table", _element("thead", _element("tr", *head)), _element("tbody", *rows), class_=width)
    return _element("div", inner, class_="scroll", tabindex="0")


def _cell_class(*, numeric: bool, code: bool) -> str:
    return "number" if numeric else "code" if code else "words"


def _bars(bars: Bars) -> _Markup:
    markers = [
        _element(
            "div",
            _element("span", marker.label),
            class_="marker",
            style=f"left:{_percent(marker.amount, bars.scale)}",
        )
        for marker in bars.markers
    ]
    rows = [_bar(bar, bars.scale) for bar in bars.bars]
    if markers:
        rows.append(_element("div", *markers, class_="markers"))
    plot = _element("div", *rows, class_="plot limited" if markers else "plot")
    return _element("figure", plot, *(_legend(bar) for bar in bars.legends), class_="bars")


def _bar(bar: Bar, scale: float) -> _Markup:
    parts = [
        _element(
            "span",
            class_=f"tone{segment.tone}",
            style=f"width:{_percent(segment.amount, scale)}",
            title=_segment_words(segment),
        )
        for segment in bar.segments
    ]
    label = f"{bar.label}: {bar.text}; " + ", ".join(_segment_words(segment) for segment in bar.segments)
    return _element(
        "div",
        _element("div", _element("b", bar.label), " ", bar.text, class_="bar-label"),
        _element("div", *parts, class_="bar", role="img", aria_label=label),
    )


def _legend(bar: Bar) -> _Markup:
    items = [
        _element("li", _element("i", class_=f"tone{segment.tone}"), f"{segment.label} ", _element("b", segment.text))
        for segment in bar.segments
    ]
    return _element("figcaption", _element("b", bar.label), _element("ul", *items))


def _segment_words(segment: Segment) -> str:
    return f"{segment.label} {segment.text}"


def _percent(amount: float, scale: float) -> str:
    return f"{amount / scale * 100:.3f}%"
