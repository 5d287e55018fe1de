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
json same-hf/generation_config.json 'd["eos_token_id"] == [2, 256]' "the end of bytes"

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

# the chat template and the end tokens of the run, whichever way they were chosen
cp -r "$source_tree/tests/reference/llama-bias" chat
cp "$source_tree/tests/tokenizers/unknown/tokenizer.json" chat
sed -i 's/"eos_token_id": 2/"eos_token_id": 323/' chat/config.json
for i in $(seq 40); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello world $i\"}, {\"role\": \"assistant\", \"content\": \"the text reads\"}]}"
done >chat.jsonl
echo "{% for m in messages %}({{ m.role }} {{ m.content }}<|im_end|>){% endfor %}" >own.jinja
for template in auto plain chatml own.jinja; do
    # shellcheck disable=SC2086
    run 0 "a run with $template" train model=chat run.dir="run-$template" $short data.path=chat.jsonl data.template="$template"
    run 0 "export of $template" export "run-$template" "hf-$template"
    run 0 "data with $template" data chat.jsonl model=chat seq=32 data.template="$template" --samples 3
    sed -n '/^samples/,$p' out >before
    run 0 "data with the export of $template" data chat.jsonl model="hf-$template" seq=32 --samples 3
    sed -n '/^samples/,$p' out >after
    [ -s before ] || fail "no samples with $template"
    cmp -s before after || fail "the export of $template writes conversations differently"
    json "hf-$template/config.json" 'd["eos_token_id"] == 323' "end of text, $template"
    json "hf-$template/tokenizer_config.json" 'd["eos_token"] == "<|endoftext|>"' "eos_token, $template"
done
json hf-auto/tokenizer_config.json '"capitalize" in d["chat_template"]' "plain"
json hf-auto/generation_config.json 'd["eos_token_id"] == 323' "the ends of plain"
json hf-chatml/generation_config.json 'd["eos_token_id"] == [323, 325]' "the ends of chatml"
json hf-own.jinja/tokenizer_config.json 'd["chat_template"].startswith("{% for m in messages %}({{")' "a file"
json hf-own.jinja/generation_config.json 'd["eos_token_id"] == [323, 325]' "the ends of a file"
run 0 "--check" export --check hf-chatml run-chatml
# the folder has another template, which is not the run's
cp -r hf-chatml two && echo "{{ 'x' }}" >two/chat_template.jinja
# shellcheck disable=SC2086
run 0 "a run with a template that is not the folder's" train model=two run.dir=run-two $short data.path=chat.jsonl data.template=plain
run 0 "export of it" export run-two hf-two
[ -e hf-two/chat_template.jinja ] && fail "the folder's template is in the export"
json hf-two/tokenizer_config.json '"capitalize" in d["chat_template"]' "the run's template"
mv own.jinja gone.jinja
run 1 "a template that is gone" export run-own.jinja hf-gone
says err "own.jinja" "a template that is gone"
# no conversations: no template
for i in $(seq 40); do echo "{\"text\": \"Hello world $i, the text reads the model and the text\"}"; done >text.jsonl
# shellcheck disable=SC2086
run 0 "a run on texts" train model=chat run.dir=run-text $short data.path=text.jsonl
run 0 "export of it" export run-text hf-text
[ -e hf-text/tokenizer_config.json ] && fail "a template for texts"

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
