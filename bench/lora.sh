#!/usr/bin/env bash
# lora.sh - what an adapter learns and costs, by its rank, beside training every weight.
#
#   bench/lora.sh MODEL DATA [KNOB=VALUE ...]     a Hugging Face folder, and a text that is new to it
#   STEPS=200 RANKS="1 4 16 64" FULL_LR="1e-4 3e-4 1e-3" LORA_LR="1e-3 3e-3 1e-2" MICRO=8
#
# Each run sees the same sequences in the same order. The learning rate of each row is the best of
# those that are tried, by the validation loss at the end. Printed: that loss ("none": of the model
# as it is), step time, tokens per second, the memory of the process, and the size of a checkpoint. Needs python3.
set -eu
cd "$(dirname "$0")/.."
haggle=$(realpath "${HAGGLE:-build/haggle}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 - "$haggle" "$folder" "${STEPS:-200}" "${RANKS:-1 4 16 64}" "${FULL_LR:-1e-4 3e-4 1e-3}" "${LORA_LR:-1e-3 3e-3 1e-2}" \
    "${MICRO:-8}" "$(realpath "$1")" "$(realpath "$2")" "${@:3}" <<'PYTHON'
import json, os, subprocess, sys
haggle, folder, steps, ranks, full, lora, micro, model, data, *knobs = sys.argv[1:]


def train(rank, lr, steps=steps):
    run = f"{folder}/{rank}-{lr}"
    words = [f"model={model}", f"data.path={data}", "data.val=0.1", f"steps={steps}", f"batch.micro={micro}", f"optim.lr={lr}",
             "optim.decay=0", "sched.kind=cosine", "sched.warmup=10", f"eval.every={steps}", "eval.batches=16", "generate.tokens=0",
             f"run.dir={run}", *knobs]
    if rank:
        words += [f"lora.rank={rank}", f"lora.alpha={2 * rank}"]
    done = subprocess.run([haggle, "train", *words, "-q", "--json", f"{run}.json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stderr[-2000:]}")
    with open(f"{run}.json") as f:
        r = json.load(f)
    saved = max(os.listdir(f"{run}/checkpoints"))
    return r, sum(os.path.getsize(f"{run}/checkpoints/{saved}/{n}") for n in os.listdir(f"{run}/checkpoints/{saved}"))


print(f"{'rank':>6} {'lr':>6} {'loss':>8} {'step p50 ms':>12} {'tokens/s':>9} {'memory MiB':>11} {'saved MiB':>10}")
before, _ = train(0, "1e-30", "1")
print(f"{'none':>6} {'':>6} {before['validation']['loss']:8.4f}", flush=True)
for rank in [0, *map(int, ranks.split())]:
    best = None
    for lr in (lora if rank else full).split():
        r, size = train(rank, lr)
        if best is None or r["validation"]["loss"] < best[1]["validation"]["loss"]:
            best = lr, r, size
    lr, r, size = best
    print(f"{rank or 'all':>6} {lr:>6} {r['validation']['loss']:8.4f} {r['step_ms']['p50']:12.1f} "
          f"{r['tokens_per_s']:9.0f} {r['memory']['measured_bytes'] / 2**20:11.1f} {size / 2**20:10.1f}", flush=True)
PYTHON
