#!/usr/bin/env bash
# generate.sh - texts on the CPU beside llama.cpp's, in one run: the same shape, threads and bytes per
# token, random weights.
#
#   LLAMA=llama.cpp/build/bin bench/generate.sh [SHAPE...]     110m, 1b (both; some 15 minutes)
#   HAGGLE=build/haggle  THREADS=2  ROUNDS=3  OUTPUT=64  PROMPT=512  FOLDER=where models are kept
#
# A model with random bf16 weights is made, quantized (int8, int4 in groups of 32) and exported (q8_0,
# q4_0, bf16). Every embedding and head has the same type as the rest (what llama-quantize calls pure).
# Both programs then run in turns. Printed: tokens/s of a single text (decode) and of prompts
# (prefill), the ratios of their medians, the share of this machine's read bandwidth that decoding
# reaches, our own decode of 8 texts beside our prefill, and the share of prefill that 8 texts could
# reach if reading the weights were all that takes time (the floor: it may be below 1). "p99/p50" is of
# the times of tokens: haggle's between the tokens of a text, llama-bench's of as many single tokens,
# each behind the same start. Without LLAMA only haggle is measured.
# Needs python3 and 8 GiB of disk for 1b.
set -eu
cd "$(dirname "$0")/.."
haggle=$(realpath "${HAGGLE:-build/haggle}")
folder=${FOLDER:-$(mktemp -d)}
[ -n "${FOLDER:-}" ] || trap 'rm -rf "$folder"' EXIT
python3 - "$haggle" "${LLAMA:-}" "$folder" "${THREADS:-2}" "${ROUNDS:-3}" "${OUTPUT:-64}" "${PROMPT:-512}" "$@" <<'PYTHON'
import json, os, statistics, struct, subprocess, sys
haggle, llama, folder = sys.argv[1:4]
threads, rounds, output, prompt = map(int, sys.argv[4:8])
SHAPES = {  # layers, width, heads, key/value heads, ffn, vocabulary
    "110m": (12, 768, 12, 12, 2048, 32000),
    "1b": (22, 2048, 32, 4, 5632, 32000),
}
SHORT = 16  # tokens in front of a text whose decoding is timed
PAIRS = [("int8", "q8_0"), ("int4", "q4_0"), ("bf16", "bf16")]


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(words)}\n{done.stderr[-2000:]}")
    return done.stdout


def make(out, layers, width, heads, kv, ffn, vocab):
    head = width // heads
    os.makedirs(out)
    with open(f"{out}/config.json", "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": ffn,
                   "num_attention_heads": heads, "num_key_value_heads": kv, "num_hidden_layers": layers, "vocab_size": vocab,
                   "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
                   "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16"}, f)
    tensors = {"model.embed_tokens.weight": [vocab, width]}
    for i in range(layers):
        p = f"model.layers.{i}."
        for name, rows, columns in (("q", heads * head, width), ("k", kv * head, width), ("v", kv * head, width), ("o", width, heads * head)):
            tensors[f"{p}self_attn.{name}_proj.weight"] = [rows, columns]
        for name, rows, columns in (("gate", ffn, width), ("up", ffn, width), ("down", width, ffn)):
            tensors[f"{p}mlp.{name}_proj.weight"] = [rows, columns]
        tensors[f"{p}input_layernorm.weight"] = tensors[f"{p}post_attention_layernorm.weight"] = [width]
    tensors["model.norm.weight"] = [width]
    tensors["lm_head.weight"] = [vocab, width]
    header, at = {}, 0
    for name, shape in tensors.items():
        n = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    high = bytes((b & 0x80) | 0x3C for b in range(256))  # random signs, sizes around 2^-6
    with open(f"{out}/model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for shape in tensors.values():
            left = shape[0] * (shape[1] if len(shape) > 1 else 1)
            while left:
                n = min(left, 1 << 20)
                piece = bytearray(2 * n)
                piece[0::2] = os.urandom(n) if len(shape) > 1 else b"\x80" * n
                piece[1::2] = os.urandom(n).translate(high) if len(shape) > 1 else b"\x3f" * n
                f.write(piece)
                left -= n


def ours(path, tokens, made, batch):
    rows = json.loads(run(haggle, "bench", "generate", path, "precision=bf16", "device=cpu", f"threads={threads}", "--prompt-tokens", str(tokens),
                          "--output-tokens", str(made), "--batch", str(batch), "--repeat", "1", "-o", "json", "-q"))
    if not rows[0]["measured"]:
        sys.exit(f"{path}: {rows[0]['reason']}")
    return rows[0]


def theirs(path, tokens, made):
    rows = json.loads(run(f"{llama}/llama-bench", "-m", path, "-p", str(tokens), "-n", str(made), "-d", "0" if tokens else str(SHORT), "-t",
                          str(threads), "-r", "1", "-o", "json"))
    return rows[0]["avg_ts"]


def tail(path, made):  # p99/p50 of single tokens
    rows = json.loads(run(f"{llama}/llama-bench", "-m", path, "-p", "0", "-n", "1", "-d", str(SHORT), "-t", str(threads), "-r", str(made), "-o", "json"))
    times = sorted(rows[0]["samples_ns"])
    return times[min(len(times) - 1, int(0.99 * len(times)))] / statistics.median(times)


def bandwidth():  # of reading, by all threads
    found = json.loads(run(haggle, "doctor", "device=cpu", "--json", "-"))
    stack, best = [found], 0
    while stack:
        x = stack.pop()
        if isinstance(x, dict):
            for k, v in x.items():
                if "memory_bytes_per_s" in k or "read_bytes_per_s" in k:
                    best = max(best, v or 0)
                stack.append(v)
        elif isinstance(x, list):
            stack.extend(x)
    return best


def spread(values):
    return f"{statistics.median(values):8.1f} ({min(values):.1f} to {max(values):.1f})"


gb = bandwidth()
print(f"{threads} threads, prompt {prompt}, {output} tokens, {rounds} rounds; memory {gb / 1e9:.1f} GB/s")
for shape in sys.argv[8:] or SHAPES:
    base = f"{folder}/{shape}"
    if not os.path.exists(base):
        make(base, *SHAPES[shape])
    paths = {"bf16": base}
    for ours_type, gguf in PAIRS:
        paths.setdefault(ours_type, f"{base}-{ours_type}")
        if not os.path.exists(paths[ours_type]):
            run(haggle, "quantize", base, paths[ours_type], "--format", ours_type)
        if llama and not os.path.exists(f"{base}-{gguf}.gguf"):
            run(haggle, "export", base, "--gguf", f"{base}-{gguf}.gguf", "--type", gguf)
    seen = {}
    for _ in range(rounds):
        for ours_type, gguf in PAIRS:
            r = ours(paths[ours_type], SHORT, output, 1)
            seen.setdefault(ours_type, {}).setdefault("decode", []).append(r["decode_tokens_per_s"]["median"])
            seen[ours_type].setdefault("prefill", []).append(ours(paths[ours_type], prompt, 1, 1)["prefill_tokens_per_s"]["median"])
            seen[ours_type].setdefault("tail", []).append(r["between_p99"]["ms"] / r["between_p50"]["ms"])
            seen[ours_type].setdefault("eight", []).append(ours(paths[ours_type], SHORT, 32, 8)["decode_tokens_per_s"]["median"])
            if llama:
                for k, tokens, made in (("decode", 0, output), ("prefill", prompt, 0)):
                    seen.setdefault(gguf + " llama.cpp", {}).setdefault(k, []).append(theirs(f"{base}-{gguf}.gguf", tokens, made))
                seen[gguf + " llama.cpp"].setdefault("tail", []).append(tail(f"{base}-{gguf}.gguf", output))
    for name, figures in seen.items():
        print(f"{shape:<5} {name:<16} decode {spread(figures['decode']):<30} prefill {spread(figures['prefill']):<30}"
              + (f" 8 texts {spread(figures['eight'])}" if "eight" in figures else ""))
    best = max((statistics.median(f["prefill"]) for n, f in seen.items() if "llama.cpp" in n), default=None)
    for ours_type, gguf in PAIRS:
        mine = {k: statistics.median(v) for k, v in seen[ours_type].items()}
        size = sum(os.path.getsize(f"{paths[ours_type]}/{n}") for n in os.listdir(paths[ours_type]) if n.endswith(".safetensors"))
        layers, width, heads, kv, ffn, vocab = SHAPES[shape]
        size *= 1 - vocab * width / (2 * vocab * width + layers * (2 * width * width + 2 * width * width // heads * kv + 3 * width * ffn))  # one row of the embedding
        words = [f"{size * mine['decode'] / 1e9:.1f} GB/s" + (f", {100 * size * mine['decode'] / gb:.0f} % of memory" if gb else ""),
                 f"8 texts: {mine['eight'] / mine['decode']:.2f} of one, {mine['eight'] / mine['prefill']:.2f} of prefill"
                 + (f" (by reading alone at most {8 * gb / size / mine['prefill']:.2f})" if gb else ""), f"p99/p50 {mine['tail']:.3f}"]
        if llama:
            words = [f"decode {mine['decode'] / statistics.median(seen[gguf + ' llama.cpp']['decode']):.3f} of {gguf}",
                     f"prefill {mine['prefill'] / best:.3f} of llama.cpp's best type"] + words
            words[-1] += f", llama.cpp {statistics.median(seen[gguf + ' llama.cpp']['tail']):.3f}"
        print(f"{shape:<5} {ours_type}: {'; '.join(words)}", flush=True)
PYTHON
