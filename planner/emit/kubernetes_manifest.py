"""The Kubernetes manifests as data, dumped by whoever asks and never templated.

PyTorchJob: kubeflow.org/v1 of the training operator. JobSet: jobset.x-k8s.io/v1alpha2, one indexed job whose pods are
the nodes.
"""

from __future__ import annotations

from typing import Any

from planner.emit.kubernetes_options import KubernetesOptions
from planner.emit.topology import NodeShape
from planner.spec import DeviceKind, JobSpec

Manifest = dict[str, Any]
PLAN_MOUNT = "/plan"


def pytorch_job(job: JobSpec, shape: NodeShape, *, options: KubernetesOptions) -> Manifest:
    """A master and, beyond one node, workers: each pod is a node."""
    replicas = {"Master": _replica(job, 1, shape, options=options)}
    if shape.nodes > 1:
        replicas["Worker"] = _replica(job, shape.nodes - 1, shape, options=options)
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": options.name, "namespace": options.namespace},
        "spec": {
            # What failed stays to be read; what still runs is ended with it.
            "runPolicy": {"cleanPodPolicy": "Running", "backoffLimit": options.restarts},
            "pytorchReplicaSpecs": replicas,
        },
    }


def jobset(job: JobSpec, shape: NodeShape, *, options: KubernetesOptions) -> Manifest:
    """One indexed job: pod i is node i. A pod that fails restarts all of them, because its peers wait for it."""
    indexed: Manifest = {
        "parallelism": shape.nodes,
        "completions": shape.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": {"restartPolicy": "Never", **_pod(job, shape, options=options)}},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": options.name, "namespace": options.namespace},
        "spec": {
            "network": {"enableDNSHostnames": True},
            "failurePolicy": {"maxRestarts": options.restarts},
            "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": indexed}}],
        },
    }


def _replica(job: JobSpec, count: int, shape: NodeShape, *, options: KubernetesOptions) -> Manifest:
    return {
        "replicas": count,
        "restartPolicy": "OnFailure" if options.restarts else "Never",
        "template": {"spec": _pod(job, shape, options=options)},
    }


def _pod(job: JobSpec, shape: NodeShape, *, options: KubernetesOptions) -> Manifest:
    pod: Manifest = {"containers": [_container(job, shape, options=options)], "volumes": _volumes(options)}
    if options.node_selector:
        pod["nodeSelector"] = dict(options.node_selector)
    if options.service_account:
        pod["serviceAccountName"] = options.service_account
    return pod


def _container(job: JobSpec, shape: NodeShape, *, options: KubernetesOptions) -> Manifest:
    mounts: list[Manifest] = [
        {"name": "plan", "mountPath": PLAN_MOUNT},
        {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108
    ]
    for number, volume in enumerate(options.volumes):
        mount: Manifest = {"name": f"volume-{number}", "mountPath": volume.path}
        mounts.append(mount | {"readOnly": True} if volume.read_only else mount)
    container: Manifest = {
        "name": "pytorch",  # Keep: the operator looks for a container of this name
        "image": options.image,
        "command": ["bash", f"{PLAN_MOUNT}/kubernetes-pod.sh"],
        "volumeMounts": mounts,
    }
    limits: Manifest = {}
    if job.cluster.gpu.device is DeviceKind.CUDA:
        limits["nvidia.com/gpu"] = shape.processes_per_node
    limits |= dict(options.rdma)
    if limits:
        container["resources"] = {"limits": limits}
    if options.rdma:
        # RDMA pins memory, which a container may not do beyond 64 KiB without this.
        container["securityContext"] = {"capabilities": {"add": ["IPC_LOCK"]}}
    return container


def _volumes(options: KubernetesOptions) -> list[Manifest]:
    # NCCL passes data between the processes of a pod through /dev/shm, which is 64 MiB unless mounted.
    shared: Manifest = {"medium": "Memory"}
    if options.shared_memory:
        shared["sizeLimit"] = options.shared_memory
    return [
        {"name": "plan", "configMap": {"name": options.name}},
        {"name": "shared-memory", "emptyDir": shared},
        *(
            {
                "name": f"volume-{number}",
                "persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only},
            }
            for number, volume in enumerate(options.volumes)
        ),
    ]
