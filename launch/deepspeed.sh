#!/usr/bin/env bash
@@{header}
set -euo pipefail

@@{plan_dir}

@@{environment}

@@{python}

MASTER_PORT=${MASTER_PORT:-@@{master_port}}

@@{devices}

# The launcher as a module, so that it is the one of this interpreter. No host file: this machine alone.
exec @@{supervisor}"$PYTHON" -m deepspeed.launcher.runner --hostfile='' "${devices[@]}" --master_port="$MASTER_PORT" \
  @@{program} "$@"
