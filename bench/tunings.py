#!/usr/bin/env python3
"""tunings.py - does `haggle tune` choose the same setting again, and does it keep the budgets?

Everything runs through the haggle program. Nothing is kept from one search to the next.
  1. Runs the same search --times times, each with an empty cache and no store. After each search it
     trains twice with the choice, for --steps steps: is the budget kept, is the speed as reported,
     and how much do the two runs differ (on a shared machine they do)?
  2. Runs the different choices in turns, --rounds of short training runs. The most frequent choice
     runs twice in each round, which shows the noise. Prints which choices are within 2 % of it, by
     the typical step.

  bench/tunings.py [--times N] [--rounds N] [--steps N] [--haggle PROGRAM] -- FLAGS AND KNOBS OF haggle tune

Each run is a separate process. Its first steps, which haggle leaves out of its figures, are left out
here too. Turns are short, because load from other programs lasts for seconds and should affect all
choices.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

SAME, TURN_STEPS = 0.02, 40


def call(haggle, arguments, folder):
    environment = dict(os.environ, XDG_CACHE_HOME=os.path.join(folder, "cache"))
    done = subprocess.run([haggle, *arguments, "-q"], cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"tunings.py: haggle {' '.join(arguments)}: {done.stderr.strip()}")


def read(path):
    with open(path) as f:
        return json.load(f)


def tune(haggle, arguments, folder, number):
    subprocess.run(["rm", "-rf", os.path.join(folder, "cache")], check=True)
    recipe, result = f"choice-{number}.yaml", f"tune-{number}.json"
    call(haggle, ["tune", *arguments, "--store", "none", "--report", "none", "--save", recipe, "--json", result], folder)
    found = read(os.path.join(folder, result))
    return {"recipe": recipe, "found": found, "changes": json.dumps(found["chosen"]["changes"], sort_keys=True)}


# A new training run without validation, samples and checkpoints.
def train(haggle, recipe, steps, folder):
    call(haggle, ["train", recipe, f"steps={steps}", "eval.every=0", "generate.tokens=0", "save.last=false", "resume=false",
                  "--json", "run.json"], folder)
    return read(os.path.join(folder, "run.json"))


def typical(haggle, choice, folder):
    run = train(haggle, choice["recipe"], TURN_STEPS, folder)
    return run["step_ms"]["p50"] * run["run"]["steps_run"] / run["run"]["trained_tokens"]


def middle(numbers):
    """The median and the quartiles."""
    ordered = sorted(numbers)
    return statistics.median(ordered), ordered[len(ordered) // 4], ordered[3 * len(ordered) // 4]


def compare(haggle, choices, rounds, folder):
    by_changes = {}
    for c in choices:
        by_changes.setdefault(c["changes"], []).append(c)
    groups = sorted(by_changes.values(), key=lambda group: -len(group))
    usual = groups[0][0]
    ratios, noise = [[] for _ in groups], []
    for i in range(rounds if len(groups) > 1 else 0):
        turns = [usual] + [group[0] for group in groups]
        order = range(len(turns)) if i % 2 == 0 else reversed(range(len(turns)))
        took = {k: typical(haggle, turns[k], folder) for k in order}
        noise.append(took[1] / took[0])
        for k in range(len(groups)):
            ratios[k].append(took[k + 1] / took[k + 1 if k == 0 else 1])
    near = 0
    if noise:
        m, low, high = middle(noise)
        print(f"  the usual choice against itself: {100 * (m - 1):+.1f} % (half of {rounds} rounds "
              f"{100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %)")
    for group, of in zip(groups, ratios):
        m, low, high = middle(of) if of else (1, 1, 1)
        within = abs(m - 1) <= SAME
        near += len(group) if within else 0
        print(f"  {len(group):2d} x {group[0]['found']['chosen']['name']}: {100 * (m - 1):+.1f} % time per token "
              f"({100 * (low - 1):+.1f} to {100 * (high - 1):+.1f} %){'' if within else ', further than 2 %'}")
    print(f"same or within 2 %: {near} of {len(choices)}")


class Fresh:
    """Compares the training runs of a choice with its reported figures and with each other."""

    def __init__(self):
        self.ratios, self.steps, self.apart, self.kept, self.limits = [], [], [], 0, []

    def run(self, haggle, choice, steps, folder, margin=10):
        found = choice["found"]
        self.limits = [(b["percentile"], b["limit_ms"]) for b in found["budgets"] if b["of"] == "step"]
        speeds = []
        for _ in range(2):
            run = train(haggle, choice["recipe"], steps + margin, folder)
            speeds.append(run["tokens_per_s"])
            values = [(p, run["step_ms"][p], limit) for p, limit in self.limits]
            good = all(value <= limit for _, value, limit in values)
            self.kept += good
            self.ratios.append(run["tokens_per_s"] / found["chosen"]["tokens_per_s"])
            self.steps.append(run["step_ms"]["p50"] / found["chosen"]["step_ms_p50"]["value"])
            print(f"  fresh: {run['tokens_per_s']:.0f} tokens/s ({100 * (self.ratios[-1] - 1):+.1f} %)",
                  *[f"{p} {value:.1f} ms (budget {limit:.1f}, n={run['step_ms']['n']})" for p, value, limit in values],
                  "" if good else "BROKEN", flush=True)
        self.apart.append(abs(speeds[1] / speeds[0] - 1))

    def sum_up(self):
        apart = sorted(abs(r - 1) for r in self.ratios)
        print(f"fresh against reported tokens/s: median {100 * (statistics.median(self.ratios) - 1):+.1f} %, "
              f"half of them within {100 * statistics.median(apart):.1f} %, all within {100 * apart[-1]:.1f} %")
        print(f"their median step against the reported one: median {100 * (statistics.median(self.steps) - 1):+.1f} %, half of "
              f"them within {100 * statistics.median(sorted(abs(r - 1) for r in self.steps)):.1f} %")
        print(f"two fresh runs, one after the other: half of them within {100 * statistics.median(self.apart):.1f} % of "
              f"each other, all within {100 * max(self.apart):.1f} %")
        if self.limits:
            print(f"budget kept in {self.kept} of {len(self.ratios)} fresh runs")


def main():
    at = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--haggle", default="build/haggle")
    o = parser.parse_args(sys.argv[1:at])
    haggle, arguments = os.path.abspath(o.haggle), sys.argv[at + 1:]
    with tempfile.TemporaryDirectory() as folder:
        choices, fresh = [], Fresh()
        for i in range(o.times):
            choices.append(tune(haggle, arguments, folder, i + 1))
            found = choices[-1]["found"]
            print(f"tuning {i + 1}: {found['seconds']:.0f} s, {found['trials']} trials, {found['chosen']['name']}, "
                  f"{found['chosen']['tokens_per_s']:.0f} tokens/s"
                  f"{', provisional' if found['provisional'] else ''}", flush=True)
            if o.steps > 0:
                fresh.run(haggle, choices[-1], o.steps, folder)
        if o.steps > 0:
            fresh.sum_up()
        compare(haggle, choices, o.rounds, folder)


if __name__ == "__main__":
    main()
