#!/usr/bin/env bash
# test_tune_generate.sh - haggle tune --goal generate from the shell: a trained model under budgets,
# the recipe and the commands that pin the choice, budgets that cannot be kept, formats that are too
# far from the model, a shape, a stopped search, and input that is refused before anything is made.
# No check depends on which setting is faster here.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
export XDG_DATA_HOME=$here/data TMPDIR=$here/tmp
mkdir -p "$TMPDIR"
tuned() { # tuned CODE WHAT ARGUMENT...: a search that does not ask how busy the machine is
    local code=$1 what=$2
    shift 2
    run "$code" "$what" tune --goal generate --busy count -q "$@"
    [ -z "$(ls "$TMPDIR")" ] || fail "$what: left $(ls "$TMPDIR")"
}

run 0 "a run" train model=tiny seq=16 steps=20 generate.tokens=0 run.dir=run -q

# A budget that is easily kept. The time is short, so the answer may be any setting.
tuned 0 "a run under budgets" run --batch 2 --ttft 20s --itl 10s --p 90 --prompt-tokens 16 --output-tokens 8 \
    --time 3s --save best.yaml --json best.json
says out "Formats were compared on text that the model made itself" "a run: what the divergence is of"
says out "limit 10000 ms: proven at 95 %" "a run: the budget is proven"
says out "haggle generate run" "a run: the command that pins the choice"
json best.json '[f["name"] for f in d["formats"]] == ["as given", "bf16", "int8", "int4 g32", "int4 g128"]' "formats"
json best.json 'all(f["kl"] >= 0 and f["kl"] < f["kl_limit"] and not f["refused"] for f in d["formats"][1:])' "divergence"
json best.json 'd["formats"][0]["weight_bytes"] > d["formats"][1]["weight_bytes"] > d["formats"][2]["weight_bytes"] > d["formats"][3]["weight_bytes"]' \
    "bytes of the formats"
json best.json 'all(s["batch"] == 2 for s in d["settings"])' "--batch fixes the number of texts"
json best.json 'd["between_tokens"]["proven"] and d["between_tokens"]["n"] > 100 and not d["provisional"]' "proof"
json best.json 'all(s["tokens_per_s"] > 0 and s["first_n"] > 0 and s["between_n"] >= 7 * (s["first_n"] - 2) for s in d["settings"] if s["visits"])' \
    "figures of the settings"
[ -s best.html ] || fail "no page"
grep -q "To use the choice" best.html || fail "the page has no commands"
grep -qE "https?://" best.html && fail "the page loads something"

# What was printed runs: the quantized folder where one was chosen, and the recipe.
eval "$(grep '^haggle quantize' out | sed "s|^haggle|$haggle|")" >/dev/null || fail "the command that quantizes"
run 0 "the recipe" generate best.yaml --ids 1,2,3 --tokens 4 --batch 1
[ "$(wc -w <out)" -ge 1 ] || fail "the recipe made no text"

# Budgets that nothing keeps are refused with the least that can be had, and no recipe is written.
tuned 3 "an impossible latency" run --itl 1us --prompt-tokens 16 --output-tokens 8 --time 1s --save no.yaml
says err "the least here is" "an impossible latency"
[ ! -e no.yaml ] || fail "a recipe without a choice"
tuned 3 "an impossible memory" run --memory 4MiB --time 1s --save no.yaml
says err "no setting fits 4.00 MiB: the least that any needs is" "an impossible memory"

# Formats that are too far from the model are listed with their divergence, and not measured.
printf '{"text": "once there was"}\n{"text": "a tale of two"}\n{"text": "models"}\n{"text": "and data"}\n' >data.jsonl
tuned 0 "a strict limit" run --data data.jsonl --kl 1e-9 --prompt-tokens 16 --output-tokens 8 --time 1s --json strict.json
says out "over the limit of 1e-09" "a strict limit"
json strict.json 'all(f["refused"] for f in d["formats"][2:]) and all(s["visits"] == 0 for s in d["settings"] if s["format"][:3] == "int")' \
    "formats that are not admitted"

# A method that looks at text gets it from --data, and is compared on records that it did not see.
for i in $(seq 40); do echo "{\"text\": \"tale $i is about $((i * 7)) and $((i * i)) things\"}"; done >tales.jsonl
tuned 0 "a method" run --method awq --data tales.jsonl --kl 9 --prompt-tokens 16 --output-tokens 8 --time 1s --json awq.json
json awq.json 'all(f["kl"] >= 0 and not f["refused"] for f in d["formats"][1:])' "a method: divergences"
tuned 2 "a method without text" run --method tuned --time 1s
says err "--method tuned looks at text: give it with --data FILE" "a method without text"
tuned 2 "a method that is none" run --method gptq --data tales.jsonl --time 1s
says err "accepted: rtn, awq, tuned" "a method that is none"

# A shape has random weights.
tuned 0 "a shape" tiny --prompt-tokens 16 --output-tokens 8 --time 1s --json shape.json
says out "formats are a question of speed only" "a shape"
json shape.json 'all(f["kl"] is None and not f["refused"] for f in d["formats"])' "a shape has no divergence"
json shape.json '"one at a time" in d["optimised"] and all(s["batch"] == 1 for s in d["settings"])' "without budgets one text"

# A quantized folder has no other format.
run 0 "quantize" quantize run int8 --format int8
tuned 0 "a quantized model" int8 --prompt-tokens 16 --output-tokens 8 --time 1s
says out "quantized already" "a quantized model"

# A stopped search says so and leaves nothing behind.
env --default-signal=INT "$haggle" tune --goal generate tiny --time 1m --busy count -q >stop.out 2>stop.err &
pid=$!
sleep 1.5
kill -INT "$pid"
wait "$pid"
[ $? = 75 ] || fail "a stopped search: $(cat stop.err)"
[ -z "$(ls "$TMPDIR")" ] || fail "a stopped search left $(ls "$TMPDIR")"

# Refused before anything is made.
tuned 2 "a limit of steps" run --p99 4ms
says err "accepted: --ttft and --itl" "a limit of steps"
run 2 "a limit of tokens for training" tune model=tiny --itl 4ms
says err "accepted: with --goal generate" "a limit of tokens for training"
tuned 2 "no limit" run --itl 0ms
tuned 2 "a percentile of nothing" run --p 99
tuned 2 "a percentile" run --itl 1s --p 100
tuned 2 "a divergence" run --kl -1
tuned 2 "a store" run --store x.db
tuned 2 "too long" tiny --prompt-tokens 500 --output-tokens 100
says err "tiny has 512 positions" "too long"
tuned 1 "data that is not there" run --data nothing.jsonl
says err "nothing.jsonl" "data that is not there"
tuned 2 "a model that is not there" nothing
finish
