#!/usr/bin/env bash
# test_bench.sh - grids: lists and ranges, refused rows, formats, spread over rounds, a stop in the
# middle.
# shellcheck source=tests/cli/lib.sh
. "$(dirname "$0")/lib.sh"
base="seq=16 --steps 3 --warmup 1"

# shellcheck disable=SC2086 # $base is several words
{
    run 0 "a grid" bench train $base batch.micro=1,2 threads=1-2 --repeat 2 --json grid.json
    [ "$(grep -c '^| ' out)" -eq 5 ] || fail "a grid of four has not a head and four rows"
    for word in "batch.micro" "threads" "tokens/s" "p99" "ms/sample" "predicted" "measured" "busy" "spread" "J/token"; do
        says out "$word" "the columns"
    done
    says out "p99 needs 299" "percentiles without a bound are marked"
    says err "most tokens/s" "the sentence"
    json grid.json 'len(d["rows"]) == 4 and all(r["measured"] for r in d["rows"])' "rows"
    json grid.json '[r["knobs"]["batch.micro"] + r["knobs"]["threads"] for r in d["rows"]] == ["11", "12", "21", "22"]' \
        "the order"
    json grid.json 'all(len(r["rounds"]) == 2 and r["step_ms"]["n"] == 6 for r in d["rows"])' "rounds"
    json grid.json 'all(r["memory"]["measured_bytes"] > 1e6 for r in d["rows"])' "memory is measured"
    json grid.json 'd["rows"][2]["memory"]["predicted_bytes"] > d["rows"][0]["memory"]["predicted_bytes"]' \
        "memory by configuration"
    ls runs >/dev/null 2>&1 && fail "a benchmark writes a run's folder"

    # A setting that is refused is a row with a reason, in every format, and not a failure of the
    # whole bench.
    run 0 "refused rows" bench $base batch.micro=0,1,2 memory=0,20MiB --repeat 1 -o csv
    [ "$(wc -l <out)" -eq 7 ] || fail "six configurations have not six lines of CSV"
    says out "batch.micro='0' is not accepted" "a bad value is a row"
    run 0 "a budget as a row" bench $base seq=16,400 memory=30MiB --repeat 1 -o jsonl --quiet
    [ "$(wc -l <out)" -eq 2 ] || fail "two configurations have not two lines of JSON"
    tail -1 out >refused.json
    json refused.json 'not d["measured"] and d["code"] == "ERR_MEMORY" and "budget" in d["reason"]' "a budget as a row"
    json refused.json '"step_ms" not in d' "a refused row has no figures"
    run 3 "nothing fits" bench $base memory=1MiB --repeat 1
    says err "nothing could be measured" "nothing fits"

    run 0 "formats" bench $base 'batch.micro=1-4*2' --repeat 1 -o json --quiet
    cp out list.json
    command -v python3 >/dev/null && { json list.json 'len(d) == 3' "-o json"; }
    run 0 "bench without train, steps=N" bench seq=16 steps=2 --repeat 1 -o csv --quiet
    says out ",2," "n is the steps measured"
    printf 'model: tiny\nseq: 16\n' >mine.yaml
    run 0 "a recipe" bench train mine.yaml batch.micro=1 --steps 2 --repeat 1

    # Recomputation is work for the hardware but not for the model: with it hfu is above mfu,
    # without it both are equal.
    run 0 "rates" doctor --quiet
    run 0 "mfu and hfu" bench seq=16 recompute.mode=none,full --steps 2 --repeat 1 -o jsonl --quiet
    head -1 out >plain.json
    tail -1 out >again.json
    # A machine that was too busy stores no rates. Then there is nothing to compare.
    if ! grep -q '"mfu":null' plain.json; then
        json plain.json 'd["hfu"] == d["mfu"] > 0' "hfu without recomputation"
        json again.json 'd["hfu"] > 1.1 * d["mfu"] > 0' "hfu with recomputation"
    fi

    # Strategies compared with the recipe as given.
    run 0 "tradeoffs" bench tradeoffs seq=16 batch.micro=2 --steps 1 --warmup 0 --repeat 1 --json trade.json
    says out "rule of thumb" "tradeoffs: the table"
    says out "not measured: batch.accum=1 cannot be divided by 2" "tradeoffs: a strategy that is not there to be had"
    says out "| recompute full |" "tradeoffs: rows"
    json trade.json 'd["rows"][0]["strategy"] == "baseline" and d["rows"][-1]["strategy"] == "baseline again"' \
        "tradeoffs: the baseline comes first and last"
    json trade.json 'all(r["loss_difference"] == 0 for r in d["rows"] if r["strategy"].startswith("recompute"))' \
        "tradeoffs: recomputation changes no bit"
    json trade.json 'all(r["agreement"] in ("", "holds", "not measurable") or r["ratios"]["memory"] != 1 for r in d["rows"])' \
        "tradeoffs: one round is too few to call a speed different"
    json trade.json '[(r["strategy"], r["reason"]) for r in d["generation"]][:4] == [("bf16, 1 text", None), ("bf16, 8 texts side by side", None), ("int8, 1 text", None), ("int8, 8 texts side by side", None)]' \
        "tradeoffs: formats that generate"
    json trade.json 'all(r["tokens_per_s"] > 0 and r["ratios"]["memory"] > 0 and r["agreement"] in ("holds", "not measurable", "differs") for r in d["generation"])' \
        "tradeoffs: figures of the formats"
    json trade.json 'all(r["kl"] is None for r in d["generation"]) and "random" in d["generation_note"]' \
        "tradeoffs: random weights have no divergence"
    run 0 "some tradeoffs, as CSV" bench tradeoffs seq=16 batch.micro=2 --steps 1 --warmup 0 --repeat 1 --only "every 2" -o csv --quiet
    says out "recompute every 2,recompute.mode=full recompute.every=2,recompute full," "some tradeoffs, as CSV"
    [ "$(wc -l <out)" -eq 5 ] || fail "some tradeoffs: not the head, the baseline twice, the row and what it is compared with"
    run 2 "a strategy that is none" bench tradeoffs --only "zero,warp drive"
    says err "no strategy is called 'warp drive'" "a strategy that is none"
    run 2 "a strategy of bench train" bench train --only zero
    run 0 "tradeoffs with ranks" bench tradeoffs seq=16 batch.micro=2 batch.accum=2 --ranks 2 --steps 1 --warmup 0 --repeat 1 \
        --only "data parallel,zero,tensor,pipeline" --json trade.json
    says out "| pipeline, against data parallel |" "tradeoffs with ranks"
    json trade.json '[r["settings"] for r in d["rows"] if r["strategy"] == "ZeRO 3"] == ["parallel.data=2 batch.accum/2 zero.stage=3"]' \
        "tradeoffs with ranks: settings"
    json trade.json 'all(r["loss_difference"] == 0 for r in d["rows"] if r["strategy"].startswith("ZeRO"))' \
        "tradeoffs with ranks: ZeRO changes no bit"
    run 2 "a subject that is none" bench everything
    says err "haggle bench tradeoffs" "a subject that is none"

    # A process that dies is a row with a reason, and the other rows are measured nevertheless.
    "$haggle" bench seq=16 batch.micro=1,2 --steps 300 --repeat 1 -o jsonl >out 2>err &
    pid=$!
    for _ in $(seq 200); do
        child=$(pgrep -P $pid) && break
        sleep 0.01
    done
    kill -KILL "$child"
    wait $pid
    status=$?
    [ $status -eq 0 ] || fail "a child that dies: exit status $status, expected 0"
    head -1 out >dead.json
    tail -1 out >alive.json
    json dead.json 'not d["measured"] and "killed" in d["reason"]' "a child that dies"
    json alive.json 'd["measured"]' "the one after a child that died"

    "$haggle" bench seq=16 batch.micro=1,2 --steps 5000 --repeat 3 >out 2>err &
    pid=$!
    sleep 1
    kill -TERM $pid
    wait $pid
    status=$?
    [ $status -eq 75 ] || fail "stopped: exit status $status, expected 75"
    says out "batch.micro" "stopped: what was measured is printed"
}
finish
