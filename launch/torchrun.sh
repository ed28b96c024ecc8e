#!/usr/bin/env bash
@@{header}
set -euo pipefail

@@{plan_dir}

@@{environment}

@@{python}

# exec: signals reach torchrun itself, which ends all ranks.
exec "$PYTHON" -m torch.distributed.run --standalone --nproc-per-node=@@{processes} \
  @@{program} "$@"
