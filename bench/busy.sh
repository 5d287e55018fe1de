#!/usr/bin/env bash
# busy.sh - is the tuner's word good on a machine where other programs come and go?
#
#   bench/busy.sh [SEARCHES [SECONDS]]        10 searches of 60 s each: some 25 minutes
#
# A load comes and goes: one or two busy loops for one to eight seconds, then as long without. Under it
# `haggle tune` searches SEARCHES times, each time with no store and an empty cache, from recipes that
# differ in their micro-batch: from some there is much to gain, from others nothing. Then the load
# stops, and as given and what it was compared with train in turns, 25 times each: a pair of runs
# differs from the next by 2 to 3 %, so fewer would be less exact than the intervals they are held
# against. Two searches that compared the same settings share these turns. Printed per search: what it
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
for i in $(seq "$searches"); do
    micro=$((1 << (i - 1) % 5))
    given=(model=tiny seq=64 "batch.micro=$micro" "batch.accum=$((16 / micro))")
    printf '%s\n' "${given[*]}" >"$folder/given-$i"
    load_begin
    (cd "$folder" && XDG_CACHE_HOME="$folder/cache-$i" "$haggle" tune "${given[@]}" --time "${seconds}s" --store none \
        --report none --save "choice-$i.yaml" --json "tune-$i.json" -q >/dev/null 2>"tune-$i.err") || true
    load_end
    [ -s "$folder/tune-$i.json" ] || { cat "$folder/tune-$i.err" >&2; exit 1; }
done
python3 - "$haggle" "$folder" "$searches" <<'PYTHON'
import json, os, statistics, subprocess, sys
haggle, folder, searches = sys.argv[1], sys.argv[2], int(sys.argv[3])
PAIRS, STEPS = 25, 60
known = {}


def speed(knobs):
    subprocess.run([haggle, "train", *[f"{k}={v}" for k, v in knobs.items()], f"steps={STEPS}", "eval.every=0",
                    "generate.tokens=0", "save.every=0", "save.last=false", "resume=false", "run.dir=run", "-q", "--json", "run.json"],
                   cwd=folder, check=True, capture_output=True, env=dict(os.environ, XDG_CACHE_HOME=f"{folder}/cache"))
    run = json.load(open(f"{folder}/run.json"))
    return run["run"]["trained_tokens"] / run["run"]["steps_run"] / run["step_ms"]["p50"]


def in_turns(a, b):  # how many times as fast a is as b
    key = json.dumps([a, b], sort_keys=True)
    if key not in known:
        ratios = []
        for i in range(PAIRS):
            first, second = (speed(a), None) if i % 2 else (None, speed(b))
            ratios.append((first or speed(a)) / (second or speed(b)))
        known[key] = statistics.median(ratios)
    return known[key]


rows = []
for number in range(1, searches + 1):
    given = dict(k.split("=", 1) for k in open(f"{folder}/given-{number}").read().split())
    found = json.load(open(f"{folder}/tune-{number}.json"))
    settings = {s["name"]: s for s in found["settings"]}
    chosen, rival = found["chosen"], found.get("rival")
    gain = rival and settings[rival].get("in_turns") or {}
    row = {"why": found["why"], "low": gain.get("low"), "high": gain.get("high"), "idle": []}
    if rival and row["low"] is not None:
        row["again"] = in_turns(given | settings[rival]["changes"], given)
    groups = {}
    for knob, value in chosen["changes"].items():
        groups.setdefault("batch" if knob.startswith("batch.") else knob, {})[knob] = value
    for name in groups if len(groups) > 1 else []:
        less = {k: v for k, v in chosen["changes"].items() if k not in groups[name]}
        buys = in_turns(given | chosen["changes"], given | less)
        if buys < 1.005:
            row["idle"].append(f"{name} ({100 * (buys - 1):+.1f} %)")
    rows.append(row)
    interval = "no interval" if row["low"] is None else "%+.1f %% (%+.1f to %+.1f)" % tuple(100 * (x - 1) for x in (gain["ratio"], row["low"], row["high"]))
    again = "" if "again" not in row else ", again %+.1f %% %s" % (100 * (row["again"] - 1), "inside" if row["low"] <= row["again"] <= row["high"] else "OUTSIDE")
    print(f"{number:>3} batch.micro={given['batch.micro']}: {row['why']}, {chosen['name']}; {rival}: {interval} in {gain.get('rounds')} rounds{again}; "
          f"busy in {found['busy_visits']} of {found['trials']} trials; buys nothing: {', '.join(row['idle']) or 'none'}", flush=True)
decided = [r for r in rows if r["why"] != "too busy"]
held = [r for r in rows if "again" in r]
widths = [100 * (r["high"] - r["low"]) for r in held]
print(f"{len(decided)} of {len(rows)} searches decide; {len(held)} intervals, median width "
      f"{statistics.median(widths) if widths else float('nan'):.1f} %; "
      f"{sum(r['low'] <= r['again'] <= r['high'] for r in held)} of {len(held)} hold the ratio measured again; "
      f"changes that buy nothing: {sum(len(r['idle']) for r in rows)}")
PYTHON
