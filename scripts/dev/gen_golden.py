#!/usr/bin/env python3
"""Writes spec/golden/<op>.safetensors from spec/op_cases.lua, with PyTorch's answers.

    scripts/dev/gen_golden.py [op ...]      all ops without arguments

Needs torch, numpy, safetensors and luajit. Files depend on nothing but the table and PyTorch: each case
draws from a generator seeded by its op's name and number, so a new row changes no other file.

A file holds, for case c and dtype d: "c.d.in.<argument>" (lists: "<argument>.1", ...) and "c.d.out.<i>".
Index tensors are stored counting from 1, as Luminary wants them; so are the results named in index_out.
"""
import os
import subprocess
import sys
import zlib

import torch
import torch.nn.functional as F  # used by the expressions
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
          "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool}
DIMS = {"dim", "dim0", "dim1", "dims", "start_dim", "end_dim"}


def pair(v):
    return list(v) if isinstance(v, (list, tuple)) else [v, v]


def base0(index):
    return index - 1 if index > 0 else index


def pool_backward(grad, places, size):
    flat = torch.zeros(size[0], size[1], size[2] * size[3], dtype=grad.dtype)
    return flat.scatter_add(2, places.flatten(2), grad.flatten(2)).view(size)


def bn_backward(grad, x, weight, running_mean, running_var, training, eps):
    return tuple(torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, running_mean, running_var, None, None, training, eps, [True, True, True]))


def slice_backward(grad, size, dim, first, step):
    return torch.ops.aten.slice_backward(grad, size, dim, first - 1, first - 1 + (grad.shape[dim] - 1) * step + 1, step)


def base_zero(name, value):
    """Lua's dims and element numbers, as Python counts them."""
    if name in DIMS or (name == "index" and isinstance(value, (int, float))):
        if isinstance(value, list):
            return [base_zero("dim", d) for d in value]
        return value - 1 if value > 0 else value
    return value


def number(v):
    return int(v) if isinstance(v, float) and v == v and abs(v) < 2**53 and v == int(v) else v


def is_spec(v):
    return isinstance(v, dict) and "tensor" in v


def make(spec, dtype, gen):
    """The tensor for a spec. dtype: what float, int and value tensors are given in."""
    kind, shape = spec["tensor"], [int(s) for s in (spec.get("shape") or [])]
    if kind == "index":
        return torch.randint(0, int(spec["n"]), shape, generator=gen)
    if kind == "bool":
        return torch.rand(shape, generator=gen) < 0.5
    if kind == "values":
        return torch.tensor([float(v) for v in spec["values"]], dtype=torch.float64).reshape(shape).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=gen) < 0.5
    lo, hi = spec["lo"], spec["hi"]
    if kind == "int" or not dtype.is_floating_point:
        lo, hi = (max(lo, 0), max(hi, 2)) if dtype == torch.uint8 else (lo, hi)
        if lo > 0:  # positive domains stay so
            lo = max(1, lo)
        return torch.randint(int(lo), max(int(hi), int(lo) + 1) + (kind != "int"), shape, generator=gen).to(dtype)
    if spec.get("sep"):
        count = 1
        for s in shape:
            count *= s
        return ((torch.randperm(count, generator=gen).double() - count / 2) * (0.25 if count < 50 else 0.01)
                + 0.013).reshape(shape).to(dtype)
    return (torch.rand(shape, generator=gen, dtype=torch.float64) * (hi - lo) + lo).to(dtype)


def run(row, number_of, case, dtype, store, tag):
    gen = torch.Generator().manual_seed(zlib.crc32(f"{row['name']} {number_of}".encode()))
    env, inputs = {}, {}
    for name, value in case.items():
        key = "from_" if name == "from" else name
        if is_spec(value):
            env[key] = make(value, dtype, gen)
            inputs[name] = env[key] + 1 if value["tensor"] == "index" else env[key]
        elif isinstance(value, list) and any(is_spec(v) for v in value):
            env[key] = [make(v, dtype, gen) for v in value]
            for j, (v, spec) in enumerate(zip(env[key], value)):
                inputs[f"{name}.{j + 1}"] = v + 1 if spec["tensor"] == "index" else v
        else:
            value = [number(v) for v in value] if isinstance(value, list) else number(value)
            env[key] = base_zero(name, value)
    for name, value in (row.get("defaults") or {}).items():
        name = "from_" if name == "from" else name
        if name not in env:
            if isinstance(value, dict):
                env[name] = eval(value["py"])
            else:
                value = number(value)
                env[name] = base_zero(name, value)
    for name, value in env.items():  # an empty Lua table may be a list or a dict
        if value == {} if isinstance(value, dict) else False:
            env[name] = []
    out = eval(row["py"], {**globals(), **env})
    outs = out if isinstance(out, tuple) else (out,)
    for name, value in inputs.items():
        store[f"{tag}.in.{name}"] = value.contiguous().clone()
    for j, value in enumerate(outs):
        value = value.contiguous().clone()
        store[f"{tag}.out.{j + 1}"] = value + 1 if j + 1 in (row.get("index_out") or []) else value


def lenet():
    """Twenty steps of the example LeNet from given weights and batches: losses in float32 and float64."""
    gen = torch.Generator().manual_seed(1)
    sizes = [("0.weight", (20, 1, 3, 3)), ("0.bias", (20,)), ("3.weight", (50, 20, 5, 5)), ("3.bias", (50,)),
             ("7.weight", (128, 800)), ("7.bias", (128,)), ("9.weight", (10, 128)), ("9.bias", (10,))]
    store = {}
    for name, size in sizes:
        fan_in = 1
        for s in size[1:]:
            fan_in *= s
        weight = torch.rand(size, generator=gen) * 2 - 1
        store["weight." + name] = weight.div_(max(fan_in, 25) ** 0.5)
    images = torch.randint(0, 256, (20, 16, 1, 28, 28), generator=gen, dtype=torch.uint8)
    labels = torch.randint(0, 10, (20, 16), generator=gen)
    for dtype in (torch.float32, torch.float64):
        p = {name: store["weight." + name].to(dtype, copy=True).requires_grad_() for name, _ in sizes}
        opt = torch.optim.SGD(p.values(), lr=0.01, momentum=0.9)
        losses = []
        for x, y in zip(images, labels):
            h = F.avg_pool2d(F.relu(F.conv2d(x.to(dtype) / 255, p["0.weight"], p["0.bias"])), 2)
            h = F.avg_pool2d(F.relu(F.conv2d(h, p["3.weight"], p["3.bias"])), 2).flatten(1)
            h = F.linear(F.relu(F.linear(h, p["7.weight"], p["7.bias"])), p["9.weight"], p["9.bias"])
            loss = F.cross_entropy(h, y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            losses.append(loss.detach().double())
        store["losses." + str(dtype).split(".")[1]] = torch.stack(losses)
    store["images"], store["labels"] = images, labels + 1
    save_file(store, os.path.join(ROOT, "spec/golden/_lenet.safetensors"))


def main():
    if not sys.argv[1:]:
        lenet()
    table = eval(subprocess.check_output(["luajit", os.path.join(ROOT, "scripts/dev/cases.lua")], text=True),
                 {"inf": float("inf"), "nan": float("nan")})
    wanted = sys.argv[1:] or [row["name"] for row in table]
    torch.manual_seed(0)
    for row in table:
        if row["name"] not in wanted:
            continue
        store = {}
        for k, case in enumerate(row["cases"], 1):
            run(row, k, case, torch.float32, store, f"{k}.float32")
        if row.get("dtypes") is not False:
            for name, dtype in DTYPES.items():
                if name == "float32":
                    continue
                try:
                    run(row, 1, row["cases"][0], dtype, store, f"1.{name}")
                except (RuntimeError, NotImplementedError, TypeError, IndexError):
                    pass  # PyTorch has it not: nothing to compare with
        save_file(store, os.path.join(ROOT, "spec/golden", row["name"] + ".safetensors"))
    print(f"{len(wanted)} files")


main()
