"""Start scripts, by running them under bash with fakes in place of what they start."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from planner.emit import EmittedFile, LaunchPaths, render_launch
from planner.errors import InputError, NotExpressible
from planner.spec import DeviceKind, Launcher, LaunchSpec
from tests.unit.emit.fakes import FakeMachine
from tests.unit.emit.samples import make_candidate, make_job

SHELLCHECK = shutil.which("shellcheck", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
OWN_COMMAND = LaunchSpec(command="train.py --deepspeed {deepspeed_config} --tp {tensor_parallel_size}")
KUBERNETES = LaunchSpec(kubernetes=(("image", "registry/train:1"), ("namespace", "ml")))
TASK_ARGUMENTS = ["--task", "task.json", "--deepspeed-config", "ds_config.json"]


@pytest.fixture
def machine(tmp_path: Path) -> FakeMachine:
    return FakeMachine(tmp_path / "machine")


def write_files(folder: Path, files: tuple[EmittedFile, ...]) -> Path:
    for file in files:
        path = folder / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text)
        path.chmod(0o755 if file.executable else 0o644)
    return folder / files[0].path


def all_renderings() -> Iterator[tuple[str, tuple[EmittedFile, ...]]]:
    weird = LaunchPaths(script="launch/a start.sh", python="/opt/my env/python", made_with=("planner", "plan", "a\nb"))
    sections = {"kubernetes": KUBERNETES.kubernetes, "environment": (("A", "b c"),)}
    for launcher, nodes in itertools.product(Launcher, (1, 2)):
        for name, command, paths in (("reference", "", LaunchPaths()), ("own", OWN_COMMAND.command, weird)):
            job = make_job(nodes=nodes, gpus_per_node=2, launch=LaunchSpec(command=command, **sections))
            files = render_launch(job, make_candidate(data=nodes * 2), launcher=launcher, paths=paths)
            yield f"{launcher}-{nodes}-{name}", files


@pytest.mark.parametrize("files", [pytest.param(files, id=name) for name, files in all_renderings()])
def test_scripts_of_every_launcher_are_clean_shell(files: tuple[EmittedFile, ...], tmp_path: Path) -> None:
    write_files(tmp_path, files)
    for file in files:
        if file.text.startswith("#!"):
            subprocess.run(["bash", "-n", str(tmp_path / file.path)], check=True)
            assert SHELLCHECK, "shellcheck is a development dependency: pip install -e '.[dev]'"
            found = subprocess.run([SHELLCHECK, str(tmp_path / file.path)], capture_output=True, text=True)
            assert found.returncode == 0, found.stdout


def test_torchrun_script_moved_elsewhere_starts_from_its_new_folder(machine: FakeMachine, tmp_path: Path) -> None:
    write_files(tmp_path / "old", render_launch(make_job(), make_candidate(data=4), launcher=Launcher.TORCHRUN))
    (tmp_path / "old").rename(tmp_path / "new place")
    done = machine.run("new place/launch.sh", "--steps", "3", cwd=tmp_path, CDPATH="/usr")
    assert done.returncode == 0, done.stderr
    (call,) = machine.take_calls()
    assert call["cwd"] == str(tmp_path / "new place")
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=4", "-m", "planner.runtime.train"]
    assert call["argv"] == [*start, *TASK_ARGUMENTS, "--steps", "3"]
    assert json.loads(call["env"]["FAKE_SUPERVISOR"]) == [str(tmp_path / "new place")]


def test_script_in_a_sub_folder_finds_the_plan_above_it(machine: FakeMachine, tmp_path: Path) -> None:
    paths = LaunchPaths(script="launch/torchrun.sh")
    write_files(tmp_path, render_launch(make_job(), make_candidate(), launcher=Launcher.TORCHRUN, paths=paths))
    assert machine.run("torchrun.sh", cwd=tmp_path / "launch").returncode == 0
    assert machine.take_calls()[0]["cwd"] == str(tmp_path)


def test_several_nodes_without_a_place_say_how_to_start(machine: FakeMachine, tmp_path: Path) -> None:
    job, candidate = make_job(nodes=2, gpus_per_node=2), make_candidate(data=4)
    script = write_files(tmp_path, render_launch(job, candidate, launcher=Launcher.TORCHRUN))
    refused = machine.run(script, NODE_RANK="0")
    assert (refused.returncode, machine.take_calls()) == (2, [])
    assert "MASTER_ADDR" in refused.stderr and "from 0 (that one) to 1" in refused.stderr
    assert machine.run(script, MASTER_ADDR="node0").returncode == 2
    assert machine.run(script, MASTER_ADDR="node0", NODE_RANK="1").returncode == 0
    (call,) = machine.take_calls()
    expected = ["--nnodes=2", "--nproc-per-node=2", "--node-rank=1", "--master-addr=node0", "--master-port=29500"]
    assert call["argv"][2:7] == expected
    place = ["--nodes", "2", "--node-rank", "1", str(tmp_path)]
    assert json.loads(call["env"]["FAKE_SUPERVISOR"]) == place


def test_nodes_of_an_own_program_may_number_themselves_where_they_meet(machine: FakeMachine, tmp_path: Path) -> None:
    job = make_job(nodes=2, gpus_per_node=2, launch=LaunchSpec(command="t.py {deepspeed_config}"))
    script = write_files(tmp_path, render_launch(job, make_candidate(data=4), launcher=Launcher.TORCHRUN))
    assert machine.run(script, NODE_RANK="0").returncode == 2
    assert machine.run(script, MASTER_ADDR="node0", RDZV_ID="a").returncode == 0
    assert machine.run(script, MASTER_ADDR="node0", NODE_RANK="1").returncode == 0
    unnumbered, numbered = machine.take_calls()
    assert unnumbered["argv"][4:7] == ["--rdzv-backend=c10d", "--rdzv-endpoint=node0:29500", "--rdzv-id=a"]
    assert numbered["argv"][4:7] == ["--node-rank=1", "--master-addr=node0", "--master-port=29500"]


def test_environment_of_the_ranks_is_explicit_and_the_jobs_own_wins(machine: FakeMachine, tmp_path: Path) -> None:
    launch = LaunchSpec(environment=(("NCCL_DEBUG", "INFO"), ("GREETING", "it's $HOME")))
    files = render_launch(make_job(launch=launch), make_candidate(data=2), launcher=Launcher.TORCHRUN)
    machine.run(write_files(tmp_path, files))
    environment = machine.take_calls()[0]["env"]
    assert environment["DS_ACCELERATOR"] == "cuda"
    assert environment["NCCL_DEBUG"] == "INFO"
    assert environment["GREETING"] == "it's $HOME"
    assert int(environment["OMP_NUM_THREADS"]) >= 1
    cpu_files = render_launch(make_job(device=DeviceKind.CPU), make_candidate(), launcher=Launcher.TORCHRUN)
    machine.run(write_files(tmp_path, cpu_files), OMP_NUM_THREADS="7")
    environment = machine.take_calls()[0]["env"]
    assert (environment["DS_ACCELERATOR"], environment["OMP_NUM_THREADS"]) == ("cpu", "7")
    assert "NCCL_DEBUG" not in environment


def test_interpreter_is_the_plans_own_then_python3_and_always_overridable(machine: FakeMachine, tmp_path: Path) -> None:
    own = tmp_path / "my env" / "python"
    own.parent.mkdir()
    shutil.copy(tmp_path / "machine/bin/python3", own)
    files = render_launch(
        make_job(launch=LaunchSpec(python_path=("/a b", "/c"))),
        make_candidate(),
        launcher=Launcher.TORCHRUN,
        paths=LaunchPaths(python=str(own)),
    )
    script = write_files(tmp_path, files)
    machine.run(script, PYTHONPATH="/old")
    machine.run(script, PYTHON=str(tmp_path / "machine/bin/python3"))
    own.unlink()
    machine.run(script)
    calls = machine.take_calls()
    assert [call["program"] for call in calls] == ["python", "python3", "python3"]
    assert [call["env"]["PYTHONPATH"] for call in calls] == ["/a b:/c:/old", "/a b:/c", "/a b:/c"]


def test_own_command_starts_where_the_caller_is_with_its_slots_filled(machine: FakeMachine, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    job, candidate = make_job(launch=OWN_COMMAND), make_candidate(data=2, tensor=2)
    script = write_files(tmp_path / "the plan", render_launch(job, candidate, launcher=Launcher.TORCHRUN))
    machine.run(script, cwd=tmp_path / "project")
    (call,) = machine.take_calls()
    assert call["cwd"] == str(tmp_path / "project")
    assert "FAKE_SUPERVISOR" not in call["env"]  # nobody knows how to start it with other settings
    assert call["argv"][4:] == ["train.py", "--deepspeed", str(tmp_path / "the plan/ds_config.json"), "--tp", "2"]


def test_deepspeed_launcher_starts_the_module_on_this_machine(machine: FakeMachine, tmp_path: Path) -> None:
    files = render_launch(make_job(), make_candidate(data=2), launcher=Launcher.DEEPSPEED)
    machine.run(write_files(tmp_path, files))
    argv = machine.take_calls()[0]["argv"]
    assert argv[:5] == ["-m", "deepspeed.launcher.runner", "--hostfile=", "--num_gpus=2", "--master_port=29500"]
    assert argv[5:] == ["--no_local_rank", "--module", "planner.runtime.train", *TASK_ARGUMENTS]


def test_deepspeed_launcher_on_nodes_asks_for_a_host_file_and_forwards_the_environment(
    machine: FakeMachine, tmp_path: Path
) -> None:
    job = make_job(nodes=2, gpus_per_node=2, launch=LaunchSpec(environment=(("NAME", "a b"),)))
    plan = tmp_path / "plan"
    script = write_files(plan, render_launch(job, make_candidate(data=4), launcher=Launcher.DEEPSPEED))
    assert machine.run(script).returncode == 2
    (plan / "hostfile").write_text("node0 slots=2\nnode1 slots=2\n")
    machine.run(script)
    (call,) = machine.take_calls()
    assert call["argv"][2:5] == [f"--hostfile={plan}/hostfile", "--num_nodes=2", "--num_gpus=2"]
    forwarded = Path(call["env"]["DS_ENV_FILE"]).read_text().splitlines()
    assert forwarded == ["OMP_NUM_THREADS=1", "DS_ACCELERATOR=cuda", "NAME=a b"]
    (tmp_path / "alive").write_text("node7 slots=2\nnode9 slots=2\n")  # named from where the caller stands
    machine.run(script, cwd=tmp_path, HOSTFILE="alive")
    assert machine.take_calls()[0]["argv"][2] == f"--hostfile={tmp_path}/alive"
    plan.rename(tmp_path / "a plan")
    refused = machine.run(tmp_path / "a plan/launch.sh")
    assert refused.returncode == 2 and "without quoting" in refused.stderr


def test_deepspeed_launcher_on_nodes_refuses_what_its_remote_shell_would_change() -> None:
    candidate = make_candidate(data=4)
    environment = LaunchSpec(environment=(("NAME", "$HOME"),))
    with pytest.raises(NotExpressible, match="NAME"):
        render_launch(make_job(nodes=2, gpus_per_node=2, launch=environment), candidate, launcher=Launcher.DEEPSPEED)
    command = LaunchSpec(command="train.py {deepspeed_config} --note 'it is'")
    with pytest.raises(NotExpressible, match="arguments"):
        render_launch(make_job(nodes=2, gpus_per_node=2, launch=command), candidate, launcher=Launcher.DEEPSPEED)


def test_slurm_script_submits_a_batch_that_starts_one_torchrun_a_node(machine: FakeMachine, tmp_path: Path) -> None:
    job, candidate = make_job(nodes=2, gpus_per_node=2), make_candidate(data=4)
    script = write_files(tmp_path / "it's\na plan", render_launch(job, candidate, launcher=Launcher.SLURM))
    done = machine.run(script, "--steps", "3")
    assert done.returncode == 0, done.stderr
    (call,) = machine.take_calls()
    assert call["cwd"] == str(tmp_path / "it's\na plan")
    assert call["argv"] == [
        *["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=2", "--node-rank=1"],
        *["--master-addr=node1", "--master-port=29500", "-m", "planner.runtime.train", *TASK_ARGUMENTS, "--steps", "3"],
    ]


def test_slurm_directives_hold_the_jobs_options_and_yield_to_its_choice_of_gpus() -> None:
    slurm = (("partition", "big gpu"), ("time", "01:00:00"), ("gres", "gpu:h100:2"), ("requeue", ""))
    job = make_job(nodes=2, gpus_per_node=2, launch=LaunchSpec(slurm=slurm))
    batch = render_launch(job, make_candidate(data=4), launcher=Launcher.SLURM)[1].text
    lines = [line for line in batch.splitlines() if line.startswith("#SBATCH")]
    assert "#SBATCH --nodes=2" in lines and "#SBATCH --ntasks-per-node=1" in lines
    assert "#SBATCH --partition='big gpu'" in lines and "#SBATCH --requeue" in lines
    assert "#SBATCH --gres=gpu:h100:2" in lines and not any("gpus-per-node" in line for line in lines)


@pytest.mark.parametrize(
    ("option", "value"), [("nodes", "4"), ("partition", "a\nrm -rf ~"), ("par tition", "a"), ("-p", "a")]
)
def test_slurm_options_that_would_break_the_batch_script_are_refused(option: str, value: str) -> None:
    job = make_job(launch=LaunchSpec(slurm=((option, value),)))
    with pytest.raises(InputError, match="slurm"):
        render_launch(job, make_candidate(), launcher=Launcher.SLURM)


def test_kubernetes_manifest_has_a_master_and_workers_with_their_gpus() -> None:
    job, candidate = make_job(nodes=4, gpus_per_node=2, launch=KUBERNETES), make_candidate(data=8)
    files = {file.path: file.text for file in render_launch(job, candidate, launcher=Launcher.KUBERNETES)}
    manifest = yaml.safe_load(files["launch/kubernetes.yaml"])
    replicas = manifest["spec"]["pytorchReplicaSpecs"]
    assert manifest["kind"] == "PyTorchJob" and manifest["metadata"]["namespace"] == "ml"
    assert (replicas["Master"]["replicas"], replicas["Worker"]["replicas"]) == (1, 3)
    container = replicas["Worker"]["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 2
    assert container["command"] == ["bash", "/plan/kubernetes-pod.sh"]


def test_kubernetes_script_ships_the_plans_files_and_the_pod_starts_torchrun(
    machine: FakeMachine, tmp_path: Path
) -> None:
    job, candidate = make_job(nodes=2, gpus_per_node=2, launch=KUBERNETES), make_candidate(data=4)
    script = write_files(tmp_path / "a plan", render_launch(job, candidate, launcher=Launcher.KUBERNETES))
    done = machine.run(script)
    assert done.returncode == 0, done.stderr
    calls = machine.take_calls()
    applied = [argument for call in calls for argument in call["argv"] if argument.startswith("--f")]
    assert f"--filename={tmp_path}/a plan/launch/kubernetes.yaml" in applied
    shipped = {Path(argument.partition("=")[2]).name for argument in applied if argument.startswith("--from-file")}
    assert shipped == {"ds_config.json", "task.json", "kubernetes-pod.sh"}
    pod = (tmp_path / "a plan/launch/kubernetes-pod.sh").read_text().replace("/plan", str(tmp_path))
    (tmp_path / "pod.sh").write_text(pod)
    machine.run(tmp_path / "pod.sh", RANK="1", MASTER_ADDR="train-master-0", MASTER_PORT="1234")
    (call,) = machine.take_calls()
    assert call["argv"][2:7] == [
        *["--nnodes=2", "--nproc-per-node=2", "--node-rank=1", "--master-addr=train-master-0", "--master-port=1234"]
    ]


@pytest.mark.parametrize(
    "section", [(), (("image", ""),), (("image", "a"), ("imagge", "b")), (("image", "a"), ("namespace", "No_Name"))]
)
def test_kubernetes_section_that_is_incomplete_or_wrong_is_refused(section: tuple[tuple[str, str], ...]) -> None:
    with pytest.raises(InputError, match=r"kubernetes|image"):
        render_launch(make_job(launch=LaunchSpec(kubernetes=section)), make_candidate(), launcher=Launcher.KUBERNETES)


@pytest.mark.parametrize(
    ("command", "part"),
    [
        ("train.py", "does not take the DeepSpeed config"),
        ("train.py {deepspeed_config} 'open", "cannot be read"),
        ("train.py {deepspeed_config} | tee log", "shell operator"),
        ("A=1 train.py {deepspeed_config}", "starts with a variable"),
        ("python3 -u", "no Python script"),
        ("train.py {deepspeed_config} {micro_batch}", "unknown slot"),
        ("", None),
        ("/usr/bin/python3.11 -m pkg.train {deepspeed_config}", None),
    ],
)
def test_own_command_that_cannot_work_is_refused_with_its_reason(command: str, part: str | None) -> None:
    job = make_job(launch=LaunchSpec(command=command))
    if part is None:
        assert render_launch(job, make_candidate(), launcher=Launcher.TORCHRUN)
        return
    with pytest.raises(InputError, match=part):
        render_launch(job, make_candidate(), launcher=Launcher.TORCHRUN)


@pytest.mark.parametrize(
    ("changes", "slot"),
    [
        ({"tensor": 2}, "tensor_parallel_size"),
        ({"pipeline": 2}, "pipeline_parallel_size"),
        ({"checkpointing": "full"}, "activation_checkpointing"),
    ],
)
def test_layout_that_would_not_reach_the_users_script_is_not_expressible(changes: dict[str, object], slot: str) -> None:
    candidate = make_candidate(**changes)  # type: ignore[arg-type]
    with pytest.raises(NotExpressible, match=slot):
        render_launch(
            make_job(launch=LaunchSpec(command="t.py {deepspeed_config}")), candidate, launcher=Launcher.TORCHRUN
        )
    told = LaunchSpec(command=f"t.py {{deepspeed_config}} {{{slot}}}")
    assert render_launch(make_job(launch=told), candidate, launcher=Launcher.TORCHRUN)


def test_world_that_fills_a_node_in_part_is_not_expressible() -> None:
    with pytest.raises(NotExpressible, match="whole nodes"):
        render_launch(make_job(nodes=2, gpus_per_node=4), make_candidate(data=6), launcher=Launcher.TORCHRUN)


@pytest.mark.parametrize("name", ["1A", "A B", "A-B", "", "A\n"])
def test_environment_names_no_shell_takes_are_refused(name: str) -> None:
    job = make_job(launch=LaunchSpec(environment=((name, "x"),)))
    with pytest.raises(InputError, match="environment"):
        render_launch(job, make_candidate(), launcher=Launcher.TORCHRUN)
