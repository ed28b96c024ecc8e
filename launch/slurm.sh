#!/usr/bin/env bash
@@{header}
set -euo pipefail

@@{plan_dir}

if ! command -v sbatch >/dev/null; then
  echo "error: sbatch is not on the PATH" >&2
  echo "fix: start this on a login node of the Slurm cluster, or render the plan for another launcher" >&2
  exit 2
fi
@@{ask_nodes}mkdir -p -- "$PLAN_DIR"/logs

# The batch script runs from Slurm's own copy of it, so it is told where the plan lies.
exec sbatch @@{on_nodes}"$PLAN_DIR"/@@{batch} "$PLAN_DIR" @@{pass_nodes}"$@"
