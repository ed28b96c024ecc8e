"""Plans for losing nodes, checked by the rules and DeepSpeed's own parser, as files inside the main plan's folder.

Each is a plan folder of its own but for the report, which `planner report` makes from it. Leaves what to choose to
`survivors`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from planner.app.checkpoint_route import checkpoint_route
from planner.app.selection import Selection
from planner.app.survivors import Survivor, survivors_of
from planner.app.validate import check_rules, parse_configs
from planner.app.write import PlanParts, conversion_script, emitted_files, launch_paths, plan_of
from planner.emit import EmittedFile, node_shape, render_surviving
from planner.errors import NotExpressible
from planner.jobfile import dump_job
from planner.rundir import names, render_plan
from planner.spec import JobSpec, ValidationStep
from planner.spec._record import record
from planner.spec.replan import CheckpointWay, SurvivalPlan
from planner.trial import Machine

MAX_CHOICES = 3  # as of the main plan


@record
class Survival:
    """What goes into the main plan's `plan.yaml`, and the files beside it."""

    plans: tuple[SurvivalPlan, ...] = ()
    files: tuple[EmittedFile, ...] = ()


@record
class _Chosen:
    survivor: Survivor
    selection: Selection | None
    steps: tuple[ValidationStep, ...] = ()
    why: str = ""


def plan_survival(
    main: Selection, *, job: JobSpec, machine: Machine, count: int, validate: bool, plan_dir: Path
) -> Survival:
    """The plans for losing up to `count` of the nodes that the main plan, in `plan_dir`, uses; fewer where it uses
    fewer."""
    nodes = node_shape(job, main.candidate).nodes
    count = min(count, nodes - 1)
    if count < 1:
        return Survival()
    survivors = survivors_of(job, nodes=nodes, count=count, calibration=main.calibration)
    chosen = [_choose(one, machine=machine, validate=validate) for one in survivors]
    if validate:
        chosen = _parsed(chosen, machine=machine)
    plans = tuple(_listed(one, main=main, job=job, survivors=chosen) for one in chosen)
    files: list[EmittedFile] = []
    for one, listed in zip(chosen, plans):
        if one.selection is not None:
            files += _files(one, one.selection, listed, machine=machine, nodes=nodes, plan_dir=plan_dir)
    counts = tuple(plan.nodes for plan in plans if plan.folder)
    if counts:
        converts = any(plan.checkpoint is CheckpointWay.CONVERT for plan in plans)
        script = launch_paths(names.SURVIVE_SCRIPT)
        files.append(render_surviving(job, main.candidate, paths=script, nodes=(nodes, *counts), converts=converts))
    return Survival(plans=plans, files=tuple(files))


def _choose(survivor: Survivor, *, machine: Machine, validate: bool) -> _Chosen:
    """The best choice that can be written and that no rule refuses."""
    why = survivor.why
    for selection in islice(survivor.choices(), MAX_CHOICES):
        try:
            step = check_rules(selection.candidate, job=survivor.job, machine=machine)
            if step.passed or not validate:
                return _Chosen(survivor=survivor, selection=selection, steps=(step,) if validate else ())
            why = step.detail
        except NotExpressible as problem:
            why = f"{problem.error}: {problem.why}"
    return _Chosen(survivor=survivor, selection=None, why=why)


def _parsed(chosen: Iterable[_Chosen], *, machine: Machine) -> list[_Chosen]:
    """With DeepSpeed's own word on each, from one child program."""
    given = list(chosen)
    kept = [one for one in given if one.selection is not None]
    if not kept:
        return given
    candidates = tuple(one.selection.candidate for one in kept if one.selection is not None)
    answers = iter(parse_configs(candidates, job=kept[0].survivor.job, machine=machine))
    found = []
    for one in given:
        if one.selection is None:
            found.append(one)
            continue
        step = next(answers)
        if step.passed:
            found.append(replace(one, steps=(*one.steps, step)))
        else:
            found.append(replace(one, selection=None, why=f"DeepSpeed's parser refuses the layout: {step.detail}"))
    return found


def _listed(one: _Chosen, *, main: Selection, job: JobSpec, survivors: list[_Chosen]) -> SurvivalPlan:
    nodes = one.survivor.nodes
    if one.selection is None:
        below = [other.survivor.nodes for other in survivors if other.selection and other.survivor.nodes < nodes]
        nearest = max(below, default=one.survivor.nearest)
        return SurvivalPlan(nodes=nodes, nearest_nodes=nearest, note=one.why)
    candidate, promise = one.selection.candidate, one.selection.promise
    route = checkpoint_route(main.candidate, candidate, job=job, folder="")
    return SurvivalPlan(
        nodes=nodes,
        folder=f"{names.SURVIVE_DIR}/{nodes}",
        key=candidate.key,
        tokens_per_s=promise.tokens_per_s,
        kind=promise.step_time_kind,
        checkpoint=route.way,
    )


def _files(
    one: _Chosen, selection: Selection, listed: SurvivalPlan, *, machine: Machine, nodes: int, plan_dir: Path
) -> list[EmittedFile]:
    """The files of one plan, all in its folder; `plan.yaml` last, as in every plan folder."""
    survivor = one.survivor
    if survivor.draft is None:
        raise TypeError("a survivor that was chosen has a draft")
    note = f"for {survivor.nodes} of {nodes} nodes, by the model"
    if selection.calibration.num_points:
        note += f" as {selection.calibration.num_points} trials of the whole plan correct it"
    parts = PlanParts(
        selection=selection,
        validation=one.steps,
        job=survivor.job,
        machine=machine,
        draft=survivor.draft,
        trials_note=note,
    )
    plan = plan_of(parts)
    emitted = emitted_files(plan, parts, plan_dir=plan_dir, folder=listed.folder)
    files = [EmittedFile(path=names.JOB, text=dump_job(survivor.job)), *emitted]
    if listed.checkpoint in (CheckpointWay.CONVERT, CheckpointWay.UNIVERSAL):
        files.append(conversion_script(survivor.job, selection.candidate))
    files.append(EmittedFile(path=names.PLAN, text=render_plan(plan)))
    return [replace(file, path=f"{listed.folder}/{file.path}") for file in files]
