#!/usr/bin/env bash
# demo.sh - what `make demo` runs after the build: a search for the best settings within a budget on
# this machine, the trade it found, and a training run with the choice. About two minutes on two
# cores.
set -eu
cd "$(dirname "$0")/.."
haggle=${HAGGLE:-build/haggle}
seconds=${DEMO_SECONDS:-60} # for the search
[ -x "$haggle" ] || {
    echo "demo.sh: $haggle is not built yet: run 'make'" >&2
    exit 1
}
mkdir -p runs

say() { # say WHY ARGUMENT...: prints the reason and the command
    printf '\n# %s\n$ %s\n' "$1" "haggle ${*:2}"
}

# A cautious recipe: one sequence at a time, eight per step, which surely fits. What does it cost?
tune=(tune recipes/demo.yaml batch.micro=1 batch.accum=8 --memory 56MiB --p99 500ms --time "${seconds}s" --save runs/demo-tuned.yaml)
say "One sequence at a time fits for sure. What is best in 56 MiB, with 99 of 100 steps under half a second?" "${tune[@]}"
"$haggle" "${tune[@]}" >runs/demo-tuned.txt
# The page has the table of all settings. Here only the result is printed.
awk '/^. the trade/ { on = 1; print "" } on' runs/demo-tuned.txt | fold -s -w 120

train=(train runs/demo-tuned.yaml run.dir=runs/demo resume=false)
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
TEXT
