"""Slurm's and pdsh's programs, reduced to what start scripts rely on, whose "nodes" are processes on this machine.

They run what they are given for real: sbatch the script's body, srun as many tasks as it is asked for, pdsh a command
for each host.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_SBATCH = """#!/usr/bin/env bash
set -e
wait_for_it=
while [[ $1 == --* ]]; do [[ $1 != --wait ]] || wait_for_it=yes; shift; done
spool=$(mktemp)  # Slurm runs a copy of the script, from the folder it was submitted in
cp -- "$1" "$spool"
shift
log=$(sed -n 's/^#SBATCH --output=//p' "$spool" | tail -1)
log=${log//%j/77}
echo 77
export SLURM_JOB_ID=77 SLURM_JOB_NODELIST=node[0-1] SLURM_JOB_NUM_NODES=2
if [[ -n $log ]]; then eval "log=$log"; exec bash "$spool" "$@" >"$log" 2>&1; fi
exec bash "$spool" "$@"
"""
_SRUN = f"""#!{sys.executable}
import os, subprocess, sys
words, options = sys.argv[1:], {{}}
while words[0].startswith("--"):
    name, _, value = words.pop(0)[2:].partition("=")
    options[name] = value
tasks, nodes = int(options["ntasks"]), int(options["nodes"])
assert tasks == nodes * int(options["ntasks-per-node"]), options
def environment(task):
    node, local = divmod(task, tasks // nodes)
    return {{**os.environ, "SLURM_PROCID": str(task), "SLURM_LOCALID": str(local), "SLURM_NODEID": str(node),
            "SLURM_NTASKS": str(tasks)}}
running = [subprocess.Popen(words, env=environment(task)) for task in range(tasks)]
sys.exit(max(process.wait() for process in running))
"""
_SCONTROL = """#!/usr/bin/env bash
printf '127.0.0.1\\nlocalhost\\n'
"""
_PDSH = f"""#!{sys.executable}
import subprocess, sys
words = sys.argv[1:]
hosts = words[words.index("-w") + 1].split(",")
command = " ".join(words[words.index("-w") + 2:])
running = [subprocess.Popen(["bash", "-c", command.replace("%n", str(n))]) for n, _host in enumerate(hosts)]
sys.exit(max(process.wait() for process in running))
"""
_SSH = """#!/usr/bin/env bash
[[ $* == *"hostname -I"* ]] && echo 127.0.0.1
exit 0
"""


def fake_cluster(folder: Path) -> dict[str, str]:
    """An environment whose PATH has these programs first, and this interpreter for the start scripts."""
    folder.mkdir(parents=True)
    programs = {"sbatch": _SBATCH, "srun": _SRUN, "scontrol": _SCONTROL, "pdsh": _PDSH, "ssh": _SSH}
    for name, text in {**programs, "scancel": "#!/bin/sh\nexit 0\n"}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    root = Path(__file__).parents[2]
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHON": sys.executable,
        "PYTHONPATH": str(root),
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
    }
