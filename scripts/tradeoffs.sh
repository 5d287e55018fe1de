#!/usr/bin/env bash
# tradeoffs.sh - prints docs/tradeoffs.md: what strategies trade on this machine, with the commands.
#
#   scripts/tradeoffs.sh [FLAG ...]     flags for every `haggle bench tradeoffs`, such as --repeat 9
#
# Two models: the built-in small one, where overheads dominate, and GPT-2 124M, where arithmetic
# does (SMALL=1 leaves it out). GPU=1 adds what fusion and graphs buy on a GPU. The data is a piece of this project's text, short enough that a
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
one machine, by `haggle bench tradeoffs`, which makes the table for yours (`make bench-tradeoffs` makes this page, with `GPU=1` its last table too). Read it so:

- The **baseline** is the recipe as given; every other row changes what its line under the table says, and nothing else. Tokens per
  step stay the same unless the row says *other batch*, so losses compare: *same bits* means that the strategy changes no number at all.
- Figures are **ratios to the baseline** (1.10 tokens/s is a tenth faster; 1.10 step p50 is a tenth slower). Each configuration runs in a
  process of its own, and the baseline runs again beside each visit to it, before and after in turns, so that a slow minute falls on both.
  A round gives one ratio. The figure is the median of the rounds, with the 95 % interval of the same rounds. ms/sample is the latency of
  a sample: the time of its micro-batch. Memory is the process's peak.
- The last row is the **baseline again**, compared with itself.
- Beside the measurement stands the usual **rule of thumb**. *As the rule says*: the interval lies inside what the rule says, which is a
  range such as 1.6x to 2.5x where it gives a factor. *No measurable difference*: the interval holds 1. Otherwise the page says what was
  seen. Where other programs took more than a twentieth of the time, it says so (*busy meanwhile*).

TEXT
table "A small model, and two ranks" --ranks 2 model=tiny seq=128 batch.micro=4 batch.accum=2 data.path=text.txt tokenizer=bytes \
    --warmup 8 --steps 20 --repeat 5 "$@"
[ -n "${SMALL-}" ] || table "GPT-2 124M" model=gpt2-124m seq=128 batch.micro=2 batch.accum=2 data.path=text.txt tokenizer=bytes \
    --warmup 1 --steps 2 --repeat 5 "$@"
[ -z "${GPU-}" ] || table "Fusion and graphs on a GPU" model=gpt2-124m seq=1024 precision=bf16 device=cuda batch.micro=8 batch.accum=1 \
    data.path=text.txt tokenizer=bytes --only unfused,graphs --warmup 3 --steps 20 --repeat 5 "$@"
