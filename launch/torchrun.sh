#!/usr/bin/env bash
@@{header}
set -euo pipefail

@@{plan_dir}

@@{environment}

@@{python}

# exec: signals reach the first program itself, which ends all ranks.
exec @@{supervisor}"$PYTHON" -m torch.distributed.run --standalone --nproc-per-node=@@{processes} \
  @@{program} "$@"
