"""What the plan beside a configuration says of the run it is for: ranks, their splits, who reads it, the release."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from planner.app.check_request import CheckRequest, ConfigReader
from planner.app.jobs import read_planned_job
from planner.errors import InputError, PlannerError
from planner.rules import known_releases
from planner.rundir import RunDir, names
from planner.rundir.plan_file import parse_plan
from planner.spec import LaunchSpec, Plan, ScriptKind

_MOST_BYTES = 4 << 20
_READERS = {
    ScriptKind.DEEPSPEED: ConfigReader.DEEPSPEED,
    ScriptKind.HUGGINGFACE: ConfigReader.HUGGINGFACE,
    ScriptKind.ACCELERATE: ConfigReader.HUGGINGFACE,
}


def with_plan_beside(request: CheckRequest, path: Path | None) -> tuple[CheckRequest, Path | None]:
    """The request with what the plan says, and the plan's path; unchanged and None where flags say it, or for a file
    that is no plan's own.

    Only `ds_config.json` of a plan folder is the plan's; a plan.yaml that cannot be read is none.
    """
    if path is None or path.name != names.DS_CONFIG or _is_told(request):
        return request, None
    plan_path = path.with_name(names.PLAN)
    plan = _read(plan_path)
    if plan is None:
        return request, None
    layout = plan.candidate.layout
    release = dict(plan.versions).get("deepspeed", "")
    launch = _launch(path.parent)
    return (
        replace(
            request,
            world_size=layout.world_size,
            tensor_parallel_size=layout.tensor_parallel_size,
            pipeline_parallel_size=layout.pipeline_parallel_size,
            consumer=request.consumer or _READERS[launch.script_kind],
            client_optimizer=request.client_optimizer or ("" if launch.command else "none"),
            deepspeed_version=request.deepspeed_version or (release if release in known_releases() else ""),
        ),
        plan_path,
    )


def _launch(folder: Path) -> LaunchSpec:
    """Whose loop runs the plan; the reference trainer's where its job cannot be read."""
    try:
        return read_planned_job(RunDir.open(folder)).launch
    except PlannerError:
        return LaunchSpec()


def _is_told(request: CheckRequest) -> bool:
    splits = (request.tensor_parallel_size, request.pipeline_parallel_size, request.sequence_parallel_size)
    return request.world_size > 0 or max(splits) > 1


def _read(path: Path) -> Plan | None:
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES)
        return parse_plan(content.decode("utf-8"), name=str(path))
    except (OSError, UnicodeDecodeError, InputError):  # somebody else's plan.yaml, or none: nothing is said by it
        return None
