"""What a job file may say: every section, its keys, their types, ranges and purposes.

Owns the form only; the larger sections have files of their own (`training_schema`, `search_schema`, `launch_schema`).
What the values mean together (links of a GPU, the default precision) is `resolve`'s business.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, model_validator

from planner.catalog.documents import describe
from planner.catalog.hardware_schema import Groups, Hours, LinkOption, Price, refuse_beside_groups
from planner.catalog.strict import StrictModel, complain
from planner.jobfile.cluster_sizes import parse_nodes
from planner.jobfile.launch_schema import EnvironmentMap, KubernetesMap, LaunchSection, OptionMap
from planner.jobfile.objective_schema import ObjectiveChoice, ObjectiveSection
from planner.jobfile.quantities import PathText, nothing_is_empty
from planner.jobfile.search_schema import SearchSection, TrialsSection
from planner.jobfile.training_schema import TrainingSection


class TracedSection(StrictModel):
    """What tracing a factory's module found, as the planner itself writes it into the plan folder."""

    num_parameters: int = Field(ge=0, le=10**15, description="elements")
    largest_parameter: int = Field(ge=0, le=10**15, description="elements")
    saved_bytes_per_sample_fp32: int = Field(ge=0, le=10**15, description="kept for the backward pass")
    fixed_saved_bytes: int = Field(ge=0, le=10**15, description="kept for the backward pass, however many samples")
    forward_flops_per_sample: int = Field(ge=0, le=10**18, description="of the forward pass")
    tokens_per_sample: int = Field(ge=1, le=10**9, description="1 where a sample is not a sequence")


_FACTORY = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


def parse_factory(value: Any) -> str:
    """`package.module:function`."""
    if isinstance(value, str) and len(value) <= 500 and _FACTORY.fullmatch(value):
        return value
    raise complain(
        f"must be package.module:function, found {describe(value)}", fix="name a function that returns the module"
    )


def parse_model_config(value: Any) -> Any:
    """A path, or the config itself."""
    if (isinstance(value, str) and 0 < len(value) <= 4096) or isinstance(value, dict):
        return value
    raise complain(
        f"must be the path of a config.json, or the config itself, found {describe(value)}",
        fix="write config: path/to/config.json",
    )


class ModelSection(StrictModel):
    name: str | None = Field(
        default=None, min_length=1, max_length=200, description="a catalog name; beside config or factory, a label"
    )
    config: Annotated[Any, BeforeValidator(parse_model_config)] = Field(
        default=None, description="the path of a Hugging Face config.json, relative to the job file"
    )
    factory: Annotated[str, BeforeValidator(parse_factory)] | None = Field(
        default=None, description="package.module:function that makes an nn.Module"
    )
    traced: TracedSection | None = Field(default=None, description="written by the planner for a factory")

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if self.config is not None and self.factory is not None:
            raise complain("has both config and factory", fix="keep the one that makes the model")
        if self.name is None and self.config is None and self.factory is None:
            raise complain("says no model", fix="add name:, config: or factory: under model:")
        if self.traced is not None and self.factory is None:
            raise complain("has traced without factory", fix="remove traced:, it is written by the planner")
        return self


class ClusterSection(StrictModel):
    gpu: str | None = Field(
        default=None, min_length=1, max_length=100, description="a catalog name, or auto: this machine"
    )
    name: str | None = Field(default=None, min_length=1, max_length=100, description="a cluster of the catalog")
    file: PathText | None = Field(default=None, description="a cluster file, relative to the job file")
    resolved: dict[str, Any] | None = Field(default=None, description="all figures, as the planner writes them")
    nodes: Annotated[tuple[int, ...] | None, BeforeValidator(parse_nodes)] = Field(
        default=None, description="how many alike nodes; several (a list, or {from, to, step}): one of these"
    )
    gpus_per_node: int | None = Field(default=None, ge=1, le=1024, description="GPUs (or CPU processes) of one node")
    intra_node_link: LinkOption = Field(default=None, description="the link between GPUs of a node")
    inter_node_link: LinkOption = Field(default=None, description="the network between nodes, one GPU's share")
    host_memory_gib: float | None = Field(default=None, gt=0, le=1e6, description="memory of one node's host, in GiB")
    memory_gib: float | None = Field(default=None, gt=0, le=1e6, description="cap on the memory of one rank, in GiB")
    hostfile: PathText | None = Field(
        default=None, description="the deepspeed launcher's hostfile, relative to the job file: nodes and their slots"
    )
    groups: Groups | None = Field(
        default=None, description="groups of alike nodes, each with gpu and nodes, in the order of the nodes"
    )
    price_per_gpu_hour: Price | None = Field(
        default=None, description="price of one GPU for one hour: a number (USD), or {per_hour, currency, source, date}"
    )
    mtbf_hours: Hours | None = Field(default=None, description="mean time between failures of one node, in hours")
    checkpoint_write_gb_per_s: float | None = Field(
        default=None, gt=0, le=1e6, description="what one node writes to where checkpoints lie, gigabytes per second"
    )

    @model_validator(mode="after")
    def _one_source(self) -> ClusterSection:
        said = [key for key in ("gpu", "name", "file", "groups", "resolved") if getattr(self, key) is not None]
        if len(said) != 1:
            found = "has " + " and ".join(said) if said else "says no hardware"
            raise complain(found, fix="write exactly one of gpu:, name: (a catalog cluster), file: or groups:")
        refuse_beside_groups(self)
        counted = [key for key in ("nodes", "gpus_per_node") if getattr(self, key) is not None]
        if self.hostfile is not None and counted:
            raise complain(f"has {counted[0]} beside hostfile", fix=f"remove {counted[0]}: the hostfile says it")
        others = [key for key in type(self).model_fields if key not in said and getattr(self, key) is not None]
        several = ["nodes"] if self.nodes is not None and len(self.nodes) > 1 else []
        if self.resolved is not None and others != several:
            raise complain(f"has {others[0]} beside resolved", fix="change the figure inside resolved")
        return self


class JobSchema(StrictModel):
    """The whole job file."""

    model: ModelSection = Field(description="what is trained")
    training: TrainingSection = Field(description="how it is trained")
    cluster: ClusterSection = Field(description="on what it is trained")
    search: Annotated[SearchSection, BeforeValidator(nothing_is_empty)] = Field(
        default=SearchSection(), description="what may vary; an axis left out takes all that is legal"
    )
    objective: ObjectiveSection = Field(
        default=ObjectiveChoice(), description="throughput, cost, fewest_gpus, or {deadline: 2027-03-01}"
    )
    prices: Annotated[dict[str, Price], BeforeValidator(nothing_is_empty)] = Field(
        default={}, max_length=1000, description="price of one GPU for one hour, by the GPU's name in the catalog"
    )
    memory_headroom: float = Field(default=0.05, ge=0, le=0.9, description="share of the usable memory kept free")
    trials: Annotated[TrialsSection, BeforeValidator(nothing_is_empty)] = Field(
        default=TrialsSection(), description="how trials are run"
    )
    launch: Annotated[LaunchSection, BeforeValidator(nothing_is_empty)] = Field(
        default=LaunchSection(), description="how the training is started"
    )
    environment: EnvironmentMap = Field(default=(), description="environment variables of the training")
    slurm: OptionMap = Field(default=(), description="sbatch's long options: account, partition, time")
    kubernetes: KubernetesMap = Field(default=(), description="image, namespace, name")
