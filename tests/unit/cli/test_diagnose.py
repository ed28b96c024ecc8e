"""`planner diagnose`: its flags as a request, and what it prints for people, programs and pipes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from planner.app.diagnose_request import AppliedFix, DiagnoseRequest, DiagnoseResult
from tests.unit.cli.fakes import FakeUseCases
from tests.unit.cli.running import Cli, assert_three_lines, run_child

_REAL = "from planner.cli import main; main()"
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a "
    "total capacity of 23.70 GiB of which "
    "0.20 GiB is free. Of the allocated memory 16.00 GiB is allocated by PyTorch, and "
    "6.60 GiB is reserved by PyTorch but unallocated.\n"
)


class _Diagnosing(FakeUseCases):
    def __init__(self, applied: AppliedFix | None = None) -> None:
        super().__init__()
        self.applied = applied
        self.asked: list[DiagnoseRequest] = []

    def diagnose_logs(self, request: DiagnoseRequest) -> DiagnoseResult:
        self.asked.append(request)
        fix = {
            "change": {"env": {"X": "1"}},
            "frees_bytes": 2**30,
            "slows_fraction": 0.1,
            "why": "because",
            "fits": True,
        }
        document: dict[str, Any] = {
            "events": [],
            "cause": "fragmentation",
            "confidence": 0.8,
            "evidence": ["1 GiB idle"],
            "fixes": [fix],
            "event": None,
            "also": ["capacity"],
            "grows": None,
            "notes": ["a note"],
            "scanned": {"bytes": 10, "lines": 2},
        }
        return DiagnoseResult(document=document, applied=self.applied)


def test_every_flag_becomes_a_field_of_the_request(cli: Cli) -> None:
    product = _Diagnosing()
    words = ["diagnose", "a.log", "b", "--config", "c.json", "--model", "m", "--gpu", "g"]
    sizes = ["--seq-len", "8", "--world-size", "4", "--gpus-per-node", "2"]
    more = [
        "--activation-checkpointing",
        "full",
        "--note",
        "fails on resume",
        "--apply",
        "--fix",
        "2",
        "--out",
        "o.json",
    ]
    cli(*words, *sizes, *more, product=product)
    assert product.asked == [
        DiagnoseRequest(
            paths=(Path("a.log"), Path("b")),
            config=Path("c.json"),
            model="m",
            gpu="g",
            seq_len=8,
            world_size=4,
            gpus_per_node=2,
            activation_checkpointing="full",
            note="fails on resume",
            apply=True,
            fix_number=2,
            out_path=Path("o.json"),
        )
    ]


def test_people_see_cause_evidence_and_fixes_with_prices(cli: Cli) -> None:
    run = cli("diagnose", "a.log", product=_Diagnosing())
    assert run.exit_code == 0
    assert "cause: fragmentation (confidence 80%), also capacity" in run.out
    assert "- 1 GiB idle" in run.out
    assert '1. "env": {"X": "1"}' in run.out
    assert "[frees 1.00 GiB, 10% slower] because" in run.out


def test_what_was_written_and_what_is_left_is_said(cli: Cli) -> None:
    applied = AppliedFix(
        path=Path("ds.json"), number=1, change={}, left_to_do={"run": {"attention": "flash"}}, lost_comments=True
    )
    run = cli("diagnose", "a.log", "--config", "ds.json", "--apply", product=_Diagnosing(applied))
    assert "wrote fix 1 to ds.json, without the comments of the old one" in run.out
    assert 'left to do by hand: "run": {"attention": "flash"}' in run.out


def test_quiet_leaves_the_verdict_and_json_one_document(cli: Cli) -> None:
    assert (
        cli("diagnose", "a.log", "--quiet", product=_Diagnosing()).out
        == "cause: fragmentation (confidence 80%), also capacity\n"
    )
    assert json.loads(cli("diagnose", "a.log", "--json", product=_Diagnosing()).out)["cause"] == "fragmentation"


@pytest.mark.parametrize("words", [("--fix", "1"), ("--out", "x")])
def test_flag_without_effect_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    run = cli("diagnose", "a.log", *words, product=_Diagnosing())
    assert run.exit_code == 2
    assert_three_lines(run.err)


def test_log_on_standard_input_is_diagnosed_by_the_real_product() -> None:
    run = run_child("diagnose", "-", "--json", program=_REAL, stdin=f"\x1b[31m[rank2]:\x1b[0m {_OOM}")
    document = json.loads(run.out)
    assert run.exit_code == 0
    assert document["cause"] == "fragmentation"
    assert document["events"][0]["rank"] == 2


def test_control_characters_of_a_log_do_not_reach_the_terminal() -> None:
    run = run_child("diagnose", "-", program=_REAL, stdin=f"\x1b]0;title\x07{_OOM}\x9b31m")
    assert run.exit_code == 0
    assert "\x1b" not in run.out and "\x07" not in run.out


@pytest.mark.parametrize("path", ["missing.log", "/dev/zero"])
def test_what_is_no_log_ends_in_three_lines(path: str) -> None:
    run = run_child("diagnose", path, program=_REAL)
    assert run.exit_code == 2
    assert_three_lines(run.err)
