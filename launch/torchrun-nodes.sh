#!/usr/bin/env bash
@@{header}
set -euo pipefail

if [[ -z ${NODE_RANK:-} || -z ${MASTER_ADDR:-} ]]; then
  cat >&2 <<'USAGE'
This plan runs on @@{nodes} nodes: start this script on each of them, with
  NODE_RANK    the number of the node, from 0 to @@{last_node}
  MASTER_ADDR  the name or address of node 0, as the others reach it
  MASTER_PORT  a free port on node 0 (left out: @@{master_port})
@@{node_groups}for example, on node 0:  NODE_RANK=0 MASTER_ADDR=node0 bash @@{script}
USAGE
  exit 2
fi
MASTER_PORT=${MASTER_PORT:-@@{master_port}}

@@{plan_dir}

@@{environment}

@@{python}

# exec: signals reach the first program itself, which ends all ranks.
exec @@{supervisor}"$PYTHON" -m torch.distributed.run --nnodes=@@{nodes} --nproc-per-node=@@{processes} \
  --node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
  @@{program} "$@"
