"""What the worker is told by its environment, and what it is not."""

from __future__ import annotations

import pytest

from planner.spec import DeviceKind
from planner.trial.environment import worker_environment


@pytest.mark.parametrize(
    "name",
    [
        "AWS_SECRET_ACCESS_KEY",
        "HF_TOKEN",
        "WANDB_API_KEY",
        "NCCL_AUTH_TOKEN",
        "TORCH_PASSWORD",
        "SSH_AUTH_SOCK",
        "MY_VAR",
    ],
)
def test_environment_leaves_secrets_and_strangers_behind(name: str) -> None:
    assert name not in worker_environment(DeviceKind.CPU, {name: "x", "PATH": "/bin"})


@pytest.mark.parametrize("name", ["PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "NCCL_DEBUG", "LC_ALL", "HF_HOME"])
def test_environment_passes_what_programs_need(name: str) -> None:
    assert worker_environment(DeviceKind.CUDA, {name: "x"})[name] == "x"


def test_environment_names_the_accelerator_and_starts_no_thread_pools() -> None:
    found = worker_environment(DeviceKind.CPU, {"OMP_NUM_THREADS": "64", "DS_ACCELERATOR": "cuda"})
    assert found["DS_ACCELERATOR"] == "cpu"
    assert found["OMP_NUM_THREADS"] == "1"


def test_environment_of_the_job_wins() -> None:
    found = worker_environment(DeviceKind.CPU, {"NCCL_DEBUG": "WARN"}, extra={"NCCL_DEBUG": "INFO", "MY_VAR": "y"})
    assert (found["NCCL_DEBUG"], found["MY_VAR"]) == ("INFO", "y")


def test_environment_keeps_the_shells_network_interface() -> None:
    assert worker_environment(DeviceKind.CPU, {})["GLOO_SOCKET_IFNAME"] == "lo"
    assert worker_environment(DeviceKind.CPU, {"GLOO_SOCKET_IFNAME": "eth7"})["GLOO_SOCKET_IFNAME"] == "eth7"
