"""The PyTorch side of scripts/bench/compute --device cuda: answers each line "name" with "variant seconds ...". With a
name behind the device it prints the kernels of that case's compiled step instead."""
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import compute_peer

device = sys.argv[2]
torch.cuda.set_device(int(device.partition(":")[2] or 0))
N = 2 ** 28  # floats: 1 GiB
CALLS = {"launch": 20000, "small_step": 2000, "lenet256_epoch": 1}


def timed(f, n):
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(n):
        f()
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / n


def tf32(on):
    torch.backends.cuda.matmul.allow_tf32 = on
    torch.backends.cudnn.allow_tf32 = on


def steps(net, batch):
    variants = {"eager": compute_peer.training(net, batch, False, device),
                "channels_last": compute_peer.training(net, batch, True, device)}
    variants["compile"] = torch.compile(compute_peer.training(net, batch, True, device), mode="reduce-overhead")
    return variants


def epoch():
    def over(step):
        def run():
            for _ in range(234):
                step()
        return run
    return {name: over(step) for name, step in steps("lenet", 256).items()}


def autocast(net, optimizer, batch, loss_of):
    def loss(x, y):
        return loss_of(net(x), y)

    def step(loss):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            value = loss(*batch)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()

    compiled = torch.compile(loss)
    return {"eager": lambda: step(loss), "compile": lambda: step(compiled)}


def resnet50():
    net = compute_peer.resnet50().to(device, memory_format=torch.channels_last)
    x = torch.randn(256, 3, 224, 224, device=device).to(memory_format=torch.channels_last)
    return autocast(net, torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9),
                    (x, torch.randint(1000, (256,), device=device)), F.cross_entropy)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.c_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        n, l, w = x.shape
        q, k, v = (t.view(n, l, self.heads, -1).transpose(1, 2) for t in self.c_attn(self.ln_1(x)).split(w, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(n, l, w))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    """Of 124 million parameters, without dropout."""
    def __init__(self, vocabulary=50257, length=1024, width=768, layers=12, heads=12):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.ln_f = nn.LayerNorm(width)

    def forward(self, ids):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        return F.linear(self.ln_f(self.h(x)), self.wte.weight)


def gpt2():
    net = GPT2().to(device)
    x, y = (torch.randint(50257, (8, 1024), device=device) for _ in range(2))
    return autocast(net, torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True), (x, y),
                    lambda scores, labels: F.cross_entropy(scores.flatten(0, 1), labels.flatten()))


def large(f):
    def make():
        x = torch.rand(N // 4096, 4096, device=device)
        y = torch.empty_like(x)
        return {"eager": lambda: f(x, y)}
    return make


def product(dtype):
    def make():
        a, b = (torch.rand(8192, 8192, device=device).to(dtype) for _ in range(2))
        return {"eager": lambda: a @ b}
    return make


def small(step):
    def make():
        a, b = torch.rand(4, device=device), torch.rand(4, device=device)
        w = torch.rand(4, device=device, requires_grad=True)
        if step:
            return {"eager": lambda: ((w + a) * b).sum().backward()}
        return {"eager": lambda: a + b}
    return make


def both_ways(size, f):
    def make():
        x, g = torch.rand(size, device=device, requires_grad=True), torch.rand(size, device=device)
        module = f.to(device)
        return {"eager": lambda: module(x).backward(g)}
    return make


def recurrent(kind, dtype):
    def make():
        net = kind(512, 512, 2, dtype=dtype, device=device)
        x, g = (torch.rand(128, 64, 512, device=device).to(dtype) for _ in range(2))
        x.requires_grad_()
        net.flatten_parameters()
        return {"eager": lambda: net(x)[0].backward(g)}
    return make


def attention(dtype):
    def make():
        q, k, v, g = (torch.rand(8, 16, 2048, 64, device=device).to(dtype) for _ in range(4))
        for t in (q, k, v):
            t.requires_grad_()
        attend = torch.nn.functional.scaled_dot_product_attention
        return {"eager": lambda: attend(q, k, v, is_causal=True).backward(g)}
    return make


def adamw():
    params = [torch.nn.Parameter(torch.rand(1000000, device=device)) for _ in range(124)]
    for p in params:
        p.grad = torch.rand_like(p)
    return {name: torch.optim.AdamW(params, lr=1e-4, **{name: True}).step for name in ("foreach", "fused")}


def upload():
    x = torch.rand(N // 16)
    pinned, there = x.pin_memory(), torch.empty(N // 16, device=device)
    return {"pageable": lambda: there.copy_(x), "pinned": lambda: there.copy_(pinned, non_blocking=True)}


BUILD = {
    "launch": small(False), "small_step": small(True), "lenet256_epoch": epoch,
    "resnet256": lambda: steps("resnet", 256), "resnet256_tf32": lambda: steps("resnet", 256),
    "resnet50_bf16": resnet50, "gpt2_bf16": gpt2,
    "copy": large(lambda x, y: y.copy_(x)), "add": large(lambda x, y: x + y), "exp": large(lambda x, y: x.exp()),
    "sum": large(lambda x, y: x.sum()), "sum_dim": large(lambda x, y: x.sum(0)),
    "softmax": large(lambda x, y: x.softmax(1)),
    "log_softmax50k": both_ways((8192, 50257), torch.nn.LogSoftmax(1)),
    "layer_norm768": both_ways((32768, 768), torch.nn.LayerNorm(768)),
    "batch_norm14": both_ways((256, 256, 14, 14), torch.nn.BatchNorm2d(256)),
    "lstm512": recurrent(torch.nn.LSTM, torch.float32), "lstm512_tf32": recurrent(torch.nn.LSTM, torch.float32),
    "lstm512_bf16": recurrent(torch.nn.LSTM, torch.bfloat16), "gru512_bf16": recurrent(torch.nn.GRU, torch.bfloat16),
    "attention2048_tf32": attention(torch.float32), "attention2048_bf16": attention(torch.bfloat16),
    "adamw124m": adamw, "upload": upload,
    "mm8192": product(torch.float32), "mm8192_tf32": product(torch.float32), "mm8192_bf16": product(torch.bfloat16),
}



def print_kernels(name, steps=3):
    tf32("tf32" in name)
    run = BUILD[name]()["compile"]
    timed(run, 5)
    seconds = timed(run, 10)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        timed(run, steps)
    rows = [(row.self_device_time_total / steps, row.count // steps, row.key) for row in profile.key_averages()
            if row.self_device_time_total > 0]
    total = sum(us for us, _, _ in rows)
    print(f"{name}, torch.compile: {1e6 * seconds:.1f} us a step, {total:.1f} us in kernels")
    print(f"{'calls':>7} {'us':>10} {'share':>7}  kernel")
    for us, calls, key in sorted(rows, reverse=True):
        print(f"{calls:7} {us:10.1f} {100 * us / total:5.1f} %  {key[:160]}")


if len(sys.argv) > 3:
    print_kernels(sys.argv[3])
    sys.exit()
cached, variants = None, {}
for line in sys.stdin:
    name = line.strip()
    tf32("tf32" in name)
    if cached != name:
        variants = {}
        torch.cuda.empty_cache()
        cached, variants = name, BUILD[name]()
        for f in variants.values():
            timed(f, 5)
    print(" ".join(f"{variant} {timed(f, CALLS.get(name, 10)):.9f}" for variant, f in variants.items()), flush=True)
