"""Several plans in one call: folders, the comparison at the end, and what a failure leaves of it."""

from __future__ import annotations

import json
from pathlib import Path

from planner.errors import NoFeasiblePlan
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import Cli


def test_candidate_clusters_get_a_folder_each_and_one_table(cli: Cli) -> None:
    product = FakeUseCases()
    product.clusters = ("h100-4", "ours")
    run = cli("plan", "job.yaml", "--out", "all", product=product)
    assert [(request.out_dir, request.cluster) for request in product.requests] == [
        (Path("all/h100-4"), "h100-4"),
        (Path("all/ours"), "ours"),
    ]
    ((folder, rows),) = product.compared
    assert folder == Path("all")
    assert [row.name for row in rows] == ["h100-4", "ours"]
    assert "whole" in run.out and "written to all/comparison.md" in run.out


def test_jobs_and_clusters_are_named_by_both(cli: Cli) -> None:
    product = FakeUseCases()
    product.clusters = ("a", "b")
    cli("plan", "one.yaml", "two.yaml", product=product)
    ((folder, rows),) = product.compared
    assert folder == Path("plans")
    assert [row.name for row in rows] == ["one/a", "one/b", "two/a", "two/b"]


def test_failure_is_a_row_and_the_exit_code(cli: Cli) -> None:
    product = FakeUseCases(end=NoFeasiblePlan("nothing fits", why="memory", fix="more"))
    run = cli("plan", "a.yaml", "b.yaml", "--json", product=product)
    assert run.exit_code == 3
    document = json.loads(run.out)
    assert [(row["name"], row["error"], row["exit_code"]) for row in document["comparison"]] == [
        ("a", "nothing fits", 3),
        ("b", "nothing fits", 3),
    ]
    assert document["comparison_file"] == "plans/comparison.md"


def test_dry_run_of_several_compares_what_would_be_tried_and_writes_nothing(cli: Cli) -> None:
    product = FakeUseCases()
    run = cli("plan", "a.yaml", "b.yaml", "--dry-run", product=product)
    assert run.exit_code == 0
    assert product.compared == []
    assert "legal candidates" in run.out.splitlines()[-3]
    document = json.loads(cli("plan", "a.yaml", "b.yaml", "--dry-run", "--json", product=product).out)
    assert [(row["name"], row["num_candidates"]) for row in document["comparison"]] == [("a", 96), ("b", 96)]


def test_site_defaults_can_be_left_out(cli: Cli) -> None:
    product = FakeUseCases()
    cli("plan", "a.yaml", "--no-site-defaults", product=product)
    cli("plan", "a.yaml", product=product)
    assert [request.site_defaults for request in product.requests] == [False, True]
