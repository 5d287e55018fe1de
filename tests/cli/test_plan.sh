#!/usr/bin/env bash
# test_plan.sh - haggle plan: a question, what does not fit, bad input, a table of runs.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"

run 0 "a plan" plan --model llama-8b --cluster 8xh100-80g --json p.json --save r.yaml
says out "choice for bulk: " "a plan"
says out "(modelled)" "a plan"
says out "recipe: haggle train model=llama-8b" "a plan"
says err "plan only: ranks of haggle run on CPUs today" "several GPUs"
json p.json 'd["verb"] == "plan" and d["chosen"] == 0 and len(d["layouts"]) > 20' "--json"
json p.json 'all(l["low_s"] < l["step_s"] < l["high_s"] for l in d["layouts"])' "intervals"
json p.json 'all(l["data"] * l["tensor"] * l["pipe"] == 8 for l in d["layouts"])' "all devices are used"
json p.json 'all(l["bytes"] <= 80 * 2**30 for l in d["layouts"])' "only what fits"
json p.json '[l["step_s"] for l in d["layouts"]] == sorted(l["step_s"] for l in d["layouts"])' "the fastest first"
run 0 "the recipe is one" knobs r.yaml
says out "parallel.data" "the recipe is one"
run 0 "interactive" plan --model llama-8b --cluster 8xh100-80g --goal interactive --json i.json
json i.json '[l["micro_s"] for l in d["layouts"]] == sorted(l["micro_s"] for l in d["layouts"])' "least latency first"
run 0 "csv" plan --model llama-8b --cluster 8xh100-80g -o csv
says out "tokens_per_s,step_s,low_s,high_s,micro_s" "csv"
run 0 "by number" plan --shape layers=16,hidden=2048,heads=32,kv=8,vocab=128256 --cluster 4xa100-40g --explain
says out "why not the others" "by number"
says err "no recipe: a shape by number has no name" "by number"

# 16 bytes a parameter and the gradients do not fit; what does is said with figures.
run 3 "70B on 8 A100s" plan --model llama-70b --cluster 8xa100-80g
says err "does not fit 8xa100-80g: every layout needs at least" "70B on 8 A100s"
says out "what would fit instead" "70B on 8 A100s"
says out "full on 4x8xa100-80g: " "70B on 8 A100s"
run 3 "nobody keeps 1 ms" plan --model llama-8b --cluster 8xh100-80g --p99 1ms
says err "the fastest step takes" "nobody keeps 1 ms"

run 2 "no cluster" plan --model llama-8b
says err "which hardware? accepted: --cluster" "no cluster"
run 2 "a typo" plan --cluster 8xa100-81g
says err "did you mean 'a100-80g'?" "a typo"
run 2 "0 devices" plan --cluster 0xa100-80g
says err "accepted: 1 to 65536" "0 devices"
run 2 "a shape that does not divide" plan --shape layers=4,hidden=100,heads=3 --cluster h200
says err "3 heads do not divide hidden=100" "a shape that does not divide"
run 2 "tokens" plan --model llama-8b --cluster 8xh100-80g --tokens-per-step 1000
says err "accepted: a multiple of seq" "tokens"
run 1 "hybrid" plan --model llama-8b --cluster 8xh100-80g --goal hybrid
says err "--goal=hybrid is not planned yet" "hybrid"
run 2 "a framework" plan --model llama-8b --cluster 8xh100-80g --framework megatro
says err "accepted: haggle, megatron" "a framework"

printf 'device,mine,memory_gib,24,me\ndevice,mine,memory_gbps,900,me\n' >half.csv
run 1 "half a device" plan --hardware half.csv --cluster mine
says err "device 'mine' has no fp32_tflops" "half a device"
printf 'device,mine,%s,me\n' arch,ada memory_gib,24 memory_gbps,900 fp32_tflops,40 half_tflops,80 bf16,1 \
    units,60 link_gbps,16 node_gpus,4 >mine.csv
run 0 "my device" plan --hardware mine.csv --cluster 2xmine --model gpt2-124m --seq 1024
says out "2xmine: 1 node of 2 x mine" "my device"

cat >runs.csv <<'CSV'
layers,hidden,heads,ffn,seq,gpu,gpus,tp,pp,dp,microbatch,globalbatch,step_s,notes
24,2048,16,8192,2048,A100-80GB-SXM,8,1,1,8,4,256,5.0,"a, b"
24,2048,16,8192,2048,A900,8,1,1,8,4,256,5.0,
CSV
run 0 "rows" plan --rows runs.csv -o csv --json n.json
says out ',"modelled; assumed: vocab=50257, plain MLP' "rows"
says out "the catalog has no device or node 'a900'" "rows"
says err "A row is usable if" "rows"
json n.json 'd["rows"] == 2 and d["usable_predicted"] == 1' "rows"
head -1 out | grep -q "^layers,.*,notes,predicted_step_s,low_s,high_s,predicted_mem_gb,fits,profile,reason$" ||
    fail "columns are not appended"
run 2 "rows want csv" plan --rows runs.csv
says err "accepted: -o csv" "rows want csv"
run 1 "no file" plan --rows nothing.csv -o csv
says err "nothing.csv" "no file"
finish
