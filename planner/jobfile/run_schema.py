"""What a job file may say of how the reference trainer runs: evaluation, checkpoints kept, a start from weights,
TensorBoard, metrics and memory budgets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Protocol

from pydantic import BeforeValidator, Field, model_validator

from planner.catalog.documents import describe
from planner.catalog.strict import StrictModel, complain
from planner.jobfile.quantities import PathText
from planner.spec import MemoryBudget, Phase, RunSpec

BUDGETED_PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER_STEP, Phase.TRAIN_BATCH)


def parse_token_bytes(value: Any) -> Any:
    """2 or 4."""
    if value == 3:
        raise complain("has token_bytes 3", fix="write token_bytes: 2 or 4")
    return value


class DataSection(StrictModel):
    path: PathText = Field(description="memory-mapped token file, relative to the job file; no data: synthetic batches")
    token_bytes: Annotated[int, BeforeValidator(parse_token_bytes)] = Field(
        default=4, ge=2, le=4, description="bytes of one token: 2 or 4, little endian"
    )
    eval_path: PathText | None = Field(default=None, description="held-out token file of the same kind")
    eval_interval: int = Field(default=0, ge=0, le=10**9, description="steps between evaluations; 0: at the end only")
    eval_sequences: int = Field(default=0, ge=0, le=10**9, description="sequences of one evaluation; 0: all there are")

    @model_validator(mode="after")
    def _every_option_has_an_effect(self) -> DataSection:
        for option in ("eval_interval", "eval_sequences"):
            if getattr(self, option) and self.eval_path is None:
                raise complain(f"has {option}, but no eval_path", fix="name the held-out file with eval_path")
        return self


def parse_interval(value: Any) -> int:
    """A number of steps, or `auto` (0 in the record: the plan says how often); a validator for pydantic."""
    if value == "auto":
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= 10**9:
        raise complain(
            f"must be a number of steps from 1 on, or auto, found {describe(value)}",
            fix="write interval: 500, or auto",
        )
    return value


class CheckpointSection(StrictModel):
    folder: PathText = Field(description="where checkpoints are written, relative to the job file")
    interval: Annotated[int, BeforeValidator(parse_interval)] = Field(
        default=1000, description="steps between checkpoints; auto: as often as loses the least when nodes fail"
    )
    keep: int = Field(default=0, ge=0, le=10**6, description="how many of the newest are kept; 0: all")
    in_background: bool = Field(default=False, description="copied to host memory, then written while training goes on")


def parse_budgets(value: Any) -> tuple[MemoryBudget, ...]:
    """A mapping of phases to shares of the usable memory."""
    names = [str(phase) for phase in BUDGETED_PHASES]
    if not isinstance(value, dict):
        raise complain(f"must map phases to shares, found {describe(value)}", fix="write {forward: 0.6}")
    budgets = []
    for name, share in value.items():
        number = isinstance(share, (int, float)) and not isinstance(share, bool)
        if name not in names or not number or not 0 < share <= 1:
            raise complain(
                f"must map phases to shares above 0 and up to 1, found {name}: {describe(share)}",
                fix=f"the phases are {', '.join(names)}; write {{forward: 0.6}}",
            )
        budgets.append(MemoryBudget(phase=Phase(name), usable_fraction=float(share)))
    return tuple(budgets)


class MonitoringSection(StrictModel):
    metrics_port: int = Field(
        default=0, ge=0, le=65_000, description="Prometheus endpoint of each machine's first rank; 0: none"
    )
    metrics_host: str = Field(default="127.0.0.1", min_length=1, max_length=255, description="address it is bound to")
    memory_budgets: Annotated[tuple[MemoryBudget, ...], BeforeValidator(parse_budgets)] = Field(
        default=(), description="{phase: share of the usable memory} that is warned of when exceeded"
    )
    tensorboard: PathText | None = Field(default=None, description="folder for TensorBoard, relative to the job file")


class _Sections(Protocol):
    """The part of the training section that is about the run."""

    @property
    def data(self) -> DataSection | None: ...
    @property
    def checkpoint(self) -> CheckpointSection | None: ...
    @property
    def monitoring(self) -> MonitoringSection: ...
    @property
    def pretrained(self) -> str | None: ...


def resolve_run(section: _Sections, *, folder: Path) -> RunSpec:
    """The RunSpec of a training section; paths are relative to `folder`."""
    data, checkpoint, monitoring = section.data, section.checkpoint, section.monitoring
    return RunSpec(
        eval_path=_placed(data.eval_path, folder) if data else "",
        eval_interval_steps=data.eval_interval if data else 0,
        eval_sequences=data.eval_sequences if data else 0,
        keep_checkpoints=checkpoint.keep if checkpoint else 0,
        async_checkpoints=checkpoint.in_background if checkpoint else False,
        pretrained=_placed(section.pretrained, folder),
        tensorboard_dir=_placed(monitoring.tensorboard, folder),
        metrics_port=monitoring.metrics_port,
        metrics_host=monitoring.metrics_host,
        memory_budgets=monitoring.memory_budgets,
    )


def _placed(path: str | None, folder: Path) -> str:
    return str(folder / path) if path else ""


def dump_run(run: RunSpec, section: dict[str, Any]) -> dict[str, Any]:
    """The training section with what `resolve_run` reads from it added; defaults are left out."""
    data = {"eval_path": run.eval_path, "eval_interval": run.eval_interval_steps, "eval_sequences": run.eval_sequences}
    checkpoint = {"keep": run.keep_checkpoints, "in_background": run.async_checkpoints}
    monitoring: dict[str, Any] = {
        "metrics_port": run.metrics_port,
        "memory_budgets": {str(budget.phase): budget.usable_fraction for budget in run.memory_budgets},
        "tensorboard": run.tensorboard_dir,
    }
    if run.metrics_host != RunSpec().metrics_host:
        monitoring["metrics_host"] = run.metrics_host
    dumped = dict(section)
    for key, more in (("data", data), ("checkpoint", checkpoint), ("monitoring", monitoring)):
        said = {name: value for name, value in more.items() if value}
        if said:
            dumped[key] = {**section.get(key, {}), **said}
    return dumped | ({"pretrained": run.pretrained} if run.pretrained else {})
