#!/usr/bin/env bash
# test_quantize_text.sh - haggle quantize with text, through the program: methods that calibrate, the
# text that is held out, matrices that stay wider, what is refused; and that the results run.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
model=$source_tree/../shared/fixtures/lm/stories260K
text=$source_tree/../shared/fixtures/lm/text/tinystories_val.jsonl
if [ ! -e "$model/model.safetensors" ] || [ ! -e "$text" ]; then
    echo "skipped: the fixtures lm/stories260K and lm/text are not here"
    exit 77
fi
head -70 "$text" >text.jsonl
sed -n 101,120p "$text" >other.jsonl
{ sed -n 141,150p "$text"; sed -n 17p text.jsonl; } >both.jsonl
words="data.cache=none seq=256"

# the methods, on the same held-out records
for method in rtn awq tuned; do
    tokens=
    [ $method = rtn ] || tokens="--tokens 20480"
    # shellcheck disable=SC2086 # words
    run 0 "$method" quantize "$model" $method --format int4 --method $method --data text.jsonl $tokens --kl 1 --json $method.json $words
    says err "tokens for calibration," "$method: what is read"
    says out "that calibration did not see" "$method: held-out text"
    says out "alone it makes a divergence of" "$method: the worst matrix"
    json $method.json "d['method'] == '$method' and d['compared']['held_out'] and d['compared']['tokens'] > 1000" "$method: compared"
    json $method.json 'len(d["sensitive"]) == 36 and d["sensitive"][0]["kl"] == max(x["kl"] for x in d["sensitive"])' "$method: matrices"
done
says err "tuning scales: 10 steps of 2048 tokens, about" "how long tuning takes"
json tuned.json 'd["tuned"]["steps"] == 10 and d["tuned"]["kl_last"] < d["tuned"]["kl_first"]' "tuning"
json awq.json 'd["compared"]["kl"] < json.load(open("rtn.json"))["compared"]["kl"]' "awq is nearer than rtn"
json tuned.json 'd["compared"]["kl"] < 0.8 * json.load(open("rtn.json"))["compared"]["kl"]' "tuned is nearer still"
json tuned.json 'd["bytes_after"] == json.load(open("rtn.json"))["bytes_after"]' "in as many bytes"
# shellcheck disable=SC2086 # words
{
    run 0 "other text" quantize "$model" other --format int4 --method awq --data text.jsonl --eval other.jsonl --kl 1 --json other.json $words
    json other.json 'not d["compared"]["held_out"] and d["compared"]["data"] == "other.jsonl"' "--eval"
    run 0 "int8 by awq" quantize "$model" q8 --format int8 --method awq --data text.jsonl --tokens 4096 $words

    # the result runs
    run 0 "generate" generate tuned --prompt 'Once upon a time' --tokens 8
    run 0 "eval" eval tuned --data other.jsonl $words
    run 0 "bench generate" bench generate model=tuned --prompt-tokens 8 --output-tokens 4 --repeat 1
    run 0 "show" show model=tuned --json show.json
    says out "int4 g32" "how weights are stored"
    says out "sequence with a cache of 512 tokens" "the cache"
    json show.json 'sum(x["bytes"] for x in d["generation"]["weights"]) < 200000 and d["generation"]["context"] == 512' "the plan of generation"
    run 0 "show --ops" show model=tuned --ops
    run 2 "its ranks" show model=tuned parallel.data=2

    # over the limit: which matrices would help; and the choice of them
    run 4 "too far" quantize "$model" far --format int4 --data text.jsonl --kl 0.04 $words
    says err "would have to be wider, first of all --wider model." "what would help"
    says err "--wider auto chooses them" "and who chooses"
    run 0 "auto" quantize "$model" auto --format int4 --data text.jsonl --kl 0.04 --wider auto --json auto.json $words
    says err "matrices become wider" "the choice"
    says out "as asked for by --wider" "the choice in the result"
    json auto.json 'd["compared"]["kl"] <= 0.04 and json.load(open("rtn.json"))["bytes_after"] < d["bytes_after"] < d["bytes_before"] / 2' "within the limit"
    run 0 "it runs" generate auto --prompt 'Once' --tokens 4
    run 0 "by name" quantize "$model" named --format int4 --data text.jsonl --kl 1 --wider v_proj,layers.0.mlp.up_proj --json named.json $words
    json named.json 'sum(x == "int8" for x in d["quantization_config"]["other"].values()) == 5 + 5 + 1' "names" # and down_proj, whose rows are no groups
    run 4 "nothing is enough" quantize "$model" far --format int8 --data text.jsonl --kl 1e-12 --wider auto $words

    # refusals
    run 2 "a record in both" quantize "$model" far --format int4 --method awq --data text.jsonl --eval both.jsonl $words
    says err "record 11 of both.jsonl is also in --data text.jsonl" "which record"
    run 2 "the same file" quantize "$model" far --format int4 --method awq --data text.jsonl --eval text.jsonl $words
    run 2 "no text" quantize "$model" far --format int4 --method tuned $words
    says err "give it with --data FILE" "what is missing"
    run 2 "tokens of rtn" quantize "$model" far --format int4 --data text.jsonl --tokens 100 $words
    run 2 "no tokens" quantize "$model" far --format int4 --method awq --data text.jsonl --tokens 0 $words
    run 2 "auto without text" quantize "$model" far --format int4 --wider auto $words
    run 2 "names that are wider than int8" quantize "$model" far --format int8 --wider v_proj $words
    run 2 "no such matrix" quantize "$model" far --format int4 --wider nothing $words
    run 2 "the built-in corpus" quantize "$model" far --format int4 --method awq --data synthetic $words
    head -1 text.jsonl >one.jsonl
    run 2 "one record" quantize "$model" far --format int4 --method awq --data one.jsonl $words
    printf '{"text": 3}\n' >bad.jsonl
    run 1 "no records" quantize "$model" far --format int4 --method awq --data bad.jsonl $words
}

# Ctrl-C while it tunes
# shellcheck disable=SC2086 # words
env --default-signal=INT "$haggle" quantize "$model" far --format int4 --method tuned --data text.jsonl --tokens 100000000 $words >out 2>err &
pid=$!
for _ in $(seq 300); do
    grep -q "tuning scales" err && break
    sleep 0.1
done
kill -INT $pid
wait $pid
got=$?
[ $got -eq 75 ] || [ $got -eq 130 ] || [ $got -eq 1 ] || fail "Ctrl-C: exit status $got"
says err "steps of tuning" "what it stopped at"
for left in far*; do
    [ -e "$left" ] && fail "$left is left"
done
finish
