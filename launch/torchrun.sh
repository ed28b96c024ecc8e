#!/usr/bin/env bash
@@{header}
set -euo pipefail

@@{plan_dir}

@@{environment}

@@{python}

# exec: signals reach the first program itself, which ends all ranks.
exec @@{supervisor}"$PYTHON" @@{agent} \
  @@{program} "$@"
