"""The report as one self-contained HTML file."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.report import ExplainedLine, FileText, ReportInput, TrialLog, render_report_html
from planner.spec import Crashed, Phase
from tests.unit.report.samples import cluster_report, make_candidate, make_trial, quickstart_report

_VOID = {"meta", "input"}


class _Page(HTMLParser):
    """Collects tags, attributes and text; refuses tags that do not nest."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def close(self) -> None:
        super().close()
        assert not self._open


def _parse(html: str) -> _Page:
    page = _Page()
    page.feed(html)
    page.close()
    return page


def _hostile(text: str) -> ReportInput:
    """The quickstart with `text` wherever a user, a log or a model's name can put words."""
    report = quickstart_report()
    crashed = Crashed(rank=0, phase=Phase.START, exit_code=1, message=text, log_tail=text)
    return dataclasses.replace(
        report,
        job=dataclasses.replace(report.job, model=dataclasses.replace(report.job.model, name=text)),
        plan=dataclasses.replace(report.plan, machine=text, versions=((text, text),)),
        trials=(*report.trials, make_trial(9, make_candidate(), crashed)),
        config_lines=(ExplainedLine(key=text, value=text, why=text),),
        logs=(TrialLog(number=9, text=text),),
        files=(FileText(path=text, does=text, lines=(text,), whys=(text,)),),
        plan_dir=text,
        launch_script=text,
    )


@pytest.mark.parametrize("report", [quickstart_report(), cluster_report()], ids=["quickstart", "cluster"])
def test_page_is_well_formed_and_asks_nothing_of_the_network(report: ReportInput) -> None:
    html = render_report_html(report)
    page = _parse(html)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(page.tags)
    assert all(value.startswith("#") for name, value in page.attributes if name in ("src", "href"))
    assert "url(" not in html and "@import" not in html
    (policy,) = [value for _, value in page.attributes if value.startswith("default-src")]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-")
    assert "'unsafe-inline'" not in policy.partition("script-src")[2]


def test_page_runs_only_its_own_script_and_that_one_bears_the_policys_hash() -> None:
    html = render_report_html(_hostile("</script><script>alert(1)</script>"))
    own = html.partition("<script>")[2].partition("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in html
    assert html.count("<script>") == 1 and "alert(1)</script>" not in html
    assert not re.search(r"\son\w+=", re.sub(r"<script.*?</script>", "", html, flags=re.S))


def test_page_links_lead_to_its_sections() -> None:
    page = _parse(render_report_html(quickstart_report()))
    targets = {value for name, value in page.attributes if name == "id"}
    links = {value.removeprefix("#") for name, value in page.attributes if name == "href"}
    assert links <= targets and len(links) == 19


def test_page_bars_are_as_wide_as_their_amounts() -> None:
    html = render_report_html(quickstart_report())
    styles = [value for name, value in _parse(html).attributes if name == "style"]
    widths = [float(style.removeprefix("width:").removesuffix("%")) for style in styles if style.startswith("width:")]
    model_bar = sum(widths[:6])
    assert model_bar == pytest.approx(300 / 1024 / 1.02 * 100, abs=0.1)
    assert all(0 < width <= 100 for width in widths)


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        '" onload="x',
        "' style='x",
        "&lt;b&gt;",
        "</style><b>",
        "</script><b>",
        "{{ 7 * 7 }}",
        "\x1b[31m<\x00",
    ],
)
def test_page_shows_hostile_values_as_text(text: str) -> None:
    plain = _parse(render_report_html(_hostile("name")))
    page = _parse(render_report_html(_hostile(text)))
    assert page.tags == plain.tags
    assert {name for name, _ in page.attributes} == {name for name, _ in plain.attributes}
    shown = text.replace("\x1b", "\N{REPLACEMENT CHARACTER}").replace("\x00", "\N{REPLACEMENT CHARACTER}")
    assert f"Plan for {shown}" in page.text


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1, max_size=60))
def test_page_of_any_text_has_the_same_elements(text: str) -> None:
    plain = _parse(render_report_html(_hostile("name")))
    assert _parse(render_report_html(_hostile(text))).tags == plain.tags


def test_page_reads_in_both_themes_and_at_phone_width() -> None:
    html = render_report_html(quickstart_report())
    assert "@media (prefers-color-scheme:dark)" in html
    assert 'name="viewport" content="width=device-width, initial-scale=1"' in html
    assert "overflow-x:auto" in html


def test_page_stays_small() -> None:
    assert len(render_report_html(quickstart_report())) < 80_000
