#!/usr/bin/env bash
@@{header}
set -euo pipefail

@@{plan_dir}

if ! command -v kubectl >/dev/null; then
  echo "error: kubectl is not on the PATH" >&2
  echo "fix: start this where kubectl reaches the cluster, or render the plan for another launcher" >&2
  exit 2
fi
if (( $# )); then
  echo "error: the pods take no options from here: $*" >&2
  echo "fix: add them to the container's command in launch/kubernetes.yaml" >&2
  exit 2
fi

# The plan's files become a config map that every pod mounts; the job itself is in the manifest.
kubectl create configmap @@{name} --namespace=@@{namespace} \
  --from-file="$PLAN_DIR"/ds_config.json --from-file="$PLAN_DIR"/task.json \
  --from-file="$PLAN_DIR"/launch/kubernetes-pod.sh --dry-run=client --output=yaml |
  kubectl apply --filename=-
kubectl apply --filename="$PLAN_DIR"/launch/kubernetes.yaml
printf 'follow it with: kubectl --namespace=%s logs --follow %s\n' @@{namespace} @@{first_pod}
