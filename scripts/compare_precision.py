#!/usr/bin/env python3
"""How far are 16-bit losses, logits and gradients from float32: PyTorch's beside haggle's, on the same references.

    scripts/compare_precision.py [--haggle build/haggle] [--type fp16|bf16] FOLDER ... [-- KNOB=VALUE ...]

FOLDER is a reference folder (scripts/make_reference.py); one that holds an adapter's reference is computed with its
adapter. PyTorch computes twice: with autocast, which keeps weights and residuals in float32, and with every weight in 16
bits, as haggle does. In fp16 the loss is scaled by 4096 on all sides. Printed per reference: relative differences from the
float32 reference of loss, logits, the worst gradient of a parameter, all gradients together, and the gradient norm.
"""
import argparse
import json
import os
import subprocess
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

SCALE = {"fp16": 4096.0, "bf16": 1.0}
TYPES = {"fp16": torch.float16, "bf16": torch.bfloat16}


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


def load(folder):
    base = os.path.dirname(folder) if os.path.exists(os.path.join(folder, "adapter_config.json")) else folder
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if base != folder:
        from peft import PeftModel
        model = PeftModel.from_pretrained(model, folder, is_trainable=True)
    return model


def pytorch(folder, kind, whole, device):
    ref, want = load_file(os.path.join(folder, "ref.safetensors")), json.load(open(os.path.join(folder, "ref.json")))
    model = load(folder).to(device)
    if whole:
        model = model.to(TYPES[kind])
    tokens = ref["tokens"].to(device).long()
    with torch.autocast(device, TYPES[kind], enabled=not whole):
        logits = model(tokens[:, :-1]).logits
    loss = torch.nn.functional.cross_entropy(logits.float().reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
    (loss * SCALE[kind]).backward()
    ours, theirs, worst = [], [], (0, "")
    for name, p in model.named_parameters():
        name = "grad." + name.removeprefix("base_model.model.").replace(".default.", ".")
        if p.grad is None or name not in ref:
            continue
        a, b = p.grad.double().cpu().flatten() / SCALE[kind], ref[name].double().flatten()
        ours.append(a)
        theirs.append(b)
        if b.norm() > 1e-3 * want["grad_norm"]:  # smaller ones are rounding noise by themselves
            worst = max(worst, (relative(a, b), name))
    ours, theirs = torch.cat(ours), torch.cat(theirs)
    return (abs(loss.item() / want["loss"] - 1), relative(logits.detach().double().cpu(), ref["logits"].double()), worst[0],
            relative(ours, theirs), abs((ours.norm() / theirs.norm()).item() - 1))


def haggle(program, folder, kind, knobs):
    words = [program, "verify", folder, f"precision={kind}", *knobs, "--json", "-"]
    if os.path.exists(os.path.join(folder, "adapter_config.json")):
        words[2:3] = [os.path.dirname(folder), "--adapter", folder]
    done = subprocess.run(words, capture_output=True, text=True)
    try:
        found = json.loads(done.stdout)
    except ValueError:
        sys.exit(done.stderr)
    figures = {f["name"]: f["value"] for m in found["folders"] for f in m["figures"]}
    worst = max(v for k, v in figures.items() if k.startswith("grad ") and "small" not in k and "of the norm" not in k)
    return figures["loss"], figures["logits"], worst, float("nan"), figures["gradient norm"]


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--haggle", default="build/haggle")
    a.add_argument("--type", default="fp16", choices=list(TYPES))
    a.add_argument("folders", nargs="+")
    o = a.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    knobs = [w for w in o.folders if "=" in w]
    print(f"{o.type} on {device}: {'':<34} {'loss':>9} {'logits':>9} {'worst':>9} {'all':>9} {'norm':>9}")
    for folder in [os.path.abspath(w) for w in o.folders if "=" not in w]:
        short = os.path.join(*folder.split(os.sep)[-2:])
        rows = {"PyTorch, autocast": lambda: pytorch(folder, o.type, False, device),
                "PyTorch, 16-bit weights": lambda: pytorch(folder, o.type, True, device),
                "haggle": lambda: haggle(o.haggle, folder, o.type, knobs)}
        for who, row in rows.items():
            print(f"{short:<24} {who:<24} " + " ".join(f"{x:9.2e}" for x in row()), flush=True)


main()
