"""Writing a fix down: into the DeepSpeed config it is for, or as a plan folder of its own. Whole or not at all.

The global batch is never changed; a change that would is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planner.app.diagnose_request import AppliedFix, DiagnoseRequest
from planner.app.diagnose_setting import Given, GivenConfig
from planner.app.draft import estimate_candidates
from planner.app.forecast import with_interval
from planner.app.write import launch_files
from planner.diagnose.config_change import OUTSIDE_KEYS, config_part, global_batch_kept, laid_over
from planner.diagnose.config_reading import read_memory_config
from planner.diagnose.records import Fix
from planner.emit import EmittedFile, render_ds_config_text, render_task_text
from planner.errors import InputError
from planner.rundir import RunDir, names
from planner.rundir.atomic import write_whole
from planner.spec import (
    ActivationCheckpointing,
    Attention,
    BatchSplit,
    Candidate,
    CrossEntropy,
    JobSpec,
    OffloadDevice,
    Plan,
    Promise,
)

_UNTRIED = -1  # of `Plan.trial_number`: chosen without a trial


def apply_fix(request: DiagnoseRequest, given: Given, fixes: tuple[Fix, ...]) -> AppliedFix:
    """Write the fix that the request names, or the best that can be written. InputError when there is none to write."""
    if given.config is None and given.plan is None:
        raise InputError(
            "--apply has nothing to change",
            why="neither a DeepSpeed config nor a plan is given",
            fix="name the file with --config ds_config.json, or the plan with --plan PLAN_DIR",
        )
    if given.config is not None and given.plan is not None:
        raise InputError("--config and --plan are both given", why="--apply writes one of them", fix="leave one out")
    number = _chosen(request, fixes, for_plan=given.plan is not None)
    if given.config is not None:
        return _to_config(request, given.config, fixes[number - 1], number)
    assert given.plan is not None and given.job is not None  # noqa: S101 - one of the two, by the check above
    return _to_plan(request, given.plan, given.job, fixes[number - 1], number)


def _chosen(request: DiagnoseRequest, fixes: tuple[Fix, ...], *, for_plan: bool) -> int:
    """The number (from 1) of the fix to write: the first that a file holds whole and that fits, else the first that a
    file holds whole, else the first of which it holds a part."""
    writable = [number for number, fix in enumerate(fixes, start=1) if _is_writable(fix, for_plan=for_plan)]
    if request.fix_number:
        if request.fix_number > len(fixes):
            raise InputError(
                f"there is no fix {request.fix_number}", why=f"{len(fixes)} were found", fix="choose one of them"
            )
        if request.fix_number not in writable:
            raise InputError(
                f"fix {request.fix_number} cannot be written",
                why="it is not a setting of this file: it is done in the environment, in code or on the host",
                fix=f"choose one of: {', '.join(map(str, writable))}" if writable else "do it by hand as it says",
            )
        return request.fix_number
    whole = [number for number in writable if for_plan or not OUTSIDE_KEYS & fixes[number - 1].change.keys()]
    fitting = [number for number in whole if fixes[number - 1].fits is not False]
    for numbers in (fitting, whole, writable):
        if numbers:
            return numbers[0]
    raise InputError(
        "none of the fixes is a change of the configuration",
        why="the cause is mended in the environment, in code or on the host",
        fix="do what the first fix says",
    )


def _is_writable(fix: Fix, *, for_plan: bool) -> bool:
    return bool(_axes(fix.change)) if for_plan else bool(config_part(fix.change))


def _to_config(request: DiagnoseRequest, config: GivenConfig, fix: Fix, number: int) -> AppliedFix:
    change = config_part(fix.change)
    changed = laid_over(config.value, change)
    if not global_batch_kept(read_memory_config(config.value), read_memory_config(changed)):
        raise InputError(
            "the change would alter the global batch",
            why="micro-batch, accumulation and train_batch_size of the file do not agree with it",
            fix="make the three agree first: `planner check` shows how",
        )
    target = _target_file(request.out_path or config.path)
    write_whole(target, (json.dumps(changed, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return AppliedFix(
        path=target, number=number, change=change, left_to_do=_outside(fix), lost_comments=config.has_comments
    )


def _outside(fix: Fix) -> dict[str, Any]:
    return {key: value for key, value in fix.change.items() if key in OUTSIDE_KEYS}


def _target_file(path: Path) -> Path:
    if path.is_dir():
        raise InputError(
            f"{str(path)!r} is a folder", why="the changed configuration is a file", fix="name a file with --out"
        )
    if not path.parent.is_dir():
        raise InputError(
            f"there is no folder {str(path.parent)!r}", why="--out names a file in it", fix="create it first"
        )
    return path.resolve()


def _to_plan(request: DiagnoseRequest, plan: Plan, job: JobSpec, fix: Fix, number: int) -> AppliedFix:
    """A new plan folder with the changed candidate; the old one stays as it failed. `plan.yaml` is written last."""
    candidate = _changed(plan.candidate, _axes(fix.change))
    if candidate.batch.global_batch_size != job.training.global_batch_size:
        raise InputError("the change would alter the global batch", why="a plan keeps it", fix="plan again")
    assert request.plan_dir is not None  # noqa: S101 - a plan was read from it
    target = request.out_path or request.plan_dir.with_name(f"{request.plan_dir.resolve().name}-diagnosed")
    old = RunDir.open(request.plan_dir)
    if target.exists() and any(target.iterdir() if target.is_dir() else [target]):
        raise InputError(
            f"{target} exists", why="the changed plan gets a folder of its own", fix="name a new one with --out"
        )
    version = dict(plan.versions).get("deepspeed", "")
    job = with_interval(job, candidate, step_time_s=plan.promise.step_time_s)
    files = [
        EmittedFile(path=names.DS_CONFIG, text=render_ds_config_text(candidate, job=job, deepspeed_version=version)),
        EmittedFile(path=names.TASK, text=render_task_text(candidate, job=job)),
        EmittedFile(path=names.JOB, text=old.read_text(names.JOB)),
        *launch_files(job, candidate, script=names.LAUNCH),
    ]
    new = RunDir.create(target, plan.job_hash)
    with new.locked():
        for file in files:
            new.write_text(file.path, file.text, executable=file.executable)
        new.write_plan(_untried(plan, candidate, job))
    changed = {name: str(value) for name, value in _axes(fix.change).items()}
    return AppliedFix(
        path=target,
        number=number,
        change=changed,
        left_to_do={key: v for key, v in _outside(fix).items() if key != "run"},
    )


def _untried(plan: Plan, candidate: Candidate, job: JobSpec) -> Plan:
    """The plan for the changed candidate: its promise is computed, nothing of it was tried."""
    (estimate,) = estimate_candidates(job, (candidate,))
    promise = Promise(
        step_time_s=estimate.step_time_s,
        step_time_kind=estimate.kind,
        tokens_per_s=estimate.tokens_per_s,
        device_used_bytes=estimate.memory.device_used_bytes,
        memory_kind=estimate.kind,
        usable_bytes=estimate.memory.usable_bytes,
    )
    return replace(
        plan,
        candidate=candidate,
        key=candidate.key,
        promise=promise,
        estimate=estimate,
        trial_number=_UNTRIED,
        validation=(),
        fallbacks=(),
    )


def _axes(change: Mapping[str, Any]) -> dict[str, Any]:
    """What of a change is a setting of a candidate."""
    zero, run = change.get("zero_optimization", {}), change.get("run", {})
    axes = {
        name: change[name]
        for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        if name in change
    }
    axes |= {"zero_stage": zero["stage"]} if "stage" in zero else {}
    for name in ("offload_optimizer", "offload_param"):
        if "device" in zero.get(name, {}):
            axes[name] = zero[name]["device"]
    axes |= {name: run[name] for name in ("activation_checkpointing", "attention", "cross_entropy") if name in run}
    return axes


def _changed(candidate: Candidate, axes: Mapping[str, Any]) -> Candidate:
    batch = candidate.batch
    return replace(
        candidate,
        batch=BatchSplit(
            micro_batch_size=axes.get("train_micro_batch_size_per_gpu", batch.micro_batch_size),
            gradient_accumulation_steps=axes.get("gradient_accumulation_steps", batch.gradient_accumulation_steps),
            data_parallel_size=batch.data_parallel_size,
        ),
        zero_stage=axes.get("zero_stage", candidate.zero_stage),
        offload_optimizer=OffloadDevice(axes.get("offload_optimizer", candidate.offload_optimizer)),
        offload_param=OffloadDevice(axes.get("offload_param", candidate.offload_param)),
        attention=Attention(axes.get("attention", candidate.attention)),
        tuning=replace(
            candidate.tuning, cross_entropy=CrossEntropy(axes.get("cross_entropy", candidate.tuning.cross_entropy))
        ),
        activation_checkpointing=ActivationCheckpointing.parse(axes["activation_checkpointing"])
        if "activation_checkpointing" in axes
        else candidate.activation_checkpointing,
    )
