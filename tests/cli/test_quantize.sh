#!/usr/bin/env bash
# test_quantize.sh - haggle quantize through the program: a folder and a run, what it prints, that
# the result runs, and what is refused.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
reference=$source_tree/tests/reference/qwen3
short="seq=32 batch.micro=2 steps=2 eval.every=0 generate.tokens=0"

run 0 "int8" quantize "$reference" q8 --format int8 --json q8.json
says out "int8, by rtn" "int8"
says out "of the weights' size; largest in" "the worst matrix"
json q8.json 'd["verb"] == "quantize" and d["bytes_after"] < 0.4 * d["bytes_before"]' "sizes"
json q8.json 'd["relative_error"] < 0.01 and d["worst"].endswith(".weight")' "errors"
json q8/config.json 'd["quantization_config"]["quant_method"] == "haggle" and d["quantization_config"]["format"] == "int8"' "config.json"
[ -e q8.tmp-export ] && fail "the folder in work is left"
run 0 "the source" generate "$reference" --ids 5,6,7 --tokens 8
run 0 "generate" generate q8 --ids 5,6,7 --tokens 8
run 0 "generate in bf16" generate q8 --ids 5,6,7 --tokens 8 precision=bf16

# a run: its export, quantized
# shellcheck disable=SC2086 # words
run 0 "a run" train $short
run 0 "int4 of a run" quantize runs/tiny q4 --format int4 --group 64 --minima --keep embed_tokens,layers.0 --json q4.json
says out "int4 g64 minima" "int4"
says out ", as asked for" "what is kept"
json q4.json 'd["quantization_config"]["other"]["model.embed_tokens.weight"] == "wide"' "--keep"
[ -e q4/tokenizer.json ] || fail "a run's tokenizer is not in the folder"
[ -e q4.tmp-source ] && fail "the export that was quantized is left"
run 0 "generate from text" generate q4 --prompt 'Story' --tokens 8

# beside its source: the losses are those of haggle eval
for i in $(seq 30); do echo "{\"text\": \"Story $i: a fox of $((i * 7)) years ran and ran.\"}"; done >text.jsonl
words="tokenizer=bytes seq=48 data.cache=none"
# shellcheck disable=SC2086 # words
{
    run 0 "beside its source" quantize "$reference" beside --format int8 --eval text.jsonl --json beside.json $words
    run 0 "the losses of both" eval "$reference" beside --data text.jsonl --json both.json $words
    says out "beside against" "a comparison"
    json beside.json 'd["compared"]["tokens"] > 500 and 0 < d["compared"]["kl"] < d["compared"]["kl_limit"] == 0.005' "divergence"
    json beside.json 'd["compared"]["kl_low"] < d["compared"]["kl"] < d["compared"]["kl_high"] and 0.9 < d["compared"]["same_top"] <= 1' "its interval"
    json beside.json 'all(abs(a - b["loss"]) < 1e-5 for a, b in zip((d["compared"]["source_loss"], d["compared"]["loss"]), json.load(open("both.json"))["models"]))' "losses"
    run 4 "too far from its source" quantize "$reference" far --format int8 --eval text.jsonl --kl 1e-9 $words
    says err "over --kl 1e-09, so nothing was kept" "the limit"
    run 2 "a limit without data" quantize "$reference" far --format int8 --kl 0.1 $words
    run 2 "a limit below 0" quantize "$reference" far --format int8 --eval text.jsonl --kl -1 $words
    run 1 "data that is not there" quantize "$reference" far --format int8 --eval missing.jsonl $words
}
[ -e far ] && fail "a refused command left a folder"
[ -e far.tmp-export ] && fail "the folder in work is left"

# refusals
run 1 "train on it" train model=q8 run.dir=never
says err "is quantized (int8), and quantized weights cannot be trained" "training"
run 2 "quantize it again" quantize q8 q9 --format int8
run 2 "not empty" quantize "$reference" q8 --format int8
run 2 "no format" quantize "$reference" q9
run 2 "format" quantize "$reference" q9 --format int2
run 2 "group" quantize "$reference" q9 --format int4 --group 48
says err "accepted: 32, 64, 128" "groups"
run 2 "group of int8" quantize "$reference" q9 --format int8 --group 32
run 2 "method" quantize "$reference" q9 --format int8 --method gptq
run 2 "keep" quantize "$reference" q9 --format int8 --keep nothing
run 2 "one word" quantize "$reference" --format int8
[ -e q9 ] && fail "a refused command left a folder"

# damage
cp -r q8 bad
sed 's/"format":"int8"/"format":"int3"/' q8/config.json > bad/config.json
run 1 "unknown format" generate bad --ids 5 --tokens 2
says err "accepted are: int8, int4" "format"
cp q8/config.json bad/config.json
head -c 20000 q8/model.safetensors > bad/model.safetensors
run 1 "cut off" generate bad --ids 5 --tokens 2
finish
