"""Several GPUs of one host: every kind of layout for real and emulated on one of them, and the emitted script.

    python3 -m pytest -m gpu -s tests/gpu/test_several_gpus.py

With MESHPLAN_TEST_OUT set to a folder, the rows that the comparison kept go there (`emulated-against-real.jsonl`).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from planner.trial import probe_machine
from tests.validation.emulated_against_real import MEMORY_TOLERANCE, TIME_TOLERANCE, read_rows, table

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(590)]

ROOT = Path(__file__).parents[2]
JOB = ROOT / "configs" / "jobs" / "h200-1.3b.yaml"


@pytest.fixture(scope="module")
def num_gpus() -> int:
    count = probe_machine().num_devices
    if count < 2:
        pytest.skip("needs at least two GPUs")
    return count


def test_every_layout_uses_the_memory_and_time_that_emulation_says(num_gpus: int, tmp_path: Path) -> None:
    out = Path(os.environ.get("MESHPLAN_TEST_OUT", tmp_path)) / "emulated-against-real.jsonl"
    words = ["--job", str(JOB), "--out", str(out), "--set", "trials.steps=6"]
    subprocess.run([sys.executable, "-m", "tests.validation.emulated_against_real", *words], cwd=ROOT, check=True)
    rows = [row for row in read_rows(out) if row["world_size"] == num_gpus]
    print(table(rows))
    assert rows
    both = [row for row in rows if "outcome" not in row["real"] and "outcome" not in row["emulated"]]
    assert len(both) == len(rows), "some layouts ended otherwise than measured"
    for row in both:
        real, emulated = row["real"], row["emulated"]
        memory = emulated["peak_allocated_bytes"] / real["peak_allocated_bytes"]
        assert memory == pytest.approx(1.0, abs=MEMORY_TOLERANCE), row["key"]
        assert emulated["step_time_s"] / real["step_time_s"] == pytest.approx(1.0, abs=TIME_TOLERANCE), row["key"]


def test_plan_on_all_gpus_keeps_its_promise_from_the_emitted_script(num_gpus: int, tmp_path: Path) -> None:
    out = tmp_path / "plan"
    limits = ["--time-budget", "240s", "--max-trials", "10"]
    words = ["plan", str(JOB), "--set", "cluster={gpu: auto}", "--trials", "real", *limits, "--out", str(out)]
    subprocess.run([sys.executable, "-m", "planner", *words], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-m", "planner", "verify", str(out)], cwd=ROOT, check=True)
