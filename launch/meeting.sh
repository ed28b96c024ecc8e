# Numbered by hand, rank 0 is on node 0. Unnumbered, the nodes agree on their numbers where they meet.
if [[ -n ${NODE_RANK:-} ]]; then
  meeting=(--node-rank="$NODE_RANK" --master-addr="$MASTER_ADDR" --master-port="$MASTER_PORT")
else
  meeting=(--rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" --rdzv-id="${RDZV_ID:-plan}")
fi
