# The plan is for @@{processes} of this machine's GPUs; INCLUDE=localhost:0,2 names which, EXCLUDE=localhost:1 which not.
# CUDA_VISIBLE_DEVICES never reaches this launcher: beside --num_gpus it is ignored (GPUs 0 to @@{last_process} would be used), and
# before DeepSpeed 0.15.1 numbers above the count of visible GPUs were refused. Its GPUs are named by --include.
devices=(--num_gpus=@@{processes})
if [[ -n ${CUDA_VISIBLE_DEVICES:-} ]]; then
  if [[ -n ${INCLUDE:-}${EXCLUDE:-} ]]; then
    echo "error: CUDA_VISIBLE_DEVICES and INCLUDE or EXCLUDE are both set" >&2
    echo "fix: keep one of them; they would name different GPUs" >&2
    exit 2
  fi
  if [[ ! $CUDA_VISIBLE_DEVICES =~ ^[0-9]+(,[0-9]+)*$ ]]; then
    echo "error: the deepspeed launcher takes GPUs by number, but CUDA_VISIBLE_DEVICES is $CUDA_VISIBLE_DEVICES" >&2
    echo "fix: unset it and set INCLUDE=localhost:0,1 to name them, or render the plan for torchrun" >&2
    exit 2
  fi
  IFS=, read -r -a named <<<"$CUDA_VISIBLE_DEVICES"
  if (( ${#named[@]} < @@{processes} )); then
    echo "error: the plan is for @@{processes} GPUs, but CUDA_VISIBLE_DEVICES names ${#named[@]}: $CUDA_VISIBLE_DEVICES" >&2
    echo "fix: name @@{processes} of them, or unset it" >&2
    exit 2
  fi
  chosen=("${named[@]:0:@@{processes}}")
  INCLUDE=localhost:$(IFS=,; echo "${chosen[*]}")
  unset CUDA_VISIBLE_DEVICES
fi
if [[ -n ${INCLUDE:-} ]]; then
  devices=(--include="$INCLUDE")
elif [[ -n ${EXCLUDE:-} ]]; then
  devices=(--exclude="$EXCLUDE")
fi
