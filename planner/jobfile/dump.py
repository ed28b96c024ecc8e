"""A JobSpec back to the text of a job file, and its hash.

Owns `job.yaml` of the plan folder: all names looked up, so that it means the same on another machine and after the
catalog has changed. Loading it gives the equal JobSpec.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from planner.jobfile.cluster_sizes import plain_nodes
from planner.jobfile.quantities import text_of_duration
from planner.jobfile.run_schema import dump_run
from planner.spec import JobSpec, ModelSpec, OptimizerName, OptimizerSpec, TrainingSpec
from planner.spec.codec import to_plain

HEADER = (
    "# The job with every name looked up and every default filled in. `planner plan` takes it as it takes any job.\n"
)


def dump_job(job: JobSpec) -> str:
    """The text of `job.yaml`; `resolve_job(load_job(...))` of it equals `job`."""
    ranges = to_plain(job.ranges)
    ranges["activation_checkpointing"] = _words(job.ranges.activation_checkpointing)
    trials = to_plain(job.trials)
    sections = {
        "model": _model(job.model),
        "training": _training(job.training),
        "cluster": _cluster(job),
        "search": {axis: values for axis, values in ranges.items() if values is not None},
        "objective": _objective(job),
        "memory_headroom": job.memory_headroom_fraction,
        "trials": {
            "mode": trials["mode"],
            "max_trials": trials["max_trials"],
            "time_budget": trials["time_budget_s"],
            "steps": trials["steps"],
            "timeout": trials["timeout_s"],
            "sampler": trials["sampler"],
            **({"submit": trials["submit"]} if trials["submit"] != "here" else {}),
        },
        "launch": _launch(job),
    }
    return HEADER + "".join(_lines(sections, indent=0))


def job_hash(job: JobSpec) -> str:
    """SHA-256 of what decides measurements and the choice, in hex.

    In it: model, training, cluster figures, search ranges, objective, headroom, the user's command and environment.
    Not in it: how trials are budgeted (a search can be resumed with more time), launcher, scheduler options, port and
    module folders (they do not change what is measured), prose (sources, names of clusters); and for this very machine
    its memory figures, which move from minute to minute (trials carry the machine's fingerprint instead).
    """
    plain = to_plain(job)
    del plain["trials"], plain["training"]["run"]
    if not job.node_counts:  # one cluster size: hashed as before there could be several
        del plain["node_counts"]
    if job.deadline is None:
        del plain["deadline"]
    else:
        plain["deadline"] = plain["deadline"]["date"] or plain["deadline"]["within_s"]  # not the day it is asked on
    launch = plain["launch"]
    plain["launch"] = {key: launch[key] for key in ("command", "environment")}
    if job.launch.command:
        plain["launch"] |= {key: launch[key] for key in ("script_kind", "base_config_json")}
    plain["cluster"] = _what_decides(plain["cluster"])
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


_NOT_SAID = ("mtbf_s", "checkpoint_write_bytes_per_s", "groups")  # hashed as before they could be said


def _what_decides(cluster: dict[str, Any]) -> dict[str, Any]:
    """The figures of a cluster without prose, without what a deadline alone asks, and without what moves."""
    kept = {key: value for key, value in cluster.items() if key != "name" and (value or key not in _NOT_SAID)}
    for key in ("gpu", "intra_node_link", "inter_node_link"):
        prose = ("source", "kind", "price_source", "price_currency")
        kept[key] = {name: value for name, value in kept[key].items() if name not in prose}
    if "groups" in kept:
        kept["groups"] = [_what_decides(group) for group in kept["groups"]]
    if cluster["is_this_machine"]:
        del kept["gpu"]["memory_usable_bytes"], kept["gpu"]["memory_nominal_bytes"], kept["host_memory_bytes"]
    return kept


def _objective(job: JobSpec) -> str | dict[str, Any]:
    due = job.deadline
    if due is None:
        return job.objective.value
    return {"deadline": due.date, "start": due.start} if due.date else {"deadline": text_of_duration(due.within_s)}


def _model(model: ModelSpec) -> dict[str, Any]:
    if model.factory:
        return {"name": model.name, "factory": model.factory, "traced": to_plain(model.traced)}
    return {"name": model.name, "config": json.loads(model.config_json)}


def _cluster(job: JobSpec) -> dict[str, Any]:
    section: dict[str, Any] = {"resolved": to_plain(job.cluster)}
    return section | {"nodes": plain_nodes(job.node_counts)} if job.node_counts else section


def _training(training: TrainingSpec) -> dict[str, Any]:
    section: dict[str, Any] = {
        "seq_len": training.seq_len,
        "global_batch_size": training.global_batch_size,
        "optimizer": _optimizer(training.optimizer),
        "gradient_clipping": training.gradient_clipping,
        "trainable": {"lora_rank": training.lora_rank} if training.lora_rank else "full",
        "seed": training.seed,
        "steps": training.steps,
        "schedule": {
            "warmup_steps": training.warmup_steps,
            "min_lr_fraction": training.min_learning_rate_fraction,
        },
    }
    if training.data.path:
        section["data"] = {"path": training.data.path, "token_bytes": training.data.token_bytes}
    if training.checkpoint_dir:
        section["checkpoint"] = {
            "folder": training.checkpoint_dir,
            "interval": training.checkpoint_interval_steps or "auto",
        }
    return dump_run(training.run, section)


def _optimizer(optimizer: OptimizerSpec) -> dict[str, Any]:
    """Only the options that this optimizer takes: the others are refused when read."""
    section: dict[str, Any] = {
        "name": optimizer.name.value,
        "lr": optimizer.learning_rate,
        "weight_decay": optimizer.weight_decay,
    }
    if optimizer.name is not OptimizerName.SGD:
        section["betas"] = list(optimizer.betas)
    if optimizer.name in (OptimizerName.ADAMW, OptimizerName.ADAM8BIT, OptimizerName.MUON):
        section["eps"] = optimizer.epsilon
    if optimizer.name in (OptimizerName.SGD, OptimizerName.MUON):
        section["momentum"] = optimizer.momentum
    return section


def _launch(job: JobSpec) -> dict[str, Any]:
    launch = job.launch
    section: dict[str, Any] = {"launcher": launch.launcher.value, "master_port": launch.master_port}
    if launch.command:
        section["command"] = launch.command
        section["consumer"] = launch.script_kind.value
        section["folder"] = launch.folder or "."
    if launch.base_config_json:
        section["deepspeed_config"] = json.loads(launch.base_config_json)
    if launch.hosts:
        section["hosts"] = [f"{host} slots={slots}" for host, slots in launch.hosts]
    if launch.python_path:
        section["python_path"] = list(launch.python_path)
    for key, pairs in (
        ("environment", launch.environment),
        ("slurm", launch.slurm),
        ("kubernetes", launch.kubernetes),
    ):
        if pairs:
            section[key] = dict(pairs)
    return section


def _words(axis: Any) -> list[str] | None:
    return None if axis is None else [str(value) for value in axis]


def _lines(values: dict[str, Any], *, indent: int) -> list[str]:
    """Mappings as indented blocks, everything inside lists on one line, texts always in double quotes."""
    lines = []
    for key, value in values.items():
        start = " " * indent + _key(key)
        if isinstance(value, dict) and value:
            lines += [f"{start}:\n", *_lines(value, indent=indent + 2)]
        else:
            lines.append(f"{start}: {flow_text(value)}\n")
    return lines


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key) else _quoted(key)


def flow_text(value: Any) -> str:
    """A value on one line of YAML, read back as it was."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_quoted(key)}: {flow_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(flow_text(item) for item in value) + "]"
    return _quoted(value) if isinstance(value, str) else json.dumps(value, allow_nan=False)


def _quoted(text: str) -> str:
    """A YAML double-quoted text. YAML has JSON's escapes, but no surrogate pairs: they are written as one character."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if character in '"\\':
        return "\\" + character
    if character.isascii():
        return character if character.isprintable() else f"\\x{ord(character):02x}"
    return character if character.isalnum() and ord(character) < 0xFFFE else f"\\U{ord(character):08x}"
