"""The plans for losing nodes: for each smaller number of nodes the best layout at the same global batch. Pure.

Priced by the analytic model as the main plan's trials correct it. Leaves the gates and the files to `survive`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from planner.app.draft import Draft, draft_plan
from planner.app.selection import Selection, choices_by_model
from planner.cost import Calibration
from planner.errors import InputError, NoFeasiblePlan
from planner.spec import JobSpec, Objective
from planner.spec._record import record


@record
class Survivor:
    """What is left on `nodes` nodes. `draft` None: no layout can use them, and `why` says so; `nearest` is then the
    next smaller number of nodes that has one, 0 for none."""

    nodes: int
    job: JobSpec
    draft: Draft | None = None
    why: str = ""
    nearest: int = 0

    def choices(self) -> Iterator[Selection]:
        """The candidates that fit, best first."""
        return choices_by_model(self.draft) if self.draft is not None else iter(())


def survivors_of(job: JobSpec, *, nodes: int, count: int, calibration: Calibration) -> tuple[Survivor, ...]:
    """After losing 1 to `count` of the plan's `nodes`, most nodes first."""
    found = [_survivor(job, nodes - lost, calibration) for lost in range(1, count + 1)]
    usable = [one.nodes for one in found if one.draft is not None]
    smallest = nodes - count
    if any(one.draft is None for one in found) and (not usable or min(usable) > smallest):
        usable += _next_usable(job, smallest - 1, calibration)
    return tuple(
        one if one.draft is not None else replace(one, nearest=max((n for n in usable if n < one.nodes), default=0))
        for one in found
    )


def _next_usable(job: JobSpec, nodes: int, calibration: Calibration) -> list[int]:
    """The next smaller number that can be used, beyond those asked for."""
    for fewer in range(nodes, 0, -1):
        if _survivor(job, fewer, calibration).draft is not None:
            return [fewer]
    return []


def _survivor(job: JobSpec, nodes: int, calibration: Calibration) -> Survivor:
    smaller = surviving_job(job, nodes)
    try:
        draft = draft_plan(smaller, calibration=calibration)
        next(choices_by_model(draft))
    except NoFeasiblePlan as problem:
        return Survivor(nodes=nodes, job=smaller, why=f"{problem.error}: {problem.why}")
    return Survivor(nodes=nodes, job=smaller, draft=draft)


def surviving_job(job: JobSpec, nodes: int) -> JobSpec:
    """The job on that many of its nodes. All of them are used, whatever the job's objective chose: who has lost nodes
    wants to go on as fast as the rest can. Which of them are left is not known, so none has a name."""
    return replace(
        job,
        cluster=replace(job.cluster, nodes=nodes),
        launch=replace(job.launch, hosts=()),
        node_counts=(),
        objective=Objective.THROUGHPUT,
        deadline=None,
    )


def require_survivable(job: JobSpec, count: int) -> None:
    """Raise InputError for a number of lost nodes that leaves none, and for clusters that cannot shrink so."""
    if not count:
        return
    if job.cluster.groups:
        raise InputError(
            "--survive is not for a cluster of several groups of nodes",
            why="which nodes are lost then decides what is left",
            fix="plan for one group, or for each cluster that may be left",
        )
    most = max(job.node_counts or (job.cluster.nodes,)) - 1
    if count > most:
        nodes = "1 node" if most == 0 else f"{most + 1} nodes"
        raise InputError(
            f"--survive {count}, but the cluster has {nodes}",
            why="at least one node has to be left",
            fix=f"write --survive {most} or less" if most else "leave --survive out: one node cannot lose another",
        )
