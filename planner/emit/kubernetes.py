"""Kubernetes: a PyTorchJob of the training operator, built as data and dumped, never templated.

Owns the manifest. The plan's files and the script that each pod runs reach the pods as a config map, which the start
script makes from the plan folder: they exist once, and nothing of them passes through Kubernetes' own `$(…)`.
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from planner.emit.files import EmittedFile, LaunchPaths
from planner.emit.program import Program
from planner.emit.shell import environment_text, fill_skeleton, header, plan_dir_text
from planner.emit.topology import NodeShape
from planner.errors import InputError, did_you_mean
from planner.spec import Candidate, DeviceKind, JobSpec

Manifest = dict[str, Any]
OPTIONS = ("image", "namespace", "name")
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")
_LONGEST_NAME = 40  # the operator adds "-worker-123" and a label holds 63 characters
_PLAN_MOUNT = "/plan"


def render_kubernetes(
    job: JobSpec, candidate: Candidate, paths: LaunchPaths, *, shape: NodeShape, program: Program
) -> tuple[EmittedFile, ...]:
    """`launch.sh`, which applies, what a pod runs, and `launch/kubernetes.yaml`. Raises InputError without an image."""
    options = _options(job)
    opening = header(job, candidate, paths, start=f"bash {shlex.quote(paths.script)}, which applies the manifest")
    script = fill_skeleton(
        "kubernetes.sh",
        header=opening,
        plan_dir=plan_dir_text(paths, stay=False),
        name=shlex.quote(options["name"]),
        namespace=shlex.quote(options["namespace"]),
    )
    pod_script = fill_skeleton(
        "kubernetes-pod.sh",
        enter_plan_dir=f"PLAN_DIR={_PLAN_MOUNT}" + ('\ncd -- "$PLAN_DIR"' if program.in_plan_dir else ""),
        environment=environment_text(job, candidate, processes=shape.processes_per_node),
        nodes=str(shape.nodes),
        processes=str(shape.processes_per_node),
        program=program.torchrun_words,
    )
    manifest = yaml.safe_dump(_manifest(job, shape, options=options), sort_keys=False, width=120)
    return (
        EmittedFile(path=paths.script, text=script, executable=True),
        EmittedFile(path="launch/kubernetes-pod.sh", text=pod_script, executable=True),
        EmittedFile(path="launch/kubernetes.yaml", text=f"{opening}\n{manifest}"),
    )


def _options(job: JobSpec) -> dict[str, str]:
    given = dict(job.launch.kubernetes)
    for key in given:
        if key not in OPTIONS:
            raise InputError(
                f"kubernetes.{key} is not known",
                why="the section takes image, namespace and name",
                fix=did_you_mean(key, OPTIONS),
            )
    if not given.get("image"):
        raise InputError(
            "the kubernetes section names no image",
            why="pods are made from a container image that holds Python, torch, DeepSpeed and this package",
            fix="add kubernetes: {image: registry/name:tag} to the job file, or to `planner emit` "
            "--set kubernetes.image=registry/name:tag",
        )
    options = {"namespace": "default", "name": _name_of(job.model.name)} | given
    for key in ("namespace", "name"):
        if not _DNS_LABEL.match(options[key]) or len(options[key]) > _LONGEST_NAME:
            raise InputError(
                f"kubernetes.{key}: {options[key]!r} is no name Kubernetes takes",
                why=f"a name is at most {_LONGEST_NAME} lower-case letters, digits and dashes inside",
                fix="choose another",
            )
    return options


def _name_of(model: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"train-{plain}"[:_LONGEST_NAME].strip("-")


def _manifest(job: JobSpec, shape: NodeShape, *, options: dict[str, str]) -> Manifest:
    replicas = {"Master": _replica(job, 1, shape, options=options)}
    if shape.nodes > 1:
        replicas["Worker"] = _replica(job, shape.nodes - 1, shape, options=options)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": options["name"], "namespace": options["namespace"]},
        "spec": {"pytorchReplicaSpecs": replicas},
    }


def _replica(job: JobSpec, count: int, shape: NodeShape, *, options: dict[str, str]) -> Manifest:
    container: Manifest = {
        "name": "pytorch",  # Keep: the operator looks for a container of this name
        "image": options["image"],
        "command": ["bash", f"{_PLAN_MOUNT}/kubernetes-pod.sh"],
        "volumeMounts": [
            {"name": "plan", "mountPath": _PLAN_MOUNT},
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    if job.cluster.gpu.device is DeviceKind.CUDA:
        container["resources"] = {"limits": {"nvidia.com/gpu": shape.processes_per_node}}
    volumes = [
        {"name": "plan", "configMap": {"name": options["name"]}},
        # NCCL passes data between the processes of a pod through /dev/shm, which is 64 MiB unless mounted.
        {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
    ]
    return {
        "replicas": count,
        "restartPolicy": "Never",
        "template": {"spec": {"containers": [container], "volumes": volumes}},
    }
