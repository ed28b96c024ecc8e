#!/usr/bin/env bash
# What each pod runs; kubernetes.yaml mounts it beside the plan's files.
set -euo pipefail

@@{enter_plan_dir}

@@{environment}

# The operator sets MASTER_ADDR, MASTER_PORT and, as RANK, the number of the pod.
exec "${PYTHON:-python3}" -m torch.distributed.run --nnodes=@@{nodes} --nproc-per-node=@@{processes} \
  --node-rank="$RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT" \
  @@{program} "$@"
