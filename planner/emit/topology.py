"""How the ranks of a candidate lie on nodes."""

from __future__ import annotations

from planner.errors import NotExpressible
from planner.spec import Candidate, JobSpec
from planner.spec._record import record


@record
class NodeShape:
    nodes: int
    processes_per_node: int


def node_shape(job: JobSpec, candidate: Candidate) -> NodeShape:
    """Whole nodes, or a part of one. NotExpressible for a world that fills its last node only in part."""
    world, per_node = candidate.layout.world_size, job.cluster.gpus_per_node
    if world <= per_node:
        return NodeShape(nodes=1, processes_per_node=world)
    if world % per_node:
        raise NotExpressible(
            f"{world} ranks do not fill whole nodes of {per_node} GPUs",
            why="launchers start the same number of processes on every node",
            fix=f"use a world of {world - world % per_node} or {world + per_node - world % per_node} GPUs",
        )
    return NodeShape(nodes=world // per_node, processes_per_node=per_node)
