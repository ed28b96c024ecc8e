"""What the two operators and Kubernetes itself take of the fields a manifest may have, strict: an unknown field fails.

Re-typed, for the fields that are emitted, after the custom resource definitions kubeflow.org_pytorchjobs.yaml (v1) and
jobset.x-k8s.io_jobsets.yaml (v1alpha2) and Kubernetes' own PodSpec and JobSpec. A schema is a type, a tuple of allowed
values, [item schema], a dict of fields ("!name": required; "*": any other name), or a compiled pattern.
"""

from __future__ import annotations

import re
from typing import Any

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?")
_POD: dict[str, Any] = {
    "!containers": [
        {
            "!name": _NAME,
            "!image": str,
            "command": [str],
            "resources": {"limits": {"*": int}},
            "securityContext": {"capabilities": {"add": [str]}},
            "volumeMounts": [{"!name": _NAME, "!mountPath": re.compile("/.*"), "readOnly": bool}],
        }
    ],
    "volumes": [
        {
            "!name": _NAME,
            "configMap": {"!name": _NAME},
            "emptyDir": {"medium": ("Memory",), "sizeLimit": _QUANTITY},
            "persistentVolumeClaim": {"!claimName": str, "readOnly": bool},
        }
    ],
    "nodeSelector": {"*": str},
    "serviceAccountName": _NAME,
}
_META = {"!name": _NAME, "!namespace": _NAME}
_REPLICA = {
    "!replicas": int,
    "restartPolicy": ("Always", "OnFailure", "Never", "ExitCode"),
    "!template": {"!spec": _POD},
}
PYTORCH_JOB: dict[str, Any] = {
    "!apiVersion": ("kubeflow.org/v1",),
    "!kind": ("PyTorchJob",),
    "!metadata": _META,
    "!spec": {
        "runPolicy": {"cleanPodPolicy": ("None", "Running", "All"), "backoffLimit": int},
        "!pytorchReplicaSpecs": {"!Master": _REPLICA, "Worker": _REPLICA},
    },
}
_INDEXED = {
    "parallelism": int,
    "completions": int,
    "completionMode": ("Indexed", "NonIndexed"),
    "backoffLimit": int,
    "!template": {"!spec": {**_POD, "!restartPolicy": ("OnFailure", "Never")}},
}
JOBSET: dict[str, Any] = {
    "!apiVersion": ("jobset.x-k8s.io/v1alpha2",),
    "!kind": ("JobSet",),
    "!metadata": _META,
    "!spec": {
        "network": {"enableDNSHostnames": bool, "subdomain": str},
        "failurePolicy": {"maxRestarts": int},
        "!replicatedJobs": [{"!name": _NAME, "replicas": int, "!template": {"!spec": _INDEXED}}],
    },
}


def problems(value: Any, schema: Any, path: str = "") -> list[str]:
    """What in the value the schema does not take."""
    if isinstance(schema, dict):
        return _of_fields(value, schema, path) if isinstance(value, dict) else [f"{path}: no mapping"]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{path}: no list"]
        return [one for n, item in enumerate(value) for one in problems(item, schema[0], f"{path}[{n}]")]
    if isinstance(schema, tuple):
        return [] if value in schema else [f"{path}: {value!r} is none of {schema}"]
    if isinstance(schema, re.Pattern):
        return [] if isinstance(value, str) and schema.fullmatch(value) else [f"{path}: {value!r}"]
    return [] if type(value) is schema else [f"{path}: {value!r} is no {schema.__name__}"]


def _of_fields(value: dict[str, Any], schema: dict[str, Any], path: str) -> list[str]:
    fields = {name.lstrip("!"): inner for name, inner in schema.items()}
    missing = [f"{path}.{name[1:]}: missing" for name in schema if name.startswith("!") and name[1:] not in value]
    found = []
    for name, item in value.items():
        inner = fields.get(name, fields.get("*"))
        found += [f"{path}.{name}: unknown"] if inner is None else problems(item, inner, f"{path}.{name}")
    return missing + found
