"""The console scripts: what they answer, how they end."""

from __future__ import annotations

import json
import resource

import pytest

from planner import __version__
from planner.errors import (
    InputError,
    NoFeasiblePlan,
    NotExpressible,
    PlannerError,
    PromiseBroken,
    TrialsUnavailable,
)
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import CHILD, Cli, assert_three_lines, run_child

_HEAVY = ("torch", "deepspeed", "transformers", "optuna", "numpy", "pydantic", "jinja2", "yaml", "psutil", "sqlalchemy")

_LIST_HEAVY = f"""
import sys
from planner.cli import main
try:
    main()
finally:
    print(",".join(name for name in {_HEAVY!r} if name in sys.modules), file=sys.stderr)
"""


def test_help_of_planner_loads_nothing_heavy_and_names_every_verb() -> None:
    run = run_child("--help", program=_LIST_HEAVY)
    assert run.exit_code == 0
    assert run.err.strip() == ""
    for verb in ("plan", "estimate", "verify", "emit", "report", "list"):
        assert f"\n  {verb} " in run.out


@pytest.mark.parametrize("verb", ["plan", "estimate", "verify", "emit", "report", "list"])
def test_help_of_a_verb_loads_nothing_heavy(verb: str) -> None:
    run = run_child(verb, "--help", program=_LIST_HEAVY)
    assert run.exit_code == 0
    assert run.err.strip() in ("", "pydantic")  # Typer's own, to read a verb's flags
    assert "--json" in run.out and "--quiet" in run.out


def test_help_answers_in_half_a_second() -> None:
    """Of processor time, the best of three: other work may share the machine."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run_child("--help", program="from planner.cli import main; main()")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 0.5


def test_help_of_the_plan_script_is_the_verbs_own(cli: Cli) -> None:
    run = cli("--help", script="plan")
    assert run.exit_code == 0
    assert run.out.startswith("Usage: plan [OPTIONS]")
    assert "--time-budget" in run.out and "estimate" not in run.out


def test_plan_script_is_the_verb_plan(cli: Cli) -> None:
    product = FakeUseCases()
    assert cli("job.yaml", "--seed", "7", script="plan", product=product).exit_code == 0
    assert (str(product.requests[0].job_path), product.requests[0].seed) == ("job.yaml", 7)


def test_planner_alone_shows_its_help(cli: Cli) -> None:
    run = cli()
    assert (run.exit_code, run.out) == (0, cli("--help").out)


def test_version_is_the_distributions(cli: Cli) -> None:
    assert cli("--version").out == f"meshplan {__version__}\n"


def test_unknown_verb_is_answered_with_the_nearest(cli: Cli) -> None:
    run = cli("estmate", "--model", "x")
    assert run.exit_code == 2
    assert run.err == (
        "error: planner has no verb 'estmate'\nwhy: it is not one of its verbs\nfix: did you mean 'estimate'?\n"
    )


@pytest.mark.parametrize(
    ("arguments", "error", "fix"),
    [
        (("plan",), "planner plan needs JOB.yaml", "`planner plan --help` shows what it takes"),
        (
            ("plan", "j", "--trails", "x"),
            "planner plan has no option '--trails'",
            "did you mean '--trials' or '--max-trials'?",
        ),
        (("plan", "j", "--trials", "rael"), "--trials does not take 'rael'", "did you mean 'real'?"),
        (("plan", "j", "--out"), "--out needs a value", "`planner"),
        (("plan", "j", "--max-trials", "x"), "--max-trials: ", "`planner plan --help`"),
        (("plan", "j", "--max-trials", "-1"), "--max-trials: ", "`planner plan --help`"),
        (("plan", "j", "--jion", "u"), "planner plan has no option '--jion'", "did you mean '--json' or '--join' or"),
        (("verify",), "planner verify needs PLAN_DIR", "`planner verify --help`"),
        (("verify", "a", "b"), "Got unexpected extra argument", "`planner verify --help`"),
        (("list", "gpu"), "KIND does not take 'gpu'", "did you mean 'gpus'?"),
        (("estimate", "--precision", "bf17"), "--precision does not take 'bf17'", "did you mean 'bf16'"),
    ],
)
def test_wrong_usage_ends_in_three_lines_and_exit_2(cli: Cli, arguments: tuple[str, ...], error: str, fix: str) -> None:
    run = cli(*arguments)
    assert run.exit_code == 2
    assert run.out == ""
    assert_three_lines(run.err)
    assert run.err.startswith(f"error: {error}")
    assert f"\nfix: {fix}" in run.err


def test_wrong_usage_with_json_is_a_document(cli: Cli) -> None:
    run = cli("plan", "j", "--json", "--trials", "rael")
    assert run.exit_code == 2
    assert run.err == ""
    assert json.loads(run.out) == {
        "error": "--trials does not take 'rael'",
        "why": "it takes one of: auto, real, emulated, none",
        "fix": "did you mean 'real'?",
        "exit_code": 2,
    }


_ENDS = [
    (InputError, 2),
    (NoFeasiblePlan, 3),
    (TrialsUnavailable, 4),
    (NotExpressible, 5),
    (PromiseBroken, 6),
]


@pytest.mark.parametrize(("kind", "exit_code"), _ENDS)
def test_error_of_each_kind_has_its_exit_code_and_three_lines(
    cli: Cli, kind: type[PlannerError], exit_code: int
) -> None:
    product = FakeUseCases(end=kind("it is\nso [red]", why="be\x1b[2Jcause", fix="do this"))
    run = cli("plan", "job.yaml", product=product)
    assert run.exit_code == exit_code
    assert run.out == ""
    assert run.err.endswith("error: it is so [red]\nwhy: be\N{REPLACEMENT CHARACTER}[2Jcause\nfix: do this\n")


@pytest.mark.parametrize(("kind", "exit_code"), _ENDS)
def test_error_with_json_is_the_only_thing_on_standard_output(
    cli: Cli, kind: type[PlannerError], exit_code: int
) -> None:
    run = cli("plan", "job.yaml", "--json", product=FakeUseCases(end=kind("it is so", why="because", fix="do this")))
    assert run.exit_code == exit_code
    expected = {"error": "it is so", "why": "because", "fix": "do this", "exit_code": exit_code}
    assert json.loads(run.out) == expected
    assert "error:" not in run.err


def test_error_without_a_feasible_plan_carries_its_tally(cli: Cli) -> None:
    end = NoFeasiblePlan("nothing fits", why="because", fix="do this", tally=(("heads", 3),))
    assert json.loads(cli("plan", "j", "--json", product=FakeUseCases(end=end)).out)["tally"] == {"heads": 3}


def test_bug_keeps_its_traceback_and_exits_1() -> None:
    program = CHILD.replace("build()", "FakeUseCases(end=ZeroDivisionError('a bug'))").replace(
        "import build", "import FakeUseCases"
    )
    run = run_child("plan", "job.yaml", program=program)
    assert run.exit_code == 1
    assert run.err.startswith("read the job") or "Traceback (most recent call last)" in run.err
    assert run.err.rstrip().endswith("ZeroDivisionError: a bug")
    assert run.out == ""


def _completing(words: str, place: int) -> str:
    """A child that is asked by bash what could stand at this place of these words."""
    asked = {"_PLANNER_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(place)}
    return f"import os; os.environ.update({asked!r}); {CHILD}"


def test_completion_offers_the_verbs() -> None:
    run = run_child(program=_completing("planner e", 1))
    assert run.out.split() == ["estimate", "emit"]


def test_completion_of_a_verb_that_is_not_one_ends_quietly() -> None:
    run = run_child(program=_completing("planner chek --", 2))
    assert "Traceback" not in run.err


def test_main_takes_the_arguments_of_the_process() -> None:
    run = run_child("--version", program="from planner.cli import main; main()")
    assert run.out == f"meshplan {__version__}\n"
