"""A parsed job file to a JobSpec: names looked up, files read, defaults filled in that depend on one another.

Owns what the sections mean together. Leaves legality of layouts to `planner.space`: here only what no layout can mend
is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from planner.catalog import load_model, model_from_config, read_model_config
from planner.catalog.documents import Document
from planner.catalog.entries import default_folders
from planner.catalog.generic import MODEL_TYPE as GENERIC
from planner.catalog.hostfile import parse_hosts
from planner.catalog.strict import validate
from planner.errors import InputError
from planner.jobfile.choices import ClusterChoice, choose_cluster, cluster_choices
from planner.jobfile.cluster import THIS_MACHINE, cluster_of, hosts_of
from planner.jobfile.launch_schema import LaunchSection
from planner.jobfile.machine import MachineFacts
from planner.jobfile.not_yet import refuse_what_is_not_there_yet
from planner.jobfile.own_script import own_config_json, script_kind, start_folder
from planner.jobfile.run_schema import resolve_run
from planner.jobfile.schema import ClusterSection, JobSchema, ModelSection
from planner.jobfile.search_schema import SearchSection
from planner.jobfile.site import SiteDefault, with_defaults
from planner.jobfile.source import read_source
from planner.jobfile.training_schema import OptimizerSection, TrainingSection
from planner.spec import (
    ClusterSpec,
    DataSpec,
    Deadline,
    GpuSpec,
    JobSpec,
    Launcher,
    LaunchSpec,
    ModelFamily,
    ModelSpec,
    OptimizerName,
    OptimizerSpec,
    Precision,
    ScriptKind,
    SearchRanges,
    TracedModule,
    TrainingSpec,
    TrialPolicy,
)
from planner.spec._record import record

# Model types whose attention projections the runtime gives adapters to (a test holds it against the runtime's table).
ADAPTED = ("gemma", "gpt2", "llama", "mistral", "mixtral", "phi3", "qwen2", "qwen3", "qwen3_moe")


@record
class JobFile:
    """A strictly parsed job file. Paths in it are relative to `folder`."""

    path: Path
    folder: Path
    schema: JobSchema
    document: Document  # the plain values, for where they were written
    site_defaults: tuple[SiteDefault, ...] = ()  # those that the job took

    @property
    def needs_machine(self) -> bool:
        """Whether resolving it asks what this machine is."""
        return self.schema.cluster.gpu == THIS_MACHINE

    @property
    def factory(self) -> str:
        """The factory that has to be traced before resolving; "" when there is none, or it was traced before."""
        section = self.schema.model
        return section.factory if section.factory is not None and section.traced is None else ""

    @property
    def python_path(self) -> tuple[str, ...]:
        """Absolute folders of the job's own modules: those the file names or, for a factory, its own folder.

        Raises InputError for one that PYTHONPATH cannot hold.
        """
        named = self.schema.launch.python_path
        if named is None:
            named = (".",) if self.schema.model.factory is not None else ()
        folders = tuple(os.path.normpath(self.folder / name) for name in named)
        for folder in folders:
            if os.pathsep in folder:
                raise InputError(
                    f"modules cannot be imported from {folder}",
                    why=f"PYTHONPATH separates folders by {os.pathsep!r}, so it cannot hold this one",
                    fix="move the job's modules to a path without that character",
                )
        return folders


def load_job(path: Path, overrides: tuple[str, ...] = (), *, cluster: str = "", site_defaults: bool = True) -> JobFile:
    """Parse a job file, lay `key=value` overrides over it and site defaults below it.

    `cluster`: the label of one of its candidate clusters, where it lists several. InputError says where and how to mend
    it.
    """
    source = read_source(path, overrides)
    folder = path.resolve().parent  # Keep: after reading, which says of a link to itself what is wrong
    document = choose_cluster(source, folder=folder, label=cluster)
    document, taken = with_defaults(document, default_folders() if site_defaults else ())
    refuse_what_is_not_there_yet(document)
    schema = validate(JobSchema, document, what="job file")
    return JobFile(path=path, folder=folder, schema=schema, document=document, site_defaults=taken)


def list_choices(path: Path, overrides: tuple[str, ...] = ()) -> tuple[ClusterChoice, ...]:
    """The candidate clusters that a job file lists; () for one cluster. Raises InputError for an unreadable file."""
    return cluster_choices(read_source(path, overrides), folder=path.resolve().parent)


def resolve_job(
    job_file: JobFile,
    *,
    machine: MachineFacts | None = None,
    traced: TracedModule | None = None,
    today: date | None = None,
) -> JobSpec:
    """Every default filled in. `machine` is needed for `gpu: auto`, `traced` for a factory not traced before, `today`
    for a deadline whose start is not said."""
    schema, folder, document = job_file.schema, job_file.folder, job_file.document
    with _placed(document, "model", "factory", "config", "name"):
        model = _model(schema.model, folder=folder, traced=traced)
    with _placed(document, "training"):
        training = _training(schema.training, model=model, folder=folder)
    with _placed(document, "training", "seq_len"):
        _refuse_longer_than_positions(model, training)
    with _placed(document, "cluster", "gpu", "name", "file", "resolved"):
        cluster = cluster_of(schema.cluster, folder=folder, machine=machine, prices=schema.prices)
    with _placed(document, "objective", "deadline"):
        deadline = _deadline(schema, today=today)
    with _placed(document, "search", "precision"):
        ranges = _ranges(schema.search, gpu=cluster.gpu)
    with _placed(document, "launch"):
        launch = _launch(schema, folder=folder, python_path=job_file.python_path)
    return JobSpec(
        model=model,
        training=training,
        cluster=cluster,
        ranges=ranges,
        objective=schema.objective.word,
        memory_headroom_fraction=schema.memory_headroom,
        trials=_trials(schema),
        launch=launch,
        node_counts=_node_counts(schema.cluster, cluster=cluster),
        deadline=deadline,
    )


def _deadline(schema: JobSchema, *, today: date | None) -> Deadline | None:
    """The time from start to deadline; None for other objectives."""
    due, start = schema.objective.deadline, schema.objective.start or today
    if due is None:
        return None
    if not {"steps", "total_tokens"} & schema.training.model_fields_set:
        raise InputError(
            "objective.deadline has no training to hold it against",
            why="whether a day can be met depends on how much is trained until then",
            fix="write training: {total_tokens: 300B}, or training: {steps: …}",
        )
    if isinstance(due, float):
        return Deadline(within_s=due)
    if start is None:
        raise InputError(
            "objective.deadline is a day, but no day of the start is known",
            why="what may be used is the time between the two",
            fix="write objective: {deadline: 2027-03-01, start: 2026-12-01}",
        )
    if start >= due:
        raise InputError(
            f"objective.deadline {due} is not after the start, {start}",
            why="what may be used is the time between the two",
            fix="write a later deadline",
        )
    return Deadline(within_s=(due - start).total_seconds(), date=due.isoformat(), start=start.isoformat())


def _node_counts(section: ClusterSection, *, cluster: ClusterSpec) -> tuple[int, ...]:
    """Several possible sizes; () where the file says one, or none."""
    sizes = section.nodes or ()
    if len(sizes) <= 1:
        return ()
    if sizes[-1] != cluster.nodes:  # only beside `resolved`, whose figures are for the largest size
        raise InputError(
            f"cluster.nodes goes up to {sizes[-1]}, but cluster.resolved has {cluster.nodes} nodes",
            why="the cluster is described at the largest of its possible sizes",
            fix="make the two agree",
        )
    return sizes


@contextmanager
def _placed(document: Document, section: str, *keys: str) -> Iterator[None]:
    """Say of an error where its cause was written: at the first of `keys` that the section has."""
    try:
        yield
    except InputError as problem:
        values = document.value.get(section)
        key = next((key for key in keys if isinstance(values, dict) and key in values), None)
        place = document.place((section,) if key is None else (section, key))
        raise InputError(f"{place}: {problem.error}", why=problem.why, fix=problem.fix) from None


def _model(section: ModelSection, *, folder: Path, traced: TracedModule | None) -> ModelSpec:
    if section.factory is not None:
        return _module(section, traced=traced)
    if isinstance(section.config, dict):
        model = model_from_config(section.config, section.name or "model")
    elif section.config is not None:
        model = read_model_config(folder / section.config, name=section.name or "")
    else:
        model = load_model(section.name or "")
    if model.model_type == GENERIC:
        raise InputError(
            f"{model.name}: the model config has no 'model_type'",
            why="the model has to be built for trials and for training, and model_type says of what class it is",
            fix="give the model's own config.json; shapes alone are enough for `planner estimate` only",
        )
    _refuse_another_class(model)
    return model


# What the runtime builds of each family (decoders: the catalog takes no other class to begin with).
_TRAINED_CLASS = {
    ModelFamily.ENCODER: "ForMaskedLM",
    ModelFamily.ENCODER_DECODER: "ForConditionalGeneration",
    ModelFamily.VISION: "ForImageClassification",
}


def _refuse_another_class(model: ModelSpec) -> None:
    """Trials of another class than the config names would measure another model than the one that was counted."""
    trained = _TRAINED_CLASS.get(model.family, "")
    named = json.loads(model.config_json).get("architectures")
    if trained and named and not str(named[0]).endswith(trained):
        raise InputError(
            f"{model.name}: architectures names the class {named[0]!r}, and trials build the one for {trained[3:]}",
            why="what sits on top of the layers would be neither counted nor trained as it is",
            fix="remove `architectures` to train it as that, or plan the class through `factory:`",
        )


def _module(section: ModelSection, *, traced: TracedModule | None) -> ModelSpec:
    """The record of an arbitrary module: run whole on each data-parallel rank."""
    factory = section.factory or ""
    if section.traced is not None:
        traced = TracedModule(**section.traced.model_dump())
    if traced is None:
        raise InputError(
            f"the module of {factory!r} has not been traced",
            why="its size and memory are found by tracing it once",
            fix="plan it with `planner plan`, which traces it first",
        )
    refusal = "a module from a factory has no plan for splitting it; it runs whole on each data-parallel rank"
    return ModelSpec(
        name=section.name or factory.rpartition(":")[2],
        family=ModelFamily.MODULE,
        model_type="module",
        factory=factory,
        traced=traced,
        tensor_parallel_refusal=refusal,
        pipeline_parallel_refusal=refusal,
    )


def _training(section: TrainingSection, *, model: ModelSpec, folder: Path) -> TrainingSpec:
    if section.trainable is not None and not (model.family is ModelFamily.DECODER and model.model_type in ADAPTED):
        raise InputError(
            f"training.trainable: low-rank adapters cannot be trained in {model.name}",
            why="the runtime knows the attention projections of certain families of causal language models only: "
            f"{', '.join(ADAPTED)}",
            fix="write trainable: full",
        )
    checkpoint, data = section.checkpoint, section.data
    if section.total_tokens is not None and model.traced is not None:
        raise InputError(
            "training.total_tokens counts sequences of seq_len tokens, and samples of a factory are of any kind",
            why="how many samples that would be is not known",
            fix="write training: {steps: …}",
        )
    return TrainingSpec(
        seq_len=section.seq_len,
        global_batch_size=section.global_batch_size,
        optimizer=_optimizer(section.optimizer),
        gradient_clipping=float(section.gradient_clipping),
        lora_rank=section.trainable.lora_rank if section.trainable is not None else 0,
        seed=section.seed,
        steps=section.num_steps,
        warmup_steps=section.schedule.warmup_steps,
        min_learning_rate_fraction=float(section.schedule.min_lr_fraction),
        data=DataSpec(path=str(folder / data.path), token_bytes=data.token_bytes) if data else DataSpec(),
        checkpoint_dir=str(folder / checkpoint.folder) if checkpoint else "",
        checkpoint_interval_steps=checkpoint.interval if checkpoint else 0,
        run=resolve_run(section, folder=folder),
    )


def _optimizer(section: OptimizerSection) -> OptimizerSpec:
    if section.name is OptimizerName.ADAM8BIT:
        raise InputError(
            "training.optimizer.name: adam8bit cannot be planned yet",
            why="DeepSpeed has no 8-bit Adam of its own; `planner estimate` prices it",
            fix="choose adamw, sgd, lion or muon",
        )
    usual = OptimizerSpec()
    return OptimizerSpec(
        name=section.name,
        learning_rate=float(section.lr),
        betas=section.betas if section.betas is not None else _USUAL_BETAS.get(section.name, usual.betas),
        epsilon=float(section.eps) if section.eps is not None else usual.epsilon,
        weight_decay=float(section.weight_decay),
        momentum=float(section.momentum) if section.momentum is not None else _USUAL_MOMENTUM.get(section.name, 0.0),
    )


# Lion: Chen et al. 2023, arXiv 2302.06675. Muon: its reference implementation (Jordan et al. 2024).
_USUAL_BETAS = {OptimizerName.LION: (0.9, 0.99)}
_USUAL_MOMENTUM = {OptimizerName.MUON: 0.95}


def _refuse_longer_than_positions(model: ModelSpec, training: TrainingSpec) -> None:
    if 0 < model.max_seq_len < training.seq_len:
        raise InputError(
            f"training.seq_len {training.seq_len} is longer than the {model.max_seq_len} positions of {model.name}",
            why="its positions are learned, one vector each, so a longer sequence has none",
            fix=f"lower seq_len to {model.max_seq_len} or less, or choose another model",
        )


def _ranges(section: SearchSection, *, gpu: GpuSpec) -> SearchRanges:
    if section.precision is not None and Precision.FP8 in section.precision:
        raise InputError(
            "search.precision: fp8 cannot be planned yet",
            why="DeepSpeed's config has no switch for training in fp8; `planner estimate` prices it",
            fix="list bf16, fp16 or fp32",
        )
    asked = {name: getattr(section, name) for name in SearchRanges.__dataclass_fields__ if name != "precision"}
    return SearchRanges(precision=section.precision or (_usual_precision(gpu),), **asked)


def _usual_precision(gpu: GpuSpec) -> Precision:
    """bf16, or fp16 where the GPU has no bf16, or fp32 where it has neither."""
    usual = (Precision.BF16, Precision.FP16)
    return next((precision for precision in usual if gpu.peak_flops_per_s(precision) > 0), Precision.FP32)


def _trials(schema: JobSchema) -> TrialPolicy:
    section = schema.trials
    return TrialPolicy(
        mode=section.mode,
        max_trials=section.max_trials,
        time_budget_s=section.time_budget,
        steps=section.steps,
        timeout_s=section.timeout,
        sampler=section.sampler,
        submit=section.submit,
    )


def _launch(schema: JobSchema, *, folder: Path, python_path: tuple[str, ...]) -> LaunchSpec:
    """`environment`, `slurm` and `kubernetes` may stand under `launch` or at the top, not in both places."""
    section = schema.launch
    _refuse_idle_keys(section)
    start = start_folder(section, folder=folder)
    kubernetes = _said_once("kubernetes", section.kubernetes, schema.kubernetes)
    if section.launcher is Launcher.KUBERNETES and not dict(kubernetes).get("image"):
        raise InputError(  # here, because the manifest is only written after the trials
            "launch.launcher is kubernetes, but no image is named",
            why="pods are made from a container image that holds Python, torch, DeepSpeed and this package",
            fix="add kubernetes: {image: registry/name:tag}",
        )
    return LaunchSpec(
        launcher=section.launcher,
        command=section.command or "",
        environment=_said_once("environment", section.environment, schema.environment),
        slurm=_said_once("slurm", section.slurm, schema.slurm),
        kubernetes=kubernetes,
        master_port=section.master_port,
        python_path=python_path,
        script_kind=script_kind(section, folder=start) if section.command else ScriptKind.DEEPSPEED,
        folder=str(start) if section.command else "",
        base_config_json=own_config_json(section, folder=folder),
        hosts=_hosts(schema, folder=folder),
    )


def _hosts(schema: JobSchema, *, folder: Path) -> tuple[tuple[str, int], ...]:
    """The nodes by name: from the cluster's hostfile or, in a job that the planner wrote out, from there."""
    hosts = hosts_of(schema.cluster, folder=folder)
    if schema.launch.hosts:
        hosts = parse_hosts(schema.launch.hosts, label="launch.hosts")
    return tuple((host.name, host.slots) for host in hosts)


def _refuse_idle_keys(section: LaunchSection) -> None:
    """Keys about a script of one's own, without one."""
    for key in ("consumer", "folder", "deepspeed_config"):
        if section.command is None and getattr(section, key) is not None:
            raise InputError(
                f"launch.{key} has no effect without launch.command",
                why="it is about a training script of your own, and the job starts the reference trainer",
                fix=f"remove {key}, or name the script in launch.command",
            )


def _said_once(
    key: str, under_launch: tuple[tuple[str, str], ...], at_top: tuple[tuple[str, str], ...]
) -> tuple[tuple[str, str], ...]:
    if under_launch and at_top:
        raise InputError(
            f"{key} is given twice, under launch and at the top",
            why="which one holds would be a guess",
            fix=f"keep one of launch.{key} and {key}",
        )
    return under_launch or at_top
