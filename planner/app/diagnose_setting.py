"""What a run is priced as: from its plan, or from model, GPU, DeepSpeed config and what the log itself says.

Owns which source wins, and saying what was assumed. A row of `estimate` is filled and resolved by the same code as
everybody's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.app.diagnose_request import DiagnoseRequest
from planner.app.estimate_row import Question, read_row
from planner.app.jobs import read_planned_job
from planner.catalog import list_gpus, load_gpu, load_model, match_device_name
from planner.catalog.documents import read_text
from planner.cost import REFERENCE_TRAINER, RuntimeProfile
from planner.diagnose.config_reading import MemoryConfig, read_memory_config
from planner.diagnose.pricing import PricedSetting
from planner.diagnose.records import LogFacts
from planner.diagnose.seen_setting import with_seen_checkpointing
from planner.errors import InputError
from planner.lint import MAX_BYTES, read_document
from planner.rules import SyntaxKind
from planner.rundir import RunDir
from planner.spec import Candidate, ClusterSpec, JobSpec, Plan
from planner.spec._record import record
from planner.spec.columns import CandidateColumns, columns_of

USUAL_SEQ_LEN = 4096  # where neither the user, the log nor the model says
_OPTIMIZERS = {"adam": "adamw", "adamw": "adamw", "lion": "lion", "sgd": "sgd", "muon": "muon", "fusedadam": "adamw"}


@record
class GivenConfig:
    """A DeepSpeed file: its values, and whether rewriting loses comments."""

    path: Path
    value: Mapping[str, Any]
    has_comments: bool


@record
class Given:
    """`setting` None: too little is given to price anything. `notes`: why not, where something was given."""

    setting: PricedSetting | None = None
    config: GivenConfig | None = None
    memory_config: MemoryConfig | None = None
    plan: Plan | None = None
    job: JobSpec | None = None
    nominal_bytes: int = 0
    notes: tuple[str, ...] = ()


def gather(request: DiagnoseRequest, facts: LogFacts) -> Given:
    """Everything that the request names, read; InputError for what cannot be."""
    config = read_config(request.config) if request.config is not None else None
    memory_config = read_memory_config(config.value) if config is not None else None
    if request.plan_dir is not None:
        return _of_plan(request, request.plan_dir, config, memory_config)
    nominal = load_gpu(request.gpu).memory_nominal_bytes if request.gpu else 0
    given = Given(config=config, memory_config=memory_config, nominal_bytes=nominal)
    if not request.model:
        return given
    return _of_model(request, facts, given)


def read_config(path: Path) -> GivenConfig:
    """The DeepSpeed file. InputError where it cannot be read."""
    document = read_document(read_text(path, what="DeepSpeed configuration", max_bytes=MAX_BYTES))
    if document.unreadable:
        fact = document.syntax[0]
        raise InputError(
            f"{path}: line {fact.line} column {fact.column}: {fact.detail}",
            why="the configuration cannot be read",
            fix="`planner check` shows what is wrong with it",
        )
    comments = any(fact.kind is SyntaxKind.COMMENT for fact in document.syntax)
    return GivenConfig(path=path, value=document.value, has_comments=comments)


def _of_plan(
    request: DiagnoseRequest, plan_dir: Path, config: GivenConfig | None, memory_config: MemoryConfig | None
) -> Given:
    if request.model or request.gpu:
        flag = "--model" if request.model else "--gpu"
        raise InputError(
            f"{flag} has no effect beside --plan", why="the plan names model and GPU", fix=f"leave {flag} out"
        )
    run_dir = RunDir.open(plan_dir)
    plan, job = run_dir.read_plan(), read_planned_job(run_dir)
    setting = PricedSetting(
        model=job.model,
        training=job.training,
        cluster=job.cluster,
        profile=REFERENCE_TRAINER,
        columns=_columns_of(plan.candidate, job),
        config=memory_config,
        headroom_fraction=job.memory_headroom_fraction,
        has_chunked_loss=not job.launch.command,
    )
    return Given(setting=setting, config=config, memory_config=memory_config, plan=plan, job=job)


def _columns_of(candidate: Candidate, job: JobSpec) -> CandidateColumns:
    return columns_of((candidate,), gpus_per_node=job.cluster.gpus_per_node)


def _of_model(request: DiagnoseRequest, facts: LogFacts, given: Given) -> Given:
    assumed: list[str] = []
    row = _row(request, facts, given.memory_config, assumed)
    question = read_row(row)
    if not question.axes:
        return replace(given, notes=(f"nothing can be priced: {'; '.join(question.reasons)}",))
    setting = PricedSetting(
        model=question.setting.model,
        training=question.setting.training,
        cluster=_seen_cluster(question.setting.cluster, facts),
        profile=_profile(question.setting.profile, given.memory_config),
        columns=_columns(question),
        config=given.memory_config,
        assumptions=(f"assumed for the prices: {', '.join(assumed)}",) if assumed else (),
    )
    if not request.activation_checkpointing and not facts.settings.checkpoints_activations:
        setting = with_seen_checkpointing(setting, facts.events)
    return replace(given, setting=setting, nominal_bytes=setting.cluster.gpu.memory_nominal_bytes)


def _columns(question: Question) -> CandidateColumns:
    arrays = {name: np.array([value], dtype=np.int64) for name, value in question.axes}
    split = arrays.pop("tensor_sequence_parallel").astype(np.bool_)
    return CandidateColumns(tensor_sequence_parallel=split, **arrays)


def _seen_cluster(cluster: ClusterSpec, facts: LogFacts) -> ClusterSpec:
    """The cluster with the memory that the log shows: the device's total where it is less, the node's where it is
    told."""
    totals = [event.figures.total for event in facts.events if event.figures.total]
    usable = min([cluster.gpu.memory_usable_bytes, *totals])
    hosts = [use.total_bytes for use in facts.host_use if use.total_bytes]
    return replace(
        cluster,
        gpu=replace(cluster.gpu, memory_usable_bytes=usable),
        host_memory_bytes=hosts[-1] if hosts else cluster.host_memory_bytes,
    )


def _profile(profile: RuntimeProfile, config: MemoryConfig | None) -> RuntimeProfile:
    """The runtime with the file's own buckets."""
    if config is None:
        return profile
    return replace(
        profile, bucket_elements=float(config.reduce_bucket_size), live_elements_limit=float(config.max_live_parameters)
    )


def _row(request: DiagnoseRequest, facts: LogFacts, config: MemoryConfig | None, assumed: list[str]) -> dict[str, Any]:
    """The row of `estimate`: what the user says, else the config, else the log, else an assumption that is told."""
    settings = facts.settings
    micro = (config.micro_batch_size if config is not None else 0) or settings.micro_batch_size
    accumulation = (
        config.gradient_accumulation_steps if config is not None else 0
    ) or settings.gradient_accumulation_steps
    world = (
        request.world_size or settings.world_size or len(facts.ranks) or _world_of_batch(config, micro, accumulation)
    )
    seq_len = request.seq_len or settings.seq_len or _seq_len(request.model)
    stage = config.zero_stage if config is not None else settings.zero_stage
    for name, value, usual in (("micro-batch", micro, 1), ("GPUs", world, 1)):
        if not value:
            assumed.append(f"{name} {usual}")
    if not (request.seq_len or settings.seq_len):
        assumed.append(f"sequence length {seq_len} (--seq-len says otherwise)")
    if stage is None:
        assumed.append("ZeRO stage 0")
    micro, world = micro or 1, world or 1
    if config is not None and config.train_batch_size and not accumulation:
        accumulation = max(1, config.train_batch_size // (micro * world))
    row: dict[str, Any] = {
        "model": request.model,
        "gpu": request.gpu or _gpu(facts, assumed),
        "world_size": world,
        "seq_len": seq_len,
        "micro_batch_size": micro,
        "gradient_accumulation_steps": accumulation or 1,
        "zero_stage": stage or 0,
        "activation_checkpointing": _checkpointing(request, facts, config),
    }
    if request.gpus_per_node:
        row["gpus_per_node"] = request.gpus_per_node
    return row | _offload_rows(facts, config)


def _offload_rows(facts: LogFacts, config: MemoryConfig | None) -> dict[str, Any]:
    if config is None:
        offloads = {
            "offload_optimizer": facts.settings.offload_optimizer,
            "offload_param": facts.settings.offload_param,
        }
        return {name: "cpu" for name, is_on in offloads.items() if is_on}
    row: dict[str, Any] = {
        "precision": config.precision,
        "tensor_parallel_size": config.tensor_parallel_size,
        "sequence_parallel_size": config.sequence_parallel_size,
        "optimizer": _OPTIMIZERS.get(config.optimizer, "adamw"),
    }
    if config.offload_optimizer and config.zero_stage >= 1:
        row["offload_optimizer"] = config.offload_optimizer
    if config.offload_param and config.zero_stage == 3:
        row["offload_param"] = config.offload_param
    return row


def _checkpointing(request: DiagnoseRequest, facts: LogFacts, config: MemoryConfig | None) -> str:
    if request.activation_checkpointing:
        return request.activation_checkpointing
    on = facts.settings.checkpoints_activations or (config is not None and config.checkpoints_activations)
    return "full" if on else "none"


def _world_of_batch(config: MemoryConfig | None, micro: int, accumulation: int) -> int:
    if config is None or not config.train_batch_size or not micro or not accumulation:
        return 0
    return config.train_batch_size // (micro * accumulation)


def _seq_len(model: str) -> int:
    longest = load_model(model).max_seq_len
    return min(longest, USUAL_SEQ_LEN) if longest else USUAL_SEQ_LEN


def _gpu(facts: LogFacts, assumed: list[str]) -> str:
    """The GPU by the name in the log, else the one of the catalog whose memory is nearest to the total in the
    message."""
    total = next((event.figures.total for event in facts.events if event.figures.total), 0)
    if facts.settings.device_name:
        found = match_device_name(facts.settings.device_name, total_bytes=total or facts.settings.nominal_bytes)
        if found is not None:
            return found.name
    names = [str(row[0]) for row in list_gpus().rows]
    gpus = [gpu for gpu in (load_gpu(name) for name in names) if gpu.device.value == "cuda"]
    chosen = min(gpus, key=lambda gpu: abs(gpu.memory_usable_bytes - total)).name if total else "h100-sxm-80gb"
    assumed.append(f"GPU {chosen} (--gpu says otherwise)")
    return chosen
