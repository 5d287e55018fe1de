#!/usr/bin/env bash
# test_hybrid.sh - a hybrid run through the program: answers on standard output and on a socket,
# many clients, hostile ones and ones that vanish, stops, and the bulk model's losses to the bit.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
python3 "$source_tree/tests/cli/hybrid_client.py" "$haggle" || failures=$((failures + 1))

# Answers that cannot be written are an error with their number.
options=(train --goal hybrid seq=16 batch.micro=1 steps=40 eval.every=0 generate.tokens=0 threads=1 save.last=false resume=false)
ask='{"evaluate": {"text": "to be"}}\n'
# shellcheck disable=SC2059 # $ask is a format
printf "$ask$ask$ask" | timeout 60 "$haggle" "${options[@]}" run.dir=full >/dev/full 2>err
[ $? -eq 1 ] || fail "a full standard output: exit status"
says err "3 answers were lost: the standard output cannot be written: No space left on device" "a full standard output"
# shellcheck disable=SC2059
printf "$ask" | timeout 60 "$haggle" "${options[@]}" run.dir=closed --json closed.json >&- 2>err
[ $? -eq 1 ] || fail "a closed standard output: exit status"
says err "1 answer was lost: the standard output cannot be written" "a closed standard output"
grep -q '"loss":' closed/log.jsonl || fail "a closed standard output: the run has a log"
grep -rq '"evaluate":true' closed && fail "a closed standard output: an answer is in a file of the run"
json closed.json 'd["requests"]["lost"] == 1 and d["error"]["code"] == "ERR_IO"' "a closed standard output: --json"

# What the plan promises is called typical. The summary has what was measured.
run 0 "show of a hybrid run" show goal=hybrid seq=16 --json show.json
says out "typically answered within" "the plan of a hybrid run"
json show.json 'd["requests"]["evaluate_typical_ms"] > 0' "show --json of a hybrid run"
# shellcheck disable=SC2059
(printf "$ask"; sleep 1; printf "$ask") | timeout 60 "$haggle" "${options[@]}" steps=4000 time=2s run.dir=typical --json typical.json >out 2>err ||
    fail "two requests: $(tail -1 err)"
grep -q "answered after at most" err && fail "the plan promises a bound that it cannot keep"
says err "longest time to the next yield point" "the summary of a hybrid run"
json typical.json '0 < d["requests"]["evaluate_ms"]["longest_run_ms"] and 0 < d["requests"]["evaluate_ms"]["longest_gap_ms"] <= d["requests"]["train_ms"]["longest_gap_ms"]' \
    "the measured gaps"
finish
