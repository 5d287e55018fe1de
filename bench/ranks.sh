#!/usr/bin/env bash
# ranks.sh - what do two ranks keep of the speed of one?
#
#   bench/ranks.sh [ROUNDS [STEPS [SETTING...]]]    3 rounds of 4 steps of gpt2-124m: some 5 minutes
#
# One rank with two threads and 8 sequences against two ranks with one thread and 4 sequences each: the
# same cores and the same tokens per step. Ranks are processes over MPI, then threads of one process.
# The runs alternate, so that a slow minute falls on all of them. Printed per round: tokens/s by the
# median step, and what part of a rank's time was exposed communication. In the end: the median ratio
# of each kind of ranks to one rank, and its spread. Needs python3, MPI, and a quiet machine.
set -eu
cd "$(dirname "$0")/.."
haggle=$(realpath "${HAGGLE:-build/haggle}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
rounds=${1:-3} steps=${2:-4}
shift $(($# < 2 ? $# : 2))
python3 - "$haggle" "$folder" "$rounds" "$steps" "$@" <<'PYTHON'
import json, statistics, subprocess, sys
haggle, folder, rounds, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
shape = sys.argv[5:] or ["model=gpt2-124m", "seq=256"]
kinds = {
    "1 rank x 2 threads": ["ranks=1", "threads=2", "batch.micro=8"],
    "2 MPI ranks x 1 thread": ["ranks=2", "threads=1", "batch.micro=4", "comm.engine=mpi"],
    "2 thread ranks x 1 thread": ["ranks=2", "threads=1", "batch.micro=4", "comm.engine=thread"],
}


def run(settings):
    command = [haggle, "train", *shape, "device=cpu", "batch.accum=1", *settings, f"steps={steps}", "eval.every=0", "generate.tokens=0",
               "save.every=0", "save.last=false", "resume=false", "run.dir=run", "-q", "--json", "run.json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    d = json.load(open(f"{folder}/run.json"))
    ranks = d.get("rank_results") or []
    exposed = max((r["exposed_communication_ms"] / r["step_ms_p50"] for r in ranks), default=0)
    return 1000 * d["run"]["trained_tokens"] / d["run"]["steps_run"] / d["step_ms"]["p50"], exposed


speeds = {kind: [] for kind in kinds}
for i in range(rounds):
    for kind in list(kinds)[:: 1 if i % 2 == 0 else -1]:
        speed, exposed = run(kinds[kind])
        speeds[kind].append(speed)
        print(f"round {i + 1}: {kind:<26} {speed:8.1f} tokens/s" + (f", {100 * exposed:.1f} % exposed communication" if exposed else ""), flush=True)
one = speeds["1 rank x 2 threads"]
for kind in list(kinds)[1:]:
    ratios = [a / b for a, b in zip(speeds[kind], one)]
    print(f"{kind} / 1 rank x 2 threads: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
PYTHON
