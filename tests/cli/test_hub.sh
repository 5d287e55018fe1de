#!/usr/bin/env bash
# test_hub.sh - model=ORG/NAME is found in the Hugging Face cache by every verb that reads a model.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
export HF_HUB_CACHE=$here/hub

run 1 "not downloaded" train model=org/small
says err "hf download org/small" "not downloaded"
says err "$HF_HUB_CACHE" "not downloaded"

run 0 "a model" train model=tiny steps=1 seq=16 batch.micro=1 eval.every=0 generate.tokens=0 run.dir=made
commit=607a30d783dfa663caf39e06633721c8d4cfcd7e
snapshot=$HF_HUB_CACHE/models--org--small/snapshots/$commit
mkdir -p "$HF_HUB_CACHE/models--org--small/refs" "$HF_HUB_CACHE/models--org--small/snapshots"
printf %s $commit >"$HF_HUB_CACHE/models--org--small/refs/main"
run 0 "its folder" export made "$snapshot"

small="seq=16 batch.micro=1 steps=2 generate.tokens=4 eval.every=0"
# shellcheck disable=SC2086
{
    run 0 "show" show model=org/small $small
    says err "model org/small: the snapshot $snapshot" "show says which snapshot"
    run 0 "train" train model=org/small $small
    says err "model org/small: the snapshot $snapshot" "train says which snapshot"
    [ -e runs/small/recipe.yaml ] || fail "the run is not named after the model"
    says runs/small/recipe.yaml "model: \"$snapshot\"" "the recipe names the snapshot"
    run 0 "bench" bench train model=org/small $small --steps 1 --repeat 1 --warmup 0
}
echo '{"text": "a"}' >a.jsonl
run 0 "data" data a.jsonl model=org/small seq=16 data.val=0
run 0 "generate" generate org/small --prompt a --tokens 2
finish
