#!/usr/bin/env bash
# test_adapter.sh - the files of adapters from the outside: export, merge, training that goes on
# from a folder, --adapter, and what each refuses.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

base=$source_tree/tests/reference/llama-bias
quiet="model=$base tokenizer=bytes seq=12 batch.micro=2 device=cpu eval.every=0 save.every=0 generate.tokens=0 data.cache=none optim.lr=0.01"
ids="--ids 5,6,7 --tokens 6"

# shellcheck disable=SC2086 # several words
run 0 "a run" train $quiet steps=8 lora.rank=20 lora.targets=q_proj,mlp lora.alpha=64 lora.rslora=true run.dir=run
run 0 "an export" export run adapter --json export.json
says out "read back as it was trained" "export"
says out "vLLM refuses rank 20 unless it is started with --max-lora-rank 32" "export"
json export.json 'len(d["remarks"]) == 2 and d["ok"]' "remarks"
json adapter/adapter_config.json 'd["peft_type"] == "LORA" and d["r"] == 20 and "use_rslora" not in d' "settings"
json adapter/adapter_config.json 'abs(d["lora_alpha"] / d["r"] - 64 / 20 ** 0.5) < 1e-12' "the factor"
run 0 "a merge" export --merge run merged --json merge.json
says out "before merging" "merge"
json merge.json 'd["merge"]["tokens"] > 0 and abs(d["merge"]["loss_before"] - d["merge"]["loss_after"]) < 1e-3' "losses"
run 0 "checks" export --check adapter run
run 0 "checks" export --check merged run

# One model in three forms, which is not the base.
# shellcheck disable=SC2086
{
    run 0 "the run" generate run $ids --json a.json
    run 0 "the adapter" generate "$base" --adapter adapter $ids --json b.json
    run 0 "the merged model" generate merged $ids --json c.json
    run 0 "the base" generate "$base" $ids --json d.json
}
json a.json 'd["ids"] == json.load(open("b.json"))["ids"] == json.load(open("c.json"))["ids"]' "one model"
json a.json 'd["ids"] != json.load(open("d.json"))["ids"]' "not the base"

# shellcheck disable=SC2086
run 0 "training goes on" train $quiet steps=2 lora.from=adapter run.dir=further
# shellcheck disable=SC2086
run 2 "another rank" train $quiet steps=2 lora.from=adapter lora.rank=4 run.dir=refused
says err "lora.rank=4 does not go with lora.from=adapter, whose adapter has rank 20" "another rank"
[ -e refused ] && fail "a refused run left its folder"
run 2 "data without a merge" export run more --data text.txt
says err "needs --merge" "data without a merge"
run 2 "an adapter of an adapter" generate run --adapter adapter --ids 5
says err "is an adapter already" "an adapter of an adapter"
run 1 "no folder" generate "$base" --adapter nowhere --ids 5
says err "'nowhere' does not exist or is not a folder" "no folder"
run 1 "a reference that is not there" verify "$base" --adapter adapter
says err "adapter/ref.json" "a reference that is not there"
finish
