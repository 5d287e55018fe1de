#!/usr/bin/env bash
# test_generate.sh - texts: streamed and whole, several prompts, files of prompts, stop strings, seeds,
# batches, and what is refused before anything runs.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
stories=$source_tree/../shared/fixtures/lm/stories260K
[ -n "${HAGGLE_FIXTURES:-}" ] && stories=$HAGGLE_FIXTURES/../lm/stories260K
model=$source_tree/tests/reference/qwen3
bytes="tokenizer=bytes device=cpu"

# shellcheck disable=SC2086 # $bytes is several words
{
    run 0 "one prompt" generate "$model" $bytes -p "ab" --tokens 12 --json one.json
    cp out one.txt
    says err "tokens/s; first token after" "the time to the first token"
    says err "need 299" "a percentile without a bound says so"
    json one.json 'd["prompt_tokens"] == 3 and len(d["ids"]) == 12 and d["ended"] == "length"' "one text"
    json one.json 'd["texts"][0]["ids"] == d["ids"] and len(d["texts"]) == 1' "the list of texts"
    json one.json 'd["speed"]["made_tokens"] == 12 and d["speed"]["between_p99"]["n"] == 11' "times"
    json one.json 'd["speed"]["prefill_tokens_per_s"] > 0 and d["speed"]["first_token"]["ms"] > 0' "speed"
    json one.json 'd["text_bytes"] > 0 and d["memory_planned_bytes"] > d["text_bytes"]' "memory"
    run 0 "ids" generate "$model" --ids 256,97,98 --tokens 12 device=cpu --json ids.json
    json ids.json 'd["ids"] == json.load(open("one.json"))["ids"]' "ids give the same ids"
    run 0 "quiet" generate "$model" $bytes -p "ab" --tokens 12 -q
    cmp -s out one.txt || fail "the same command prints another text"
    [ -s err ] && fail "-q still prints speed"

    # Side by side, in order, and with any chunk and batch as alone.
    printf 'ab\n\nThe third\n' >prompts.txt
    printf '{"prompt": "ab"}\n{"prompt": "The third", "other": 1}\n' >prompts.jsonl
    for batch in 1 2 3; do
        run 0 "batch $batch" generate "$model" $bytes -p ab -p "a longer prompt" -p "The third" --tokens 12 \
            --batch $batch --chunk $((batch * 3)) --json batch$batch.json
        cp out batch$batch.txt
        cmp -s batch1.txt batch$batch.txt || fail "--batch $batch gives other texts"
        json batch$batch.json 'd["texts"][0]["ids"] == json.load(open("one.json"))["ids"]' "the first prompt as alone"
        json batch$batch.json "d['batch'] == $batch" "the batch"
    done
    [ "$(grep -c '^# [123]$' batch1.txt)" -eq 3 ] || fail "three texts do not stand under three numbers"
    run 0 "a file of texts" generate "$model" $bytes --prompts prompts.txt --tokens 12 --json file.json
    json file.json '[t["ids"] for t in d["texts"]] == [json.load(open("batch1.json"))["texts"][i]["ids"] for i in (0, 2)]' \
        "prompts of a file"
    run 0 "a file of records" generate "$model" $bytes --prompts prompts.jsonl --tokens 12 --json records.json
    json records.json '[t["ids"] for t in d["texts"]] == [t["ids"] for t in json.load(open("file.json"))["texts"]]' \
        "prompts of records"

    # Drawn tokens: a seed repeats, another does not, and neighbours do not matter.
    draw="--tokens 24 --temperature 1 --top-k 50 --top-p 0.95 --min-p 0.01 --repeat-penalty 1.1"
    run 0 "a seed" generate "$model" $bytes -p ab $draw --seed 4 --json a.json
    run 0 "the seed again" generate "$model" $bytes -p ab -p cd $draw --seed 4 --json b.json
    run 0 "another seed" generate "$model" $bytes -p ab $draw --seed 5 --json c.json
    json a.json 'd["ids"] == json.load(open("b.json"))["texts"][0]["ids"]' "a seed repeats"
    json a.json 'd["ids"] != json.load(open("c.json"))["ids"]' "another seed draws other tokens"
    json a.json 'd["config"]["generate.top_k"] == 50 and d["config"]["generate.repeat"] == 1.1' "short flags are knobs"

    # Before anything runs.
    run 2 "too long a context" generate "$model" $bytes -p ab --context 100000
    says err "positions" "the model's positions"
    run 2 "too small a context" generate "$model" $bytes -p "a longer prompt" --context 4
    says err "the longest prompt has 16 tokens" "the prompt"
    run 2 "no template" generate "$model" $bytes -p ab --chat
    says err "has no chat template" "a folder without a template"
    says err "data.template" "and what to do"
    run 2 "--system alone" generate "$model" $bytes -p ab --system x
    run 2 "an empty stop" generate "$model" $bytes -p ab --stop ""
    says err "accepted: 1 to" "an empty stop string"
    run 2 "a stop of ids" generate "$model" --ids 1 --stop a
    says err "need text" "a stop string without text"
    printf '{"text": 1}\n' >bad.jsonl
    run 1 "a bad record" generate "$model" $bytes --prompts bad.jsonl
    says err "bad.jsonl: line 1" "the line"
    run 2 "a file of another kind" generate "$model" $bytes --prompts "$model/config.json"
    run 3 "too little memory" generate model=gpt2-124m device=cpu -p a -p b --tokens 900 memory=540MiB -q
    says err "fits" "what would fit"
    fitting=$(sed -n 's/.*--context \([0-9]*\) fits.*/\1/p' err)
    run 0 "what was said to fit" generate model=gpt2-124m device=cpu -p a -p b --tokens 2 memory=540MiB -q \
        --context "${fitting:-0}"
    run 3 "a byte more" generate model=gpt2-124m device=cpu -p a -p b --tokens 900 memory=540MiB -q \
        --context $((${fitting:-0} + 64))
    run 3 "nothing fits" generate model=gpt2-124m device=cpu -p a --tokens 900 memory=300MiB -q
    says err "No context fits" "nothing fits"
}

if [ -d "$stories" ]; then
    run 0 "a story" generate "$stories" -p "Once upon a time" --tokens 80 --json story.json
    json story.json 'open("out").read().rstrip("\n") == d["text"].rstrip("\n")' "the streamed text is the whole text"
    says out "Once upon a time, there was a little girl" "a model that learned a language"
    run 0 "a stop" generate "$stories" -p "Once upon a time" --tokens 80 --stop "red ball" --stop "nothing" --json stop.json
    json stop.json 'd["ended"] == "stop" and d["text"].endswith("a big, ")' "the text ends in front of the stop string"
    json stop.json 'json.load(open("story.json"))["text"].startswith(d["text"]) and "red ball" not in open("out").read()' \
        "nothing of it was printed"
    run 0 "many" generate "$stories" -p "Once" -p "Lily" -p "The cat" --tokens 30 --stop . --json many.json
    json many.json 'all("." not in t["text"] for t in d["texts"])' "a stop string for all texts"
    run 0 "an end of text" generate "$stories" -p "Once upon a time" --tokens 400 --json end.json -q
    json end.json 'd["ended"] == "end of text" and len(d["ids"]) < 400' "the model's end of text"
    run 0 "bench generate" bench generate "$stories" --prompt-tokens 8,64 --output-tokens 1,8 --batch 1,3 \
        threads=1 --repeat 2 --json bench.json
    json bench.json 'len(d["rows"]) == 8 and all(r["measured"] for r in d["rows"])' "rows"
    json bench.json 'all(len(r["prefill_tokens_per_s"]["rounds"]) == 2 for r in d["rows"])' "rounds"
    json bench.json 'all((r["between_p50"]["n"] == 2 * r["batch"] * (r["output_tokens"] - 1)) for r in d["rows"])' \
        "times between tokens"
    json bench.json 'all(r["first_token"]["n"] == 2 * r["batch"] for r in d["rows"])' "times to first tokens"
    json bench.json 'd["rows"][7]["cache_bytes"] > d["rows"][0]["cache_bytes"] > 0' "the cache"
fi
run 0 "a grid of shapes" bench generate model=tiny,tiny --prompt-tokens 4 --output-tokens 4 precision=fp32,bf16 \
    --repeat 1 -o csv -q device=cpu
[ "$(wc -l <out)" -eq 5 ] || fail "two models in two precisions have not four lines of CSV"
[ "$(grep -c "^tiny,cpu,4,4,1,.*,bf16,[0-9]" out)" -eq 2 ] || fail "rows of bf16 have no figures"
run 0 "refused rows" bench generate model=tiny --prompt-tokens 4,100000 --output-tokens 4 --repeat 1 -o jsonl -q device=cpu
tail -1 out >row.json
json row.json 'not d["measured"] and "positions" in d["reason"]' "a row that is refused has its reason"
run 2 "bench generate --steps" bench generate model=tiny --steps 3
run 2 "bench train --batch" bench train --batch 3
run 2 "a list" bench generate model=tiny --batch 1,,2
finish
