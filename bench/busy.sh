#!/usr/bin/env bash
# busy.sh - is the tuner's word good on a machine where other programs come and go?
#
#   bench/busy.sh [SEARCHES [SECONDS]]        10 searches of 60 s each: some 25 minutes
#
# A load comes and goes: one or two busy loops for one to eight seconds, then as long without. Under it
# `haggle tune` searches SEARCHES times, each time with no store and an empty cache, from recipes that
# differ in their micro-batch: from some there is much to gain, from others nothing. After each search
# the load stops, and as given and what it was compared with train in turns, 25 times each: a pair of
# runs differs from the next by 2 to 3 %, so fewer would be less exact than the intervals they are
# held against. The turns follow at once, because the ratio of two settings drifts by several per cent
# within minutes where other virtual machines share the cores (docs/tuner.md). Printed per search:
# what it announced, with its interval, and the ratio that the turns showed. In the end: how many
# decided, how wide the intervals are, how many hold the ratio, and every change of a choice that buys
# nothing.
# Needs python3, and a machine that is quiet apart from this.
set -eu
cd "$(dirname "$0")/.."
haggle=$(realpath "${HAGGLE:-build/haggle}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 - "$haggle" "$folder" "${1:-10}" "${2:-60}" <<'PYTHON'
import contextlib, json, os, random, signal, statistics, subprocess, sys, time
haggle, folder, searches, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
PAIRS, STEPS = 25, 60
ENVIRONMENT = dict(os.environ, XDG_CACHE_HOME=f"{folder}/cache")


@contextlib.contextmanager
def load():  # busy loops that come and go, until the block ends
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        while True:
            busy = 1 + random.randrange(8)
            loops = [subprocess.Popen(["timeout", "--foreground", str(busy), "sh", "-c", "while :; do :; done"]) for _ in range(1 + random.randrange(2))]
            for loop in loops:
                loop.wait()
            time.sleep(1 + random.randrange(8))
    try:
        yield
    finally:
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def search(number, given):
    path = f"{folder}/tune-{number}.json"
    with load():
        done = subprocess.run([haggle, "tune", *[f"{k}={v}" for k, v in given.items()], "--time", f"{seconds}s", "--store", "none",
                               "--report", "none", "--save", f"choice-{number}.yaml", "--json", path, "-q"],
                              cwd=folder, capture_output=True, text=True, env=dict(ENVIRONMENT, XDG_CACHE_HOME=f"{folder}/cache-{number}"))
    if not os.path.exists(path):
        sys.exit(done.stderr)
    return json.load(open(path))


def speed(knobs):
    subprocess.run([haggle, "train", *[f"{k}={v}" for k, v in knobs.items()], f"steps={STEPS}", "eval.every=0",
                    "generate.tokens=0", "save.every=0", "save.last=false", "resume=false", "run.dir=run", "-q", "--json", "run.json"],
                   cwd=folder, check=True, capture_output=True, env=ENVIRONMENT)
    run = json.load(open(f"{folder}/run.json"))
    return run["run"]["trained_tokens"] / run["run"]["steps_run"] / run["step_ms"]["p50"]


def in_turns(a, b):  # how many times as fast a is as b
    ratios = []
    for i in range(PAIRS):
        first, second = (speed(a), None) if i % 2 else (None, speed(b))
        ratios.append((first or speed(a)) / (second or speed(b)))
    return statistics.median(ratios)


rows = []
for number in range(1, searches + 1):
    micro = 1 << (number - 1) % 5
    given = {"model": "tiny", "seq": "64", "batch.micro": str(micro), "batch.accum": str(16 // micro)}
    found = search(number, given)
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
