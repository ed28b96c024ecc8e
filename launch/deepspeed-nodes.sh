#!/usr/bin/env bash
@@{header}
set -euo pipefail

@@{plan_dir}

HOSTFILE=${HOSTFILE:-$PLAN_DIR/hostfile}
if [[ ! -f $HOSTFILE ]]; then
  cat >&2 <<'USAGE'
This plan runs on @@{nodes} nodes: write their names into a file "hostfile" beside this plan, or name one with HOSTFILE.
One line a node, the first being the one that runs this script:
  node0 slots=@@{processes}
@@{node_groups}The nodes are reached over ssh without a password, by pdsh, and see this folder under the same path.
USAGE
  exit 2
fi
case $PLAN_DIR in
  *[!A-Za-z0-9_@%+=:,./-]*)
    echo "error: DeepSpeed's launcher changes into this folder on every node without quoting its name: $PLAN_DIR" >&2
    echo "fix: move the plan to a path of letters, digits and the signs _@%+=:,./-" >&2
    exit 2
    ;;
esac

@@{environment}
# The launcher forwards few variables to other nodes; those in this file it does.
export DS_ENV_FILE="$PLAN_DIR"/launch/deepspeed_env

@@{python}

MASTER_PORT=${MASTER_PORT:-@@{master_port}}

# The launcher as a module, so that it is the one of this interpreter.
exec "$PYTHON" -m deepspeed.launcher.runner --hostfile="$HOSTFILE" --num_nodes=@@{nodes} --num_gpus=@@{processes} \
  --master_port="$MASTER_PORT" \
  @@{program} "$@"
