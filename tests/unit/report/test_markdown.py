"""The report as Markdown."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from planner.report import ExplainedLine, render_report_markdown
from planner.report.document import Column, Command, Document, Paragraph, Section, Table
from planner.report.markdown import BAR_WIDTH, render_markdown
from tests.unit.report.samples import quickstart_report


def _document(*blocks: object) -> Document:
    section = Section(title="Section", blocks=blocks)  # type: ignore[arg-type]
    return Document(title="Title", subtitle="", facts=(), sections=(section,))


def _cells(line: str) -> list[str]:
    """The cells of a table line as GitHub splits them: at every pipe that is not escaped."""
    return line.strip().removeprefix("| ").removesuffix(" |").replace("\\|", "\0").split(" | ")


def test_markdown_of_the_quickstart_has_aligned_tables_and_bars() -> None:
    text = render_report_markdown(quickstart_report())
    assert "| **3** | **ZeRO-1 dp2 mb8x2 bf16 full** | **measured**  |" in text
    assert "by the model  PPGGOOOAAAABBS................................|.|.  300 MiB (computed)" in text
    assert "              | less 5% kept free, usable 1.00 GiB" in text
    assert text.endswith("|\n")
    for line in text.splitlines():
        assert line == line.rstrip()


def test_markdown_bars_are_all_as_wide_as_their_scale() -> None:
    text = render_report_markdown(quickstart_report())
    bars = [line.split()[2] for line in text.splitlines() if line.startswith(("rank 0  ", "rank 1  "))]
    assert len(bars) == 3
    assert {len(bar) for bar in bars} == {BAR_WIDTH}


@given(st.text(max_size=40), st.text(max_size=40))
def test_markdown_table_keeps_its_columns_whatever_the_cells_hold(word: str, code: str) -> None:
    table = Table(columns=(Column(heading="a"), Column(heading="b", code=True)), rows=((word, code),))
    lines = render_markdown(_document(table)).strip().splitlines()
    assert all(len(_cells(line)) == 2 for line in lines[-3:])
    assert lines[-3].startswith("| a")


def test_markdown_fence_is_longer_than_any_run_of_backticks_inside() -> None:
    text = render_markdown(_document(Command(command="echo ````", does="prints")))
    assert "`````text\necho ````\n`````" in text


def test_markdown_text_cannot_become_markup() -> None:
    text = render_markdown(_document(Paragraph(text="<b>x</b> [link](http://x) *bold* snake_case # not a heading")))
    assert r"\<b\>x\</b\> \[link\](http://x) \*bold\* snake_case # not a heading" in text


def test_markdown_config_values_stand_in_code_spans() -> None:
    line = ExplainedLine(key="a|b", value='"`x`"', why="why")
    text = render_report_markdown(dataclasses.replace(quickstart_report(), config_lines=(line,), files=()))
    assert r"| `a\|b`" in text
    assert '`` "`x`" ``' in text
