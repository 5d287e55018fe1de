#!/usr/bin/env bash
# test_stop.sh - SIGTERM and SIGINT save and exit with 75; the run goes on to the same end; a second signal quits at once.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
options="seq=32 batch.micro=2 steps=60 eval.every=0 generate.tokens=0 threads=1"

# wait_for PATTERN FILE: until a line of FILE matches, at most 20 s.
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

    # A large `steps` keeps it running; the schedule is constant, so the first steps are the same.
    for signal in TERM INT; do
        # bash starts background jobs with SIGINT ignored, which haggle respects: env puts it back.
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

    # Stopped and resumed is the same run: same losses, to the last bit.
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

    # Nobody waits for a second signal.
    "$haggle" train $options steps=1000000 run.dir=twice >out 2>err &
    pid=$!
    wait_for '"step":3,' twice/log.jsonl
    kill -STOP $pid # both signals are there when it looks
    kill -TERM $pid
    kill -INT $pid
    kill -CONT $pid
    wait $pid
    status=$?
    [ $status -eq 143 ] || [ $status -eq 130 ] || [ $status -eq 75 ] || fail "twice: exit status $status"

    # While it only plans there is nothing to save: the first signal ends it. It is held in its plan by a
    # standard error that is full.
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

    # `time` is no failure: it ends with a checkpoint and goes on.
    run 0 "out of time" train $options steps=1000000 run.dir=time time=500ms --json time.json
    json time.json 'd["run"]["end"] == "time" and d["run"]["checkpoint"]' "out of time"
}
finish
