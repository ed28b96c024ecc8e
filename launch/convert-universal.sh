#!/usr/bin/env bash
@@{header}
set -euo pipefail

if [[ $# -lt 1 || ! -f $1/latest ]]; then
  echo "usage: bash @@{script} CHECKPOINT_DIR    the folder that DeepSpeed's save_checkpoint writes 'latest' into" >&2
  exit 2
fi
checkpoints=$1

@@{python}

# DeepSpeed's own conversion; load the result with "checkpoint": {"load_universal": true} in ds_config.json.
tag=$(<"$checkpoints/latest")
export DS_ACCELERATOR=cpu
"$PYTHON" -m deepspeed.checkpoint.ds_to_universal --inject_missing_state \
  --input_folder "$checkpoints/$tag" --output_folder "$checkpoints/${tag}_universal" "${@:2}"
printf '%s' "${tag}_universal" > "$checkpoints/latest_universal"
