#!/usr/bin/env bash
# demo.sh - what `make demo` shows once haggle is built: a plan, a training run, and what the batch size buys.
set -eu
cd "$(dirname "$0")/.."
haggle=${HAGGLE:-build/haggle}
[ -x "$haggle" ] || {
    echo "demo.sh: $haggle is not built yet: run 'make'" >&2
    exit 1
}

say() { # what a person would type, and why
    printf '\n# %s\n$ %s\n' "$1" "haggle ${*:2}"
    "$haggle" "${@:2}"
}

say "Train the built-in model on the built-in corpus: memory is known before, latency is measured in percentiles." \
    train recipes/demo.yaml resume=false
say "What does the batch size buy? Each row in its own process, rounds interleaved." \
    bench train recipes/demo.yaml batch.micro=1,2,4,8,16 --steps 10 --quiet
printf '\nThe run is in runs/demo: log.jsonl, recipe.yaml, checkpoints. The same command goes on from there (without resume=false).\n'
