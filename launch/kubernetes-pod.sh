#!/usr/bin/env bash
# What each pod runs; kubernetes.yaml mounts it beside the plan's files.
set -euo pipefail

@@{enter_plan_dir}

@@{environment}

@@{node_rank}
exec "${PYTHON:-python3}" @@{agent} \
  @@{program} "$@"
