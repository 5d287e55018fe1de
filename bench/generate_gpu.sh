#!/usr/bin/env bash
# generate_gpu.sh - texts on a GPU beside PyTorch's, in one call.
#
#   bench/generate_gpu.sh [SHAPE...]    llama-1b, llama-8b (both; some 4 minutes)
#   HAGGLE=build/haggle                 the program
#   PEER=torch_decode.py                PyTorch's script: takes --model and --prompt, prints a JSON line
#                                       with tok_s, p50_ms, p99_ms and ttft_ms; without it only haggle runs
#   ROUNDS=2  REPEAT=3  DEVICE=cuda  FOLDER=where models are kept
#
# One text of 128 tokens behind 512, random weights: bf16, then int8 and int4 in groups of 32, which
# are written as folders of random codes. haggle's bf16 and PyTorch run in turns, ROUNDS times; the
# ratio is of the medians. Printed: tokens/s, the time between tokens and its p99 over p50, the time to
# the first token. Needs python3, and 10 GiB of memory for llama-8b.
set -eu
cd "$(dirname "$0")/.."
haggle=$(realpath "${HAGGLE:-build/haggle}")
folder=${FOLDER:-$(mktemp -d)}
[ -n "${FOLDER:-}" ] || trap 'rm -rf "$folder"' EXIT
python3 - "$haggle" "${PEER:-}" "$folder" "${ROUNDS:-2}" "${REPEAT:-3}" "${DEVICE:-cuda}" "$@" <<'PYTHON'
import json, os, random, statistics, struct, subprocess, sys
haggle, peer, folder = sys.argv[1:4]
rounds, repeat, device = int(sys.argv[4]), sys.argv[5], sys.argv[6]
SHAPES = {  # layers, width, heads, key/value heads, ffn, vocabulary, whether head and embedding are one
    "llama-1b": (16, 2048, 32, 8, 8192, 128256, True),
    "llama-8b": (32, 4096, 32, 8, 14336, 128256, False),
}
PROMPT, OUTPUT = 512, 128


def tensors(shape):
    layers, width, heads, kv, ffn, vocabulary, tied = SHAPES[shape]
    head = width // heads
    yield "model.embed_tokens.weight", [vocabulary, width]
    for i in range(layers):
        p = f"model.layers.{i}."
        for name, rows in ("q", width), ("k", kv * head), ("v", kv * head), ("o", width):
            yield f"{p}self_attn.{name}_proj.weight", [rows, width]
        yield f"{p}mlp.gate_proj.weight", [ffn, width]
        yield f"{p}mlp.up_proj.weight", [ffn, width]
        yield f"{p}mlp.down_proj.weight", [width, ffn]
        yield f"{p}input_layernorm.weight", [width]
        yield f"{p}post_attention_layernorm.weight", [width]
    yield "model.norm.weight", [width]
    if not tied:
        yield "lm_head.weight", [vocabulary, width]


def make(shape, form, group=32):  # a folder as haggle quantize writes it, with random codes
    out = f"{folder}/{shape}-{form}"
    if os.path.exists(f"{out}/model.safetensors"):
        return out
    layers, width, heads, kv, ffn, vocabulary, tied = SHAPES[shape]
    how = {"quant_method": "haggle", "version": 1, "format": form, "other": {}}
    if form == "int4":
        how.update(group=group, minima=False)
    os.makedirs(out, exist_ok=True)
    with open(f"{out}/config.json", "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": width, "intermediate_size": ffn,
                   "num_attention_heads": heads, "num_key_value_heads": kv, "num_hidden_layers": layers, "vocab_size": vocabulary,
                   "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": tied,
                   "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
                   "quantization_config": how}, f)
    draw, head, parts, at = random.Random(0), {}, [], 0
    block = draw.randbytes(1 << 22)
    if form == "int8":
        block = block.replace(b"\x80", b"\x7f")  # -128 is no code

    def codes(n):  # pieces of one block of random bytes: the values do not matter, but they differ
        return b"".join(block for _ in range(n // len(block))) + block[:n % len(block)]

    for name, shape_of in tensors(shape):
        rows, cols = shape_of if len(shape_of) == 2 else (shape_of[0], 0)
        if cols == 0:
            pieces = [("", "BF16", [rows], b"\x80\x3f" * rows)]
        elif form == "int8":
            pieces = [(".q", "I8", [rows, cols], codes(rows * cols)), (".scales", "F32", [rows], struct.pack("<f", 2e-4) * rows)]
        else:
            groups = cols // group
            pieces = [(".q", "U8", [rows, cols // 2], codes(rows * cols // 2)),
                      (".scales", "F16", [rows, groups], struct.pack("<e", 4e-3) * (rows * groups))]
        for suffix, dtype, dims, values in pieces:
            head[name + suffix] = {"dtype": dtype, "shape": dims, "data_offsets": [at, at + len(values)]}
            parts.append(values)
            at += len(values)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    with open(f"{out}/model.safetensors.part", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for values in parts:
            f.write(values)
    os.rename(f"{out}/model.safetensors.part", f"{out}/model.safetensors")
    return out


def ours(model):
    command = [haggle, "bench", "generate", f"model={model}", f"device={device}", "precision=bf16", "--prompt-tokens", str(PROMPT),
               "--output-tokens", str(OUTPUT), "--repeat", repeat, "-o", "json", "-q"]
    done = subprocess.run(command, capture_output=True, text=True)
    try:
        row = json.loads(done.stdout)[0]
        return {"tok_s": row["decode_tokens_per_s"]["median"], "p50_ms": row["between_p50"]["ms"], "p99_ms": row["between_p99"]["ms"],
                "ttft_ms": row["first_token"]["ms"]}
    except (ValueError, KeyError, IndexError, TypeError):
        sys.exit(f"{' '.join(command)}\n{done.stdout[-1500:]}{done.stderr[-1500:]}")


def theirs(shape):
    done = subprocess.run(["python3", peer, "--model", shape, "--prompt", str(PROMPT)], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{peer}: {done.stderr[-1500:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def row(shape, who, seen, beside=None):
    rate = statistics.median(s["tok_s"] for s in seen)
    last = seen[-1]
    ratio = f"   {rate / beside[1]:.2f} of {beside[0]}" if beside else ""
    print(f"{shape:<9} {who:<8} {rate:9.1f} {last['p50_ms']:8.3f} {last['p99_ms'] / last['p50_ms']:8.3f} {last['ttft_ms']:9.2f}{ratio}", flush=True)
    return rate


print(f"{'shape':<9} {'':<8} {'tokens/s':>9} {'p50 ms':>8} {'p99/p50':>8} {'first ms':>9}")
for shape in sys.argv[7:] or SHAPES:
    if shape not in SHAPES:
        sys.exit(f"'{shape}' is not known; accepted: {', '.join(SHAPES)}")
    own, other = [], []
    for _ in range(rounds):
        own.append(ours(shape))
        if peer:
            other.append(theirs(shape))
    torch = row(shape, "PyTorch", other) if peer else None
    bf16 = row(shape, "bf16", own, ("PyTorch", torch) if peer else None)
    for form in "int8", "int4":
        row(shape, form, [ours(make(shape, form))], ("bf16", bf16))
PYTHON
