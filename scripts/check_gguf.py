#!/usr/bin/env python3
"""Is a GGUF file that haggle writes the same model to llama.cpp?

    scripts/check_gguf.py --llama ~/llama.cpp RUN_OR_FOLDER [--type f16] [--merge] [--haggle build/haggle]

Exports to a temporary folder, with a probe: ids, haggle's losses and logits on them, and the ids of a few texts. Then
llama.cpp tokenizes the texts (llama-tokenize) and computes the same rows of ids, each position given the true ids before
it. Compared are the ids, the loss of every position, and the distribution behind the last one.

--llama is the source folder of a llama.cpp that was built in its folder build, with shared libraries and the target
llama-tokenize; without it, or if nothing is built there, the check says so and is skipped (exit status 77). Exit status:
0 agrees, 4 does not. Needs a C compiler.
"""
import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile

# Nats: the mean KL divergence of the last positions, and the mean difference of a position's loss. Quantized types have no
# limit here: llama.cpp also rounds what the weights multiply, and random ids are far from what a model knows.
NONE = math.inf
LIMITS = {"f32": (1e-6, 1e-3), "f16": (1e-3, 1e-2), "bf16": (1e-2, 5e-2), "q8_0": (NONE, NONE), "q4_0": (NONE, NONE)}
SKIPPED = 77


def run(command, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        sys.exit(f"{command[0]} failed ({done.returncode}): {done.stderr[-600:]}")
    return done.stdout


def build(llama, folder):
    """The program that dumps llama.cpp's logits, linked with the libraries that were built."""
    libraries = os.path.join(llama, "build", "bin")
    program = os.path.join(folder, "gguf_logits")
    source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gguf_logits.c")
    run([os.environ.get("CC", "cc"), "-O1", "-I", f"{llama}/include", "-I", f"{llama}/ggml/include", source, "-o", program,
         "-L", libraries, "-lllama", "-lggml", "-lggml-base", f"-Wl,-rpath,{os.path.abspath(libraries)}"])
    return program


def log_softmax(x):
    most = max(x)
    total = most + math.log(sum(math.exp(v - most) for v in x))
    return [v - total for v in x]


def divergence(ours, theirs):
    return sum(math.exp(a) * (a - b) for a, b in zip(log_softmax(ours), log_softmax(theirs)))


def other_texts(tokenizer, gguf, texts, folder):
    path, differ = os.path.join(folder, "text"), []
    for t in texts:
        with open(path, "w", encoding="utf-8", newline="") as f:
            f.write(t["text"])
        out = run([tokenizer, "-m", gguf, "-f", path, "--ids", "--no-bos", "--log-disable"])
        if json.loads(out.strip().splitlines()[-1]) != t["ids"]:
            differ.append(t["text"])
    return differ


def logits_of(program, gguf, rows):
    ids = [str(i) for r in rows for i in r]
    lines = run([program, gguf, str(len(rows)), str(len(rows[0]))] + ids).splitlines()
    return [[float(v) for v in line.split()] for line in lines]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("source")
    p.add_argument("--llama")
    p.add_argument("--type", default="f16", choices=LIMITS)
    p.add_argument("--merge", action="store_true")
    p.add_argument("--haggle", default="build/haggle")
    a = p.parse_args()
    tokenizer = os.path.join(a.llama or "", "build", "bin", "llama-tokenize")
    if not a.llama or not shutil.which(tokenizer):
        print(f"skipped: no llama.cpp ({tokenizer})")
        return SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        gguf, probe = os.path.join(folder, "model.gguf"), os.path.join(folder, "probe.json")
        run([a.haggle, "export", a.source, "--gguf", gguf, "--type", a.type, "--probe", probe] + ["--merge"] * a.merge)
        with open(probe, encoding="utf-8") as f:
            ours = json.load(f)
        differ = other_texts(tokenizer, gguf, ours["texts"], folder)
        rows = [r[:-1] for r in ours["tokens"]]
        theirs = logits_of(build(a.llama, folder), gguf, rows)
    columns, losses, kl, top = len(rows[0]), [], [], 0
    for r, tokens in enumerate(ours["tokens"]):
        for t in range(columns):
            losses.append(abs(-log_softmax(theirs[r * columns + t])[tokens[t + 1]] - ours["losses"][r][t]))
        last, mine = theirs[(r + 1) * columns - 1], ours["last_logits"][r]
        kl.append(divergence(mine, last))
        top += max(range(len(mine)), key=mine.__getitem__) != max(range(len(last)), key=last.__getitem__)
    figures = [("KL divergence behind the last position, mean, nats", sum(kl) / len(kl), LIMITS[a.type][0]),
               ("loss of a position, mean difference, nats", sum(losses) / len(losses), LIMITS[a.type][1])]
    good = True
    for name, value, limit in figures:
        good = good and value <= limit  # false for NaN
        print(f"  {'ok' if value <= limit else 'OFF':<4} {name:<54} {value:9.2e}  (limit {limit:g})")
    print(f"       likeliest successors that differ: {top} of {len(rows)}")
    print(f"       texts with other ids: {len(differ)} of {len(ours['texts'])}")
    for text in differ:
        print(f"         {text!r}")
    return 0 if good else 4


if __name__ == "__main__":
    sys.exit(main())
