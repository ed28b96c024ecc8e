"""`verify`, `emit`, `report` and `list`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.app.requests import CatalogKind, CatalogTable
from planner.report import render_report_html, render_report_markdown
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import Cli, assert_three_lines
from tests.unit.report.samples import quickstart_report


def test_verify_that_holds_shows_each_figure_and_exits_0(cli: Cli) -> None:
    run = cli("verify", "plans/q")
    assert run.exit_code == 0
    assert "run 5 steps" in run.err
    assert [" ".join(line.split()) for line in run.out.splitlines()][2] == "step time 400 ms 410 ms 20% as promised"
    assert run.out.endswith("the plan does what it promised\n")


def test_verify_of_a_broken_promise_exits_6_with_the_figure(cli: Cli) -> None:
    run = cli("verify", "plans/q", "--steps", "9", product=FakeUseCases(keeps_promise=False))
    assert run.exit_code == 6
    assert "run 9 steps" in run.err
    assert_three_lines(run.err)
    assert "why: step time 620 ms instead of 400 ms\n" in run.err
    assert "broken" in run.out


def test_verify_with_json_prints_one_document_whether_it_holds_or_not(cli: Cli) -> None:
    held = json.loads(cli("verify", "p", "--json").out)
    assert (held["passed"], held["rows"][0]["name"]) == (True, "step_time_s")
    run = cli("verify", "p", "--json", product=FakeUseCases(keeps_promise=False))
    broken = json.loads(run.out)
    assert (run.exit_code, broken["exit_code"], broken["passed"]) == (6, 6, False)
    assert broken["rows"][0]["seen"] == 0.62


def test_emit_names_what_it_wrote(cli: Cli) -> None:
    assert cli("emit", "p", "--launcher", "slurm").out == "wrote p/launch-slurm.sh\n"
    document = json.loads(cli("emit", "p", "--launcher", "slurm", "--out", "o", "--json").out)
    assert document == {"files": ["o/launch-slurm.sh"]}
    assert cli("emit", "p", "--launcher", "slurm", "--set", "slurm.nice=5").out.endswith("slurmslurm.nice=5.sh\n")


def test_emit_for_an_unknown_launcher_is_refused(cli: Cli) -> None:
    run = cli("emit", "p", "--launcher", "slrum")
    assert run.exit_code == 2
    assert run.err.endswith("fix: did you mean 'slurm' or 'srun'?\n")


def test_report_as_text_and_html_is_what_the_folder_holds(cli: Cli, tmp_path: Path) -> None:
    assert cli("report", "p").out == render_report_markdown(quickstart_report())
    path = tmp_path / "r.html"
    assert cli("report", "p", "--format", "html", "--out", str(path)).out == f"wrote {path}\n"
    assert path.read_text(encoding="utf-8") == render_report_html(quickstart_report())


def test_report_with_json_is_the_records(cli: Cli) -> None:
    document = json.loads(cli("report", "p", "--json").out)
    assert document["plan"]["key"] == quickstart_report().plan.key
    assert len(document["trials"]) == 5


def test_report_that_cannot_be_written_ends_in_three_lines(cli: Cli, tmp_path: Path) -> None:
    run = cli("report", "p", "--out", str(tmp_path / "missing" / "r.md"))
    assert run.exit_code == 2
    assert_three_lines(run.err)


def test_list_shows_human_units_and_gives_plain_ones_as_json(cli: Cli) -> None:
    assert cli("list", "gpus").out == (
        "name           memory usable  source\nh100-sxm-80gb       79.0 GiB  data sheet [1]\n"
    )
    document = json.loads(cli("list", "gpus", "--json").out)
    assert document == [{"name": "h100-sxm-80gb", "memory_usable_bytes": 79 * 2**30, "source": "data sheet [1]"}]
    assert cli("list", "gpus", "--quiet").out == "h100-sxm-80gb\n"


@pytest.mark.parametrize("arguments", [("verify", "p"), ("emit", "p"), ("report", "p"), ("list", "rules")])
def test_verb_with_json_prints_exactly_one_document(cli: Cli, arguments: tuple[str, ...]) -> None:
    json.loads(cli(*arguments, "--json").out)


class _WideCatalog(FakeUseCases):
    """A catalog of more columns than a terminal has room for."""

    def list_catalog(self, kind: CatalogKind) -> CatalogTable:
        numbers = tuple(f"figure_{place}" for place in range(9))
        row = ("a-name", *range(9), "words " * 30)
        return CatalogTable(kind=kind, columns=("name", *numbers, "source"), rows=(row,))


@pytest.mark.parametrize("width", [24, 40, 80, 100])
def test_list_on_a_narrow_terminal_keeps_the_name_and_says_what_it_leaves_out(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    heading, row, *rest = cli("list", "gpus", product=_WideCatalog()).out.splitlines()
    assert row.startswith("a-name")
    assert max(len(heading), len(row)) <= width
    hidden = " ".join(rest)
    assert all(f"figure {place}" in heading + hidden for place in range(9))


def test_list_in_a_pipe_shows_everything_on_one_line_each(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS")
    heading, row = cli("list", "gpus", product=_WideCatalog()).out.splitlines()
    assert "figure 8" in heading and row.endswith("words words")


def test_verify_on_a_crowded_machine_says_that_the_step_was_not_comparable(cli: Cli) -> None:
    run = cli("verify", "p", product=FakeUseCases(crowded="7.5 processes wanted each core"))
    assert run.exit_code == 0
    assert "not comparable: 7.5 processes wanted each core" in run.out and "broken" not in run.out
    assert "the plan does what it promised, but for step time, which could not be compared here" in run.out
