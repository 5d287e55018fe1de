#!/usr/bin/env bash
# test_safe.sh - what a run leaves on disk when someone interferes: closed streams, logs that are no
# files, folders that vanish.
. "$(dirname "$0")/lib.sh" "$@"
tiny="model=tiny seq=16 batch.micro=2 eval.every=0 generate.tokens=0 threads=1 sched.warmup=1"

# All standard streams are closed. The log has its own descriptor, so every line of it is JSON.
timeout 60 "$haggle" train $tiny steps=3 run.dir=closed <&- >&- 2>&-
grep -qv '^{.*}$' closed/log.jsonl && fail "closed streams: the log has lines that are no JSON"
[ "$(wc -l <closed/log.jsonl)" -eq 5 ] || fail "closed streams: the log has not 5 lines"
[ -f closed/checkpoints/step-000000003/manifest.json ] || fail "closed streams: nothing was saved"
timeout 60 "$haggle" version >&- 2>err && fail "a result that is lost must not be a success"

# A log that is a pipe would hang, one that is a link would be written elsewhere.
mkdir pipe link
mkfifo pipe/log.jsonl
ln -s ../victim link/log.jsonl
echo safe >victim
run 1 "a pipe as log" train $tiny steps=1 run.dir=pipe
says err "log.jsonl' is a pipe" "a pipe as log"
run 1 "a link as log" train $tiny steps=1 run.dir=link
says err "log.jsonl' is a symbolic link" "a link as log"
[ "$(cat victim)" = safe ] || fail "a link as log: it was followed"
mkfifo trace.json.tmp
run 1 "a pipe in place of the trace" train $tiny steps=1 run.dir=trace log.trace=trace.json
says err "trace.json.tmp' is a pipe" "a pipe in place of the trace"

# run.dir is removed in the middle of a run: it is made again, with the recipe and another log.
"$haggle" train $tiny steps=1000000 run.dir=gone save.every=100ms >out 2>err &
pid=$!
for _ in $(seq 100); do
    ls gone/checkpoints/step-* >/dev/null 2>&1 && break
    sleep 0.05
done
mv gone gone-moved
for _ in $(seq 100); do
    grep -q '"save"' gone/log.jsonl 2>/dev/null && break
    sleep 0.05
done
kill -TERM $pid
wait $pid
says err "gone/checkpoints' was removed or moved during the run" "run.dir moved"
says err "gone/log.jsonl' was removed or moved during the run" "run.dir moved"
says err "and saved; the same command continues" "run.dir moved"
[ -f gone/recipe.yaml ] || fail "run.dir moved: there is no recipe in the new folder"
last=$(sed -n 's/.*after step \([0-9]*\) of.*/\1/p' err)
[ -f "gone/checkpoints/$(printf step-%09d "$last")/manifest.json" ] || fail "run.dir moved: not saved"

# The sample after training is valid UTF-8, whatever bytes the model chooses: here 0xf2 again and
# again.
run 0 "a sample" train $tiny generate.tokens=8 steps=1 run.dir=sample
iconv -f UTF-8 -t UTF-8 out >/dev/null 2>&1 || fail "a sample: it is not UTF-8"
says out $'\xef\xbf\xbd' "a sample"
json sample/result.json "min(d['sample']['ids']) > 127" "a sample"

# What a killed check of the knobs left is removed by the next one.
mkdir tmp
check() {
    TMPDIR=$here/tmp "$haggle" knobs --check seed >out 2>err &
    pid=$!
    for _ in $(seq 100); do
        for folder in tmp/haggle-check-*; do
            [ "$folder" != "${1-}" ] && [ -d "$folder" ] && break 2
        done
        sleep 0.05
    done
    kill -KILL $pid
    wait $pid 2>/dev/null
}
check
left=$(echo tmp/haggle-check-*)
[ -d "$left" ] || fail "a killed check left nothing: the test needs a leftover"
check "$left"
[ -d "$left" ] && fail "what a killed check left is still there"

finish
