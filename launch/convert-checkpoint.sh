#!/usr/bin/env bash
@@{header}
set -euo pipefail

@@{plan_dir}

@@{python}

# Makes a portable checkpoint of the newest one, unless this plan loads that as it is; the old one stays. One process on
# any machine that sees the checkpoints; no GPU is used. Safe to run again.
export DS_ACCELERATOR=cpu
exec "$PYTHON" -m planner.runtime.convert_checkpoint --task task.json "$@"
