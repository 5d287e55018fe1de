#!/usr/bin/env bash
# test_tokenize.sh - haggle tokenize: text to ids and back, special tokens, threads, bad lines.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# give TEXT STATUS WHAT FLAG...: runs haggle with TEXT as standard input.
give() {
    local text=$1
    shift
    printf '%b' "$text" >in
    run_in "$@"
}
run_in() {
    local wanted=$1 what=$2 got
    shift 2
    timeout 60 "$haggle" tokenize "$@" <in >out 2>err
    got=$?
    [ $got -eq "$wanted" ] && return
    fail "$what: exit status $got, expected $wanted"
    sed 's/^/    /' err | tail -5
}
is() { # is TEXT WHAT: the output is exactly this
    printf '%b' "$1" | cmp -s - out && return
    fail "$2: the output is"
    head -c 300 out
}

give '{"text": "hi"}\n{"id": 7, "text": "a\\u0000\\u00e9", "more": [1, {}]}\r\n\n{"text": ""}' 0 "bytes" --tokenizer bytes
is '[104,105]\n[97,0,195,169]\n[]\n' "bytes"
says err "1 blank lines" "blank lines are counted"

give '{"text": "a<|endoftext|>"}\n' 0 "special" -t bytes
is '[97,256]\n' "special"
give '{"text": "<|a"}\n' 0 "plain" -t bytes --plain
is '[60,124,97]\n' "plain"
give '{"text": "<|endoftext|>"}\n' 0 "plain special" -t bytes --plain
[ "$(tr -cd , <out | wc -c)" -eq 12 ] || fail "--plain: special tokens are text"

give '[104,105]\n[256, 97]\n[]\n' 0 "decode" -t bytes --decode
is '{"text":"hi"}\n{"text":"<|endoftext|>a"}\n{"text":""}\n' "decode"
give '[256,97]\n' 0 "decode plain" -t bytes --decode --plain
is '{"text":"a"}\n' "decode plain"
give '[97,240,159,98,255,254]\n' 0 "decode broken" -t bytes --decode
is '{"text":"a\xEF\xBF\xBDb\xEF\xBF\xBD\xEF\xBF\xBD"}\n' "bytes that are not UTF-8"

# Bad lines: the message has their number, and the lines before them are written.
bad() { # bad LINE TEXT WHAT FLAG...
    local line=$1 says=$2 what=$3
    shift 3
    give "{\"text\": \"a\"}\n{\"text\": \"b\"}\n$line\n{\"text\": \"c\"}\n" 1 "$what" -t bytes --threads 2 "$@"
    is '[97]\n[98]\n' "$what"
    says err "line 3" "$what"
    says err "$says" "$what"
}
bad '{"text": 3}' "not a string" "a number"
bad '{"txt": "x"}' "no member 'text'" "no text"
bad '{"text": "x", "text": "y"}' "two members" "twice"
bad '{"text": "x"' "" "cut"
bad '["x"]' "object" "an array"
bad '{"text": "x"} y' "nothing more" "more"
bad '{"text": "\\ud800"}' "surrogate" "half a pair"
bad '{"text": "\xff"}' "UTF-8" "not UTF-8"
give '[1]\n[2, 300]\n' 2 "an id too large" -t bytes --decode
is '{"text":"\\u0001"}\n' "an id too large"
says err "line 2" "an id too large"
says err "300" "an id too large"
give '[1]\n{"text": "x"}\n' 1 "text for --decode" -t bytes --decode
says err "line 2" "text for --decode"

give '' 0 "no lines" -t bytes
is '' "no lines"
give '' 2 "no tokenizer"
says err "--tokenizer" "no tokenizer"
give '' 1 "no such file" --tokenizer nowhere.json
says err "nowhere.json" "no such file"
give '' 2 "a word" -t bytes surplus
give '' 2 "a knob" -t bytes seq=4
give '' 2 "threads" -t bytes --threads 0
mkdir folder
give '' 1 "a folder without one" -t folder
says err "folder/tokenizer.json" "a folder without one"
echo '{"version": "1.0", "model": {"type": "Unigram"}}' >odd.json
give '' 1 "another model" -t odd.json
says err "odd.json" "another model"

# The order of lines does not depend on the threads: a long line and many short ones.
awk 'BEGIN { for (i = 0; i < 20000; i++) printf "{\"text\": \"line %d of many, it is\"}\n", i }' >in
run_in 0 "one thread" -t bytes --threads 1
cp out one
run_in 0 "three threads" -t bytes --threads 3 --json result.json
cmp -s one out || fail "three threads give other lines than one"
json result.json 'd["lines"] == 20000 and d["tokens"] == d["text_bytes"] and d["threads"] == 3' "--json"
{ printf '{"text": "'; head -c 3000000 /dev/zero | tr '\0' a; printf '"}\n'; } >in
run_in 0 "a long line" -t bytes
[ "$(tr -cd , <out | wc -c)" -eq 2999999 ] || fail "a long line: not all of it"
{ printf '{"text": "b"}\n{"text": "'; head -c 17000000 /dev/zero | tr '\0' a; printf '"}\n'; } >in
run_in 1 "a line that is too long" -t bytes
is '[98]\n' "a line that is too long"
says err "line 2" "a line that is too long"

# Real vocabularies, if they are available.
tokenizers=${HAGGLE_TOKENIZERS:-$source_tree/../shared/fixtures/tokenizers}
for model in gpt2 llama3; do
    [ -f "$tokenizers/$model/tokenizer.json" ] || continue
    cp "$tokenizers/$model/cases.jsonl" in
    run_in 0 "$model" --tokenizer "$tokenizers/$model"
    cp out ids
    sed 's/.*"ids": *\(\[[^]]*\]\).*/\1/; s/ //g' in >expected
    cmp -s ids expected || fail "$model: other ids than the reference"
    cp ids in
    run_in 0 "$model --decode" --tokenizer "$tokenizers/$model/tokenizer.json" --decode
    cp out in
    run_in 0 "$model again" --tokenizer "$tokenizers/$model"
    cmp -s ids out || fail "$model: ids, text, ids gives other ids"
done
finish
