#!/usr/bin/env bash
# test_verbs.sh - generate, verify, knobs, docs.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# generate, from a run, a checkpoint and a shape
run 0 "a model to speak" train seq=32 batch.micro=2 steps=2 eval.every=0 generate.tokens=0
run 0 "generate from a run" generate runs/tiny --prompt 'Story' --tokens 4
grep -q '^Story' out || fail "the prompt does not come first"
cp out first
run 0 "generate from a checkpoint" generate runs/tiny/checkpoints/step-000000002 -p 'Story' -n 4 --json text.json
cmp -s out first || fail "a run and its checkpoint speak differently"
json text.json 'len(d["ids"]) <= 4 and d["prompt_tokens"] == 6 and isinstance(d["text"], str)' "generate --json"
run 0 "generate from ids" generate runs/tiny --ids 256,83 --tokens 3
grep -qE '^[0-9]+(,[0-9]+)*$' out || fail "ids are not answered with ids"
run 0 "generate from a shape" generate --tokens 2
says err "random" "generate from a shape"

# verify, if there are reference checkpoints
fixtures=$source_tree/../shared/fixtures/hf
if [ -d "$fixtures" ]; then
    run 0 "verify" verify "$fixtures/gpt2-tiny" "$fixtures/llama-tiny" --json verify.json
    says out "all figures agree" "verify"
    json verify.json 'd["ok"] and len(d["folders"]) == 2' "verify --json"
    mkdir wrong && cp "$fixtures"/gpt2-tiny/* wrong
    sed -i 's/"loss": *[0-9]/"loss": 9/' wrong/ref.json
    run 4 "verify, a wrong loss" verify wrong --json verify.json
    says err "exceed their limits" "verify, a wrong loss"
    json verify.json 'not d["ok"]' "verify, a wrong loss"
fi

# knobs --check: measured, seen, or the reason why not
export TMPDIR=$here
run 0 "knobs --check" knobs --check recompute.every optim.lr log.every data.loss seq=16 --steps 1 --repeat 1 --json check.json
says out "with recompute.mode=full" "knobs --check: what a knob needs beside it"
says out "it changes what is written or printed" "knobs --check: output is looked at, not timed"
says out "shows in: loader" "knobs --check: places"
json check.json '[k["name"] for k in d["knobs"]] == ["recompute.every", "optim.lr", "data.loss", "log.every"]' "knobs --check: names"
json check.json 'all(p["differs"] for k in d["knobs"] for p in k["places"])' "knobs --check: every knob shows"
json check.json 'd["knobs"][1]["pairs"][0]["loss_difference"] != 0 and d["knobs"][0]["pairs"][0]["loss_difference"] == 0' \
    "knobs --check: mathematics and memory"
run 2 "knobs --check with a slip" knobs --check recomput.mode
says err "did you mean 'recompute.mode'" "knobs --check with a slip"
ls "$here"/haggle-check-* >/dev/null 2>&1 && fail "knobs --check leaves its sample files behind"

# knobs and docs
run 0 "knobs" knobs --json knobs.json
says out "batch.micro" "knobs"
json knobs.json 'len(d["knobs"]) > 20 and all("help" in k for k in d["knobs"])' "knobs --json"
run 0 "knobs --changed" knobs seq=64 --changed
says out "command line" "knobs --changed"
grep -q '^batch.micro' out && fail "knobs --changed lists what is at its default"
run 0 "one knob" knobs recompute.mode --json one.json
for word in "Activation checkpointing" "default   none" "one of these: none, selective, full" "memory: the bytes" \
    "recompute full: a third slower" "'haggle show'" "may change it"; do
    says out "$word" "one knob is explained"
done
json one.json '[k["name"] for k in d["knobs"]] == ["recompute.mode"]' "one knob as JSON"
run 0 "a knob without an effect" knobs sched.decay sched.kind=linear
says out "no effect with the other settings as they are: only sched.kind=wsd decays" "a knob without an effect"
run 0 "a group" knobs optim
says out "optim.lr" "a group"
says out "optim.state" "a group"
grep -q '^fuse.optim' out && fail "a group lists a knob of another group"
run 0 "a name of other tools" knobs learning_rate
says out "'learning_rate' is optim.lr here." "a name of other tools"
says out "Peak learning rate" "a name of other tools"
run 2 "a slip in a knob" knobs recomput.mode
says err "did you mean 'recompute.mode'" "a slip in a knob"
run 2 "a name beside --changed" knobs --changed seq
run 0 "spaces" knobs --changed optim.lr = 1e-4 seq =64 time=3 m --memory 6 GiB
for word in "optim.lr  0.0001" "seq       64" "time      3m" "memory    6GiB"; do
    says out "$word" "spaces around = and before a unit"
done
echo 'seq: 7' >s
run 0 "a file is no unit" knobs --changed --seed 3 s
says out "seq   7" "a file is no unit"
rm s
run 0 "knobs --recipe" knobs seq=64 --recipe
cp out mine.yaml
run 0 "a recipe that was written" knobs mine.yaml --changed
run 0 "a knob of a recipe" knobs mine.yaml seq
says out "64 (set by: recipe)" "a knob of a recipe"
says out "recipe" "a recipe that was written is read"
run 0 "docs knobs" docs knobs
says out batch.micro "docs knobs"
run 0 "docs ops" docs ops
says out matmul_dw "docs ops"
finish
