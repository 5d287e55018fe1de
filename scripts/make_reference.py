#!/usr/bin/env python3
"""Writes reference folders for `haggle verify` with Hugging Face transformers: tiny random checkpoints and what they compute.

usage: make_reference.py FOLDER [NAME ...]             needs torch and transformers; runs on the CPU in float32
       make_reference.py --adapter FOLDER [NAME ...]   needs peft too; the folders NAME must be there

Each folder is an HF checkpoint plus ref.safetensors (tokens, logits, gradients, greedy text) and ref.json (loss, gradient norm,
losses of 20 AdamW steps). The shapes are odd on purpose: vocabularies, widths, head counts and lengths that are multiples of
nothing.

With --adapter a folder gets another one inside it, FOLDER/NAME/adapter: an adapter as PEFT writes it, and ref.safetensors and
ref.json for the model with the adapter, whose gradients and steps are those of the adapter alone.
"""
import json
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

torch.use_deterministic_algorithms(True)
STEPS, PROMPT, GREEDY = 20, 16, 32
ADAMW = {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}
llama3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32}


def llama(cls, config, **more):
    return cls(config(hidden_size=60, intermediate_size=94, num_hidden_layers=3, vocab_size=331, max_position_embeddings=160,
                      attention_dropout=0.0, bos_token_id=1, eos_token_id=2, **more))


MODELS = {
    "gpt2-odd": lambda: GPT2LMHeadModel(GPT2Config(
        n_embd=45, n_head=5, n_layer=2, n_positions=96, vocab_size=277, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
        bos_token_id=0, eos_token_id=0)),
    "llama3-scaled": lambda: llama(LlamaForCausalLM, LlamaConfig, num_attention_heads=6, num_key_value_heads=2, head_dim=14,
                                   rope_parameters=llama3, tie_word_embeddings=True),
    "llama-bias": lambda: llama(LlamaForCausalLM, LlamaConfig, num_attention_heads=4, num_key_value_heads=1, head_dim=18,
                                attention_bias=True, mlp_bias=True, tie_word_embeddings=False),
    "qwen2": lambda: llama(Qwen2ForCausalLM, Qwen2Config, num_attention_heads=6, num_key_value_heads=3,
                           tie_word_embeddings=True),
    "qwen3": lambda: llama(Qwen3ForCausalLM, Qwen3Config, num_attention_heads=3, num_key_value_heads=1, head_dim=22,
                           tie_word_embeddings=False),
}

ADAPTERS = {  # settings of PEFT's LoraConfig
    "gpt2-odd": {"r": 5, "lora_alpha": 7, "target_modules": ["c_attn", "mlp.c_proj"], "fan_in_fan_out": True},
    "llama3-scaled": {"r": 3, "lora_alpha": 4, "use_rslora": True,
                      "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]},
    "llama-bias": {"r": 4, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"]},
    "qwen2": {"r": 7, "lora_alpha": 3, "target_modules": ["gate_proj", "down_proj"]},
    "qwen3": {"r": 6, "lora_alpha": 12, "target_modules": ["q_proj", "k_proj", "v_proj", "o_proj"]},
}


def loss_of(model, tokens):
    logits = model(tokens[:, :-1]).logits
    return logits, torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))


def trained(model):
    """The trained parameters by the name that haggle knows them by."""
    return {k.removeprefix("base_model.model.").replace(".default.", "."): p for k, p in model.named_parameters()
            if p.requires_grad}


def write_reference(model, out, batch, length):
    named = trained(model)
    parameters = list(named.values())
    tokens = torch.randint(0, model.config.vocab_size, (batch, length + 1))
    logits, loss = loss_of(model, tokens)
    loss.backward()
    tensors = {"tokens": tokens.to(torch.int32), "logits": logits.detach().contiguous()}
    tensors.update({f"grad.{k}": p.grad.detach().clone().contiguous() for k, p in named.items()})
    norm = torch.nn.utils.clip_grad_norm_(parameters, float("inf")).item()
    greedy = tokens[:, :PROMPT]
    with torch.no_grad():
        for _ in range(GREEDY):
            greedy = torch.cat([greedy, model(greedy).logits[:, -1].argmax(-1, keepdim=True)], 1)
    tensors["greedy"] = greedy[:, PROMPT:].to(torch.int32).contiguous()
    adamw = torch.optim.AdamW(parameters, lr=ADAMW["lr"], betas=tuple(ADAMW["betas"]), eps=ADAMW["eps"],
                              weight_decay=ADAMW["weight_decay"])
    losses = []
    for _ in range(STEPS):
        _, step_loss = loss_of(model, tokens)
        adamw.zero_grad()
        step_loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        adamw.step()
        losses.append(step_loss.item())
    save_file(tensors, os.path.join(out, "ref.safetensors"))
    with open(os.path.join(out, "ref.json"), "w") as f:
        json.dump({"loss": loss.item(), "grad_norm": norm, "losses": losses, "clip": 1.0, "adamw": ADAMW}, f, indent=1)
    print(out, "loss", loss.item())


def write(folder, name, batch, length):
    torch.manual_seed(len(name))
    model = MODELS[name]().float().train()
    for parameter in model.parameters():  # norms and biases away from 1 and 0, so that every term matters
        parameter.data.add_(0.02 * torch.randn_like(parameter))
    out = os.path.join(folder, name)
    model.save_pretrained(out)
    write_reference(model, out, batch, length)


def write_adapter(folder, name, batch, length):
    from peft import LoraConfig, get_peft_model
    torch.manual_seed(len(name))
    base = AutoModelForCausalLM.from_pretrained(os.path.join(folder, name)).float()
    model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, bias="none", **ADAPTERS[name])).train()
    for k, parameter in trained(model).items():  # B is 0 at first, and gradients of A would be
        if "lora_B" in k:
            parameter.data.add_(0.1 * torch.randn_like(parameter))
    model.peft_config["default"].base_model_name_or_path = name
    out = os.path.join(folder, name, "adapter")
    model.save_pretrained(out, save_embedding_layers=False)  # "auto" would look for the base on the hub
    if os.path.exists(os.path.join(out, "README.md")):
        os.remove(os.path.join(out, "README.md"))
    write_reference(model, out, batch, length)


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--adapter"]
    adapters = len(words) < len(sys.argv) - 1
    if not words:
        sys.exit(__doc__)
    for i, name in enumerate(words[1:] or (ADAPTERS if adapters else MODELS)):
        (write_adapter if adapters else write)(words[0], name, 1 + i % 3, 37 + 2 * i)
