#!/usr/bin/env bash
# gpu.sh - training steps on a GPU beside PyTorch's, in one call.
#
#   bench/gpu.sh [ROW...]       rows: see the table below; without one, all of them (some 15 minutes)
#   HAGGLE=build/haggle         the program
#   PEER=torch_train.py         PyTorch's script: takes --model --seq --mb --mode --compile-mode --sdpa --lora
#                               --steps, prints one JSON line per micro-batch with tok_s, p50_ms, p99_ms
#                               and peak_gib; without it only haggle is measured
#   SETTINGS="knob=value ..."   for haggle, in every row
#   STEPS=30                    steps of a measurement; LATENCY=500 those of rows about percentiles
#   MICRO=32 PEER_MICRO=64      only these micro-batches of haggle and of the peer
#
# Both sides run random tokens through the whole step: forward, backward, clipping, AdamW on float
# masters, bf16 products. A row names the micro-batches that are tried; the best one of each side
# counts, so a peer is compared at its best setting. Needs python3.
set -eu
cd "$(dirname "$0")/.."
haggle=$(realpath "${HAGGLE:-build/haggle}")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 - "$haggle" "${PEER:-}" "$folder" "${STEPS:-30}" "${LATENCY:-500}" "$@" <<'PYTHON'
import itertools, json, os, random, subprocess, sys, time
haggle, peer, folder, steps, latency = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
# name: model, seq, vocabulary, micro-batches of haggle, of the peer, the peer's modes, for percentiles
ROWS = {
    "gpt2-124m": ("gpt2-124m", 1024, 50257, "32,64", "64", ["default"], True),
    "gpt2-124m-1": ("gpt2-124m", 1024, 50257, "1", "1", ["reduce-overhead"], True),
    "gpt2-1558m": ("gpt2-1558m", 1024, 50257, "16", "16", ["default"], False),
    "llama-1b": ("llama-1b", 4096, 128256, "4", "4", ["default"], False),
    "qwen2-0.5b": ("qwen2-0.5b", 1024, 151936, "16,32", "8,32", ["default"], False),
    "qwen2-1.5b": ("qwen2-1.5b", 1024, 151936, "16,32", "8,16", ["default"], False),
    "llama-8b": ("llama-8b", 4096, 128256, "2", "", [], False),
    "llama-8b-lora": ("llama-8b", 2048, 128256, "1,4", "1,2,4", ["default"], False),
}
EXTRA = {"llama-8b": ["optim.state=int8", "batch.accum=16"], "llama-8b-lora": ["lora.rank=16", "lora.alpha=32"]}
PEER_EXTRA = {"llama-8b-lora": ["--lora", "16"]}  # its head is the embedding; ours is a weight of its own, 1 GiB


def ids(vocabulary, seq):
    path = f"{folder}/{vocabulary}-{seq}.jsonl"
    if not os.path.exists(path):
        random.seed(1)
        with open(path, "w") as f:
            for _ in range(max(80, 400000 // seq)):
                f.write(json.dumps({"input_ids": [random.randrange(vocabulary) for _ in range(seq + 1)]}) + "\n")
    return path


def own(row, n):
    model, seq, vocabulary, micro, _, _, _ = ROWS[row]
    micro = os.environ.get("MICRO") or micro
    if row == "llama-8b":  # a step takes ten seconds
        n = min(n, 5)
    command = [haggle, "bench", "train", f"model={model}", f"seq={seq}", f"batch.micro={micro}", "precision=bf16", "device=cuda",
               f"data.path={ids(vocabulary, seq)}", "data.pack=none", "tokenizer=ids", *EXTRA.get(row, []), "--repeat", "1", "--steps", str(n),
               "--warmup", "5", "-o", "json", "-q", *os.environ.get("SETTINGS", "").split()]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    try:
        rows = json.loads(done.stdout)
    except ValueError:
        sys.exit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    for r in rows:
        if not r.get("measured"):
            print(f"  {row}: not measured: {r.get('reason')}", flush=True)
            continue
        step, memory = r["step_ms"], r["memory"]
        yield {"who": "haggle", "micro": r["knobs"].get("batch.micro", micro), "tok_s": r["tokens"] / r["steps"] / step["p50"] * 1000,
               "p50": step["p50"], "p99": step["p99"], "gib": (memory["measured_bytes"] or 0) / 2**30,
               "predicted": (memory["predicted_bytes"] or 0) / 2**30}


def theirs(row, n):
    model, seq, _, _, micro, modes, _ = ROWS[row]
    micro = os.environ.get("PEER_MICRO") or micro
    for mode in modes if peer else []:
        command = ["python3", peer, "--model", model, "--seq", str(seq), "--mb", micro, "--sdpa", "cudnn", "--steps", str(n),
                   *PEER_EXTRA.get(row, [])]
        if mode != "default":
            command += ["--compile-mode", mode]
        done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for line in done.stdout:
            d = json.loads(line)
            if "tok_s" in d:
                yield {"who": "PyTorch", "micro": d["mb"], "tok_s": d["tok_s"], "p50": d["p50_ms"], "p99": d["p99_ms"], "gib": d["peak_gib"],
                       "predicted": None}
        words = done.stderr.read()
        if done.wait() != 0:
            print(f"  {row}: PyTorch: {words.strip().splitlines()[-1:]}", flush=True)


print(f"{'row':<14} {'who':<8} {'micro':>5} {'tokens/s':>10} {'p50 ms':>9} {'p99/p50':>8} {'memory GiB':>11} {'planned':>8}")

for row in sys.argv[6:] or ROWS:
    n, best, start = latency if ROWS[row][6] else steps, {}, time.time()
    for r in itertools.chain(own(row, n), theirs(row, n)):
        planned = f"{r['predicted']:8.2f}" if r["predicted"] else ""
        print(f"{row:<14} {r['who']:<8} {r['micro']:>5} {r['tok_s']:10.0f} {r['p50']:9.2f} {r['p99'] / r['p50']:8.3f} {r['gib']:11.2f} {planned}",
              flush=True)
        if r["who"] not in best or r["tok_s"] > best[r["who"]]["tok_s"]:
            best[r["who"]] = r
    if len(best) == 2:
        print(f"{row:<14} ratio of the best: {best['haggle']['tok_s'] / best['PyTorch']['tok_s']:.3f}   ({time.time() - start:.0f} s)", flush=True)
PYTHON
