"""Kubernetes: a PyTorchJob of the Kubeflow training operator, or a JobSet; the start script, and what each pod runs.

Owns the files. The manifests are built as data in `kubernetes_manifest`; the section's keys are read in
`kubernetes_options`. The plan's files and the script that each pod runs reach the pods as a config map, which the start
script makes from the plan folder: they exist once, and nothing of them passes through Kubernetes' own `$(…)`.
"""

from __future__ import annotations

import os
import shlex
from pathlib import PurePosixPath

import yaml

from planner.emit.agent import agent_text
from planner.emit.files import EmittedFile, LaunchPaths
from planner.emit.kubernetes_manifest import PLAN_MOUNT, jobset, pytorch_job
from planner.emit.kubernetes_options import JOBSET, KubernetesOptions, kubernetes_options
from planner.emit.program import Program
from planner.emit.shell import environment_text, fill_skeleton, header, plan_dir_text
from planner.emit.topology import NodeShape
from planner.errors import NotExpressible
from planner.spec import Candidate, JobSpec


def render_kubernetes(
    job: JobSpec, candidate: Candidate, paths: LaunchPaths, *, shape: NodeShape, program: Program
) -> tuple[EmittedFile, ...]:
    """`launch.sh`, which applies, what a pod runs, and `launch/kubernetes.yaml`. Raises InputError without an image,
    NotExpressible where checkpoints would not outlive the pod."""
    options = kubernetes_options(job)
    if program.in_plan_dir:
        _require_saved(job.training.checkpoint_dir, options)
    opening = header(job, candidate, paths, start=f"bash {shlex.quote(paths.script)}, which applies the manifest")
    script = fill_skeleton(
        "kubernetes.sh",
        header=opening,
        plan_dir=plan_dir_text(paths, stay=False),
        name=shlex.quote(options.name),
        namespace=shlex.quote(options.namespace),
        first_pod=_first_pod(options),
    )
    pod_script = fill_skeleton(
        "kubernetes-pod.sh",
        enter_plan_dir=_enter(program),
        environment=environment_text(job, candidate, processes=shape.processes_per_node, nodes=shape.nodes),
        node_rank=_node_rank(options, job),
        agent=agent_text(shape, program),
        program=program.torchrun_words + _resume(options, job, program),
    )
    build = jobset if options.kind == JOBSET else pytorch_job
    manifest = yaml.safe_dump(build(job, shape, options=options), sort_keys=False, width=120)
    return (
        EmittedFile(path=paths.script, text=script, executable=True),
        EmittedFile(path="launch/kubernetes-pod.sh", text=pod_script, executable=True),
        EmittedFile(path="launch/kubernetes.yaml", text=f"{opening}\n{manifest}"),
    )


def _require_saved(folder: str, options: KubernetesOptions) -> None:
    """Pods see the plan folder as a config map, which nothing can be written into, and their own disk goes with them:
    checkpoints need a volume. Of volumes inside one another the innermost holds the folder."""
    if not folder:
        return
    place = PurePosixPath(os.path.normpath(folder))
    over = [volume for volume in options.volumes if place.is_relative_to(os.path.normpath(volume.path))]
    innermost = max(over, key=lambda volume: len(PurePosixPath(os.path.normpath(volume.path)).parts), default=None)
    if innermost is not None and not innermost.read_only:
        return
    if innermost is not None:
        why = f"kubernetes.volumes mounts {innermost.path} read-only"
    elif place.is_absolute():
        why = "no volume of kubernetes.volumes holds this folder, so it would be lost with the pod"
    else:
        why = "it lies inside the plan folder, which the pods see read-only, as a config map"
    raise NotExpressible(
        f"checkpoints in {folder} cannot be saved by pods",
        why=why,
        fix="plan with training.checkpoint.folder inside a writable volume: kubernetes.volumes: claim:/checkpoints and "
        "training.checkpoint.folder: /checkpoints/run",
    )


def _enter(program: Program) -> str:
    lines = [f"PLAN_DIR={PLAN_MOUNT}"]
    if program.in_plan_dir:
        lines.append('cd -- "$PLAN_DIR"')
    elif program.folder:
        folder = shlex.quote(program.folder)
        lines += [
            "# The training script is looked for where it lay when the plan was made, else in SCRIPT_DIR, else in the",
            "# image's own working folder.",
            f"if [[ -d {folder} ]]; then SCRIPT_DIR={folder}; fi",
            'cd -- "${SCRIPT_DIR:-.}"',
        ]
    return "\n".join(lines)


def _node_rank(options: KubernetesOptions, job: JobSpec) -> str:
    if options.kind == JOBSET:
        host = f"{options.name}-node-0-0.{options.name}"
        return "\n".join(
            [
                "# An indexed job numbers its pods; a JobSet gives each a name of its own, so all meet at the first.",
                "export NODE_RANK=${JOB_COMPLETION_INDEX:?set by an indexed job}",
                f"export MASTER_ADDR={shlex.quote(host)} MASTER_PORT={job.launch.master_port}",
            ]
        )
    return "\n".join(
        [
            "# The operator sets MASTER_ADDR, MASTER_PORT and, as RANK, the number of the pod.",
            'export NODE_RANK="$RANK"',
        ]
    )


def _resume(options: KubernetesOptions, job: JobSpec, program: Program) -> str:
    """A pod that is started again goes on from the newest checkpoint: anew over existing ones is refused."""
    return " --resume" if options.restarts and program.in_plan_dir and job.training.checkpoint_dir else ""


def _first_pod(options: KubernetesOptions) -> str:
    return f"job/{options.name}-node-0" if options.kind == JOBSET else f"pod/{options.name}-master-0"
