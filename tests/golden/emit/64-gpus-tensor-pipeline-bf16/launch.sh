#!/usr/bin/env bash
# Made by meshplan VERSION with: planner plan 'my job.yaml'
# Model llama-3.1-70b, plan tp8-pp4-dp2-z1-mb1-ga32-bf16-none
# 64 ranks = data 2 x tensor 8 x pipeline 4
# 64 sequences a step = micro-batch 1 x accumulation 32 x data 2
# Start: bash launch.sh [options of python -m planner.runtime.train, such as --steps 10, or --resume]
set -euo pipefail

if [[ -z ${MASTER_ADDR:-} || -z ${NODE_RANK:-} ]]; then
  cat >&2 <<'USAGE'
This plan runs on 8 nodes: start this script on each of them, in any order, with
  MASTER_ADDR  the name or address of one of them, as the others reach it: there they meet
  MASTER_PORT  a free port on that node (left out: 29500)
  NODE_RANK    the number of the node, from 0 (that one) to 7; needed
for example, on the first:  MASTER_ADDR=node0 NODE_RANK=0 bash launch.sh
USAGE
  exit 2
fi
MASTER_PORT=${MASTER_PORT:-29500}

# Folders named in the options, as --export's, are found from here.
export MESHPLAN_CALLED_FROM="${MESHPLAN_CALLED_FROM:-$PWD}"
# The plan is where this script lies, wherever it was copied to.
unset CDPATH
script=${BASH_SOURCE[0]}
[[ $script == */* ]] || script=./$script
cd -- "${script%/*}"
export PLAN_DIR=$PWD

# Threads of one rank: the cores of a node shared by its 8 ranks, as in the trials.
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
  limit=$(( (quota + period - 1) / period ))  # what a container may use of them
  if (( cores > limit )); then cores=$limit; fi
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(( cores > 8 ? cores / 8 : 1 ))}"
# Said out loud, because DeepSpeed guesses its device from what is installed.
export DS_ACCELERATOR=cuda
# A failing collective says why; a healthy one stays silent.
export NCCL_DEBUG="${NCCL_DEBUG:-WARN}"
# The allocator is torch's own, as in the trials: PYTORCH_ALLOC_CONF stays as it is. With its
# expandable_segments the run may need less than the plan says, never more.
# Any interface but the loopback and a container's bridge. Where NCCL still picks a wrong one,
# name yours, a list where nodes differ: NCCL_SOCKET_IFNAME=eth_a,eth_b (in launch.environment).
export NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-^lo,docker0}"

PYTHON=${PYTHON:-python3}

# Node 0 holds the rendezvous, and rank 0 is on it.

# exec: signals reach the first program itself, which ends all ranks.
exec "$PYTHON" -m planner supervise --nodes 8 --node-rank "$NODE_RANK" "$PLAN_DIR" -- "$PYTHON" -m torch.distributed.run --nnodes=8 --nproc-per-node=8 --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
  -m planner.runtime.train --task task.json --deepspeed-config ds_config.json "$@"
