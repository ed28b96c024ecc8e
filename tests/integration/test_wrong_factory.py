"""Factories that are wrong: traced in a child program, so that nothing they do reaches the planner."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.running import Planner, planner_fixture
from tests.unit.cli.running import assert_three_lines

planner = planner_fixture
JOB = """\
model: {factory: "mine:build"}
training: {seq_len: 4, global_batch_size: 4}
cluster: {gpu: cpu, nodes: 1, gpus_per_node: 1, memory_gib: 2}
search: {zero_stage: 0, micro_batch_size: 4, activation_checkpointing: none, precision: fp32}
trials: {mode: none, timeout: 1s}
"""
GOOD = """
import torch
def batch(size, seq_len, generator):
    return {"x": torch.randn(size, 3, generator=generator)}
class M(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(3, 1)
    def forward(self, x):
        return self.w(x).sum()
def build():
    return M(), batch
"""

WRONG = {
    "is not there": ("", "cannot be imported", "spelling"),
    "raises": ("def build():\n    raise ValueError('no weights today')", "no weights today", ""),
    "has a syntax error": ("def build(:\n", "SyntaxError", ""),
    "fails at its import": ("import no_such_package", "no_such_package", "PYTHONPATH"),
    "ends the program": ("import sys\ndef build():\n    sys.exit('farewell')", "farewell", ""),
    "ends the process": ("import os\ndef build():\n    os._exit(0)", "it printed nothing", ""),
    "kills the process": ("import os\ndef build():\n    os.kill(os.getpid(), 9)", "exit code -9", ""),
    "returns a number": ("def build():\n    return 5", "it returned int", "return those values"),
    "returns no module": ("def build():\n    return 'model', print", "not an nn.Module", "return those values"),
    "is no function": ("build = 5", "it is no function", "return those values"),
    "never returns": (
        "import time\ndef build():\n    time.sleep(3600)",
        "did not return within 20 s",
        "trials.timeout",
    ),
    "has no loss": (GOOD.replace(".sum()", ""), "gives no loss", "return (module, make_batch, loss)"),
    "has no parameters": (
        GOOD.replace("self.w = torch.nn.Linear(3, 1)", "self.w = sum"),
        "no parameters",
        "attributes",
    ),
    "has a parameter without a dimension": (
        GOOD.replace("self.w =", "self.t = torch.nn.Parameter(torch.tensor(1.0)); self.w ="),
        "the parameter t of the factory's module has no dimension",
        "shape (1,)",
    ),
    "makes no batch": (GOOD.replace('return {"x"', 'return 3 # {"x"'), "dict of tensors", "first dimension"),
    "makes batches of another size": (GOOD.replace("randn(size, 3", "randn(7, 3"), "in a batch of", "first dimension"),
}


# Each starts a child that imports torch: those alike to another are left to the slow lane.
SLOW = (
    "has a syntax error",
    "ends the process",
    "returns no module",
    "is no function",
    "makes batches of another size",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in WRONG]
)
def test_factory_that_is_wrong_ends_in_three_lines(planner: Planner, tmp_path: Path, name: str) -> None:
    source, said, mend = WRONG[name]
    (tmp_path / "job.yaml").write_text(JOB)
    if source:
        (tmp_path / "mine.py").write_text(source)
    run = planner("plan", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out"), "--no-validate")
    assert run.exit_code == 2, run
    assert_three_lines(run.err)
    error, why, fix = run.err.splitlines()[-3:]
    assert "'mine:build' could not be traced" in error and said in error + why and mend in fix
    assert "Traceback" not in run.err


def test_factory_that_is_right_is_planned(planner: Planner, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "mine.py").write_text(GOOD)
    run = planner("plan", str(tmp_path / "job.yaml"), "--out", str(tmp_path / "out"), "--no-validate")
    assert run.exit_code == 0, run
