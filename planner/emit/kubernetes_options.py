"""The `kubernetes` section of a job: its keys, what their texts mean, and what is wrong with them. Pure."""

from __future__ import annotations

import re

from planner.errors import InputError, did_you_mean
from planner.spec import JobSpec
from planner.spec._record import record

OPTIONS = (
    "image",
    "namespace",
    "name",
    "kind",
    "volumes",
    "shared_memory",
    "rdma",
    "restarts",
    "node_selector",
    "service_account",
)
PYTORCH_JOB, JOBSET = "pytorchjob", "jobset"
_DNS_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?\Z")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(Ki|Mi|Gi|Ti|k|M|G|T)?\Z")
_RESOURCE = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)=([1-9][0-9]*)\Z")
_VOLUME = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?):(/[^:,\s]+)(:ro)?\Z")
_LABEL = re.compile(r"[A-Za-z0-9./_-]+=[A-Za-z0-9._-]*\Z")
_LONGEST_NAME = 40  # the operator adds "-worker-123" and a label holds 63 characters


@record
class Volume:
    """A persistent volume claim and where it is mounted."""

    claim: str
    path: str
    read_only: bool


@record
class KubernetesOptions:
    """The section, read. `restarts`: how often the whole job is started again when a pod fails."""

    image: str
    namespace: str
    name: str
    kind: str = PYTORCH_JOB
    volumes: tuple[Volume, ...] = ()
    shared_memory: str = ""  # limit of /dev/shm; "": the pod's own memory limit
    rdma: tuple[tuple[str, int], ...] = ()
    restarts: int = 0
    node_selector: tuple[tuple[str, str], ...] = ()
    service_account: str = ""


def kubernetes_options(job: JobSpec) -> KubernetesOptions:
    """Read the job's section. Raises InputError for a key that is not known, or a text that Kubernetes would refuse."""
    given = dict(job.launch.kubernetes)
    for key in given:
        if key not in OPTIONS:
            raise InputError(
                f"kubernetes.{key} is not known",
                why=f"the section takes {', '.join(OPTIONS)}",
                fix=did_you_mean(key, OPTIONS),
            )
    if not given.get("image"):
        raise InputError(
            "the kubernetes section names no image",
            why="pods are made from a container image that holds Python, torch, DeepSpeed and this package",
            fix="add kubernetes: {image: registry/name:tag} to the job file, or to `planner emit` "
            "--set kubernetes.image=registry/name:tag",
        )
    return KubernetesOptions(
        image=given["image"],
        namespace=_name("namespace", given.get("namespace", "default")),
        name=_name("name", given.get("name", _name_of(job.model.name))),
        kind=_kind(given.get("kind", PYTORCH_JOB)),
        volumes=tuple(_volume(item) for item in _items(given.get("volumes", ""))),
        shared_memory=_shared_memory(given.get("shared_memory", "")),
        rdma=tuple(_resource(item) for item in _items(given.get("rdma", ""))),
        restarts=_restarts(given.get("restarts", "0")),
        node_selector=tuple(_label(item) for item in _items(given.get("node_selector", ""))),
        service_account=_name("service_account", given["service_account"]) if given.get("service_account") else "",
    )


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _refuse(key: str, text: str, *, form: str) -> InputError:
    return InputError(f"kubernetes.{key}: {text!r} cannot be read", why=f"it is written as {form}", fix="correct it")


def _name(key: str, text: str) -> str:
    if _DNS_LABEL.match(text) and len(text) <= _LONGEST_NAME:
        return text
    raise InputError(
        f"kubernetes.{key}: {text!r} is no name Kubernetes takes",
        why=f"a name is at most {_LONGEST_NAME} lower-case letters, digits and dashes inside",
        fix="choose another",
    )


def _name_of(model: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-")
    return f"train-{plain}"[:_LONGEST_NAME].strip("-")


def _kind(text: str) -> str:
    if text.lower() in (PYTORCH_JOB, JOBSET):
        return text.lower()
    raise _refuse("kind", text, form="pytorchjob (the Kubeflow training operator's) or jobset")


def _volume(text: str) -> Volume:
    found = _VOLUME.match(text)
    if not found:
        raise _refuse("volumes", text, form="claim:/path, or claim:/path:ro, several with commas between")
    return Volume(claim=found[1], path=found[3], read_only=bool(found[4]))


def _shared_memory(text: str) -> str:
    if text and not _QUANTITY.match(text):
        raise _refuse("shared_memory", text, form="a size such as 64Gi")
    return text


def _resource(text: str) -> tuple[str, int]:
    found = _RESOURCE.match(text)
    if not found:
        raise _refuse("rdma", text, form="resource=count as the node's device plugin names it: rdma/hca_shared=1")
    return found[1], int(found[4])


def _restarts(text: str) -> int:
    if not text.isdecimal() or int(text) > 1000:
        raise _refuse("restarts", text, form="a whole number from 0 to 1000")
    return int(text)


def _label(text: str) -> tuple[str, str]:
    if not _LABEL.match(text):
        raise _refuse("node_selector", text, form="label=value, several with commas between")
    name, _, value = text.partition("=")
    return name, value
