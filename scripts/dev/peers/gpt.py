"""examples/gpt.lua for PyTorch, in nanoGPT's words, with its data, sizes and steps:

    luajit examples/sentences.lua 20000 > corpus.txt
    PYTHON scripts/dev/peers/gpt.py corpus.txt [--steps N] [--seed N] [--bfloat16]
    luajit examples/gpt.lua --text corpus.txt [--steps N] [--seed N] [--bfloat16] --sample 0
"""
import argparse
import math
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("text")
for name, value in dict(layers=4, heads=4, width=128, length=64, steps=1000, batch_size=16, warmup=100, eval_every=250,
                        seed=1, threads=2).items():
    parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
for name, value in dict(lr=1e-3, min_lr=1e-4, weight_decay=0.1, clip=1.0).items():
    parser.add_argument("--" + name.replace("_", "-"), type=float, default=value)
parser.add_argument("--bfloat16", action="store_true")
o = parser.parse_args()
torch.set_num_threads(o.threads)

text = torch.frombuffer(bytearray(open(o.text, "rb").read()), dtype=torch.uint8)
chars, ids = text.unique(return_inverse=True)
split = int(0.9 * len(ids))
train = ids[:split].unfold(0, o.length + 1, 1)
valid = ids[split:].unfold(0, o.length + 1, o.length)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
        self.c_attn, self.attn_proj = nn.Linear(o.width, 3 * o.width), nn.Linear(o.width, o.width)
        self.c_fc, self.mlp_proj = nn.Linear(o.width, 4 * o.width), nn.Linear(4 * o.width, o.width)

    def forward(self, x):
        n, l, w = x.shape
        q, k, v = (t.view(n, l, o.heads, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(y.transpose(1, 2).reshape(n, l, w))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(len(chars), o.width), nn.Embedding(o.length, o.width)
        self.h = nn.Sequential(*(Block() for _ in range(o.layers)))
        self.ln_f = nn.LayerNorm(o.width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                nn.init.normal_(p, 0, 0.02 / math.sqrt(2 * o.layers) if "proj" in name else 0.02)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, x):
        return self.ln_f(self.h(self.wte(x) + self.wpe.weight[: x.shape[1]])) @ self.wte.weight.t()


def rate(step):
    if step < o.warmup:
        return (step + 1) / o.warmup
    least, done = o.min_lr / o.lr, min(1, (step - o.warmup) / max(1, o.steps - o.warmup))
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * done))


torch.manual_seed(o.seed)
net = GPT()
groups = [dict(params=[p for p in net.parameters() if p.dim() >= 2], weight_decay=o.weight_decay),
          dict(params=[p for p in net.parameters() if p.dim() < 2], weight_decay=0.0)]
opt = torch.optim.AdamW(groups, lr=o.lr, betas=(0.9, 0.99))
schedule = torch.optim.lr_scheduler.LambdaLR(opt, rate)


def loss_of(stretches):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.bfloat16):
        return F.cross_entropy(net(stretches[:, :-1]).flatten(0, 1), stretches[:, 1:].flatten())


began = time.time()
for step in range(1, o.steps + 1):
    loss = loss_of(train[torch.randint(len(train), (o.batch_size,))])
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), o.clip)
    opt.step()
    schedule.step()
    if step % o.eval_every == 0 or step == o.steps:
        with torch.no_grad():
            reached = sum(loss_of(part).item() * len(part) for part in valid.split(64)) / len(valid)
        print(f"step {step}  loss {loss.item():.4f}  on text not seen {reached:.4f}  {time.time() - began:.1f} s",
              flush=True)
