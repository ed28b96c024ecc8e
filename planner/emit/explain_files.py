"""What each line of an emitted file is for: JSON by its key, scripts by their comments and a table of what has none.

Owns the words for `task.json`, the start scripts and the manifest; those for `ds_config.json` are `explain`'s. A test
walks every file of every launcher: no line that does something is without its reason.
"""

from __future__ import annotations

import json
import re

from planner.emit.explain import explain_ds_config
from planner.emit.task import NOT_EMITTED

FILES: dict[str, str] = {
    "ds_config.json": "DeepSpeed's configuration",
    "task.json": "what the reference trainer runs: the model, the training, and what DeepSpeed's JSON cannot carry",
    "launch.sh": "starts the run",
    "launch/slurm.sbatch": "the batch script that launch.sh submits",
    "launch/srun.sbatch": "the batch script that launch.sh submits",
    "hostfile": "the nodes, one a line, for DeepSpeed's launcher",
    "launch/kubernetes.yaml": "the manifest that launch.sh applies",
    "launch/kubernetes-pod.sh": "what each pod runs",
    "launch/deepspeed_env": "variables that DeepSpeed's launcher exports on every node",
}

_JSON_KEY = re.compile(r'^(?P<indent> *)"(?P<key>[^"]*)": ?(?P<value>.*)$')

_TASK: dict[str, str] = {
    "model": "the model as the planner read it",
    "model.config_json": "the Hugging Face configuration that the trainer builds the model from",
    "model.counts": "parameters by part, as the estimates count them",
    "training": "from the job",
    "training.global_batch_size": "sequences per optimizer step, never changed by the planner",
    "training.min_learning_rate_fraction": "of the peak rate, at the end of the cosine",
    "candidate": "what the search chose",
    "candidate.batch": "repeated in ds_config.json",
    "candidate.zero_stage": "repeated in ds_config.json",
    "candidate.precision": "repeated in ds_config.json",
    **{f"candidate.{field}": why for field, why in NOT_EMITTED.items()},
    "candidate.layout.data_parallel_size": "what is left of the ranks after tensor and pipeline parallelism",
    "candidate.offload_optimizer": "repeated in ds_config.json",
    "candidate.offload_param": "repeated in ds_config.json",
    "device": "the accelerator that the plan is for",
    "ds_config_json": "empty: launch.sh names ds_config.json",
    "steps": "optimizer steps of the whole run",
    "warmup_steps": "of a trial, which are not timed; a training run has none",
    "memory_limit_bytes": "of a trial; 0: a training run may use the whole device",
    "check_checkpoint": "of a trial; a training run saves as the job says",
    "emulated_rank": "of a trial that stands in for one rank; null: every rank runs",
}

_SCRIPT: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), why)
    for pattern, why in (
        (r"#!", "run by bash"),
        (r"#SBATCH --(nodes|ntasks)", "the plan's nodes and processes"),
        (r"#SBATCH --exclusive", "one task a node would otherwise get one core for all its ranks"),
        (r"#SBATCH", "an option of sbatch, from the plan or the job's slurm section"),
        (r"set -euo pipefail", "the first failing command or unset variable ends the script"),
        (r"if \[\[ -z \$\{MASTER_ADDR", "without the place where the nodes meet nothing can start: say so"),
        (r"if \[\[ -n \$\{CUDA_VISIBLE_DEVICES", "this launcher would ignore it or not pass it on"),
        (r"for folder in", "a folder name that the launcher would break is refused before anything starts"),
        (r"MASTER_PORT=|export MASTER_PORT=", "a free port on the first node, where the ranks meet"),
        (r"HOSTFILE=", "the nodes, one a line; beside the plan unless HOSTFILE says otherwise"),
        (r"if \[\[ ! -f \$HOSTFILE", "without the nodes' names nothing can start: say so"),
        (r"case \$PLAN_DIR", "a folder name that the launcher would break is refused before anything starts"),
        (r"if ! command -v", "said here rather than by a cryptic failure below"),
        (r"if \(\( \$# \)\)", "options would be lost on the way to the pods: refused"),
        (r"mkdir -p", "where the ranks' output goes"),
        (r"PYTHON=\$\{PYTHON", "PYTHON if it is set, else python3"),
        (r"export PYTHON$", "srun's tasks inherit it"),
        (r"PLAN_DIR=\$\{1:", "the batch script runs from Slurm's own copy, so it is told where the plan lies"),
        (r"shift$", "what follows is for the trainer"),
        (r"(export )?PLAN_DIR=", "where the plan's files are"),
        (r'cd -- "\$PLAN_DIR"', "the trainer starts in the plan folder"),
        (r"printf ", "how to watch it"),
    )
)  # fmt: skip

_MANIFEST: dict[str, str] = {
    "apiVersion": "the operator's version that is spoken to",
    "kind": "its operator starts one pod a node and tells each its number",
    "metadata": "from the job's kubernetes section",
    "spec": "what its operator is told",
    "runPolicy": "what happens when a pod fails",
    "network": "each pod has a name of its own, by which the others find the first",
    "failurePolicy": "a pod that fails restarts all: its peers wait for it",
    "completionMode": "numbers the pods",
    "replicas": "pods of this kind: one a node",
    "restartPolicy": "a failed pod stays for its log; start again with --resume",
    "containers": "what runs in a pod",
    "image": "from the job's kubernetes section",
    "command": "the script above it, from the config map",
    "volumeMounts": "the plan's files, and shared memory beyond the usual 64 MiB, which NCCL needs",
    "resources": "the GPUs of a node",
    "volumes": "the config map of the plan's files, and memory as a disk",
}


def explain_lines(path: str, text: str) -> tuple[str, ...]:
    """For each line of an emitted file what it is for; "" for blank lines, comments and what only closes or goes on."""
    lines = text.splitlines()
    if path.endswith(".json"):
        return _json_whys(lines, _config_reasons(text) if path == "ds_config.json" else _TASK)
    if path.endswith(".yaml"):
        return tuple(_MANIFEST.get(line.strip(" -").split(":")[0], "") for line in lines)
    if path.endswith("deepspeed_env"):
        return tuple("exported on every node" for _ in lines)
    return _script_whys(lines)


def _config_reasons(text: str) -> dict[str, str]:
    return dict(explain_ds_config(json.loads(text)))


def _json_whys(lines: list[str], reasons: dict[str, str]) -> tuple[str, ...]:
    """By dotted key; a key without a reason of its own has its block's, said once where the block begins."""
    whys, path = [], list[str]()
    for line in lines:
        found = _JSON_KEY.match(line)
        if found is None:
            whys.append("")
            continue
        depth = len(found["indent"]) // 2
        path = [*path[: depth - 1], found["key"]]
        whys.append(reasons.get(".".join(path), ""))
    return tuple(whys)


def _script_whys(lines: list[str]) -> tuple[str, ...]:
    """A line's own comment, else the table's word, else the comment above its paragraph (said on its first line)."""
    whys, comment = list[str](), ""
    for line in lines:
        bare = line.strip()
        if not bare:
            comment = ""
        named = next((why for pattern, why in _SCRIPT if pattern.match(bare)), "")
        if bare.startswith("#"):
            comment = "" if named else f"{comment} {bare.lstrip('# ')}".strip()
            whys.append(named)
            continue
        own = bare.partition("  # ")[2]
        whys.append(own or named or comment)
        comment = "" if own or named or comment else comment
    return tuple(whys)
