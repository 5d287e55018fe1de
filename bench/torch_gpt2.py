#!/usr/bin/python3
"""A GPT-2 training step in PyTorch on the CPU, for bench_train to compare with: float32, tied
embedding, AdamW.

Prints "ready". Then for each number N from standard input it runs N steps and prints their times in
milliseconds on one line. At the end of input it prints "peak BYTES" (peak resident memory).

usage: torch_gpt2.py B T THREADS [default|foreach] [zero|none]
       (optimizer loop; gradients zeroed or set to None)
"""
import math, resource, sys, time
import torch, torch.nn as nn, torch.nn.functional as F

B, T, threads = (int(a) for a in sys.argv[1:4])
optimizer = sys.argv[4] if len(sys.argv) > 4 else "default"
to_none = len(sys.argv) > 5 and sys.argv[5] == "none"
torch.set_num_threads(threads)
torch.manual_seed(1)
# The vocabulary is padded to a multiple of 64, which is faster in PyTorch.
V, Vp, C, H, L, positions = 50257, 50304, 768, 12, 12, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.out = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        self.register_buffer("mask", torch.ones(positions, positions, dtype=torch.bool).tril())

    def forward(self, x):
        b, t, _ = x.shape
        q, k, v = (z.view(b, t, H, C // H).transpose(1, 2) for z in self.qkv(self.norm1(x)).split(C, 2))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(C // H)
        scores = scores.masked_fill(~self.mask[:t, :t], float("-inf"))
        y = (F.softmax(scores, -1) @ v).transpose(1, 2).reshape(b, t, C)
        x = x + self.out(y)
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(Vp, C), nn.Embedding(positions, C)
        self.blocks = nn.ModuleList(Block() for _ in range(L))
        self.norm = nn.LayerNorm(C)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def forward(self, tokens, targets):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.wte.weight.t()
        return F.cross_entropy(logits.view(-1, Vp), targets.reshape(-1))


model = Model()
adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=optimizer == "foreach")
stream = torch.randint(0, V, (64 * B * T + 1,))
print("ready", flush=True)
step = 0
for line in sys.stdin:
    times = []
    for _ in range(int(line)):
        begin = time.perf_counter()
        at = step % 64 * B * T
        loss = model(stream[at:at + B * T].view(B, T), stream[at + 1:at + 1 + B * T].view(B, T))
        adamw.zero_grad(set_to_none=to_none)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        loss.item()
        times.append((time.perf_counter() - begin) * 1e3)
        step += 1
    print(" ".join(f"{t:.3f}" for t in times), flush=True)
print("peak", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)
