#!/usr/bin/env bash
# Made by meshplan VERSION with: planner plan 'my job.yaml'
# Model tiny-llama-cpu, plan tp1-pp2-dp1-z1-mb2-ga2-fp32-full
# 2 ranks = data 1 x tensor 1 x pipeline 2
# 4 sequences a step = micro-batch 2 x accumulation 2 x data 1
# Start: bash launch.sh [options of python -m planner.runtime.train, such as --steps 10, or --resume]
set -euo pipefail

# Folders named in the options, as --export's, are found from here.
export MESHPLAN_CALLED_FROM="${MESHPLAN_CALLED_FROM:-$PWD}"
# The plan is where this script lies, wherever it was copied to.
unset CDPATH
script=${BASH_SOURCE[0]}
[[ $script == */* ]] || script=./$script
cd -- "${script%/*}"
export PLAN_DIR=$PWD

# Threads of one rank: the cores of a node shared by its 2 ranks, as in the trials.
cores=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
  limit=$(( (quota + period - 1) / period ))  # what a container may use of them
  if (( cores > limit )); then cores=$limit; fi
fi
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$(( cores > 2 ? cores / 2 : 1 ))}"
# Said out loud, because DeepSpeed guesses its device from what is installed.
export DS_ACCELERATOR=cpu

PYTHON=${PYTHON:-python3}

# exec: signals reach the first program itself, which ends all ranks.
exec "$PYTHON" -m planner supervise "$PLAN_DIR" -- "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node=2 \
  -m planner.runtime.train --task task.json --deepspeed-config ds_config.json "$@"
