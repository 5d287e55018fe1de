#!/usr/bin/env bash
# busy.sh - is the tuner's word good on a machine where other programs come and go?
#
#   bench/busy.sh [SEARCHES [SECONDS]]        10 searches of 60 s each: some 17 minutes
#
# A load comes and goes: one or two busy loops for one to eight seconds, then as long without. Under it
# `haggle tune` searches SEARCHES times, each time with no store and an empty cache, from recipes that
# differ in their micro-batch: from some there is much to gain, from others nothing. Then the load
# stops, and as given and what it was compared with train in turns. Printed per search: what it
# announced, with its interval, and the ratio that the turns showed. In the end: how many decided, how
# wide the intervals are, how many hold the ratio, and every change of a choice that buys nothing.
# Needs python3, and a machine that is quiet apart from this.
set -eu
cd "$(dirname "$0")/.."
haggle=$(realpath "${HAGGLE:-build/haggle}")
folder=$(mktemp -d)
load=

load_begin() {
    (
        trap 'kill $(jobs -p) 2>/dev/null; exit' TERM
        while :; do
            seconds=$((1 + RANDOM % 8))
            for _ in $(seq $((1 + RANDOM % 2))); do
                timeout "$seconds" sh -c 'while :; do :; done' &
            done
            sleep "$seconds" &
            wait $! || true
            sleep $((1 + RANDOM % 8)) &
            wait $! || true
        done
    ) &
    load=$!
}

load_end() {
    [ -z "$load" ] || kill "$load" 2>/dev/null || true
    wait 2>/dev/null || true
    load=
}
trap 'load_end; rm -rf "$folder"' EXIT

searches=${1:-10} seconds=${2:-60}
: >"$folder/list"
for i in $(seq "$searches"); do
    micro=$((1 << (i - 1) % 5))
    given=(model=tiny seq=64 "batch.micro=$micro" "batch.accum=$((16 / micro))")
    load_begin
    status=0
    (cd "$folder" && XDG_CACHE_HOME="$folder/cache-$i" "$haggle" tune "${given[@]}" --time "${seconds}s" --store none \
        --report none --save "choice-$i.yaml" --json "tune-$i.json" -q >/dev/null 2>"tune-$i.err") || status=$?
    load_end
    [ -s "$folder/tune-$i.json" ] || { cat "$folder/tune-$i.err" >&2; exit 1; }
    printf '%s %s %s\n' "$i" "$status" "${given[*]}" >>"$folder/list"
    python3 - "$haggle" "$folder" "$i" "${given[@]}" <<'PYTHON'
import json, os, statistics, subprocess, sys
haggle, folder, number, given = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:]
PAIRS, STEPS = 11, 60
found = json.load(open(f"{folder}/tune-{number}.json"))
settings = {s["name"]: s for s in found["settings"]}


def speed(changes):
    knobs = dict(k.split("=", 1) for k in given) | changes
    subprocess.run([haggle, "train", *[f"{k}={v}" for k, v in knobs.items()], f"steps={STEPS}", "eval.every=0",
                    "generate.tokens=0", "save.every=0", "save.last=false", "resume=false", "run.dir=run", "-q", "--json", "run.json"],
                   cwd=folder, check=True, capture_output=True, env=dict(os.environ, XDG_CACHE_HOME=f"{folder}/cache"))
    run = json.load(open(f"{folder}/run.json"))
    return run["run"]["trained_tokens"] / run["run"]["steps_run"] / run["step_ms"]["p50"]


def in_turns(a, b):  # how many times as fast a is as b
    ratios = []
    for i in range(PAIRS):
        first, second = (speed(a), None) if i % 2 else (None, speed(b))
        ratios.append((first or speed(a)) / (second or speed(b)))
    return statistics.median(ratios)


chosen, rival = found["chosen"], found.get("rival")
gain = rival and settings[rival].get("in_turns") or {}
row = {"why": found["why"], "chosen": chosen["name"], "rival": rival, "busy": found["busy_visits"], "trials": found["trials"],
       "low": gain.get("low"), "high": gain.get("high"), "ratio": gain.get("ratio"), "rounds": gain.get("rounds"), "idle": []}
if rival and row["low"] is not None:
    row["again"] = in_turns(settings[rival]["changes"], {})
groups = {}
for knob, value in chosen["changes"].items():
    groups.setdefault("batch" if knob.startswith("batch.") else knob, {})[knob] = value
for name in groups if len(groups) > 1 else []:
    less = {k: v for k, v in chosen["changes"].items() if k not in groups[name]}
    buys = in_turns(chosen["changes"], less)
    if buys < 1.005:
        row["idle"].append(f"{name} ({100 * (buys - 1):+.1f} %)")
json.dump(row, open(f"{folder}/row-{number}.json", "w"))
interval = "no interval" if row["low"] is None else "%+.1f %% (%+.1f to %+.1f)" % tuple(100 * (row[k] - 1) for k in ("ratio", "low", "high"))
again = "" if "again" not in row else ", again %+.1f %% %s" % (100 * (row["again"] - 1), "inside" if row["low"] <= row["again"] <= row["high"] else "OUTSIDE")
print(f"{number:>3} {' '.join(given[2:])}: {row['why']}, {row['chosen']}; {rival}: {interval} in {row['rounds']} rounds{again}; "
      f"busy in {row['busy']} of {row['trials']} trials; buys nothing: {', '.join(row['idle']) or 'none'}", flush=True)
PYTHON
done
python3 - "$folder" "$searches" <<'PYTHON'
import json, statistics, sys
rows = [json.load(open(f"{sys.argv[1]}/row-{i}.json")) for i in range(1, int(sys.argv[2]) + 1)]
decided = [r for r in rows if r["why"] != "too busy"]
held = [r for r in rows if "again" in r]
widths = [100 * (r["high"] - r["low"]) for r in held]
print(f"{len(decided)} of {len(rows)} searches decide; {len(held)} intervals, median width "
      f"{statistics.median(widths) if widths else float('nan'):.1f} %; "
      f"{sum(r['low'] <= r['again'] <= r['high'] for r in held)} of {len(held)} hold the ratio measured again; "
      f"changes that buy nothing: {sum(len(r['idle']) for r in rows)}")
PYTHON
