#!/usr/bin/env bash
# test_ranks.sh - several ranks train one model: the sequences, losses and validations of one rank in
# every layout; what the plan, the summary, the result and the trace say about ranks; refusals.
. "$(dirname "$0")/lib.sh" "$@"

small=(train model=tiny seq=32 batch.micro=1 steps=6 sched.warmup=2 eval.every=3 eval.batches=3 data.val=0.05
    generate.tokens=0 device=cpu threads=1 save.every=0 save.last=false comm.engine=thread comm.bucket=64KiB)

# layout NAME SETTING...: trains, and keeps the log
layout() {
    local name=$1
    shift
    run 0 "$name" "${small[@]}" run.dir="$name" --json "$name.json" "$@"
}
layout one batch.accum=8
layout two --ranks 2 batch.accum=4
layout eight --ranks 8 batch.accum=1 zero.stage=3
layout tensor parallel.tensor=2 batch.accum=8
layout pipe parallel.pipe=4 batch.accum=8 pipe.schedule=gpipe
layout rows parallel.tensor=2 parallel.sequence=true parallel.pipe=2 batch.accum=8
layout all --ranks 8 parallel.tensor=2 parallel.pipe=2 zero.stage=1 batch.accum=4 log.trace=trace.json
layout again --ranks 8 parallel.tensor=2 parallel.pipe=2 zero.stage=1 batch.accum=4 comm.overlap=false
python3 - one two eight tensor pipe rows all again <<'PYTHON' || fail "layouts differ"
import json, sys
def read(name):
    lines = [json.loads(line) for line in open(name + "/log.jsonl")]
    return ([(x["step"], x["tokens"], x["loss"], x["grad_norm"]) for x in lines if "grad_norm" in x],
            [(x["step"], x["validation_loss"]) for x in lines if "validation_loss" in x and "grad_norm" not in x])
one, valid = read("one")
assert len(one) == 6 and len(valid) == 2, (one, valid)
for name in sys.argv[2:]:
    steps, validations = read(name)
    for a, b in zip(one, steps):
        limit = 1e-6 if a[0] == 1 else 1e-4
        if a[:2] != b[:2] or abs(b[2] / a[2] - 1) > limit or abs(b[3] / a[3] - 1) > 1e-3:
            sys.exit(f"    {name}: {b}, with one rank {a}")
    for a, b in zip(valid, validations):
        if a[0] != b[0] or abs(b[1] / a[1] - 1) > 1e-4:
            sys.exit(f"    {name}: validation {b}, with one rank {a}")
if read("all")[0] != read("again")[0]:
    sys.exit("    overlap on and off differ")
PYTHON

# replicas that train apart: each divides its loss by its own tokens, and what is due waits for an average
apart=("${small[@]}" --ranks 2 run.dir=apart eval.every=2 resume=false)
run 0 "local SGD" "${apart[@]}" batch.accum=2 comm.every=3 steps=7
says err "(textbook 8.92 MiB) every 3 steps" "local SGD"
grep -o '"step":[0-9]*,"validation_loss"' apart/log.jsonl >validated
printf '"step":%d,"validation_loss"\n' 3 6 7 | cmp -s - validated || fail "local SGD validates at $(cat validated)"
layout alone batch.accum=1 steps=1
run 0 "one step apart" "${apart[@]}" batch.accum=1 comm.every=2 steps=1
norm() { grep -o '"grad_norm":[^,}]*' "$1/log.jsonl" | tail -1; }
[ "$(norm alone)" = "$(norm apart)" ] || fail "a replica's norm is $(norm apart), alone it is $(norm alone)"
for try in 1 2 3; do # the time may be over just where replicas are averaged, and then there is nothing to say
    run 0 "a limit of time between averages" "${apart[@]}" batch.accum=1 comm.every=50 steps=1000000 time=1s
    grep -qE "the run ends after step [0-9]*[05]0, where .* are averaged \(comm.every=50\)" err && break
    [ $try -lt 3 ] || fail "time: $(tail -3 err)"
done
grep -qE "to step [0-9]*[05]0 of" out || fail "a run ends where replicas are apart: $(cat out)"
run 2 "local SGD and ZeRO" "${apart[@]}" comm.every=2 zero.stage=1
says err "accepted: zero.stage=0" "local SGD and ZeRO"

# what is said
run 0 "the plan and the summary" "${small[@]}" run.dir=said parallel.tensor=2 parallel.pipe=2 batch.accum=4
says err "ranks    4 = data 1 x tensor 2 x pipe 2, threads of this process" "the plan"
says err "pipe.schedule 1f1b with a bubble of 20.0 % by its formula" "the plan"
says err "send over 'pipe' 64.00 KiB in 4 calls (textbook 64.00 KiB)" "the plan"
says out "has the most work" "the summary"
says out "send over 'pipe' 64.00 KiB in 4 calls (textbook 64.00 KiB)" "the summary"
grep -qE "stages for each other [0-9.]+ % \(the pipeline's bubble by its formula: 20.0 %\)" out || fail "the bubble: $(cat out)"
grep -qE "slowest rank [0-3] .* ranks wait [0-9]+%" err || fail "the live line of ranks: $(grep '^step' err)"
grep -qE "^ +3 +0 +1 +1 " out || fail "the summary has no row for rank 3: $(cat out)"
json all.json 'len(d["rank_results"]) == 8 and d["rank_results"][7]["pipe"] == 1 and 0 <= d["slowest_rank"] < 8' \
    "the result of ranks"
json all.json 'all(r["work_ms"] > 0 and r["arena_bytes"] > 0 for r in d["rank_results"])' "the result of ranks"
json all.json '0 < d["waited_for_stages"] < 1 and all(0 <= r["stage_wait_ms"] <= r["exposed_communication_ms"] for r in d["rank_results"])' \
    "what stages wait for each other"
run 0 "two replicas" "${small[@]}" run.dir=replicas parallel.data=2 --json two.json
json two.json 'd["waited_for_stages"] == 0 and d["rank_results"][0]["exposed_communication_ms"] > 0' "replicas have no stages"
json trace.json 'sorted({e["pid"] for e in d["traceEvents"]}) == list(range(8))' "a process per rank in the trace"
json trace.json 'any(e.get("name") == "comm_wait" for e in d["traceEvents"])' "exposed communication in the trace"
json trace.json 'sum(e.get("name") == "process_labels" and "textbook" in e["args"]["labels"] for e in d["traceEvents"]) == 8' \
    "bytes beside the textbook in the trace"
json trace.json 'any(e.get("name") == "stage_wait" for e in d["traceEvents"])' "waits for stages in the trace"
ls trace.json.rank* 2>/dev/null && fail "parts of the trace are left behind"

run 0 "the report" report all
python3 - <<'PYTHON' || fail "the report"
page = open("all/report.html").read()
part = page[page.index("What each rank did"):]
for text in ("has the most work", "(slowest)", "By its formula the pipeline is idle", "its stages waited for each other", "<td>1, 1, 1</td>", "rank 0 sends in a step"):
    if text not in part:
        raise SystemExit(f"    '{text}' is not on the page")
PYTHON
run 0 "the report of one rank" report one
grep -q "What each rank did" one/report.html && fail "the report of one rank speaks of ranks"

# one rank's plan
run 0 "show --rank" show model=tiny seq=32 batch.accum=2 parallel.pipe=2 zero.stage=1 --rank 1 --ops --json show.json
says out "rank 1 of 2" "show --rank"
says out "= loss(" "show --rank 1 has the loss"
json show.json 'd["ranks"]["rank"] == 1 and d["ranks"]["bubble_formula"] == 1/3' "show --rank --json"
run 0 "show --rank 0" show model=tiny seq=32 batch.accum=2 parallel.pipe=2 --rank 0 --ops
grep -q "= loss(" out && fail "the first stage has the loss"
run 2 "show of a rank that is not there" show model=tiny parallel.pipe=2 --rank 2
says err "rank 2 is not accepted; accepted: 0 to 1" "show of a rank that is not there"
run 2 "show --rank x" show model=tiny --rank x
says err "--rank x is not accepted" "show --rank x"

# refusals
run 2 "sizes that do not match" "${small[@]}" run.dir=no ranks=3 parallel.tensor=2
says err "parallel.data=1 x parallel.tensor=2 x parallel.pipe=1 are 2 ranks, and ranks=3" "sizes that do not match"
run 2 "heads" "${small[@]}" run.dir=no parallel.tensor=3
says err "do not divide the model's 4 heads" "heads"
run 2 "rows" "${small[@]}" run.dir=no parallel.tensor=2 parallel.sequence=true seq=31
says err "do not divide the 31 tokens of a micro-batch" "rows"
run 2 "ZeRO 2 and a pipeline" "${small[@]}" run.dir=no --ranks 4 parallel.pipe=2 zero.stage=2
says err "accepted: stage 0 or 1" "ZeRO 2 and a pipeline"
run 2 "more stages than layers" "${small[@]}" run.dir=no parallel.pipe=5
run 2 "a hybrid run" "${small[@]}" run.dir=no ranks=2 goal=hybrid
says err "goal=hybrid needs one rank" "a hybrid run"
run 3 "a budget that one rank does not keep" "${small[@]}" run.dir=no parallel.pipe=2 batch.micro=8 memory=17MiB
says err "rank " "a budget that one rank does not keep"
run 3 "what would fit on every rank" "${small[@]}" run.dir=no parallel.pipe=2 batch.micro=8 memory=17MiB
says err "It would fit with " "what would fit on every rank"
fits=$(sed -n 's/.*It would fit with \([^(]*\) (.*/\1/p' err | head -1)
run 0 "a setting that was said to fit" "${small[@]}" run.dir=fits parallel.pipe=2 batch.micro=8 memory=17MiB $fits
[ -e no ] && fail "a run that was refused left its folder behind"

# a limit of time, and a stop request, end all ranks
run 0 "a limit of time" "${small[@]}" run.dir=time ranks=4 parallel.tensor=2 steps=1000000 time=2s
says out "out of time" "a limit of time"
timeout 60 "$haggle" "${small[@]}" run.dir=stop ranks=4 parallel.pipe=2 steps=1000000 >out 2>err &
pid=$!
for _ in $(seq 100); do
    [ -s stop/log.jsonl ] && break
    sleep 0.1
done
pkill -INT -P $pid haggle || kill -INT $pid
wait $pid
[ $? -eq 75 ] || fail "Ctrl-C: $(tail -1 err)"
says err "stopped on request" "Ctrl-C"

# data that can no longer be read ends all ranks with one sentence, and what was trained is saved
yes "some words of text to train on" | head -2000 >text.txt
timeout 60 "$haggle" "${small[@]}" run.dir=cut ranks=2 data.path=text.txt tokenizer=bytes data.cache=shards \
    steps=1000000 eval.every=0 save.last=true >out 2>err &
pid=$!
for _ in $(seq 100); do
    [ -s cut/log.jsonl ] && break
    sleep 0.1
done
truncate -s 100 shards/*.shard
wait $pid
[ $? -eq 1 ] || fail "data is lost: $(tail -1 err)"
[ "$(grep -c "haggle train:" err)" -eq 1 ] || fail "data is lost: not one sentence: $(cat err)"
says err ". The run is saved at step " "data is lost"
ls cut/checkpoints/step-*/manifest.json >/dev/null 2>&1 || fail "data is lost: no checkpoint"

# references, with ranks
verify() { # verify MODEL SETTING...
    run 0 "verify $*" verify "$source_tree/tests/reference/$1" "${@:2}"
    says out "all figures agree" "verify $*"
}
verify gpt2-odd parallel.tensor=5
verify gpt2-odd parallel.pipe=2 --checking
verify llama3-scaled parallel.tensor=2 parallel.pipe=3
verify llama3-scaled parallel.tensor=2 parallel.pipe=3 parallel.sequence=true precision=bf16
verify qwen2 parallel.pipe=3 precision=bf16
verify qwen3 parallel.pipe=3
verify llama-bias parallel.pipe=2
finish
