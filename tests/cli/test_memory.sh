#!/usr/bin/env bash
# The memory that was predicted is the memory that is taken: gpt2-124m, predicted before, measured after.
. "$(dirname "$0")/lib.sh" "$@"

available=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
if [ "${available:-0}" -lt $((4 * 1024 * 1024)) ]; then
    echo "skipped: needs 4 GiB of memory"
    exit 77
fi
gpt2=(model=gpt2-124m steps=2 eval.batches=1 save.last=false generate.tokens=0 run.dir=run)
for size in "1 64" "2 128"; do
    read -r micro seq <<<"$size"
    run 0 "gpt2-124m $size" train "${gpt2[@]}" resume=false "batch.micro=$micro" "seq=$seq" --json result.json
    json result.json 'abs(d["memory"]["measured_bytes"] / d["memory"]["predicted_bytes"] - 1) < 0.03' \
        "gpt2-124m $size: measured within 3 % of predicted"
    json result.json 'abs(sum(d["memory"]["by_class"].values()) / d["memory"]["predicted_bytes"] - 1) < 0.001' \
        "gpt2-124m $size: the classes add up to the prediction"
done
finish
