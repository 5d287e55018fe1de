#!/usr/bin/env bash
# test_stop.sh - SIGTERM and SIGINT save and exit with 75. The run then continues to the same end. A
# second signal quits at once.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
options="seq=32 batch.micro=2 steps=60 eval.every=0 generate.tokens=0 threads=1"

# wait_for PATTERN FILE: waits until a line of FILE matches, at most 20 s.
wait_for() {
    for _ in $(seq 400); do
        grep -q "$1" "$2" 2>/dev/null && return
        sleep 0.05
    done
    fail "nothing like '$1' in $2"
}

# shellcheck disable=SC2086 # $options is several words
{
    run 0 "without a stop" train $options run.dir=whole

    # A large `steps` keeps the run going. The schedule is constant, so the first steps are the
    # same.
    for signal in TERM INT; do
        # bash starts background jobs with SIGINT ignored, and haggle respects that. env restores
        # the default.
        env --default-signal=INT "$haggle" train $options steps=1000000 sched.kind=constant run.dir=$signal \
            --json $signal.json >out 2>err &
        pid=$!
        wait_for '"step":5,' $signal/log.jsonl
        kill -$signal $pid
        wait $pid
        status=$?
        [ $status -eq 75 ] || fail "SIG$signal: exit status $status, expected 75"
        says err "stopping after this step" "SIG$signal"
        says err "saved" "SIG$signal"
        says out "stopped on request" "SIG$signal delivers the result"
        json $signal.json 'd["run"]["end"] == "stopped" and d["run"]["checkpoint"] and d["error"]["code"] == "ERR_STOPPED"' "SIG$signal"
        ls $signal/checkpoints/step-*/manifest.json >/dev/null 2>&1 || fail "SIG$signal: no checkpoint"
    done

    # A run that is stopped and resumed gives the same losses, to the last bit.
    "$haggle" train $options run.dir=parts >out 2>err &
    pid=$!
    wait_for '"step":7,' parts/log.jsonl
    kill -TERM $pid
    wait $pid
    run 0 "going on" train $options run.dir=parts
    losses() { sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1/log.jsonl" | sort -n -u; }
    losses whole >whole.txt
    losses parts >parts.txt
    [ "$(wc -l <whole.txt)" -eq 60 ] || fail "the run has not 60 steps"
    cmp -s whole.txt parts.txt || fail "stopped and resumed, the losses differ"

    # A second signal ends the run without waiting.
    "$haggle" train $options steps=1000000 run.dir=twice >out 2>err &
    pid=$!
    wait_for '"step":3,' twice/log.jsonl
    kill -STOP $pid # so that both signals are pending when it continues
    kill -TERM $pid
    kill -INT $pid
    kill -CONT $pid
    wait $pid
    status=$?
    [ $status -eq 143 ] || [ $status -eq 130 ] || [ $status -eq 75 ] || fail "twice: exit status $status"

    # While the program only plans, there is nothing to save, so the first signal ends it. A full
    # standard error holds it in its plan.
    mkfifo full
    exec 9<>full
    head -c 65536 /dev/zero >&9
    for signal in TERM INT; do
        env --default-signal=INT timeout 20 "$haggle" train $options run.dir=planned >out 2>&9 9>&- &
        pid=$!
        sleep 1
        child=$(pgrep -P $pid)
        kill -$signal "$child"
        wait $pid
        status=$?
        [ $status -eq $((128 + $(kill -l $signal))) ] || fail "SIG$signal while planning: exit status $status"
    done
    exec 9>&-
    [ -e planned ] && fail "a run that was only planned left a folder behind"

    # Reaching `time` is not a failure: the run ends with a checkpoint and can continue.
    run 0 "out of time" train $options steps=1000000 run.dir=time time=500ms --json time.json
    json time.json 'd["run"]["end"] == "time" and d["run"]["checkpoint"]' "out of time"
}
finish
