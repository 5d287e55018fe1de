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
# held against. The ratio of two settings depends on how far the CPUs are from each other, and a
# hypervisor moves them (docs/tuner.md). So an interval is held against the pairs that ran at the
# distances which the search's rounds had: 9 of each at least, for which up to 15 more are run. A pair
# during which the CPUs moved belongs to no distance.
# Printed per search: what it announced, with its interval; the ratio that the turns showed at each of
# these distances, and in all pairs. In the end: how many decided, how wide the intervals are, how many
# hold the ratio, and every change of a choice that buys nothing at any distance with 9 pairs.
# Needs python3, and a machine that is quiet apart from this.
set -eu
cd "$(dirname "$0")/.."
haggle=$(realpath "${HAGGLE:-build/haggle}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 - "$haggle" "$folder" "${1:-10}" "${2:-60}" <<'PYTHON'
import contextlib, json, math, os, random, signal, statistics, subprocess, sys, time
haggle, folder, searches, seconds = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
PAIRS, MOST_PAIRS, ENOUGH, STEPS = 25, 40, 9, 60
ALIKE = 2.5  # states.apart_ratio in src/tune/policy.def
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


def speed(knobs):  # and the CPUs' distance, None if it changed meanwhile; "" if it is not known
    subprocess.run([haggle, "train", *[f"{k}={v}" for k, v in knobs.items()], f"steps={STEPS}", "eval.every=0",
                    "generate.tokens=0", "save.every=0", "save.last=false", "resume=false", "run.dir=run", "-q", "--json", "run.json"],
                   cwd=folder, check=True, capture_output=True, env=ENVIRONMENT)
    run = json.load(open(f"{folder}/run.json"))
    least, most = run["run"]["apart_ns"]["least"], run["run"]["apart_ns"]["most"]
    apart = "" if least is None else None if most > ALIKE * least else math.sqrt(least * most)
    return run["run"]["trained_tokens"] / run["run"]["steps_run"] / run["step_ms"]["p50"], apart


def alike(x, y):  # two distances; what is not known is like everything
    return x is not None and y is not None and ("" in (x, y) or max(x, y) <= ALIKE * min(x, y))


def in_turns(a, b, wanted=()):  # how many times as fast a is as b, with the distance, pair by pair
    pairs = []
    while len(pairs) < PAIRS or (len(pairs) < MOST_PAIRS and any(len(of_state(pairs, x)) < ENOUGH for x in wanted)):
        first, second = (speed(a), None) if len(pairs) % 2 else (None, speed(b))
        (of_a, apart_a), (of_b, apart_b) = first or speed(a), second or speed(b)
        together = alike(apart_a, apart_b)
        pairs.append((of_a / of_b, None if not together else apart_a or apart_b))
    return pairs


def of_state(pairs, apart):  # the ratios of the pairs that ran at this distance
    return [ratio for ratio, x in pairs if alike(x, apart)]


def states_of(pairs):  # the distances at which pairs ran, nearest first; "": none is known
    found = []
    for x in sorted(x for _, x in pairs if x):
        if not found or x > ALIKE * found[-1][-1]:
            found.append([])
        found[-1].append(x)
    return [statistics.median(x) for x in found] or [""]


def percent(ratios):
    return f"{100 * (statistics.median(ratios) - 1):+.1f} %" if ratios else "nothing"


rows = []
for number in range(1, searches + 1):
    micro = 1 << (number - 1) % 5
    given = {"model": "tiny", "seq": "64", "batch.micro": str(micro), "batch.accum": str(16 // micro)}
    found = search(number, given)
    settings = {s["name"]: s for s in found["settings"]}
    chosen, rival = found["chosen"], found.get("rival")
    gain = rival and settings[rival].get("in_turns") or {}
    row = {"why": found["why"], "low": gain.get("low"), "high": gain.get("high"), "idle": []}
    again = ""
    if rival and row["low"] is not None:
        wanted = [x["apart_ns"] or "" for x in gain["states"]]
        pairs = in_turns(given | settings[rival]["changes"], given, wanted)
        seen = [(x, of_state(pairs, x)) for x in wanted]
        told = [statistics.median(ratios) for _, ratios in seen if len(ratios) >= ENOUGH]
        if told:
            row["holds"] = all(row["low"] <= x <= row["high"] for x in told)
        again = ", again " + ", ".join(f"{percent(ratios)}{f' at {x:.0f} ns' if x else ''} in {len(ratios)} pairs" for x, ratios in seen)
        again += {True: " inside", False: " OUTSIDE", None: " too few to tell"}[row.get("holds")]
        again += f" ({percent([x for x, _ in pairs])} in all {len(pairs)} pairs)"
    groups = {}
    for knob, value in chosen["changes"].items():
        groups.setdefault("batch" if knob.startswith("batch.") else knob, {})[knob] = value
    for name in groups if len(groups) > 1 else []:
        less = {k: v for k, v in chosen["changes"].items() if k not in groups[name]}
        pairs = in_turns(given | chosen["changes"], given | less)
        buys = [x for x in (of_state(pairs, state) for state in states_of(pairs)) if len(x) >= ENOUGH]
        if buys and max(map(statistics.median, buys)) < 1.005:  # at no distance
            row["idle"].append(f"{name} ({', '.join(map(percent, buys))})")
    rows.append(row)
    interval = "no interval" if row["low"] is None else "%+.1f %% (%+.1f to %+.1f)" % tuple(100 * (x - 1) for x in (gain["ratio"], row["low"], row["high"]))
    print(f"{number:>3} batch.micro={given['batch.micro']}: {row['why']}, {chosen['name']}; {rival}: {interval} in {gain.get('rounds')} rounds{again}; "
          f"busy in {found['busy_visits']} of {found['trials']} trials; buys nothing: {', '.join(row['idle']) or 'none'}", flush=True)
decided = [r for r in rows if r["why"] != "too busy"]
held = [r for r in rows if r["low"] is not None]
told = [r["holds"] for r in held if "holds" in r]
widths = [100 * (r["high"] - r["low"]) for r in held]
print(f"{len(decided)} of {len(rows)} searches decide; {len(held)} intervals, median width "
      f"{statistics.median(widths) if widths else float('nan'):.1f} %; "
      f"{sum(told)} of {len(told)} hold the ratio measured again, {len(held) - len(told)} could not be told; "
      f"changes that buy nothing: {sum(len(r['idle']) for r in rows)}")
PYTHON
