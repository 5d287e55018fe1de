#!/usr/bin/env bash
# test_memory.sh - memory. A run that does not fit is refused before anything is written, with
# advice that is true. The memory that a run takes is what was predicted (gpt2-124m, predicted
# before, measured after).
. "$(dirname "$0")/lib.sh" "$@"

# follows the advice of a refusal
small=(train model=tiny steps=2 eval.every=0 generate.tokens=0 device=cpu run.dir=fits)
run 3 "a budget that is too small" "${small[@]}" batch.micro=8 memory=30MiB
says err "It would fit with" "a budget that is too small"
[ -e fits ] && fail "a run that does not fit left its folder behind"
advice=$(sed -n 's/.*It would fit with \([a-z0-9.= ]*\) (.*/\1/p' err)
[ -n "$advice" ] || fail "the advice cannot be read: $(cat err)"
read -ra changes <<<"$advice"
run 0 "the advice: $advice" "${small[@]}" batch.micro=8 memory=30MiB "${changes[@]}"
run 3 "no setting helps" "${small[@]}" memory=14MiB --json refused.json
says err "No change that keeps the tokens per step makes it fit" "no setting helps"
grep -q "a shorter seq" err && fail "a shorter seq is proposed, which is not enough"
run 3 "the weights alone are too large" "${small[@]}" memory=1MiB
says err "The weights alone take 2.97 MiB" "the weights alone are too large"
tail -1 err | grep -q "seq" && fail "the weights alone are too large, and another seq is proposed: $(cat err)"

# show and train count the same bytes, also in a process that has no stored figure
for settings in "" "goal=hybrid interactive.stdin=false batch.micro=2 log.trace=t.json precision=bf16" \
    "threads=1 eval.every=1 data.prefetch=8 save.last=true"; do
    rm -f cache/haggle/process
    read -ra more <<<"model=tiny steps=2 device=cpu generate.tokens=0 save.last=false resume=false $settings"
    run 0 "show $settings" show "${more[@]}" --json show.json
    json show.json 'd["fits"] and d["need_whole"] and d["need_bytes"] < d["have_bytes"]' "show --json says that it fits"
    bytes=$(sed -n 's/.*"need_bytes": *\([0-9]*\).*/\1/p' show.json)
    run 3 "train one byte below: $settings" train "${more[@]}" run.dir=same "memory=$((bytes - 1))"
    says err "(1 bytes too much) but the budget (memory=)" "train one byte below"
    [ -e same ] && fail "a run that does not fit left its folder behind"
    run 0 "train within the budget: $settings" train "${more[@]}" run.dir=same "memory=$bytes" --json result.json
    json result.json "d['memory']['predicted_bytes'] == $bytes" "the summary has the same bytes"
    rm -rf same
done
run 3 "show one byte below" show "${more[@]}" "memory=$((bytes - 1))" --json show.json
says out "too much" "show one byte below"
says err "(1 bytes too much) but the budget (memory=)" "show one byte below"
says err "It would fit with" "show gives advice"
json show.json 'd["fits"] is False and d["error"]["code"] == "ERR_MEMORY"' "show --json one byte below"

# limits of the process count, and are named
limited() { # limited FLAG KIBIBYTES ARGUMENT...
    local flag=$1 kib=$2
    shift 2
    (ulimit "$flag" "$kib" && timeout 60 "$haggle" "$@" >out 2>err)
}
for flag in -v -d; do
    limited $flag 600000 train model=gpt2-124m steps=1 device=cpu run.dir=limited
    [ $? -eq 3 ] || fail "ulimit $flag: not refused: $(tail -1 err)"
    grep -q "limit of .* (ulimit $flag) leaves (5 % kept free) is 5[0-9][0-9]\." err || fail "ulimit $flag is not named: $(tail -1 err)"
    [ -e limited ] && fail "ulimit $flag: a run that does not fit left its folder behind"
    limited $flag 600000 "${small[@]}" run.dir=inside || fail "ulimit $flag: a small run: $(tail -1 err)"
done

# verify, with every op observed
run 0 "verify --checking" verify "$source_tree/tests/reference/gpt2-odd" --checking --json checked.json
says out "wrote only their outputs" "verify --checking"
json checked.json 'd["folders"][0]["checked"]["used_bytes"] == d["folders"][0]["checked"]["arena_bytes"]' \
    "verify --checking: the arena is written to its last byte"

available=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
if [ "${available:-0}" -lt $((4 * 1024 * 1024)) ]; then
    echo "gpt2-124m skipped: needs 4 GiB of memory"
    finish
fi
gpt2=(model=gpt2-124m steps=2 eval.batches=1 save.every=0 save.last=false generate.tokens=0 run.dir=run)
sizes=("1 64") lines=('{"train": {"text": "to be or not"}}')
[ -n "${HAGGLE_TEST_LONG:-}" ] && sizes+=("2 128") lines+=('')
for size in "${sizes[@]}"; do
    read -r micro seq <<<"$size"
    run 0 "gpt2-124m $size" train "${gpt2[@]}" resume=false "batch.micro=$micro" "seq=$seq" --json result.json
    json result.json 'abs(d["memory"]["measured_bytes"] - d["memory"]["predicted_bytes"]) < 0.01 * d["memory"]["predicted_bytes"] + 2**23' \
        "gpt2-124m $size: measured within 1 % + 8 MiB of predicted"
    json result.json 'sum(d["memory"]["by_class"].values()) == d["memory"]["predicted_bytes"]' \
        "gpt2-124m $size: the classes add up to the prediction"
done

# A second model in the same plan.
printf 'model: gpt2-124m\nseq: 32\ntokenizer: bytes\n' >second.yaml
hybrid=(model=tiny goal=hybrid interactive.recipe=second.yaml batch.accum=2 steps=20 eval.every=0 save.every=0 save.last=false
    generate.tokens=0 device=cpu run.dir=hybrid resume=false)
for line in "${lines[@]}"; do
    echo "$line" | timeout 60 "$haggle" train "${hybrid[@]}" --json hybrid.json >out 2>err ||
        fail "a second model: $(tail -3 err)"
    [ -z "$line" ] || says out '"own_step":1' "a second model answers"
    json hybrid.json 'd["memory"]["by_class"]["second model"] > 1.9e9' "the second model is a class of its own"
    json hybrid.json 'abs(d["memory"]["measured_bytes"] - d["memory"]["predicted_bytes"]) < 0.01 * d["memory"]["predicted_bytes"] + 2**23' \
        "a second model ($line): measured within 1 % + 8 MiB of predicted"
    json hybrid.json 'sum(d["memory"]["by_class"].values()) == d["memory"]["predicted_bytes"]' \
        "a second model: the classes add up to the prediction"
done
finish
