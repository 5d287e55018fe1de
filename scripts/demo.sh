#!/usr/bin/env bash
# demo.sh - what `make demo` runs after the build: a recipe that does not fit its memory budget, a
# search that brings it under the budget at the least cost in speed, and a training run with the
# choice. It prints how long it took: less than 90 s on two cores.
set -eu
cd "$(dirname "$0")/.."
haggle=${HAGGLE:-build/haggle}
seconds=${DEMO_SECONDS:-40} # for the search
began=$SECONDS
[ -x "$haggle" ] || {
    echo "demo.sh: $haggle is not built yet: run 'make'" >&2
    exit 1
}
mkdir -p runs

say() { # say WHY ARGUMENT...: prints the reason and the command
    printf '\n# %s\n$ %s\n' "$1" "haggle ${*:2}"
}

# A recipe that wants more memory than it may have. The first answer is a refusal, before anything runs.
given=(recipes/demo.yaml batch.micro=32 batch.accum=1)
budget=(--memory 96MiB)
refused=(train "${given[@]}" "${budget[@]}" run.dir=runs/demo-refused)
say "32 sequences at a time want some 160 MiB. With a budget of 96 MiB that is refused, with what would help:" "${refused[@]}"
if "$haggle" "${refused[@]}" --quiet; then
    echo "demo.sh: the recipe fits into 96 MiB, which it should not" >&2
    exit 1
fi

tune=(tune "${given[@]}" "${budget[@]}" --p95 1s --time "${seconds}s" --save runs/demo-tuned.yaml)
say "What is the fastest way to train it in 96 MiB, with 95 of 100 steps under a second?" "${tune[@]}"
"$haggle" "${tune[@]}" >runs/demo-tuned.txt
# The page has the table of all settings. Here only the result is printed.
awk '/^. the trade/ { on = 1; print "" } on' runs/demo-tuned.txt | fold -s -w 120

train=(train runs/demo-tuned.yaml run.dir=runs/demo resume=false steps=80)
say "Train with the choice: memory is known before, latency is measured in percentiles." "${train[@]}"
"$haggle" "${train[@]}"

report=(report runs/demo)
say "And how did it go? The run as a page." "${report[@]}"
"$haggle" "${report[@]}" --quiet >/dev/null

cat <<TEXT

Open these in a browser; they need no network:
  runs/demo-tuned.html     the search: what changes and what it costs, every setting with its reason
  runs/demo/report.html    the run: loss, step times, where time and memory went
The recipe is runs/demo-tuned.yaml, the run runs/demo; 'haggle trials' lists every trial.
The demo took $((SECONDS - began)) s, packages and build apart.
TEXT
