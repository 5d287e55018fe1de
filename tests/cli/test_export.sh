#!/usr/bin/env bash
# test_export.sh - export through the program: a run becomes a folder that haggle trains on and
# verifies; and what is refused.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
short="seq=32 batch.micro=2 steps=2 eval.every=0 generate.tokens=0"

# shellcheck disable=SC2086 # words
run 0 "a run" train $short
run 0 "export" export runs/tiny hf --probe probe.json --json export.json
says out "read back as it was trained" "export"
json export.json 'd["ok"] and d["step"] == 2 and len(d["files"]) == 6' "export --json"
json export.json 'all(f["ok"] and f["value"] == 0 for f in d["figures"])' "export, figures"
json probe.json 'len(d["tokens"]) == 2 and len(d["last_logits"][0]) == 320 and d["texts"][-1]["ids"] == [97]' "--probe"
json hf/config.json 'd["architectures"] == ["LlamaForCausalLM"] and d["rope_theta"] == 1e4' "config.json"
json hf/tokenizer.json 'len(d["model"]["vocab"]) == 257 and d["model"]["vocab"]["Ġ"] == 32 and d["added_tokens"][0]["id"] == 256' "tokenizer.json"
json hf/tokenizer.json 'sorted(d["model"]["vocab"].values()) == list(range(257))' "tokenizer.json, ids"
[ -e hf.tmp-export ] && fail "the folder in work is left"
run 0 "--check" export --check hf runs/tiny

# types and shards
run 0 "bf16 in shards" export runs/tiny shards --dtype bf16 --shard-bytes 300KB
says out "rounded" "bf16"
json shards/model.safetensors.index.json 'len(set(d["weight_map"].values())) > 3 and d["metadata"]["total_size"] == 2 * d["metadata"]["total_parameters"]' "index"
json shards/config.json 'd["torch_dtype"] == "bfloat16"' "config.json of bf16"

# haggle accepts the folder as a model
# shellcheck disable=SC2086
run 0 "train on an export" train model=shards run.dir=more tokenizer=bytes $short
run 0 "export what was fine-tuned" export more more-hf
json more-hf/config.json 'd["torch_dtype"] == "bfloat16"' "as it came"
cmp -s shards/tokenizer.json more-hf/tokenizer.json || fail "the tokenizer is another"
reference=$source_tree/tests/reference/qwen2
# shellcheck disable=SC2086
run 0 "a run that changes nothing" train model="$reference" run.dir=same optim.lr=0 $short
run 0 "export of it" export same same-hf
cp "$reference"/ref.* same-hf
run 0 "verify an export" verify same-hf
cmp -s "$reference/config.json" same-hf/config.json || fail "config.json is another"

# a Mistral is a Llama with a window: the same numbers, its own names in the export
cp -r "$source_tree/tests/reference/llama3-scaled" mistral
sed -i 's/"LlamaForCausalLM"/"MistralForCausalLM"/; s/"model_type": "llama"/"model_type": "mistral", "sliding_window": null/' mistral/config.json
run 0 "verify a Mistral" verify mistral
sed -i 's/"sliding_window": null/"sliding_window": 40/' mistral/config.json
# shellcheck disable=SC2086
run 0 "a Mistral" train model=mistral run.dir=m $short
run 0 "export of a Mistral" export m m-hf
json m-hf/config.json 'd["model_type"] == "mistral" and d["architectures"] == ["MistralForCausalLM"] and d["sliding_window"] == 40 and d["head_dim"] == 14' "config.json of a Mistral"
# shellcheck disable=SC2086
run 2 "beyond the window" train model=mistral run.dir=m2 $short seq=41
says err "sliding window of mistral, 40 tokens" "beyond the window"
says err "accepted: 1 to 40" "beyond the window"

# a changed byte
size=$(stat -c %s hf/model.safetensors)
printf 'x' | dd of=hf/model.safetensors bs=1 seek=$((size - 3)) conv=notrunc 2>/dev/null
run 4 "--check, a changed weight" export --check hf runs/tiny --json check.json
says err "model.safetensors" "--check, a changed weight"
json check.json 'not d["ok"] and "error" in d' "--check, a changed weight"

# refusals
run 2 "a folder that is not empty" export runs/tiny hf
says err "not empty" "a folder that is not empty"
run 2 "no words" export
says err "haggle export RUN_DIR OUT_DIR" "no words"
run 2 "one word" export runs/tiny
run 2 "three words" export runs/tiny a b
run 2 "a type" export runs/tiny a --dtype int3
says err "accepted: fp32, bf16, fp16, as-source" "a type"
run 2 "a size" export runs/tiny a --shard-bytes much
run 1 "no run" export nowhere a
says err "nowhere" "no run"
mkdir empty
run 1 "a run without checkpoints" export empty a
says err "no checkpoint" "a run without checkpoints"
[ -e a ] && fail "a refused export has written"
finish
