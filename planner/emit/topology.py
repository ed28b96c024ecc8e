"""How the ranks of a candidate lie on nodes."""

from __future__ import annotations

from planner.errors import NotExpressible
from planner.spec import Candidate, JobSpec
from planner.spec._record import record


def stage_groups(job: JobSpec, candidate: Candidate) -> tuple[str, ...]:
    """Of a pipeline over a mixed cluster: which nodes are of which group, and what stands on them, in rank order."""
    layout, words = candidate.layout, []
    first_node = first_stage = 0
    for group in job.cluster.groups:
        stages = group.world_size // (layout.data_parallel_size * layout.tensor_parallel_size)
        layers = layout.stage_layers[first_stage : first_stage + stages]
        words.append(
            f"{_span('node', first_node, group.nodes)} {'is' if group.nodes == 1 else 'are'} {group.gpu.name}: "
            f"{_span('stage', first_stage, stages)} with {' '.join(map(str, layers))} layers"
        )
        first_node, first_stage = first_node + group.nodes, first_stage + stages
    return tuple(words)


def _span(noun: str, first: int, count: int) -> str:
    return f"{noun} {first}" if count == 1 else f"{noun}s {first} to {first + count - 1}"


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
