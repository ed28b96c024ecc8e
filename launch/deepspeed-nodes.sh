#!/usr/bin/env bash
@@{header}
set -euo pipefail

# A name from outside is meant from where the caller stands.
if [[ -n ${HOSTFILE:-} && $HOSTFILE != /* ]]; then HOSTFILE=$PWD/$HOSTFILE; fi

@@{plan_dir}

HOSTFILE=${HOSTFILE:-$PLAN_DIR/hostfile}
if [[ ! -f $HOSTFILE ]]; then
  cat >&2 <<'USAGE'
This plan runs on @@{nodes} nodes: write their names into a file "hostfile" beside this plan, or name one with HOSTFILE.
One line a node, the first being the one that runs this script:
  node0 slots=@@{processes}
@@{node_groups}The nodes are reached over ssh without a password, by pdsh, and see this folder under the same path. Without ssh: start
this script on each of them with NODE_RANK, the number of its line from 0, and MASTER_ADDR, the first one's address.
USAGE
  exit 2
fi
for folder in "$PLAN_DIR" "$PWD"; do
  case $folder in
    *[!A-Za-z0-9_@%+=:,./-]*)
      echo "error: DeepSpeed's launcher changes into this folder on every node without quoting its name: $folder" >&2
      echo "fix: move it to a path of letters, digits and the signs _@%+=:,./-" >&2
      exit 2
      ;;
  esac
done
if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
  echo "error: CUDA_VISIBLE_DEVICES does not name GPUs of several nodes, and the deepspeed launcher would not pass it on" >&2
  echo "fix: unset it, and name GPUs with INCLUDE=node0:0,1@node1:0,1 or EXCLUDE" >&2
  exit 2
fi

@@{environment}
# The launcher forwards few variables to other nodes; those in this file it does.
export DS_ENV_FILE="$PLAN_DIR"/launch/deepspeed_env

@@{python}

MASTER_PORT=${MASTER_PORT:-@@{master_port}}

# The launcher takes either counts or a choice of GPUs, never both.
where=(--num_nodes=@@{nodes} --num_gpus=@@{processes})
if [[ -n ${INCLUDE:-} ]]; then
  where=(--include="$INCLUDE")
elif [[ -n ${EXCLUDE:-} ]]; then
  where=(--exclude="$EXCLUDE")
fi
# By pdsh from the first node, or, with NODE_RANK, one launcher on each node.
if [[ -n ${NODE_RANK:-} ]]; then
  where+=(--no_ssh --node_rank="$NODE_RANK" --master_addr="${MASTER_ADDR:?the address of the first node}")
fi

# The launcher as a module, so that it is the one of this interpreter.
exec "$PYTHON" -m deepspeed.launcher.runner --hostfile="$HOSTFILE" "${where[@]}" --master_port="$MASTER_PORT" \
  @@{program} "$@"
