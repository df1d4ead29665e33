"""The PyTorch side of scripts/bench/compiled: THREADS FOLDER. It answers the lines of compiled_worker.lua, whose files
it reads; variants are eager and compiled, each also with _channels_last for networks of images."""
import json
import math
import sys
import tempfile
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(int(sys.argv[1]))
folder = sys.argv[2]


def sgd(params):
    return torch.optim.SGD(params, lr=1e-3, momentum=0.9, fused=True)


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-4, fused=True)


def mlp(p):
    return lambda x, y: F.cross_entropy(F.linear(F.relu(F.linear(x, p["w1"], p["b1"])), p["w2"], p["b2"]), y)


def recurrent(p):
    def loss(x, y):
        h = c = torch.zeros(x.shape[1], x.shape[2])
        for t in range(x.shape[0]):
            i, f, g, o = (F.linear(x[t], p["wx"], p["b"]) + F.linear(h, p["wh"])).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return F.mse_loss(F.linear(h, p["wo"]), y)
    return loss


def sine(p):
    def loss(x, y):
        for k in range(4):
            x = (F.linear(x, p[f"w{k}"], p[f"b{k}"]) * 30).sin()
        return (F.linear(x, p["wo"], p["bo"]) - y).square().mean()
    return loss


def llama(p):
    heads, head = 4, 64
    angle = torch.exp(torch.arange(head // 2).float() * (-2 * math.log(10000) / head))

    def norm(x, scale):
        return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * scale

    def loss(ids, labels):
        n, l = ids.shape
        turns = (torch.arange(l).float().unsqueeze(1) * angle).unsqueeze(1)
        cos, sin = turns.cos(), turns.sin()

        def rotate(x):
            a, b = x.chunk(2, 3)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], 3)

        x = F.embedding(ids, p["embed"])
        for k in range(1, 5):
            y = norm(x, p[f"norm_1{k}"])
            q, key, v = (F.linear(y, p[f"{name}{k}"]).view(n, l, heads, head) for name in ("wq", "wk", "wv"))
            q, key = rotate(q), rotate(key)
            seen = F.scaled_dot_product_attention(q.transpose(1, 2), key.transpose(1, 2), v.transpose(1, 2), is_causal=True)
            x = x + F.linear(seen.transpose(1, 2).reshape(n, l, heads * head), p[f"wo{k}"])
            y = norm(x, p[f"norm_2{k}"])
            x = x + F.linear(F.silu(F.linear(y, p[f"gate{k}"])) * F.linear(y, p[f"up{k}"]), p[f"down{k}"])
        return F.cross_entropy(F.linear(norm(x, p["norm"]), p["head"]).flatten(0, 1), labels.flatten())
    return loss


def convnext(p):
    def loss(x, y):
        x = F.conv2d(x, p["stem"], p["stem_b"], stride=4)
        for k in range(1, 4):
            z = F.conv2d(x, p[f"dw{k}"], p[f"dw_b{k}"], padding=3, groups=96).permute(0, 2, 3, 1)
            z = F.layer_norm(z, (96,), p[f"ln{k}"], p[f"ln_b{k}"])
            z = F.linear(F.gelu(F.linear(z, p[f"up{k}"], p[f"up_b{k}"])), p[f"down{k}"], p[f"down_b{k}"])
            x = x + (z * p[f"gamma{k}"]).permute(0, 3, 1, 2)
        return F.cross_entropy(F.linear(x.mean((2, 3)), p["head"]), y)
    return loss


class Block(nn.Module):
    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False), nn.BatchNorm2d(cout)
        self.conv2, self.bn2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False), nn.BatchNorm2d(cout)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)), inplace=True)))
        y += x if self.downsample is None else self.downsample(x)
        return F.relu(y, inplace=True)


class ResNet18(nn.Module):
    """As torchvision has it."""
    def __init__(self):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x)), inplace=True), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


def resnet18(net):
    return lambda x, y: F.cross_entropy(net(x), y)


CASES = {"mlp": (mlp, sgd), "recurrent": (recurrent, adamw), "sine": (sine, adamw), "llama": (llama, adamw),
         "convnext": (convnext, adamw), "resnet18": (resnet18, sgd)}
name, variants = None, {}


def start(variant, n):
    """Returns the seconds of the first of n steps, by the clock and of the CPU, and their losses."""
    saved = torch.load(f"{folder}/{name}.pt")
    kind, _, layout = variant.partition("_")
    layout = torch.channels_last if layout else torch.contiguous_format
    loss_of, optimizer = CASES[name]

    def laid_out(t):
        return t.contiguous(memory_format=layout) if t.dim() == 4 else t

    x, y = (laid_out(t - 1 if t.dtype == torch.int64 else t) for t in (saved["x"], saved["y"]))
    if name == "resnet18":
        p = ResNet18()
        p.load_state_dict(saved["weights"])
        params = p.to(memory_format=layout).parameters()
    else:
        p = {key: laid_out(w.clone()).requires_grad_() for key, w in saved["weights"].items()}
        params = p.values()
    opt, loss_of = optimizer(params), loss_of(p)
    if kind == "compiled":
        torch._dynamo.reset()
        loss_of = torch.compile(loss_of)

    def step():
        loss = loss_of(x, y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss

    losses, began, used = [], time.perf_counter(), time.process_time()
    for i in range(n):
        losses.append(step().item())
        if i == 0:
            first = f"{time.perf_counter() - began:.6f} {time.process_time() - used:.6f}"
    held = [x, y, *opt.param_groups[0]["params"], *(t for state in opt.state.values() for t in state.values())]
    variants[variant] = step, sum(t.numel() * t.element_size() for t in held if torch.is_tensor(t))
    return " ".join([first] + [f"{loss:.9g}" for loss in losses])


def timed(variant, n):
    step, began, used = variants[variant][0], time.perf_counter(), time.process_time()
    for _ in range(n):
        step()
    return f"{(time.perf_counter() - began) / n:.9f} {(time.process_time() - used) / n:.9f}"


def memory(variant, _):
    """The profiler sees what is allocated after its start: gradients and what a step saves, beside what a step holds."""
    step, held = variants[variant]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        for _ in range(2):
            step()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        with open(file.name) as text:
            events = json.load(text)["traceEvents"]
    events = sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"])
    return str(held + max(e["args"]["Total Allocated"] for e in events))


for line in sys.stdin:
    what, _, rest = line.strip().partition(" ")
    if what == "build":
        name, reply = rest, "ok"
        variants.clear()
    else:
        variant, _, count = rest.partition(" ")
        reply = {"start": start, "time": timed, "memory": memory}[what](variant, int(count or 0))
    print(reply, flush=True)
