"""The report as people meet it: in a browser, in both themes, on a phone, by mouse, finger and keyboard."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from planner.app.plan import plan_job
from planner.app.progress import SilentProgress
from planner.app.requests import PlanRequest
from planner.report import ReportInput, TrialLog, render_report_html
from planner.spec import TrialMode
from tests.browser.pages import CONTRAST, OPEN_ALL, OVERLAPS, WIDTHS, opened
from tests.unit.report.samples import quickstart_report

if TYPE_CHECKING:
    from playwright.sync_api import Browser

JOBS = Path(__file__).parents[2] / "configs" / "jobs"
LARGE = "llama-3.1-405b-scale"
HOSTILE = "<script>alert(1)</script>"
MOST_BYTES = 6_000_000
_IMAGE = '<img src=x onerror="document.title=1">'


def _hostile_report() -> ReportInput:
    """The quickstart whose model, logs and files try to become markup."""
    report = quickstart_report()
    named = dataclasses.replace(report.job.model, name=HOSTILE)
    log = f"a line\n</script><script>alert(2)</script>\n{_IMAGE}\n</pre></details>" + "x" * 3000
    return dataclasses.replace(
        report, job=dataclasses.replace(report.job, model=named), logs=(TrialLog(number=3, text=log),)
    )


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tried plan, a 64-GPU plan of a 70B model and one of 275,056 candidates."""
    folder = tmp_path_factory.mktemp("pages")
    small = folder / "small.html"
    small.write_text(render_report_html(_hostile_report()), encoding="utf-8")
    found = {"small": small}
    for name in ("llama-3.1-70b-8x8-h100", LARGE):
        out = folder / name
        plan_job(
            PlanRequest(job_path=JOBS / f"{name}.yaml", out_dir=out, trial_mode=TrialMode.NONE, validate=False),
            console=SilentProgress(),
        )
        found[name] = out / "report.html"
    return found


def test_report_of_a_quarter_million_candidates_is_small(pages: dict[str, Path]) -> None:
    assert 100_000 < pages[LARGE].stat().st_size <= MOST_BYTES


@pytest.mark.parametrize("name", ["small", "llama-3.1-70b-8x8-h100", LARGE])
def test_page_fits_every_width_and_is_readable_in_both_themes(
    browser: Browser, pages: dict[str, Path], name: str
) -> None:
    for width, scheme in ((390, "light"), (390, "dark"), (820, "light"), (1280, "dark")):
        with opened(browser, pages[name], width=width, scheme=scheme) as page:
            page.evaluate(OPEN_ALL)
            scroll, window = page.evaluate(WIDTHS)
            assert scroll <= window, f"{width} px {scheme}: the page is {scroll} px wide"
            ratio, where = page.evaluate(CONTRAST)
            assert ratio >= 4.5, f"{width} px {scheme}: {ratio:.2f} at {where}"
            assert page.evaluate(OVERLAPS) == []


def test_theme_switch_changes_the_colours_and_says_what_comes_next(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["small"]) as page:
        colour = "() => getComputedStyle(document.body).backgroundColor"
        light = page.evaluate(colour)
        button = page.get_by_role("button", name="Dark theme")
        button.click()
        assert page.evaluate(colour) != light
        assert page.evaluate(CONTRAST)[0] >= 4.5
        page.get_by_role("button", name="Light theme").click()
        assert page.evaluate(colour) == light


def test_pointing_at_a_candidate_tells_it_and_its_figures(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["small"]) as page:
        plot = page.locator("figure.scatter")
        mark = plot.locator(".area .mark.chosen")
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        told = plot.locator(".tip").inner_text()
        assert "ZeRO-1 dp2 mb8x2 bf16 full" in told and "400 ms a step (measured)" in told
        page.mouse.move(5, 5)
        assert not plot.locator(".tip").is_visible()


def test_tapping_a_candidate_on_a_phone_tells_it_below_the_plot(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["llama-3.1-70b-8x8-h100"], width=390) as page:
        mark = page.locator("figure.scatter .area .mark.chosen")
        mark.scroll_into_view_if_needed()
        box = mark.bounding_box()
        assert box is not None
        page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        tip = page.locator("figure.scatter .tip")
        assert "tokens/s" in tip.inner_text()
        scroll, window = page.evaluate(WIDTHS)
        assert scroll <= window


def test_plot_is_walked_by_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["small"]) as page:
        area = page.locator("figure.scatter .area")
        area.focus()
        page.keyboard.press("ArrowRight")
        name = page.locator("figure.scatter .tip b")
        assert name.inner_text() == "ZeRO-1 dp2 mb8x2 bf16 full"  # the choice comes first
        page.keyboard.press("ArrowRight")
        assert name.inner_text() != "ZeRO-1 dp2 mb8x2 bf16 full"
        page.keyboard.press("Escape")
        assert not name.is_visible()


def test_filters_hide_what_they_name_and_the_colours_follow_the_choice(
    browser: Browser, pages: dict[str, Path]
) -> None:
    with opened(browser, pages[LARGE]) as page:
        plot = page.locator("figure.scatter")
        count = plot.locator(".count")
        everything = count.inner_text()
        number = int(everything.split()[0].replace(",", ""))
        assert number > 1500
        plot.locator("select[data-filter]").select_option("8")
        fewer = int(count.inner_text().split()[0].replace(",", ""))
        assert 0 < fewer < number
        plot.locator("fieldset", has_text="ZeRO stage").get_by_text("3", exact=True).click()
        assert int(count.inner_text().split()[0].replace(",", "")) <= fewer
        plot.get_by_label("colour by").select_option(label="tensor")
        assert plot.locator(".hues").inner_text().startswith("tensor")


def test_hostile_names_and_logs_are_shown_and_do_not_run(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["small"]) as page:
        page.evaluate(OPEN_ALL)
        assert page.locator("h1").inner_text() == f"Plan for {HOSTILE}"
        assert page.title() == f"Plan for {HOSTILE}"
        assert "</script><script>alert(2)</script>" in page.locator("details.log pre").first.inner_text()
        assert page.locator("img").count() == 0


def test_page_without_script_still_shows_its_plots(browser: Browser, pages: dict[str, Path]) -> None:
    with opened(browser, pages["small"], script=False) as page:
        assert page.locator("figure.scatter .area .mark.chosen").is_visible()
        assert page.locator("figure.scatter .dots path").count() >= 1
        assert not page.locator("figure.scatter .controls").is_visible()
        assert not page.locator("#theme").is_visible()
