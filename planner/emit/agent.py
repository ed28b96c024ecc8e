"""The program that starts the ranks of one node: torchrun, or `accelerate launch` around it. Shell text.

Owns its options. The scripts that call it are in the skeletons under `launch/`; they have set NODE_RANK, MASTER_ADDR
and MASTER_PORT where there are several nodes.
"""

from __future__ import annotations

from planner.emit.program import Program
from planner.emit.shell import fill_skeleton
from planner.emit.topology import NodeShape

_TORCHRUN = "-m torch.distributed.run"
_ACCELERATE = "-m accelerate.commands.launch --use_deepspeed"


def agent_text(shape: NodeShape, program: Program) -> str:
    """The agent of one node of the plan's, numbered by NODE_RANK where there are several."""
    if program.uses_accelerate:
        return f"{_ACCELERATE} {_accelerate_options(shape)}"
    if shape.nodes == 1:
        return f"{_TORCHRUN} --standalone --nproc-per-node={shape.processes_per_node}"
    meeting = '--node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT"'
    return f"{_TORCHRUN} --nnodes={shape.nodes} --nproc-per-node={shape.processes_per_node} {meeting}"


def meeting_agent(shape: NodeShape, program: Program, *, numbered: bool) -> tuple[str, str]:
    """For nodes that people start by hand: how they meet, and the agent. Unless `numbered`, they can agree on it."""
    if numbered:
        return "# Node 0 holds the rendezvous, and rank 0 is on it.", agent_text(shape, program)
    agent = f'{_TORCHRUN} --nnodes={shape.nodes} --nproc-per-node={shape.processes_per_node} "${{meeting[@]}}"'
    return fill_skeleton("meeting.sh").rstrip("\n"), agent


def _accelerate_options(shape: NodeShape) -> str:
    world = shape.nodes * shape.processes_per_node
    if shape.nodes == 1:
        return f"--num_machines=1 --num_processes={world} --main_process_port=0"
    # "standard": accelerate starts torchrun on its node, and neither pdsh nor ssh.
    return (
        f"--deepspeed_multinode_launcher=standard --num_machines={shape.nodes} --num_processes={world} "
        '--machine_rank="$NODE_RANK" --main_process_ip="$MASTER_ADDR" --main_process_port="$MASTER_PORT"'
    )
