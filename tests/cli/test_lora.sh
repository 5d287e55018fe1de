#!/usr/bin/env bash
# test_lora.sh - an adapter from the outside: the plan says what trains, a checkpoint holds the
# adapter alone, generate finds the base again, and another base is refused.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

mkdir base && cp "$source_tree"/tests/reference/qwen2/{config.json,model.safetensors} base
adapter="model=base tokenizer=bytes seq=12 batch.micro=2 steps=8 optim.lr=0.01 lora.rank=2 lora.alpha=64"
quiet="device=cpu eval.every=0 save.every=0 generate.tokens=0 data.cache=none"

# shellcheck disable=SC2086 # several words
run 0 "the plan" show $adapter $quiet train.also=norm --json plan.json
says out "trains   an adapter of rank 2 on all, alpha 64" "show"
json plan.json 'd["model"]["trained_parameters"] < d["model"]["parameters"] / 2' "what trains"

# shellcheck disable=SC2086
run 0 "a run" train $adapter $quiet run.dir=run --json run.json
folder=run/checkpoints/step-000000008
[ -f $folder/adapter_model.safetensors ] || fail "the checkpoint has no adapter"
[ -f $folder/model.safetensors ] && fail "the checkpoint has the whole model"
cmp -s base/model.safetensors "$source_tree"/tests/reference/qwen2/model.safetensors ||
    fail "the base has changed"

run 0 "a sample of the run" generate run --ids 5,6,7 --tokens 6 --json with.json
run 0 "a sample of its checkpoint" generate $folder --ids 5,6,7 --tokens 6 --json same.json
run 0 "a sample of the base" generate base --ids 5,6,7 --tokens 6 --json without.json
json with.json 'd["ids"] == json.load(open("same.json"))["ids"]' "run and checkpoint are one model"
json with.json 'd["ids"] != json.load(open("without.json"))["ids"]' "the adapter changes the model"

# One byte of the last weight.
printf '\x3c' | dd of=base/model.safetensors bs=1 seek=$(($(stat -c %s base/model.safetensors) - 1)) \
    conv=notrunc 2>/dev/null
run 1 "a sample beside another base" generate run --ids 5,6,7 --tokens 6
says err "holds an adapter of 'base' with weights" "the changed base"
# shellcheck disable=SC2086
run 1 "a run that goes on beside another base" train $adapter $quiet run.dir=run steps=9
says err "but the base here is 'base' with weights" "the changed base"

# shellcheck disable=SC2086
run 2 "another tool's name" train $adapter $quiet use_rslora=true
says err "lora.rslora=true" "another tool's name"
finish
