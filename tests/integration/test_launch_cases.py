"""What people met when launching on clusters (tests/data/cases/launch_cluster.yaml): each case has its answer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.app.checkpoint_route import checkpoint_route
from planner.app.mixed import choose_use
from planner.catalog.hostfile import parse_hosts
from planner.emit import render_launch
from planner.errors import InputError
from planner.jobfile import MachineFacts, load_job, resolve_job
from planner.spec import DeviceKind, Launcher, LaunchSpec
from planner.spec.replan import CheckpointWay
from planner.trial.devices import with_devices_as_they_are
from tests.integration.running import Planner, planner_fixture
from tests.unit.emit.fakes import FakeMachine
from tests.unit.emit.samples import make_candidate, make_job
from tests.unit.jobfile.jobs import job_of, write_job
from tests.unit.trial.test_devices import GpuDetails, MigSlice, gpu_report, machine, state

planner = planner_fixture
GIB = 1 << 30
CASES: dict[str, dict[str, Any]] = {
    case["id"]: case
    for case in yaml.safe_load((Path(__file__).parents[1] / "data" / "cases" / "launch_cluster.yaml").read_text())
}


def deepspeed_call(tmp_path: Path, *, processes: int, **variables: str) -> tuple[Any, dict[str, Any] | None]:
    """The emitted start script for the deepspeed launcher, run with these variables: its end, and what it called."""
    fakes = FakeMachine(tmp_path / "machine")
    job, candidate = make_job(gpus_per_node=8), make_candidate(data=processes)
    for file in render_launch(job, candidate, launcher=Launcher.DEEPSPEED):
        (tmp_path / file.path).write_text(file.text)
    done = fakes.run(tmp_path / "launch.sh", **variables)
    calls = fakes.take_calls()
    return done, calls[-1] if calls else None


def test_every_case_has_its_test() -> None:
    names = {name for name in globals() if name.startswith("test_lch_")}
    assert {name[5:11].upper().replace("_", "-") for name in names} == set(CASES)


def test_lch_01_hostfile_with_a_typo_is_refused_with_line_and_text() -> None:
    case = CASES["LCH-01"]
    with pytest.raises(InputError) as caught:
        parse_hosts(case["input"]["hostfile"].splitlines(), label="hostfile")
    assert "line 2: expected <host> slots=<n>, found '10.0.0.2 lots=8'" in caught.value.error


def test_lch_05_visible_devices_become_the_deepspeed_launchers_include(tmp_path: Path) -> None:
    done, call = deepspeed_call(tmp_path, processes=2, **CASES["LCH-05"]["input"]["env"])
    assert call is not None, done.stderr
    assert "--include=localhost:0,2" in call["argv"] and "CUDA_VISIBLE_DEVICES" not in call["env"]


def test_lch_06_visible_devices_and_counts_are_never_combined(tmp_path: Path) -> None:
    done, call = deepspeed_call(tmp_path, processes=4, **CASES["LCH-06"]["input"]["env"])
    assert call is not None, done.stderr
    assert "--include=localhost:2,4,5,7" in call["argv"]
    assert not any("--num_gpus" in word for word in call["argv"])
    assert "GPUs 0 to 3 would be used" in (tmp_path / "launch.sh").read_text()
    for folder, variables in (
        ("few", {"CUDA_VISIBLE_DEVICES": "2,4"}),
        ("both", {"CUDA_VISIBLE_DEVICES": "0,1,2,3", "INCLUDE": "localhost:0,1,2,3"}),
        ("names", {"CUDA_VISIBLE_DEVICES": "MIG-1"}),
    ):
        (tmp_path / folder).mkdir()
        refused, call = deepspeed_call(tmp_path / folder, processes=4, **variables)
        assert (refused.returncode, call) == (2, None) and "fix:" in refused.stderr


def test_lch_08_renumbered_gpu_of_a_message_is_told_by_its_own_number(planner: Planner, tmp_path: Path) -> None:
    given = CASES["LCH-08"]["input"]
    log = tmp_path / "train.log"
    log.write_text(f"[INFO] deepspeed --include {given['include']} train.py\ntorch.OutOfMemoryError: {given['log']}\n")
    document = json.loads(planner("diagnose", str(log), "--json").out)
    assert document["events"][0]["physical_gpu"] == "3" and document["cause"] == "capacity"


def test_lch_09_slurm_script_gives_every_task_all_gpus_of_its_node() -> None:
    job, candidate = make_job(gpus_per_node=8), make_candidate(data=8)
    for launcher in (Launcher.SLURM, Launcher.SRUN):
        batch = render_launch(job, candidate, launcher=launcher)[1].text
        assert "#SBATCH --gpus-per-node=8" in batch and "#SBATCH --gpus-per-task" not in batch
    own = replace(job, launch=LaunchSpec(slurm=(("gpus-per-task", "1"),)))
    with pytest.raises(InputError, match="hide a node's GPUs"):
        render_launch(own, candidate, launcher=Launcher.SLURM)


@pytest.mark.parametrize("command", ["deepspeed --num_gpus 16 train.py", "srun bash -c 'deepspeed train.py'"])
def test_lch_10_launcher_inside_the_launcher_is_refused_and_torchrun_is_emitted(tmp_path: Path, command: str) -> None:
    job = make_job(nodes=2, gpus_per_node=8)
    batch = render_launch(job, make_candidate(data=16, accumulation=1), launcher=Launcher.SLURM)[1].text
    assert "torch.distributed.run --nnodes=2 --nproc-per-node=8" in batch and "deepspeed.launcher" not in batch
    text = "model: {name: gpt2}\ntraining: {seq_len: 8, global_batch_size: 8}\ncluster: {gpu: cpu}\n"
    path = write_job(tmp_path, text + f"launch: {{command: {json.dumps(command + ' {deepspeed_config}')}}}\n")
    with pytest.raises(InputError, match="the plan's start script is the launcher"):
        load_job(path)


@pytest.mark.parametrize("launcher", list(Launcher))
def test_lch_13_network_interfaces_of_all_nodes_reach_every_node(launcher: Launcher) -> None:
    names = ",".join(CASES["LCH-13"]["input"]["interfaces"].values())
    launch = LaunchSpec(environment=(("NCCL_SOCKET_IFNAME", names),), kubernetes=(("image", "a:1"),))
    job = make_job(nodes=2, gpus_per_node=8, launch=launch)
    files = {file.path: file.text for file in render_launch(job, make_candidate(data=16), launcher=launcher)}
    carrier = {
        Launcher.DEEPSPEED: "launch/deepspeed_env",
        Launcher.SLURM: "launch/slurm.sbatch",
        Launcher.SRUN: "launch/srun.sbatch",
        Launcher.KUBERNETES: "launch/kubernetes-pod.sh",
        Launcher.TORCHRUN: "launch.sh",
    }[launcher]
    assert f"NCCL_SOCKET_IFNAME={names}" in files[carrier]


def test_lch_14_two_slices_of_a_gpu_are_planned_as_one_device() -> None:
    slices = tuple(
        MigSlice(uuid=f"MIG-{n}", profile="3g.40gb", total_bytes=40 * GIB, free_bytes=39 * GIB, share_fraction=3 / 7)
        for n in range(2)
    )
    whole = state()
    seen = with_devices_as_they_are(machine(whole), gpu_report(whole, GpuDetails(mig_enabled=True, mig_slices=slices)))
    assert (seen.num_devices, seen.usable_bytes) == (1, 39 * GIB)
    assert any("the plan is for one (3g.40gb)" in note for note in seen.notes)


def test_lch_16_unlike_gpus_are_weighed_as_all_by_the_least_or_the_larger_alone(tmp_path: Path) -> None:
    group = "{{gpu: v100-sxm-{size}gb, nodes: 1, gpus_per_node: 2}}"
    job = job_of(
        tmp_path,
        "model: {name: llama-3.2-1b}\ntraining: {seq_len: 512, global_batch_size: 16, steps: 100}\n"
        f"cluster: {{groups: [{group.format(size=16)}, {group.format(size=32)}]}}\nsearch: {{zero_stage: [3]}}\n",
    )
    chosen, options = choose_use(job)
    words = [option.words for option in options]
    assert any("v100-sxm-32gb" in word and "16gb" not in word for word in words), words
    assert any(word.startswith("all ") for word in words), words
    assert chosen.tokens_per_s == max(option.tokens_per_s for option in options)


def test_lch_17_checkpoint_of_fewer_ranks_of_an_own_script_goes_through_the_universal_format() -> None:
    job = make_job(nodes=16, launch=LaunchSpec(command="train.py {deepspeed_config}"), global_batch_size=512)
    old = make_candidate(data=32, accumulation=16, stage=3)
    new = make_candidate(data=128, accumulation=4, stage=3)
    route = checkpoint_route(old, new, job=job, folder="checkpoints")
    assert route.way is CheckpointWay.UNIVERSAL and "ds_to_universal" in route.command
    assert old.batch.global_batch_size == new.batch.global_batch_size == 512


def test_lch_20_universal_format_of_zero_3_does_not_merge_tensor_parallel_shards() -> None:
    job = make_job(nodes=256, launch=LaunchSpec(command="train.py {deepspeed_config} --tp {tensor_parallel_size}"))
    old = make_candidate(data=256, tensor=8, accumulation=1, stage=3)
    kept = checkpoint_route(old, make_candidate(data=128, tensor=8, stage=3), job=job, folder="c")
    merged = checkpoint_route(old, make_candidate(data=256, tensor=4, accumulation=1, stage=3), job=job, folder="c")
    assert kept.way is CheckpointWay.UNIVERSAL
    assert merged.way is CheckpointWay.CANNOT and "tensor" in merged.why


def test_lch_24_what_is_free_counts_not_what_the_data_sheet_says(tmp_path: Path) -> None:
    given = CASES["LCH-24"]["input"]
    free = (given["gpu_nominal_GB"] - given["overhead_GiB"]) * GIB
    facts = MachineFacts(
        device=DeviceKind.CUDA,
        gpu_name="NVIDIA H100 NVL",
        num_devices=1,
        usable_bytes=free,
        total_bytes=given["gpu_nominal_GB"] * GIB,
        host_memory_bytes=64 * GIB,
    )
    text = "model: {name: gpt2}\ntraining: {seq_len: 8, global_batch_size: 8}\ncluster: {gpu: auto}\n"
    job = resolve_job(load_job(write_job(tmp_path, text)), machine=facts)
    assert job.cluster.gpu.memory_usable_bytes == free
