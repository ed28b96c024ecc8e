"""The CPU meter against allocations of known size, in a process of its own as in a trial."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MIB = 1 << 20

PROGRAM = """
import json, sys
from pathlib import Path
from planner.runtime.measure import CpuMeter

def peak(meter):
    section = meter.end_section()
    return [section.used_bytes, section.allocated_bytes, section.reserved_bytes, section.host_bytes]

ballast = bytearray(b"x") * (50 << 20)
meter = CpuMeter(Path(sys.argv[1]))
kept = bytearray(b"x") * (64 << 20)
held = meter.allocated_bytes()
first = peak(meter)
burst = bytearray(b"x") * (128 << 20)
import time; time.sleep(0.1)
del burst
second = peak(meter)
third = peak(meter)
print(json.dumps([held, first, second, third]))
"""


def _measure(clear_refs: Path) -> list[list[int]]:
    root = Path(__file__).parents[2]
    environment = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, str(clear_refs)]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    found: list[list[int]] = json.loads(answer.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("can_reset", [True, False])
def test_peak_of_each_section_is_what_was_held_in_it(tmp_path: Path, can_reset: bool) -> None:
    # Where the kernel's mark cannot be reset (here: a path that cannot be written), the meter samples.
    clear_refs = Path("/proc/self/clear_refs") if can_reset else tmp_path / "missing" / "clear_refs"
    held, first, second, third = _measure(clear_refs)
    assert held == pytest.approx(64 * MIB, abs=4 * MIB)
    for section, expected in ((first, 64), (second, 192), (third, 64)):
        used, allocated, reserved, host = section
        assert used == pytest.approx(expected * MIB, abs=6 * MIB)
        assert allocated == reserved == used
        assert host > used + 50 * MIB
