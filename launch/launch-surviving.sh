#!/usr/bin/env bash
@@{header}
set -euo pipefail

# The numbers of nodes that there is a plan for, most first; the first is the whole plan.
counts=(@@{counts})
whole=${counts[0]}

usage() {
  echo "usage: bash @@{script} [--which] NODES_ALIVE [options of the start script, such as --resume]" >&2
  echo "       --which, anywhere, only prints the folder of the plan for that many nodes; plans: ${counts[*]}" >&2
  exit 2
}
which=
rest=()
for word in "$@"; do
  if [[ $word == --which ]]; then which=yes; else rest+=("$word"); fi
done
set -- ${rest[@]+"${rest[@]}"}
[[ ${1:-} =~ ^[0-9]{1,9}$ ]] || usage
alive=$((10#$1))
shift

chosen=
for nodes in "${counts[@]}"; do
  if (( nodes <= alive )); then
    chosen=$nodes
    break
  fi
done
if [[ -z $chosen ]]; then
  echo "error: no plan for $alive nodes" >&2
  echo "why: the fewest nodes planned for are ${counts[-1]}" >&2
  echo "fix: planner replan on what is left, or plan with a larger --survive" >&2
  exit 3
fi
if (( chosen < alive && chosen < whole )); then
  echo "no layout uses $alive nodes at this global batch: going on with $chosen of them" >&2
fi

@@{plan_dir}

folder=$PLAN_DIR
if (( chosen != whole )); then
  folder=$PLAN_DIR/survive/$chosen
fi
if [[ -n $which ]]; then
  printf '%s\n' "$folder"
  exit 0
fi
@@{conversion}
exec bash "$folder/launch.sh" "$@"
