"""Kubernetes manifests of both kinds: strict against their operators' fields, and what each option becomes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from planner.emit import render_launch
from planner.errors import InputError, NotExpressible
from planner.spec import Launcher, LaunchSpec
from tests.unit.emit.fakes import FakeMachine
from tests.unit.emit.kubernetes_schema import JOBSET, PYTORCH_JOB, problems
from tests.unit.emit.samples import make_candidate, make_job

FULL = {
    "image": "registry/train:1",
    "namespace": "ml",
    "name": "big-run",
    "volumes": "data:/data:ro, checkpoints:/ckpt",
    "shared_memory": "64Gi",
    "rdma": "rdma/hca_shared_devices_a=1, nvidia.com/sriov=2",
    "restarts": "3",
    "node_selector": "pool=h100,zone=a",
    "service_account": "trainer",
}


def files_of(nodes: int = 4, checkpoints: str = "", **options: str) -> dict[str, str]:
    job = make_job(nodes=nodes, gpus_per_node=8, launch=LaunchSpec(kubernetes=tuple(options.items())))
    job = replace(job, training=replace(job.training, checkpoint_dir=checkpoints))
    candidate = make_candidate(data=8 * nodes)
    return {file.path: file.text for file in render_launch(job, candidate, launcher=Launcher.KUBERNETES)}


def manifest(**options: Any) -> Any:
    return yaml.safe_load(files_of(**options)["launch/kubernetes.yaml"])


@pytest.mark.parametrize(("kind", "schema"), [("pytorchjob", PYTORCH_JOB), ("jobset", JOBSET)])
@pytest.mark.parametrize("nodes", [1, 4])
@pytest.mark.parametrize("options", [{"image": "a"}, FULL], ids=["least", "all"])
def test_manifest_has_only_fields_that_its_operator_knows(
    kind: str, schema: dict[str, Any], nodes: int, options: dict[str, str]
) -> None:
    assert problems(manifest(nodes=nodes, kind=kind, **options), schema) == []


def test_schema_check_can_fail() -> None:
    made = manifest(**FULL)
    made["spec"]["pytorchReplicaSpecs"]["Master"]["restartPolice"] = "Never"
    made["spec"]["runPolicy"]["cleanPodPolicy"] = "Sometimes"
    del made["metadata"]["name"]
    assert len(problems(made, PYTORCH_JOB)) == 3


def test_options_become_volumes_resources_and_policies() -> None:
    spec = manifest(**FULL)["spec"]
    worker = spec["pytorchReplicaSpecs"]["Worker"]
    pod, container = worker["template"]["spec"], worker["template"]["spec"]["containers"][0]
    assert container["resources"]["limits"] == {
        "nvidia.com/gpu": 8,
        "rdma/hca_shared_devices_a": 1,
        "nvidia.com/sriov": 2,
    }
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    assert mounts["/data"]["readOnly"] and "readOnly" not in mounts["/ckpt"] and "/dev/shm" in mounts
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes["shared-memory"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert volumes[mounts["/ckpt"]["name"]]["persistentVolumeClaim"]["claimName"] == "checkpoints"
    assert (worker["restartPolicy"], spec["runPolicy"]["backoffLimit"]) == ("OnFailure", 3)
    assert pod["nodeSelector"] == {"pool": "h100", "zone": "a"} and pod["serviceAccountName"] == "trainer"


def test_jobset_is_one_indexed_job_whose_pods_are_the_nodes(tmp_path: Path) -> None:
    files = files_of(kind="jobset", checkpoints="/ckpt/run", **FULL)
    spec = yaml.safe_load(files["launch/kubernetes.yaml"])["spec"]
    (nodes,) = spec["replicatedJobs"]
    indexed = nodes["template"]["spec"]
    assert (indexed["parallelism"], indexed["completions"], indexed["completionMode"]) == (4, 4, "Indexed")
    assert spec["failurePolicy"]["maxRestarts"] == 3 and indexed["backoffLimit"] == 0
    pod = files["launch/kubernetes-pod.sh"].replace("PLAN_DIR=/plan", f"PLAN_DIR={tmp_path}")
    (tmp_path / "pod.sh").write_text(pod)
    machine = FakeMachine(tmp_path / "machine")
    assert machine.run(tmp_path / "pod.sh").returncode != 0  # no index: not in an indexed job
    done = machine.run(tmp_path / "pod.sh", JOB_COMPLETION_INDEX="2")
    (call,) = machine.take_calls()
    assert {"--node-rank=2", "--master-addr=big-run-node-0-0.big-run", "--nnodes=4"} <= set(call["argv"]), done.stderr
    assert call["argv"][-1] == "--resume"  # a pod that is started again goes on


@pytest.mark.parametrize(
    ("folder", "volumes", "why"),
    [
        ("checkpoints", "work:/work", "inside the plan folder"),
        ("/home/me/plan/checkpoints", "work:/work", "no volume"),
        ("/workspace/run", "work:/work", "no volume"),
        ("/work/../other", "work:/work", "no volume"),
        ("/data/run", "data:/data:ro", "read-only"),
        ("/data/fixed/run", "data:/data,fixed:/data/fixed:ro", "read-only"),
    ],
)
def test_checkpoints_that_would_not_outlive_the_pod_are_refused(folder: str, volumes: str, why: str) -> None:
    with pytest.raises(NotExpressible, match="cannot be saved by pods") as caught:
        files_of(checkpoints=folder, image="a", volumes=volumes)
    assert why in caught.value.why and "kubernetes.volumes" in caught.value.fix


@pytest.mark.parametrize(
    ("folder", "volumes"),
    [("", ""), ("/work/run", "work:/work/"), ("/work", "work:/work"), ("/a/b/run", "a:/a:ro,b:/a/b")],
)
def test_checkpoints_on_a_writable_volume_are_taken(folder: str, volumes: str) -> None:
    assert files_of(checkpoints=folder, image="a", volumes=volumes)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kind", "deployment"),
        ("volumes", "data"),
        ("volumes", "data:relative"),
        ("shared_memory", "lots"),
        ("rdma", "hca"),
        ("rdma", "rdma/hca=0"),
        ("restarts", "-1"),
        ("node_selector", "h100"),
        ("service_account", "No_Name"),
    ],
)
def test_option_that_kubernetes_would_refuse_is_refused_here(key: str, value: str) -> None:
    with pytest.raises(InputError, match=f"kubernetes.{key}"):
        files_of(**{"image": "a", key: value})
