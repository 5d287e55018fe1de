#!/usr/bin/env bash
# test_gguf.sh - GGUF files through the program: a run and a folder as one file, what the output
# says, and what is refused. tests/export compares the values.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
short="seq=32 batch.micro=2 steps=2 eval.every=0 generate.tokens=0"

# shellcheck disable=SC2086 # words
run 0 "a run" train $short
run 0 "a file" export runs/tiny --gguf tiny.gguf --type q8_0 --json gguf.json --probe probe.json
says out "llama of runs/tiny/checkpoints/step-000000002, 38 tensors, q8_0" "a file"
says out "tokenizer: gpt-2; chat template: none" "a file, its tokenizer"
says out "read back as it is in the source" "a file, the check"
json gguf.json 'd["ok"] and d["type"] == "q8_0" and d["tensors"] == 38 and d["bytes"] > 0' "--json"
json gguf.json 'd["bytes"] == __import__("os").stat("tiny.gguf").st_size' "--json, bytes"
json probe.json 'len(d["tokens"]) == 2 and len(d["last_logits"][0]) == 320 and d["texts"] == []' "--probe"
[ "$(head -c 4 tiny.gguf)" = GGUF ] || fail "the file does not begin with GGUF"
[ -e tiny.gguf.tmp-export ] && fail "the file in work is left"
run 0 "the same through a folder" export runs/tiny hf
run 0 "a folder as a file" export hf --gguf made/folder.gguf --type f32
says out "tokenizer: gpt-2" "a folder as a file"
run 0 "the type by default" export hf --gguf default.gguf
says out "f16" "the type by default"
# rows that are no multiple of 32, and a model without a tokenizer
run 0 "odd sizes" export "$source_tree/tests/reference/qwen2" --gguf odd.gguf --type q4_0
says out "attn_q.weight of every layer stays f16: its rows have 60 elements" "odd sizes"
says out "no tokenizer" "odd sizes"
# the chat template is the run's
for i in $(seq 40); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello $i\"}, {\"role\": \"assistant\", \"content\": \"world\"}]}"
done >chat.jsonl
echo "{% for m in messages %}({{ m.role }} {{ m.content }}<|endoftext|>){% endfor %}" >own.jinja
for template in plain own.jinja; do
    # shellcheck disable=SC2086
    run 0 "a run with $template" train $short run.dir="run-$template" data.path=chat.jsonl data.template="$template"
    run 0 "a GGUF file of $template" export "run-$template" --gguf "$template.gguf"
    says out "chat template: yes" "a GGUF file of $template"
done
grep -q "capitalize" plain.gguf || fail "the template plain is not in the GGUF file"
grep -q "{% for m in messages %}({{" own.jinja.gguf || fail "the run's template is not in the GGUF file"
# an adapter
# shellcheck disable=SC2086
run 0 "an adapter" train run.dir=lora lora.rank=2 $short
run 2 "an adapter without --merge" export lora --gguf lora.gguf
says err "add --merge" "an adapter without --merge"
run 0 "an adapter, merged" export --merge lora --gguf lora.gguf --type bf16

run 2 "a file that exists" export runs/tiny --gguf tiny.gguf
says err "exists" "a file that exists"
run 2 "a type" export runs/tiny --gguf a.gguf --type q2_k
says err "accepted: f32, f16, bf16, q8_0, q4_0" "a type"
run 2 "a type without a file" export runs/tiny a --type q8_0
says err "--gguf FILE --type q8_0" "a type without a file"
run 2 "a folder and a file" export runs/tiny a --gguf a.gguf
run 2 "--dtype" export runs/tiny --gguf a.gguf --dtype bf16
says err "--dtype is for folders" "--dtype"
run 2 "--check" export --check hf runs/tiny --gguf a.gguf
run 2 "no run" export --gguf a.gguf
says err "haggle export RUN_OR_FOLDER --gguf FILE" "no run"
run 1 "no such run" export nowhere --gguf a.gguf
cp -r "$source_tree/tests/reference/gpt2-odd" relu
sed -i 's/"gelu_new"/"relu"/' relu/config.json
run 1 "a model that llama.cpp has not" export relu --gguf a.gguf
says err "activation_function" "a model that llama.cpp has not"
[ -e a.gguf ] && fail "a refused export has written"
finish
