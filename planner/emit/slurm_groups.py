"""A pipeline over several kinds of nodes under Slurm, which numbers nodes by their names.

Owns the order: the caller names each group's nodes, the batch script numbers them in that order. Without groups every
slot is what the scripts always had.
"""

from __future__ import annotations

from planner.emit.topology import NodeShape, stage_groups
from planner.spec import Candidate, JobSpec

_ASK = """\
if [[ {unset} ]]; then
  cat >&2 <<'USAGE'
This plan runs on nodes of several kinds: name those of each, as Slurm writes lists of hosts, all of one partition:
{groups}for example:  {example} bash launch.sh
USAGE
  exit 2
fi
"""
_KEEP_ORDER = """\
if (( ${{#hosts[@]}} != {nodes} )); then
  echo "error: the plan is for {nodes} nodes, and ${{#hosts[@]}} were named: $NODES" >&2
  exit 2
fi
export HOSTS_IN_ORDER=${{hosts[*]}}
"""
# In single quotes inside the batch script, where each node finds its own place.
_NODE_RANK = """\
export NODE_RANK=0
  for host in $HOSTS_IN_ORDER; do
    [[ $host == "$SLURMD_NODENAME" ]] && break
    NODE_RANK=$((NODE_RANK + 1))
  done"""


def submit_slots(job: JobSpec, candidate: Candidate) -> dict[str, str]:
    """Slots of the script that submits."""
    words = stage_groups(job, candidate)
    if not words:
        return {"ask_nodes": "", "on_nodes": "", "pass_nodes": ""}
    names = [f"NODES_{place}" for place in range(len(words))]
    together = ",".join(f"${{{name}}}" for name in names)
    ask = _ASK.format(
        unset=" || ".join(f"-z ${{{name}:-}}" for name in names),
        groups="".join(f"  {name}  {said}\n" for name, said in zip(names, words)),
        example=" ".join(f"{name}='kind{place}-[01-04]'" for place, name in enumerate(names)),
    )
    return {"ask_nodes": ask, "on_nodes": f'--nodelist="{together}" ', "pass_nodes": f'"{together}" '}


def batch_slots(job: JobSpec, shape: NodeShape) -> dict[str, str]:
    """Slots of the batch script."""
    if not job.cluster.groups:
        return {
            "take_nodes": "",
            "node_list": "SLURM_JOB_NODELIST",
            "keep_order": "",
            "node_rank": "NODE_RANK=$SLURM_NODEID",
        }
    return {
        "take_nodes": "NODES=${1:?the nodes in the order of the plan; launch.sh passes them}\nshift\n",
        "node_list": "NODES",
        "keep_order": _KEEP_ORDER.format(nodes=shape.nodes),
        "node_rank": _NODE_RANK,
    }
