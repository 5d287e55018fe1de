#!/usr/bin/env bash
# test_show.sh - the plan of a run, and the machine that it is for: show, doctor.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

# show
run 0 "show" show model=gpt2-124m seq=64 batch.accum=2 --json show.json
for word in "124.4M parameters" "program train" "2 x forward" "matmul_dw" "adamw" "weights" "total" "predicted step"; do
    says out "$word" "show"
done
json show.json 'd["layout"]["arena_bytes"] > 2e9 and d["predicted"]["step_ms"] > 1' "show --json"
json show.json '[p["name"] for p in d["programs"]] == ["train", "eval", "extend.1"]' "show --json lists programs"
for word in "memory at the fullest moment of a step" "in all"; do
    says out "$word" "show"
done
json show.json 'all(d["tensor_bytes"].get(c, 0) >= n for c, n in d["layout"]["by_class"].items() if c != "slack")' \
    "a class is at least its share of the fullest moment"
json show.json 'd["trace_bytes"] == 0 and d["process_bytes"] > 0' "show --json without a trace"
run 0 "show with a trace" show steps=2 log.trace=t.json --json show.json
json show.json 'd["tensor_bytes"]["gradients"] == d["tensor_bytes"]["weights"] > d["layout"]["by_class"]["gradients"]' \
    "gradients as a whole, beside their share of the fullest moment"
json show.json 'd["trace_bytes"] > 0 and d["trace_bytes"] & (d["trace_bytes"] - 1) == 0' "show with a trace"
[ -e t.json ] && fail "show writes a trace"
run 0 "show of a device, which may be missing" show device=cuda --json show.json
json show.json 'd["predicted"]["step_ms"] is None or d["predicted"]["step_ms"] > 0' "a step of a device"
grep -q "step 0 ns\|inf tokens" out && fail "a step is predicted to take no time"
run 0 "show --ops" show --ops
says out "and the same for 3 more layers" "show --ops"
run 3 "show --full, without the data, too large" show --full model=llama-70b seq=512 --data nowhere.txt
says out "tensors:" "show --full"
says err "nowhere.txt" "show without the data"
says out "too much" "show of a model that does not fit"
run 0 "show without the data" show --data nowhere.txt --json show.json
says out "at least, because the buffers of the data are not known" "show without the data"
json show.json 'd["fits"] is None and not d["need_whole"]' "show without the data"
run 3 "a device that may be missing, and a budget" show device=cuda model=gpt2-124m memory=1GiB
says out "of 1.00 GiB, the budget (memory=): too much" "a device that may be missing, and a budget"
run 0 "show warns as train does" show noise.every=1
says err "noise.every=1 has no effect here" "show warns as train does"

# doctor
run 0 "doctor" doctor --fresh --json doctor.json
for word in "cpu " "caches" "memory" "huge pages" "GB/s" "fork and join" "builtin" "openblas" "missing"; do
    says out "$word" "doctor"
done
json doctor.json 'd["machine"]["cpus"] > 0 and d["rates"]["memory_bytes_per_s"] > 1e8' "doctor --json"
json doctor.json 'any(b["found"] and b["flops_per_s"] > 1e8 for b in d["blas"])' "doctor --json measures libraries"
says out "measured now; matrix products: cpu.blas=auto, 1024 x 1024" "doctor: what the first figure is"
says out "measured now with" "doctor: what the second figures are"
json doctor.json 'd["blas_threads"] == d["rates"]["threads"] and not d["rates_cached"]' "doctor --json: the same threads"
if [ -f cache/haggle/rates.json ]; then # not stored if the machine was busy
    run 0 "doctor again" doctor --json doctor.json
    json doctor.json 'd["rates_cached"]' "doctor again"
    says out "--fresh measures again" "doctor again"
    # A best rate from a busy minute: a run that is faster measures it again, and a short run
    # reports none.
    sed -i 's/"vector_flops": *[0-9.e+]*/"vector_flops": 1e9/' cache/haggle/rates.json
    rest="seq=32 eval.every=0 generate.tokens=0 save.every=0 save.last=false --json run.json"
    # shellcheck disable=SC2086 # $rest is several words
    run 0 "a short run above its roof" train steps=3 $rest
    json run.json 'd["mfu"] is None and d["hfu"] is None and d["rates"]["vector_flops"] == 1e9' "a short run above its roof"
    says out "faster than the measured rate" "a short run above its roof"
    # shellcheck disable=SC2086
    run 0 "a run above its roof" train steps=100000 time=3500ms $rest
    json run.json '0 < d["mfu"] < 1 and d["rates"]["vector_flops"] > 1e9' "a run above its roof"
fi
json doctor.json 'd["ops"]["timed"] > 20 and d["ops"]["path"].startswith("/") and d["ops"]["reason"] == ""' "doctor times ops"

# predictions, with and without timed ops
run 0 "show with timed ops" show --json show.json
says out "tokens/s: 100 % of it from ops timed on this machine" "show with timed ops"
json show.json 'd["predicted"]["calibrated"] and 0 < d["predicted"]["spread"] < 10' "show --json with timed ops"
run 0 "show with other threads" show threads=1 --json show.json
says out "by the roofline of this machine" "show without timed ops"
json show.json 'not d["predicted"]["calibrated"] and d["predicted"]["spread"] is None' "show --json without timed ops"
# what was measured is predicted by its measurement, and the interval becomes narrow
run 0 "a run to remember" train steps=12 generate.tokens=0 run.dir=runs/remember --json run.json
run 0 "show after a run" show --json measured.json
says out "this setting was measured here once" "show after a run"
cat >same.py <<'END'
import json, sys
run, show = json.load(open("run.json")), json.load(open("measured.json"))["predicted"]
step = run["step_ms"]["p50"]
sys.exit(not (show["measured"] and abs(show["step_ms"] / step - 1) < 0.1 and
              show["step_ms_low"] < show["step_ms"] < show["step_ms_high"]))
END
python3 same.py || fail "show after a run: not its step time"
for table in cache/haggle/ops/*.json; do echo '{"format":1,' >"$table"; done
run 0 "show with a damaged table" show
says out "by the roofline of this machine" "show with a damaged table"
run 0 "doctor with a damaged table" doctor --json doctor.json
says out "no op timed yet, a roofline is used instead" "doctor without timed ops"
json doctor.json 'd["ops"]["timed"] == 0' "doctor without timed ops"
json doctor.json 'all(m["needed_for"] for m in d["missing"])' "doctor --json says what is missing for what"
finish
