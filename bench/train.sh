#!/usr/bin/env bash
# train.sh - `make bench-train`: a training step of gpt2-124m against its floor and against PyTorch.
# Arguments go to bench_train. First waits until the machine is quiet: on a busy one the comparison
# means nothing.
set -eu
cd "$(dirname "$0")/.."
build=${BUILD:-build}
cmake --build "$build" --target bench_train
for _ in $(seq 30); do
    read -r _ user nice system idle rest </proc/stat
    sleep 2
    read -r _ user2 nice2 system2 idle2 rest </proc/stat
    busy=$(((user2 + nice2 + system2) - (user + nice + system)))
    all=$((busy + idle2 - idle))
    [ $((100 * busy)) -lt $((8 * all)) ] && break
    echo "bench-train: the machine is busy ($((100 * busy / all)) %); waiting" >&2
done
exec "$build/bench_train" "$@"
