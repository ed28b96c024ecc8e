#!/usr/bin/env bash
@@{header}
set -euo pipefail

if [[ @@{unplaced} ]]; then
  cat >&2 <<'USAGE'
This plan runs on @@{nodes} nodes: start this script on each of them, in any order, with
  MASTER_ADDR  the name or address of one of them, as the others reach it: there they meet
  MASTER_PORT  a free port on that node (left out: @@{master_port})
  NODE_RANK    the number of the node, from 0 (that one) to @@{last_node}; @@{node_rank_use}
@@{node_groups}for example, on the first:  MASTER_ADDR=node0 NODE_RANK=0 bash @@{script}
USAGE
  exit 2
fi
MASTER_PORT=${MASTER_PORT:-@@{master_port}}

@@{plan_dir}

@@{environment}

@@{python}

@@{meeting}

# exec: signals reach the first program itself, which ends all ranks.
exec @@{supervisor}"$PYTHON" @@{agent} \
  @@{program} "$@"
