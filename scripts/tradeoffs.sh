#!/usr/bin/env bash
# tradeoffs.sh - prints docs/tradeoffs.md: what strategies trade on this machine, with the commands.
#
#   scripts/tradeoffs.sh [FLAG ...]     flags for every `haggle bench tradeoffs`, such as --repeat 9
#
# Two models: the built-in small one, where overheads dominate, and GPT-2 124M, where arithmetic
# does (SMALL=1 leaves it out). The data is a piece of this project's text, short enough that a
# trial has more than one epoch, which data.ram needs.
set -eu
haggle=$(realpath "${HAGGLE:-build/haggle}")
root=$(realpath "$(dirname "$0")/..")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
head -c 6000 "$root/docs/design.md" >"$work/text.txt"
cd "$work"

table() { # table TITLE ARGUMENT...
    local title=$1
    shift
    printf '## %s\n\n    head -c 6000 docs/design.md > text.txt\n    haggle bench tradeoffs %s\n\n' "$title" "$*"
    "$haggle" bench tradeoffs --quiet "$@"
    echo
}

cat <<'TEXT'
# What each strategy trades, measured

Tutorials print a table of strategies with what each does to throughput, latency and memory. These are the same strategies measured on
one machine, by `haggle bench tradeoffs`, which makes the table for yours (`make bench-tradeoffs` makes this page). Read it so:

- The **baseline** is the recipe as given; every other row changes what its line under the table says, and nothing else. Tokens per
  step stay the same unless the row says *other batch*, so losses compare: *same bits* means that the strategy changes no number at all.
- Figures are **ratios to the baseline** (1.10 tokens/s is a tenth faster; 1.10 step p50 is a tenth slower). Each configuration runs in a
  process of its own, in interleaved rounds, there and back, so that a slow minute falls on all of them; the ratio is the median over the
  rounds, and ± is the round furthest from it. ms/sample = step time x micro-batch / samples per step. Memory is the process's peak.
- The last row is the **baseline again**: what it differs from itself by is noise. A strategy is called faster or slower only when every
  round says so and the median is beyond that noise; otherwise the page says *no measurable difference*.
- Beside the measurement stands the usual **rule of thumb**, and, where the two contradict each other beyond noise, a sentence (*differs*).

TEXT
table "A small model" model=tiny seq=128 batch.micro=4 batch.accum=2 data.path=text.txt tokenizer=bytes \
    --warmup 8 --steps 20 --repeat 5 "$@"
[ -n "${SMALL-}" ] || table "GPT-2 124M" model=gpt2-124m seq=128 batch.micro=2 batch.accum=2 data.path=text.txt tokenizer=bytes \
    --warmup 1 --steps 2 --repeat 3 "$@"
