"""Shell completion: verbs, flags and choices, as a shell asks for them."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.cli.running import ROOT


def _complete(script: str, words: str) -> set[str]:
    entry = {"planner": "main", "plan": "plan_main"}[script]
    answer = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[0] = '{script}'; from planner.cli import {entry} as go; go([])"],
        cwd=ROOT,
        env={
            **os.environ,
            f"_{script.upper()}_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split(" ")) - 1),
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert answer.stderr == ""
    return set(answer.stdout.split())


@pytest.mark.parametrize(
    ("script", "words", "offered"),
    [
        ("planner", "planner pl", {"plan"}),
        ("planner", "planner list gp", {"gpus"}),
        ("planner", "planner plan --tr", {"--trials"}),
        ("plan", "plan --jo", {"--join"}),
        ("plan", "plan job.yaml --trials em", {"emulated"}),
        ("planner", "planner estimate --precision bf", {"bf16"}),
    ],
)
def test_completion_offers_what_fits(script: str, words: str, offered: set[str]) -> None:
    assert _complete(script, words) == offered
