#!/usr/bin/env bash
# Made by meshplan VERSION with: planner plan 'my job.yaml'
# Model llama-3.1-70b, plan tp1-pp1-dp16-z3-mb1-ga2-fp16-none
# 16 ranks = data 16 x tensor 1 x pipeline 1
# 32 sequences a step = micro-batch 1 x accumulation 2 x data 16
# Start: bash launch.sh, which submits the job
set -euo pipefail

# The plan is where this script lies, wherever it was copied to.
unset CDPATH
start_dir=$PWD
script=${BASH_SOURCE[0]}
[[ $script == */* ]] || script=./$script
cd -- "${script%/*}"
export PLAN_DIR=$PWD
cd -- "$start_dir"

if ! command -v sbatch >/dev/null; then
  echo "error: sbatch is not on the PATH" >&2
  echo "fix: start this on a login node of the Slurm cluster, or render the plan for another launcher" >&2
  exit 2
fi
mkdir -p -- "$PLAN_DIR"/logs

# The batch script runs from Slurm's own copy of it, so it is told where the plan lies.
exec sbatch "$PLAN_DIR"/launch/slurm.sbatch "$PLAN_DIR" "$@"
