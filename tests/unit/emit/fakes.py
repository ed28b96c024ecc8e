"""Programs put on the PATH in place of Python, sbatch, srun, scontrol and kubectl; they record how they were called."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

_RECORDER = f"""#!{sys.executable}
import json, os, sys
if sys.argv[1:4] == ["-m", "planner", "supervise"]:  # stands for the supervisor: runs what it was given
    end = sys.argv.index("--")
    os.environ["FAKE_SUPERVISOR"] = json.dumps(sys.argv[4:end])
    os.execvp(sys.argv[end + 1], sys.argv[end + 1 :])
call = {{"program": os.path.basename(sys.argv[0]), "argv": sys.argv[1:], "cwd": os.getcwd(), "env": dict(os.environ)}}
with open(os.environ["FAKE_CALLS"], "a") as calls:
    calls.write(json.dumps(call) + "\\n")
"""
# Slurm, reduced to what the scripts rely on: the batch script is copied before it runs, and srun starts its command.
_SBATCH = """#!/usr/bin/env bash
set -e
while [[ $1 == --* ]]; do shift; done
cp -- "$1" "$FAKE_SPOOL/slurm_script"
shift
SLURM_JOB_NODELIST='node[1-2]' exec bash "$FAKE_SPOOL/slurm_script" "$@"
"""
_SRUN = """#!/usr/bin/env bash
while [[ $1 == --* ]]; do shift; done
SLURM_NODEID=1 SLURMD_NODENAME=${FAKE_NODE:-node2} exec "$@"
"""
_SCONTROL = """#!/usr/bin/env bash
case $3 in
  *'['*) printf 'node1\\nnode2\\n' ;;
  *) tr ',' '\\n' <<<"$3" ;;
esac
"""


class FakeMachine:
    """A PATH of fakes in front of the system's, and the calls they have seen."""

    def __init__(self, folder: Path) -> None:
        self._bin = folder / "bin"
        self._calls = folder / "calls.jsonl"
        self._spool = folder / "spool"
        self._bin.mkdir(parents=True)
        self._spool.mkdir()
        fakes = {
            "python3": _RECORDER,
            "kubectl": _RECORDER,
            "sbatch": _SBATCH,
            "srun": _SRUN,
            "scontrol": _SCONTROL,
        }
        for name, text in fakes.items():
            path = self._bin / name
            path.write_text(text)
            path.chmod(0o755)

    def run(
        self, script: Path | str, *arguments: str, cwd: Path | None = None, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a script with bash. Nothing of this process's environment gets through."""
        environment = {
            "PATH": f"{self._bin}{os.pathsep}/usr/bin{os.pathsep}/bin",
            "FAKE_CALLS": str(self._calls),
            "FAKE_SPOOL": str(self._spool),
            **environment,
        }
        command = ["bash", str(script), *arguments]
        return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60)

    def take_calls(self) -> list[dict[str, Any]]:
        """The calls since the last time."""
        if not self._calls.exists():
            return []
        calls = [json.loads(line) for line in self._calls.read_text().splitlines()]
        self._calls.unlink()
        return calls
