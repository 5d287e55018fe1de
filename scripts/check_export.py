#!/usr/bin/env python3
"""Is a folder that haggle exported the same model to Hugging Face transformers?

    haggle export runs/chat chat-hf --probe probe.json
    scripts/check_export.py chat-hf probe.json

An exported adapter is loaded by PEFT, on the base that its settings name or that --base names.

The probe holds token ids, haggle's loss and logits on them, and the token ids of a few texts. The folder is loaded with
AutoModelForCausalLM and AutoTokenizer, nothing else given, and computes the same. Arithmetic is float32 on both sides,
whatever the weights are stored in, so the limits are those of two orders of summation. Exit status: 0 agrees, 4 does not.

Needs torch and transformers (4.45 or newer), for an adapter also peft (0.7 or newer).
"""
import argparse
import json
import os
import sys

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

# As docs/numerics.md has them for float32: relative differences.
LOSS_LIMIT = 1e-5
LOGITS_LIMIT = 1e-4


class Figures:
    def __init__(self):
        self.ok = True

    def add(self, name, value, limit):
        good = value <= limit  # false for NaN
        self.ok = self.ok and good
        print(f"  {'ok' if good else 'OFF':<4} {name:<54} {value:9.2e}  (limit {limit:g})")


def load(folder):
    """The model in float32, and what transformers had to invent or throw away while loading it."""
    name = "dtype" if int(transformers.__version__.split(".")[0]) >= 5 else "torch_dtype"
    model, info = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **{name: torch.float32})
    info = info if isinstance(info, dict) else vars(info)
    odd = [k for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for k in info.get(kind, [])]
    return model.eval(), odd


def load_adapter(folder, base):
    """The base with the adapter, and the names that only one of the file and PEFT's model has."""
    from peft import PeftConfig, PeftModel, get_peft_model_state_dict
    from safetensors.torch import load_file
    base = base or PeftConfig.from_pretrained(folder).base_model_name_or_path
    if base is None:
        sys.exit("the adapter's settings name no base; name it with --base")
    model, odd = load(base)
    model = PeftModel.from_pretrained(model, folder).eval()
    ours = load_file(os.path.join(folder, "adapter_model.safetensors"))
    theirs = get_peft_model_state_dict(model, save_embedding_layers=False)
    odd += sorted(set(ours) ^ set(theirs))
    odd += [k for k in ours if k in theirs and not torch.equal(ours[k].float(), theirs[k].float().cpu())]
    return model, odd


def check_model(figures, folder, probe, device, base):
    adapter = os.path.exists(os.path.join(folder, "adapter_config.json"))
    model, odd = load_adapter(folder, base) if adapter else load(folder)
    if odd:
        print("       keys:", ", ".join(str(k) for k in odd[:8]))
    figures.add("weights missing, left over or of another shape", len(odd), 0)
    model.to(device)
    tokens = torch.tensor(probe["tokens"], device=device)
    with torch.no_grad():
        logits = model(tokens[:, :-1]).logits.double()
    losses = torch.nn.functional.cross_entropy(
        logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1), reduction="none")
    ours = torch.tensor(probe["losses"], dtype=torch.float64, device=device).reshape(-1)
    figures.add("loss, relative difference", abs(losses.mean().item() - probe["loss"]) / abs(probe["loss"]), LOSS_LIMIT)
    figures.add("loss of each token, relative L2 of the difference", ((losses - ours).norm() / ours.norm()).item(),
                LOGITS_LIMIT)
    last = torch.tensor(probe["last_logits"], dtype=torch.float64, device=device)
    figures.add("logits of the last tokens, relative L2", ((logits[:, -1] - last).norm() / last.norm()).item(),
                LOGITS_LIMIT)
    figures.add("likeliest next tokens that differ", (logits[:, -1].argmax(-1) != last.argmax(-1)).sum().item(), 0)
    print(f"       transformers' loss {losses.mean().item():.8f}, haggle's {probe['loss']:.8f}")


def check_tokenizer(figures, folder, probe):
    if not probe["texts"]:
        print("       the probe has no texts: the tokenizer is not compared")
        return
    tokenizer = AutoTokenizer.from_pretrained(folder)
    differ = 0
    for case in probe["texts"]:
        ids = tokenizer(case["text"], add_special_tokens=False)["input_ids"]
        if ids != case["ids"]:
            differ += 1
            print(f"       {case['text']!r}: transformers {ids[:12]}, haggle {case['ids'][:12]}")
    figures.add(f"texts of {len(probe['texts'])} with other token ids", differ, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="what haggle export wrote")
    parser.add_argument("probe", help="what haggle export --probe wrote with it")
    parser.add_argument("--base", help="of an adapter: the folder or name of its base")
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    with open(args.probe, encoding="utf-8") as f:
        probe = json.load(f)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{args.folder}: transformers {transformers.__version__}, torch {torch.__version__}, {args.device}")
    figures = Figures()
    check_model(figures, args.folder, probe, args.device, args.base)
    check_tokenizer(figures, args.folder, probe)
    if os.path.exists(os.path.join(args.folder, "generation_config.json")):
        GenerationConfig.from_pretrained(args.folder)  # raises when it is not one
    print("  the same model" if figures.ok else "  NOT the same model")
    return 0 if figures.ok else 4


if __name__ == "__main__":
    sys.exit(main())
