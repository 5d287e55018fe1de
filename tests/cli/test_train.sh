#!/usr/bin/env bash
# test_train.sh - a run from the command line: the plan, the files, the result for people and for
# programs, resuming.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
tiny="seq=32 batch.micro=2 generate.tokens=8"

# shellcheck disable=SC2086 # $tiny is several words
{
    run 0 "three steps" train $tiny steps=3 eval.every=2 eval.batches=2 --json result.json
    for word in "no model and no data were given: the built-in model 'tiny'" "model    tiny: 779.4K parameters" \
        "built-in corpus" "64 tokens" "weights" "activations" "total" "steps    3 x 2 sequences; the built-in corpus never repeats" \
        "step 2  validation loss" "step 3/3" "saved runs/tiny/checkpoints/step-000000003"; do
        says err "$word" "the plan and the progress"
    done
    for word in "trained   3 steps, to step 3 of 3" "loss      " "tokens/s" "p50 " "p95 " "no 95 % bound; need 299" \
        "busy " "verdict " "memory    predicted" "saved     runs/tiny/checkpoints/step-000000003" "sample"; do
        says out "$word" "the summary"
    done
    json result.json 'd["verb"] == "train" and d["config"]["steps"] == 3 and d["config"]["seq"] == 32' "config"
    json result.json 'd["model"]["parameters"] == 779392 and d["machine"]["usable_cpus"] > 0' "model, machine"
    json result.json '"rates" in d and "predicted_step_ms" in d["run"] and d["verdict"]["text"]' "rates, prediction"
    json result.json 'd["run"]["end"] == "done" and d["run"]["step"] == 3 and d["run"]["checkpoint"]' "run"
    json result.json '{"tokens_per_s", "real_tokens_per_s", "trained_tokens_per_s", "step_ms", "ms_per_sample",
        "utilization", "time_split", "memory", "loss", "mfu", "hfu"} <= set(d)' "keys of metrics"
    json result.json 'abs(sum(d["time_split"].values()) - 1) < 1e-6' "the split adds up"
    json result.json 'd["memory"]["predicted_bytes"] > 1e6 and d["memory"]["measured_bytes"] > 1e6' \
        "memory"
    json result.json 'd["loss"]["first"] > 5' "loss"
    json result.json 'd["step_ms"]["p99_upper95"] is None' "a bound that n does not allow is null"
    json result.json 'len(d["sample"]["ids"]) == 8 and isinstance(d["sample"]["text"], str)' "sample"

    says out "energy    " "the summary"
    json result.json '(d["energy"]["joules"] > 0 and d["energy"]["joules_per_token"] > 0 if d["energy"]["meter"] else
        d["energy"]["joules"] is None and d["energy"]["joules_per_token"] is None and d["energy"]["why"])' "no meter is not 0 J"
    json result.json 'd["noise_scale"] is None' "what was not measured is null"
    run 0 "the noise scale" train $tiny steps=7 batch.accum=2 noise.every=3 eval.every=0 run.dir=noise --json noise.json
    says out "gradient noise scale" "the noise scale"
    json noise.json 'd["noise_scale"]["measurements"] == 3 and d["noise_scale"]["batch_tokens"] == 128' "the noise scale"
    [ "$(grep -c '"noise_scale"' noise/log.jsonl)" -eq 3 ] || fail "log.jsonl has the noise scale of other steps"
    # Which steps a percentile is about, a single step in the singular, and times as the clock gave them.
    run 0 "a warm-up" train $tiny steps=40 eval.every=20 eval.batches=4 run.dir=warm --json warm.json
    says out "percentiles over steps 4 to 40" "which steps"
    says out "its micro-batch's time (at " "the latency of a sample"
    says err "  last 37: p50 " "which steps, live"
    json warm.json 'd["run"]["measured_first_step"] == 4 and d["run"]["measured_last_step"] == 40 and d["step_ms"]["n"] == 37' \
        "which steps"
    cat >digits.py <<'END'
import json
long = [(k, v) for line in open("warm/log.jsonl") for k, v in json.loads(line).items()
        if isinstance(v, float) and (k.endswith("_ms") or "_ms_p" in k) and round(v, 6) != v]
long += [(k, v) for k, v in json.load(open("warm.json"))["validation"].items()
         if isinstance(v, float) and k.startswith("batch_ms") and round(v, 6) != v]
print(*long) if long else exit(0)
exit(1)
END
    python3 digits.py >out || fail "milliseconds with more digits than the clock gave: $(cat out)"
    run 0 "no noise scale" train $tiny steps=1 noise.every=1 eval.every=0 run.dir=quiet
    says err "noise.every=1 has no effect here: it needs batch.accum of 2 or more" "a knob without effect"
    says out "trained   1 step, to step 1 of 1" "one step"

    # files of the run
    for file in log.jsonl recipe.yaml checkpoints/step-000000003/model.safetensors \
        checkpoints/step-000000003/config.json; do
        [ -f runs/tiny/$file ] || fail "runs/tiny/$file is missing"
    done
    grep -q '^seq: 32 .*# command line' runs/tiny/recipe.yaml || fail "recipe.yaml does not say who set seq"
    [ "$(grep -c '"loss"' runs/tiny/log.jsonl)" -eq 3 ] || fail "log.jsonl does not hold every step"
    while read -r line; do echo "$line" >line.json && json line.json 'isinstance(d, dict)' "a line of log.jsonl"; done \
        <runs/tiny/log.jsonl

    # the same command again continues; nothing left to do is not an error; starting over keeps the
    # old log
    run 0 "going on" train $tiny steps=5 eval.every=0
    says err "goes on from runs/tiny/checkpoints/step-000000003: step 3 of 5" "going on"
    says out "trained   2 steps, to step 5 of 5" "going on"
    run 0 "nothing left" train $tiny steps=5 eval.every=0 --json result.json
    says err "nothing to train" "nothing left"
    json result.json 'd["tokens_per_s"] is None and d["run"]["steps_run"] == 0' "not measured is null"
    run 0 "starting over" train $tiny steps=2 eval.every=0 resume=false
    [ -f runs/tiny/log.1.jsonl ] || fail "the old log was not kept"
    says out "trained   2 steps, to step 2 of 2" "starting over"

    # only JSON on standard output; silence
    run 0 "--json -" train $tiny steps=2 eval.every=0 run.dir=a --json -
    json out 'd["run"]["dir"] == "a"' "--json - has the standard output alone"
    says err "trained   2 steps" "--json - moves the summary"
    run 0 "--quiet" train $tiny steps=2 eval.every=0 run.dir=b --quiet
    [ -s err ] && fail "--quiet is not silent"
    says out "trained   2 steps" "--quiet keeps the result"

    # --quiet still shows what the user must know
    run 0 "two checkpoints" train $tiny steps=2 eval.every=0 run.dir=damaged save.every=1 --quiet
    printf x >>damaged/checkpoints/step-000000002/model.safetensors
    run 0 "--quiet, a damaged checkpoint" train $tiny steps=2 eval.every=0 run.dir=damaged save.every=1 --quiet
    grep -qE "^(warning|error): .*step-000000002" err || fail "--quiet does not say that a checkpoint is damaged"
    grep -qE "^  weights|^step|^goes on" err && fail "--quiet prints the plan or the progress"

    # a single validation gives one figure
    run 0 "one validation" train $tiny steps=2 eval.every=2 eval.batches=1 run.dir=once save.every=0 save.last=false
    grep -q 'validation [0-9.]*$' out || fail "one validation is not one figure"

    # a budget of exactly what the run says it needs, in its plan and at its end
    run 0 "its own size" train $tiny steps=2 eval.every=0 run.dir=size save.every=0 save.last=false --json size.json
    if command -v python3 >/dev/null; then
        below=$(python3 -c 'import json; print(int(json.load(open("size.json"))["memory"]["predicted_bytes"] * 0.98))')
        run 3 "just below its own size" train $tiny steps=2 eval.every=0 run.dir=size save.every=0 save.last=false memory=$below
        says err "process" "just below its own size"
    fi

    # a run that diverges leaves its log, its trace and its result
    run 1 "diverged" train $tiny steps=40 eval.every=0 optim.lr=100 optim.clip=0 optim.beta2=0 sched.warmup=0 \
        run.dir=diverged log.trace=diverged.json --json -
    cp out result.json
    json result.json 'd["error"]["code"] == "ERR_NUMERIC" and d["run"]["end"] == "diverged"' "diverged"
    json result.json 'd["run"]["skipped_steps"] >= 10 and d["tokens_per_s"] > 0' "diverged"
    json diverged.json 'len(d["traceEvents"]) > 10' "the trace of a run that diverged"
    says err "; diverged" "diverged"
    tail -1 diverged/log.jsonl >line.json
    json line.json 'd["skipped"] is True and "empty" not in d' "a skipped step in log.jsonl"
    head -2 diverged/log.jsonl | tail -1 >line.json
    json line.json '"skipped" not in d' "an ordinary step in log.jsonl"

    # a recipe, names of flags, the other logs
    printf 'model: tiny\nseq: 16\nsteps: 2\neval:\n  every: 0\ngenerate:\n  tokens: 0\n' >mine.yaml
    echo "some text to train on, again and again and again and again and again" >text.txt
    run 0 "flags" train mine.yaml --data text.txt --batch-micro 1 --batch.accum=2 --lr 1e-3 --data-val 0 \
        --cpu-pin --fuse-norm no --allow-extra \
        log.tensorboard=true log.trace=trace.json --json flags.json
    json flags.json 'd["config"]["batch.accum"] == 2 and d["config"]["optim.lr"] == 1e-3' "flags are knobs"
    json flags.json 'd["config"]["cpu.pin"] and d["config"]["allow.extra"] and not d["config"]["fuse.norm"]' "switches are flags"
    json flags.json 'd["config"]["data.path"] == "text.txt" and d["run"]["dir"] == "runs/mine"' "aliases, run.dir"
    json flags.json 'd["sample"] is None' "no sample"
    json flags.json 'd["memory"]["by_class"]["trace"] < 1 << 20' "the trace has a class of its own, of the run's size"
    says err "events of log.trace" "the trace in the plan"
    json trace.json 'len(d["traceEvents"]) > 10' "the trace"
    ls runs/mine/events.out.tfevents.* >/dev/null 2>&1 || fail "no TensorBoard file"
    # a log that cannot grow is given up, but the run goes on
    (
        trap '' XFSZ
        ulimit -f 8
        run 0 "a full disk" train $tiny steps=80 eval.every=0 run.dir=full save.every=0 save.last=false
        says err "the log ends here, training goes on" "a full disk"
        says out "trained   80 steps" "a full disk"
        exit $failures
    ) || fail "a full disk"
    # a knob without effect is reported
    run 0 "a knob without effect" train mine.yaml run.dir=c sched.decay=0.5
    says err "sched.decay=0.5 has no effect here" "a knob without effect"
}

# epochs in place of steps
for i in $(seq 400); do echo "line $i of a text that is read again and again"; done >text.txt
rest=(--data text.txt seq=32 eval.every=0 save.last=false generate.tokens=0 threads=1 resume=false)
run 0 "show with epochs" show "${rest[@]}" epochs=2 --json show.json
grep -q "^steps  .* = 2[.0-9]* passes over the data (epochs); a pass is [0-9]* windows (sequences of 32 tokens)" out ||
    fail "show with epochs: $(grep '^steps' out)"
json show.json 'd["steps"] != 200 and 2 <= d["epochs"] < 2.1' "show --json with epochs"
run 0 "train with epochs" train "${rest[@]}" model=tiny epochs=0.02 run.dir=epochs --json result.json
grep -q "no model\|no data" err && fail "model and data were given: $(head -1 err)"
says out "passes over the data (epochs)" "the summary with epochs"
grep -q "step [0-9]*/[0-9]*  epoch 0.0[0-9]*/0.0" err || fail "the live line with epochs: $(grep '^step' err | head -2)"
json result.json '0.02 <= d["run"]["epoch"] < 0.03 and d["run"]["step"] == d["config"]["steps"]' "train --json with epochs"
run 0 "the run's recipe" show epochs/recipe.yaml --json again.json
json again.json 'd["steps"] == d["config"]["steps"] < 10' "the run's recipe has the steps"
run 2 "epochs and steps" train "${rest[@]}" epochs=2 steps=3 run.dir=both
says err "set steps or epochs, not both" "epochs and steps"
run 2 "epochs of an endless corpus" show epochs=2
says err "never repeats" "epochs of an endless corpus"
finish
