"""`planner plan`: what it asks of the product and what it prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cli.flags import parse_duration_s, plan_dirs
from planner.errors import InputError, Interrupted
from planner.spec import TrialMode
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import CHILD, ROOT, Cli, assert_three_lines


def test_plan_hands_every_flag_to_the_product(cli: Cli) -> None:
    product = FakeUseCases()
    flags = "--out here --set a.b=1 --set c=2 --trials real --max-trials 3 --time-budget 1m30s --resume"
    cli("plan", "jobs/q.yaml", *flags.split(), "--storage", "url", "--seed", "5", "--no-validate", product=product)
    (request,) = product.requests
    assert (request.job_path, request.out_dir) == (Path("jobs/q.yaml"), Path("here"))
    assert request.overrides == ("a.b=1", "c=2")
    assert (request.trial_mode, request.max_trials, request.time_budget_s) == (TrialMode.REAL, 3, 90.0)
    assert (request.storage, request.seed) == ("url", 5)
    assert (request.resume, request.validate, request.dry_run) == (True, False, False)


def test_join_names_the_study_of_another_planner(cli: Cli) -> None:
    product = FakeUseCases()
    cli("plan", "jobs/q.yaml", "--join", "url", product=product)
    (request,) = product.requests
    assert (request.storage, request.join) == ("url", True)


@pytest.mark.parametrize(
    "flags",
    [("--join", "a", "--storage", "b"), ("--join", "a", "--trials", "none"), ("--storage", "a", "--trials", "none")],
)
def test_flags_of_a_study_that_contradict_or_have_no_effect_are_refused(cli: Cli, flags: tuple[str, ...]) -> None:
    product = FakeUseCases()
    run = cli("plan", "q.yaml", *flags, product=product)
    assert (run.exit_code, product.requests) == (2, [])
    assert_three_lines(run.err)


@pytest.mark.parametrize(
    ("verb", "flags", "said"),
    [
        ("plan", "--trials none --max-trials 5 --time-budget 5m", "--max-trials and --time-budget have no effect"),
        ("plan", "--trials none --time-budget 5m", "--time-budget has no effect beside --trials none"),
        ("plan", "--dry-run --survive 1", "--survive has no effect beside --dry-run"),
        ("replan", "--trials none --max-trials 3", "--max-trials has no effect beside --trials none"),
    ],
)
def test_flags_without_effect_are_refused(cli: Cli, verb: str, flags: str, said: str) -> None:
    product = FakeUseCases()
    run = cli(verb, "q.yaml", *flags.split(), product=product)
    assert (run.exit_code, product.requests) == (2, [])
    assert said in run.err
    assert_three_lines(run.err)


def test_plan_without_flags_leaves_everything_to_the_job(cli: Cli) -> None:
    product = FakeUseCases()
    cli("plan", "jobs/q.yaml", product=product)
    (request,) = product.requests
    assert request.out_dir == Path("plans/q")
    assert (request.trial_mode, request.max_trials, request.time_budget_s) == (None, None, None)
    assert (request.storage, request.seed, request.overrides) == (None, None, ())
    assert (request.resume, request.validate, request.dry_run) == (False, True, False)


def test_plan_prints_trials_to_standard_error_and_the_summary_to_standard_output(cli: Cli) -> None:
    run = cli("plan", "q.yaml")
    assert run.exit_code == 0
    assert "quickstart: 96 legal candidates of 180 combinations; 4 cannot fit" in run.err
    assert "at most 5 real trials for 2 x cpu-process (1.00 GiB usable each), at most 2 min in all" in run.err
    assert "   3  ZeRO-1 dp2 mb8x2 bf16 full             400 ms   2.56 k   412 MiB    3.2 s  best\n" in run.err
    assert "   2  ZeRO-0 dp2 mb16x1 bf16 full     out of memory                       3.2 s\n" in run.err
    assert "note: this is a note with [brackets] and \N{REPLACEMENT CHARACTER}[31mcolour\n" in run.err
    assert run.out.startswith("\nchosen   ZeRO-1 dp2 mb8x2 bf16 full: ")
    assert "\nwhy      It is 7.5% faster than the next best" in run.out
    assert "\nmemory   Its worst rank uses 412 MiB" in run.out
    assert "  planner verify 'plans/quick start'  " in run.out
    assert all(line == line.rstrip() for line in run.out.splitlines())


def test_plan_with_json_prints_one_document_though_libraries_print(cli: Cli) -> None:
    run = cli("plan", "q.yaml", "--json")
    document = json.loads(run.out)
    assert (document["plan_dir"], document["num_candidates"], document["dry_run"]) == ("plans/q", 96, False)
    assert document["plan"]["key"] == document["key"] == "tp1-pp1-dp2-z1-mb8-ga2-bf16-full"
    assert len(document["explanation"]) == 3
    assert document["next"][0] == "bash 'plans/quick start/launch.sh'"
    assert "a library that prints" in run.err


def test_plan_with_quiet_prints_the_folder_alone(cli: Cli) -> None:
    run = cli("plan", "q.yaml", "--quiet")
    assert run.out == "plans/q\n"
    assert run.err == "a library that prints\n"


def test_dry_run_says_what_would_be_tried_and_at_most_how_long(cli: Cli) -> None:
    run = cli("plan", "q.yaml", "--dry-run")
    assert run.exit_code == 0
    assert "at most 5 real trials" in run.out and "at most 2 min in all" in run.out
    for words in ("ZeRO-1 dp2 mb8x2 bf16 full", "memory (computed)", "pipeline-needs-zero-0-or-1", "changes numerics"):
        assert words in run.out
    document = json.loads(cli("plan", "q.yaml", "--dry-run", "--json").out)
    assert document["dry_run"] is True
    assert (document["num_candidates"], document["outline"]["longest_s"]) == (96, 100.0)
    assert "plan" not in document


def test_debug_file_is_made_however_the_planning_ends(cli: Cli) -> None:
    well, bad = FakeUseCases(), FakeUseCases(end=InputError("wrong", why="because", fix="mend it"))
    document = json.loads(cli("plan", "q.yaml", "--debug", "--json", product=well).out)
    assert document["debug_file"] == "plans/q/debug.zip"
    assert well.debugged == [(("planner", "plan", "q.yaml", "--debug", "--json"), None)]
    run = cli("plan", "q.yaml", "--debug", product=bad)
    assert run.exit_code == 2 and "for a bug report: plans/q/debug.zip" in run.err
    assert bad.debugged[0][1] is bad.end
    assert cli("plan", "q.yaml", product=FakeUseCases()).err.count("bug report") == 0


def test_several_jobs_make_one_folder_each_under_out(cli: Cli) -> None:
    product = FakeUseCases()
    run = cli("plan", "a.yaml", "sub/b.yml", "--out", "all", "--json", product=product)
    assert [request.out_dir for request in product.requests] == [Path("all/a"), Path("all/b")]
    assert [one["job"] for one in json.loads(run.out)["plans"]] == ["a.yaml", "sub/b.yml"]


def test_several_jobs_go_on_after_one_that_fails(cli: Cli) -> None:
    product = FakeUseCases(end=InputError("the job is wrong", why="because", fix="mend it"))
    run = cli("plan", "a.yaml", "b.yaml", product=product)
    assert run.exit_code == 2
    assert len(product.requests) == 2
    assert run.err.count("error: the job is wrong") == 2
    document = json.loads(cli("plan", "a.yaml", "b.yaml", "--json", product=product).out)
    assert [one["exit_code"] for one in document["plans"]] == [2, 2]


def test_jobs_of_one_name_are_refused_before_any_is_planned(cli: Cli) -> None:
    product = FakeUseCases()
    run = cli("plan", "a/job.yaml", "b/job.yaml", product=product)
    assert (run.exit_code, product.requests) == (2, [])
    assert_three_lines(run.err)


def test_plan_dirs_of_one_job_and_of_several() -> None:
    one, two = Path("x/one.yaml"), Path("two.yaml")
    assert plan_dirs((one,), None) == (Path("plans/one"),)
    assert plan_dirs((one,), Path("out")) == (Path("out"),)
    assert plan_dirs((one, two), None) == (Path("plans/one"), Path("plans/two"))
    assert plan_dirs((one, two), Path("out")) == (Path("out/one"), Path("out/two"))


@given(hours=st.integers(0, 99), minutes=st.integers(0, 600), seconds=st.integers(1, 9999))
def test_duration_reads_back_what_was_written(hours: int, minutes: int, seconds: int) -> None:
    written = f"{hours}h{minutes}m{seconds}s"
    assert parse_duration_s(written, flag="--time-budget") == hours * 3600 + minutes * 60 + seconds


@pytest.mark.parametrize(
    "text", ["", "10", "m", "-5m", "5 m", "0s", "nan", "infs", "1e9h", "9999d", "5m!", "９m\n", "1" * 5000]
)
def test_duration_that_is_none_is_refused_with_an_example(cli: Cli, text: str) -> None:
    with pytest.raises(InputError, match="--time-budget does not take"):
        parse_duration_s(text, flag="--time-budget")


def test_interrupt_of_the_product_ends_with_130_and_how_to_go_on(cli: Cli) -> None:
    words = ("my job.yaml", "--set", "a=b c")
    for end in (KeyboardInterrupt(), Interrupted("stopped", why="because", fix="resume it")):
        run = cli("plan", *words, product=FakeUseCases(end=end))
        assert run.exit_code == 130
        assert_three_lines(run.err)
        assert run.err.endswith("fix: go on with: planner plan 'my job.yaml' --set 'a=b c' --resume\n")
    resumed = cli("my job.yaml", "--resume", script="plan", product=FakeUseCases(end=KeyboardInterrupt()))
    assert resumed.err.endswith("fix: go on with: plan 'my job.yaml' --resume\n")


def test_ctrl_c_in_a_real_process_ends_with_130_and_three_lines() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, "plan", "q.yaml"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert child.stderr is not None
    for line in child.stderr:
        if line.lstrip().startswith("0  ZeRO"):
            break
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out) == (130, "")
    assert_three_lines(err)
    assert "every trial that had ended is kept" in err and "Traceback" not in err


def test_reader_that_goes_away_is_no_error() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    program = CHILD.replace("build()", "FakeUseCases()").replace("import build", "import FakeUseCases")
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", "q.yaml", "--quiet"],
        cwd=ROOT,
        stdout=write_end,
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, "a library that prints\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_standard_output_that_is_full_ends_in_three_lines() -> None:
    program = CHILD.replace("build()", "FakeUseCases()").replace("import build", "import FakeUseCases")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-c", program, "plan", "q.yaml", "--json"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 2
    assert_three_lines(done.stderr)
