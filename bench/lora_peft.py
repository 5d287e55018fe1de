#!/usr/bin/env python3
"""What an adapter learns, beside PEFT: both train the same adapter on the same batches.

    bench/lora_peft.py MODEL TEXT [--rank 16] [--lr 3e-3] [--steps 200] [--seeds 3] [--haggle build/haggle] [KNOB=VALUE ...]

MODEL is a Hugging Face folder, TEXT a text that is new to it. The text is cut into sequences; the last tenth is held
out. Both sides have the same rank, factor, targets (every linear layer of a block), AdamW, clipping and schedule. Initial
adapters are random on both sides, and the order of sequences is each side's own, so a few seeds are compared. Printed:
the validation loss of the model as it is and after training, for each seed, and the ratio of the medians.

Needs torch, transformers and peft. Knobs go to haggle, such as device=cuda; PEFT takes a GPU if there is one.
"""
import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

BETAS, EPS, CLIP, WARMUP, LEAST = (0.9, 0.95), 1e-8, 1.0, 10, 0.1


def sequences(o):
    ids = Tokenizer.from_file(os.path.join(o.model, "tokenizer.json")).encode(open(o.text).read(), add_special_tokens=False).ids
    rows = [ids[i:i + o.seq + 1] for i in range(0, len(ids) - o.seq, o.seq)]
    held = max(1, len(rows) // 10)
    return rows[:-held], rows[-held:]


def haggle(o, folder, files, seed, steps, batches):
    words = [f"model={o.model}", f"data.path={files[0]}", f"data.val_path={files[1]}", "data.pack=none", f"seq={o.seq}",
             f"steps={steps}", f"batch.micro={o.micro}", f"seed={seed}", f"optim.lr={o.lr if steps > 1 else 1e-30}", "optim.decay=0",
             f"sched.warmup={WARMUP}", f"lora.rank={o.rank}", f"lora.alpha={2 * o.rank}", f"eval.every={steps}",
             f"eval.batches={batches}", "generate.tokens=0", "save.last=false", "save.every=0", "resume=false",
             f"run.dir={folder}/run", *o.knobs]
    done = subprocess.run([o.haggle, "train", *words, "-q", "--json", f"{folder}/run.json"], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stderr[-2000:]}")
    with open(f"{folder}/run.json") as f:
        return json.load(f)["validation"]["loss"]


def rate(o, step):
    if step + 1 < WARMUP:
        return o.lr * (step + 1) / WARMUP
    done = (step - WARMUP + 1) / (o.steps - WARMUP)
    return o.lr * (LEAST + (1 - LEAST) * 0.5 * (1 + math.cos(math.pi * done)))


def loss_of(model, rows, device):
    rows = torch.tensor(rows, device=device)
    logits = model(rows[:, :-1]).logits.float()
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), rows[:, 1:].reshape(-1))


def validate(model, rows, o, device):
    model.eval()
    with torch.no_grad():
        losses = [loss_of(model, rows[i:i + o.micro], device).item() * len(rows[i:i + o.micro]) for i in range(0, len(rows), o.micro)]
    model.train()
    return sum(losses) / len(rows)


def peft(o, train, held, seed, device):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_pretrained(o.model, dtype=torch.float32).to(device)
    before = validate(model, held, o, device)
    model = get_peft_model(model, LoraConfig(r=o.rank, lora_alpha=2 * o.rank, target_modules="all-linear", lora_dropout=0.0,
                                             task_type="CAUSAL_LM"))
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=o.lr, betas=BETAS, eps=EPS, weight_decay=0.0)
    order = []
    for step in range(o.steps):
        while len(order) < o.micro:
            order += torch.randperm(len(train)).tolist()
        batch, order = order[:o.micro], order[o.micro:]
        loss_of(model, [train[i] for i in batch], device).backward()
        torch.nn.utils.clip_grad_norm_(trained, CLIP)
        for group in optimizer.param_groups:
            group["lr"] = rate(o, step)
        optimizer.step()
        optimizer.zero_grad()
    return before, validate(model, held, o, device), sum(p.numel() for p in trained)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("model")
    a.add_argument("text")
    for name, default in (("rank", 16), ("steps", 200), ("seeds", 3), ("seq", 256), ("micro", 8)):
        a.add_argument(f"--{name}", type=int, default=default)
    a.add_argument("--lr", type=float, default=3e-3)
    a.add_argument("--haggle", default="build/haggle")
    a.add_argument("knobs", nargs="*")
    o = a.parse_intermixed_args()
    o.model, o.haggle = os.path.realpath(o.model), os.path.realpath(o.haggle)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    train, held = sequences(o)
    batches = -(-len(held) // o.micro)
    with tempfile.TemporaryDirectory() as folder:
        files = [f"{folder}/train.jsonl", f"{folder}/held.jsonl"]
        for path, rows in zip(files, (train, held)):
            with open(path, "w") as f:
                f.writelines(json.dumps({"input_ids": row}) + "\n" for row in rows)
        ours, theirs = [], []
        print(f"{len(train)} sequences to train, {len(held)} held out; rank {o.rank}, {o.steps} steps of {o.micro}, lr {o.lr:g}")
        start = haggle(o, folder, files, 1, 1, batches)
        for seed in range(1, o.seeds + 1):
            ours.append(haggle(o, folder, files, seed, o.steps, batches))
            before, after, numbers = peft(o, train, held, seed, device)
            theirs.append(after)
            if seed == 1:
                print(f"before   haggle {start:.4f}   PEFT {before:.4f}   ({numbers} numbers trained)")
            print(f"seed {seed}   haggle {ours[-1]:.4f}   PEFT {after:.4f}", flush=True)
    print(f"ratio of the medians {statistics.median(ours) / statistics.median(theirs):.4f}")


main()
