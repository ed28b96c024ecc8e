"""Every start script, really started: ranks that meet over gloo and say who they are, on one "node" and on two."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from planner.emit import LaunchPaths, render_launch
from planner.spec import DeviceKind, Launcher, LaunchSpec
from tests.integration.cluster_fakes import fake_cluster
from tests.integration.ports import free_port
from tests.unit.emit.samples import make_candidate, make_job

LIMIT_S = 200
_RANKS = """\
import argparse, json, os, pathlib
from datetime import timedelta
import torch.distributed as distributed
import torch

parser = argparse.ArgumentParser()
parser.add_argument("--config", required=True)
parser.add_argument("--note", required=True)
parser.add_argument("--local_rank", type=int)
options = parser.parse_args()
distributed.init_process_group("gloo", timeout=timedelta(seconds=120))
total = torch.ones(1)
distributed.all_reduce(total)
seen = {name: os.environ.get(name) for name in ("LOCAL_RANK", "WORLD_SIZE", "DS_ACCELERATOR", "GREETING")}
seen |= {"sum": int(total), "note": options.note, "config": json.loads(pathlib.Path(options.config).read_text())}
rank = distributed.get_rank()
pathlib.Path(f"rank_{rank}.json").write_text(json.dumps(seen))
distributed.barrier()
"""


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    return fake_cluster(tmp_path / "bin")


def plan_folder(tmp_path: Path, launcher: Launcher, *, nodes: int, plain: bool = False, start: str = "") -> Path:
    """A plan for two ranks of an own script, in a folder with an awkward name (`plain`: without)."""
    project = tmp_path / ("project" if plain else "my 'project'")
    plan = tmp_path / ("plan" if plain else "the\nplan's $HOME")
    for folder in (project, plan / "launch"):
        folder.mkdir(parents=True)
    (project / "ranks.py").write_text(_RANKS)
    (plan / "ds_config.json").write_text('{"stage": 1}')
    note = "plain" if plain else 'it\'s "$HOME" of `mine`'
    words = ["ranks.py", "--config", "{deepspeed_config}", "--note", note]
    launch = LaunchSpec(
        command=f"{start}{shlex.join(words)}",
        folder=str(project),
        environment=(("GREETING", "hello" if plain else "two\nlines $X"),),
        hosts=(("127.0.0.1", 1), ("localhost", 1)) if nodes == 2 else (),
    )
    job = make_job(device=DeviceKind.CPU, nodes=nodes, gpus_per_node=2 // nodes, launch=launch)
    for file in render_launch(job, make_candidate(data=2), launcher=launcher, paths=LaunchPaths(python=sys.executable)):
        (plan / file.path).write_text(file.text)
    return plan


def start(plan: Path, environment: dict[str, str], **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", str(plan / "launch.sh")],
        env={**environment, **variables},
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(*started: subprocess.Popen[str]) -> str:
    try:
        output = "\n".join(process.communicate(timeout=LIMIT_S)[0] for process in started)
    finally:
        for process in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)  # a launcher ends its ranks
    assert [process.returncode for process in started] == [0] * len(started), output
    return output


def ranks_of(tmp_path: Path, *, plain: bool = False) -> list[dict[str, object]]:
    project = tmp_path / ("project" if plain else "my 'project'")
    seen = [json.loads((project / f"rank_{rank}.json").read_text()) for rank in range(2)]
    for rank in seen:
        assert (rank["WORLD_SIZE"], rank["sum"], rank["config"]) == ("2", 2, {"stage": 1})
        assert rank["note"] == ("plain" if plain else 'it\'s "$HOME" of `mine`')
        assert rank["GREETING"] == ("hello" if plain else "two\nlines $X")
        assert rank["DS_ACCELERATOR"] == "cpu"
    return seen


def test_torchrun_starts_the_ranks_of_one_node(tmp_path: Path, cluster: dict[str, str]) -> None:
    finish(start(plan_folder(tmp_path, Launcher.TORCHRUN, nodes=1), cluster))
    assert [rank["LOCAL_RANK"] for rank in ranks_of(tmp_path)] == ["0", "1"]


@pytest.mark.parametrize("numbered", [True, False])
def test_torchrun_of_two_nodes_meets_with_and_without_numbers(
    tmp_path: Path, cluster: dict[str, str], numbered: bool
) -> None:
    plan, place = plan_folder(tmp_path, Launcher.TORCHRUN, nodes=2), {"MASTER_ADDR": "127.0.0.1"}
    place["MASTER_PORT"] = str(free_port())
    finish(*(start(plan, cluster, **place, **({"NODE_RANK": str(node)} if numbered else {})) for node in range(2)))
    assert [rank["LOCAL_RANK"] for rank in ranks_of(tmp_path)] == ["0", "0"]


def test_deepspeed_launcher_starts_the_ranks_of_one_node(tmp_path: Path, cluster: dict[str, str]) -> None:
    finish(start(plan_folder(tmp_path, Launcher.DEEPSPEED, nodes=1), cluster, MASTER_PORT=str(free_port())))
    assert [rank["LOCAL_RANK"] for rank in ranks_of(tmp_path)] == ["0", "1"]


def test_deepspeed_launcher_on_each_of_two_nodes_reads_the_hostfile(tmp_path: Path, cluster: dict[str, str]) -> None:
    plan = plan_folder(tmp_path, Launcher.DEEPSPEED, nodes=2, plain=True)
    assert (plan / "hostfile").read_text() == "127.0.0.1 slots=1\nlocalhost slots=1\n"
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    finish(*(start(plan, cluster, **place, NODE_RANK=str(node)) for node in range(2)))
    assert [rank["LOCAL_RANK"] for rank in ranks_of(tmp_path, plain=True)] == ["0", "0"]


@pytest.mark.slow
def test_deepspeed_launcher_reaches_two_nodes_by_pdsh(tmp_path: Path, cluster: dict[str, str]) -> None:
    plan = plan_folder(tmp_path, Launcher.DEEPSPEED, nodes=2, plain=True)
    finish(start(plan, cluster, MASTER_PORT=str(free_port())))
    ranks_of(tmp_path, plain=True)


@pytest.mark.parametrize(("launcher", "local_ranks"), [(Launcher.SLURM, ["0", "0"]), (Launcher.SRUN, ["0", "0"])])
def test_slurm_runs_the_batch_script_on_two_nodes(
    tmp_path: Path, cluster: dict[str, str], launcher: Launcher, local_ranks: list[str]
) -> None:
    plan = plan_folder(tmp_path, launcher, nodes=2)
    finish(start(plan, cluster, MASTER_PORT=str(free_port())))
    assert [rank["LOCAL_RANK"] for rank in ranks_of(tmp_path)] == local_ranks


def test_plain_srun_numbers_the_ranks_of_one_node(tmp_path: Path, cluster: dict[str, str]) -> None:
    plan = plan_folder(tmp_path, Launcher.SRUN, nodes=1)
    finish(start(plan, cluster, MASTER_PORT=str(free_port())))
    assert [rank["LOCAL_RANK"] for rank in ranks_of(tmp_path)] == ["0", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", [Launcher.TORCHRUN, Launcher.SLURM])
def test_accelerate_launch_is_called_once_a_node(tmp_path: Path, cluster: dict[str, str], launcher: Launcher) -> None:
    option = "accelerate launch --deepspeed_config_file {deepspeed_config} "
    plan = plan_folder(tmp_path, launcher, nodes=2, start=option)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    if launcher is Launcher.SLURM:
        finish(start(plan, cluster, **place))
    else:
        finish(*(start(plan, cluster, **place, NODE_RANK=str(node)) for node in range(2)))
    ranks_of(tmp_path)
