#!/usr/bin/env bash
# test_data.sh - haggle data, and training on the data it shows: shapes, weights, packing, shards, a
# model folder with a tokenizer.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

for i in $(seq 60); do
    echo "{\"prompt\": \"Q$i: what is $i? \", \"completion\": \"the number $i, <|endoftext|> as text\"}"
done >pc.jsonl
echo '{"prompt": "nothing is asked", "completion": "late"}' >short.jsonl
for i in $(seq 30); do
    echo "{\"messages\": [{\"role\": \"user\", \"content\": \"hi $i\"}, {\"role\": \"assistant\", \"content\": \"hello $i\"}]}"
done >chat.jsonl
for i in $(seq 300); do echo "line $i of a plain text"; done >notes.txt

# What the command shows
run 0 "data" data pc.jsonl seq=128 --json data.json
says out "pc.jsonl: completion, 60 documents" "data: the shape"
says out "60 train the token they end with (100.0 %)" "data: the end is trained"
says out "Q1: what is 1? [[the number 1, <|endoftext|> as text<|endoftext|>]]" "data: trained tokens are marked"
says out "padding   best_fit" "data: padding"
says out "packing says how documents fill windows" "data: what windows are"
says out "padding is the rest of a window that no document fills" "data: what padding is"
says out "up to" "data: lengths"
says out "tokens/s" "data: speed"
json data.json 'd["documents"] == 60 and d["end_trained"] and d["files"][0]["shape"] == "completion"' "data --json"
json data.json '0 < d["trained_share"] < 1 and d["packing"]["none"]["padding_share"] > d["packing"]["best_fit"]["padding_share"]' "data --json: packing"
json data.json 'd["samples"][0]["parts"][1] == {"trained": True, "text": "the number 1, <|endoftext|> as text<|endoftext|>"}' "data --json: sample"
json data.json 'd["samples"][0]["ids"].count(256) == 2' "data --json: text forges no special token"
json data.json 'sum(b["documents"] for b in d["lengths"]["histogram"]) == 60 and d["tokens_per_s"] > 0' "data --json: histogram"

# A shard is written once, reused, and made again when it is damaged. Another file or another
# template gives another shard.
shards=cache/haggle/shards
[ "$(find $shards -type f | wc -l)" = 1 ] || fail "there should be one shard: $(ls $shards)"
cp pc.jsonl copy.jsonl
run 0 "a copy" data copy.jsonl --json copy.json
json copy.json 'd["files"][0]["reused"]' "a copy is the same shard"
shard=$(echo $shards/*.shard)
cp "$shard" whole.shard
printf 'x' | dd of="$shard" bs=1 seek=300 conv=notrunc 2>/dev/null
run 0 "a damaged shard" data pc.jsonl
says err "it is made again" "a damaged shard"
cmp -s "$shard" whole.shard || fail "the shard was not repaired"
run 0 "loss=all" data pc.jsonl data.loss=all --json all.json
json all.json 'not d["files"][0]["reused"] and d["trained_share"] > 0.9' "data.loss=all"
run 0 "another folder" data pc.jsonl data.cache=elsewhere
[ "$(find elsewhere -name '*.shard' | wc -l)" = 1 ] || fail "data.cache is not used"
run 0 "no folder" data pc.jsonl data.cache=none --json none.json
json none.json 'd["files"][0]["shard"] is None and not d["files"][0]["reused"]' "data.cache=none"

# Several files, weights, a recipe, truncation, renames
run 0 "weights" data pc.jsonl:3 notes.txt:1 --json weights.json
json weights.json '[f["share"] for f in d["files"]] == [0.75, 0.25] and d["files"][1]["shape"] == "plain"' "weights"
printf 'seq: 64\ndata:\n  path: chat.jsonl\n' >mine.yaml
run 0 "a recipe" data mine.yaml --samples 0
says out "chat.jsonl: messages, 30 documents" "a recipe's data"
grep -q '\[\[' out && fail "--samples 0 shows samples"
run 0 "truncation" data pc.jsonl seq=24 --json cut.json
json cut.json 'd["truncated_documents"] == 60 and d["truncated_share"] == 1 and d["cut_trained_tokens"] > 0' "truncation"
run 0 "split" data pc.jsonl seq=24 data.long=split --json split.json
json split.json 'd["truncated_documents"] == 0' "data.long=split"
sed 's/prompt/question/; s/completion/answer/' pc.jsonl >renamed.jsonl
run 0 "renames" data renamed.jsonl data.keys=prompt=question,completion=answer --json keys.json
json keys.json 'd["trained_tokens"] > 0 and d["documents"] == 60' "data.keys"

# What is refused
run 2 "no file" data
says err "which data?" "no file"
run 1 "a missing file" data nowhere.jsonl
says err "nowhere.jsonl" "a missing file"
run 2 "a prompt that fills the window" data short.jsonl seq=8 data.val=0
says err "trained token" "a prompt that fills the window"
printf '{"prompt": "a", "completion": "b"}\n{"prompt": 5}\n' >bad.jsonl
run 1 "a bad line" data bad.jsonl --json bad.json
says err "bad.jsonl: line 2" "a bad line"
json bad.json 'd["error"]["code"] == "ERR_FORMAT"' "a bad line"
run 2 "a weight" data pc.jsonl:0
says err "weight" "a weight"
run 2 "twice" data pc.jsonl data.path=notes.txt

# Training on the data
run 0 "training on records" train --data pc.jsonl:2,notes.txt:1 seq=96 batch.micro=2 steps=6 eval.every=3 generate.tokens=0 \
    --json train.json
says err "validation loss" "validation is said"
says err "p99" "validation has percentiles"
json train.json 'd["validation"]["batch_ms_p99"] >= d["validation"]["batch_ms_p50"] > 0 and d["validation"]["all_seconds"] > 0' \
    "validation in the result"
json train.json 'd["validation"]["validations"] == 2 and d["validation"]["trained_tokens"] > 0' "validation in the result"
grep -q '"event":"eval".*"batch_ms_p99"' runs/tiny/log.jsonl || fail "log.jsonl lacks the validation's percentiles"
run 0 "validation data of its own" train --data pc.jsonl data.val_path=chat.jsonl seq=96 batch.micro=2 steps=2 eval.every=1 \
    generate.tokens=0 run.dir=own

# A model folder that contains a tokenizer
tokenizer=$source_tree/../shared/fixtures/tokenizers/gpt2/tokenizer.json
if [ -f "$tokenizer" ] && command -v python3 >/dev/null; then
    mkdir model && cp "$tokenizer" model/
    echo '{"eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}' >model/tokenizer_config.json
    python3 - <<'PYTHON'
import json, random, struct
random.seed(1)
width, vocab, positions, layers = 16, 50257, 64, 1
shapes = {"wte.weight": [vocab, width], "wpe.weight": [positions, width], "ln_f.weight": [width], "ln_f.bias": [width]}
for name, shape in {"ln_1.weight": [width], "ln_1.bias": [width], "attn.c_attn.weight": [width, 3 * width],
                    "attn.c_attn.bias": [3 * width], "attn.c_proj.weight": [width, width], "attn.c_proj.bias": [width],
                    "ln_2.weight": [width], "ln_2.bias": [width], "mlp.c_fc.weight": [width, 4 * width],
                    "mlp.c_fc.bias": [4 * width], "mlp.c_proj.weight": [4 * width, width],
                    "mlp.c_proj.bias": [width]}.items():
    shapes["h.0." + name] = shape
header, data = {}, bytearray()
row = struct.pack("<997f", *[random.gauss(0, 0.02) for _ in range(997)])
for name, shape in shapes.items():
    n = 4
    for x in shape:
        n *= x
    begin = len(data)
    data += struct.pack("<f", 1.0) * (n // 4) if ".weight" in name and "ln_" in name else (row * (n // len(row) + 1))[:n]
    header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
text = json.dumps(header).encode()
open("model/model.safetensors", "wb").write(struct.pack("<Q", len(text)) + text + data)
json.dump({"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": width, "n_head": 2, "n_layer": layers,
           "n_positions": positions, "vocab_size": vocab, "bos_token_id": 50256, "eos_token_id": 50256,
           "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5, "tie_word_embeddings": True},
          open("model/config.json", "w"))
PYTHON
    run 0 "a tokenizer of the model's" data pc.jsonl model=model seq=64 --json own.json
    json own.json 'd["vocabulary"] == 50257 and d["end_of_text"] == 50256 and d["end_trained"]' "a tokenizer of the model's"
    run 0 "training with it" train model=model --data pc.jsonl,notes.txt seq=64 batch.micro=2 steps=20 optim.lr=1e-2 \
        sched.warmup=2 eval.every=10 run.dir=with --json with.json
    json with.json 'd["loss"]["last"] < d["loss"]["first"]' "training with it learns"
    run 0 "the built-in corpus through it" train model=model seq=64 batch.micro=2 steps=2 eval.every=1 run.dir=corpus
    rm model/tokenizer.json
    run 2 "a folder without tokenizer" train model=model --data pc.jsonl seq=64 run.dir=lacks
    says err "has no tokenizer.json" "a folder without tokenizer"
    run 1 "more ids than the model has" train model=tiny tokenizer="$tokenizer" --data pc.jsonl run.dir=many
    says err "50257" "more ids than the model has"
fi

# records of ids need no tokenizer; the model's vocabulary says which are accepted
cp -r "$source_tree/tests/reference/llama-bias" bare
for i in $(seq 30); do echo "{\"input_ids\": [$i, 300, 301, 5, 330, 4, 9, 12, 33, 2]}"; done >ids.jsonl
run 0 "ids without a tokenizer" train model=bare --data ids.jsonl seq=16 batch.micro=2 steps=2 generate.tokens=4 run.dir=bare-run --json bare.json
says out "sample (ids, because the model has no tokenizer)" "ids without a tokenizer"
json bare.json '"text" not in d["sample"] and len(d["sample"]["ids"]) > 0' "a sample of ids"
run 0 "data of ids" data ids.jsonl model=bare seq=16
says out "tokenizer none, 331 ids" "data of ids"
says out "1 [[300 301 5 330" "data of ids"
sed '3s/300/331/' ids.jsonl >outside.jsonl
run 1 "an id outside" data outside.jsonl model=bare seq=16
says err "outside.jsonl: line 3: input_ids[1] is 331; the model has a vocabulary of 331; accepted: 0 to 330" "an id outside"
run 0 "export of ids" export bare-run bare-hf
[ -e bare-hf/tokenizer.json ] && fail "an export of ids has a tokenizer"
says err "the run was trained on ids" "export of ids"
echo '{"text": "hello"}' >words.jsonl
run 2 "text without a tokenizer" data words.jsonl model=bare seq=16
says err "only records of ids (input_ids) can be read" "text without a tokenizer"
# a built-in shape reads bytes unless it is told that the records are ids
run 1 "ids for a shape that reads bytes" train model=gpt2-124m seq=16 steps=1 --data ids.jsonl run.dir=shape
says err "input_ids[1] is 300; the tokenizer has a vocabulary of 257" "ids for a shape that reads bytes"
run 0 "ids for a built-in shape" data ids.jsonl model=gpt2-124m tokenizer=ids seq=16
says out "tokenizer none, 50257 ids" "ids for a built-in shape"
run 2 "text as ids" data words.jsonl model=gpt2-124m tokenizer=ids seq=16
says err "tokenizer=ids: only records of ids (input_ids) can be read, not text" "text as ids"
finish
