#!/usr/bin/env python3
"""Writes spec/golden/<op>.safetensors from spec/op/op_cases.lua, with PyTorch's answers.

    scripts/dev/golden/gen_golden.py [op ...]      everything without arguments; names with _ (EXTRAS) are no ops

Needs torch, numpy, safetensors and luajit. Files depend on nothing but the table and PyTorch: each case
draws from a generator seeded by its op's name and number, so a new row changes no other file.

A file holds, for case c and dtype d: "c.d.in.<argument>" (lists: "<argument>.1", ...) and "c.d.out.<i>".
Index tensors are stored counting from 1, as Luminary wants them; so are the results named in index_out.
"""
import os
import re
import subprocess
import sys
import textwrap
import zlib

import torch
import torch.nn.functional as F  # used by the expressions
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "float16": torch.float16, "bfloat16": torch.bfloat16,
          "int64": torch.int64, "int32": torch.int32, "uint8": torch.uint8, "bool": torch.bool}
# Of these ops have no values of their own: they are those of int32, which spec/op/ops_spec.lua narrows.
SMALL = {"int32": torch.int32, "int16": torch.int16, "int8": torch.int8, "uint8": torch.uint8}
DIMS = {"dim", "dim0", "dim1", "dim2", "dims", "start_dim", "end_dim"}


def pair(v):
    return list(v) if isinstance(v, (list, tuple)) else [v, v]


def base0(index):
    return index - 1 if index > 0 else index


def pool_backward(grad, indices, size):
    flat = torch.zeros(size[0], size[1], size[2] * size[3], dtype=grad.dtype)
    return flat.scatter_add(2, indices.flatten(2), grad.flatten(2)).view(size)


def gather_weighted(x, indices, weight):
    n, c, m, i = x.shape
    taps, p = indices.shape[1:]
    at = indices.long().expand(n, taps, p).reshape(n, 1, taps * p, 1).expand(n, c, taps * p, i)
    v = x.gather(2, at).view(n, c, taps, p, i)
    return (v if weight is None else v * weight.expand(n, taps, p).view(n, 1, taps, p, 1)).sum(2)


def gather_weighted_input(grad, indices, weight, size):
    x = torch.zeros(size, dtype=grad.dtype, requires_grad=True)
    return torch.autograd.grad(gather_weighted(x, indices, weight), x, grad)[0]


def gather_weighted_weight(grad, x, indices):
    weight = torch.zeros(x.shape[0], *indices.shape[1:], dtype=grad.dtype, requires_grad=True)
    return torch.autograd.grad(gather_weighted(x, indices, weight), weight, grad)[0]


def grid_sample_input(grad, grid, mode, padding_mode, align_corners, size):
    x = torch.zeros(size, dtype=grad.dtype, requires_grad=True)
    return torch.autograd.grad(F.grid_sample(x, grid, mode, padding_mode, align_corners), x, grad)[0]


def grid_sample_grid(grad, x, grid, mode, padding_mode, align_corners):
    grid = grid.detach().requires_grad_()
    return torch.autograd.grad(F.grid_sample(x, grid, mode, padding_mode, align_corners), grid, grad)[0]


def roi_pool(x, boxes, size, scale):
    import torchvision
    rows = torch.cat([boxes[:, :1] - 1, boxes[:, 1:]], 1)
    return torchvision.ops.roi_pool(x.float(), rows.float(), size, scale).to(x.dtype)


def nms_sorted(boxes, threshold):
    import torchvision
    kept = torchvision.ops.nms(boxes.float(), -torch.arange(len(boxes)).float(), threshold)
    return torch.zeros(len(boxes), dtype=torch.bool).index_fill(0, kept, True)


def int8_pack(weight, groups):
    """Packs a depthwise weight."""
    sums = weight.flatten(1).sum(1).to(torch.int32).view(torch.int8)
    return torch.cat([weight.flatten(1).t().reshape(-1), sums])


def expand_q8_0(x):
    """Expands GGUF's Q8_0: blocks of a half and 32 signed bytes."""
    blocks = x.reshape(-1, 34)
    values = blocks[:, :2].contiguous().view(torch.float16).float() * blocks[:, 2:].contiguous().view(torch.int8)
    return values.reshape(*x.shape[:-1], x.shape[-1] // 34 * 32)


def int8_saturated(x, zero):
    info = torch.iinfo(zero.dtype)
    x = torch.nan_to_num(torch.round(x.float()), nan=float("-inf"))
    return torch.clamp(x + zero, info.min, info.max).to(zero.dtype)


def int8_conv(x, weight, zero, scale, x_zero, groups):
    y = F.conv2d(x.double() - x_zero, weight.double(), groups=groups)
    return y.to(torch.int32) if scale is None else int8_saturated(y.float() * scale.reshape(-1, 1, 1), zero)


def ctc_nll(x, target, starts, input_lengths, target_lengths, blank):
    parts = [target[s:s + n] for s, n in zip(starts.tolist(), target_lengths.tolist())]
    return F.ctc_loss(x, torch.cat(parts), input_lengths.tolist(), target_lengths.tolist(), blank - 1, "none")


def cross_entropy_rows(x, target, weight, ignore_index, label_smoothing, reduction):
    wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
    return F.cross_entropy(wide, target, weight, ignore_index=ignore_index, label_smoothing=label_smoothing,
                           reduction=reduction)


def bn_backward(grad, x, weight, running_mean, running_var, training, eps):
    return tuple(torch.ops.aten.native_batch_norm_backward(
        grad, x, weight, running_mean, running_var, None, None, training, eps, [True, True, True]))


def bn_relu(x, running_mean, running_var, weight, bias, addend, training, momentum, eps, max):
    y = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    return torch.clamp(y if addend is None else y + addend, 0, max)


def bn_relu_backward(grad, x, y, weight, bias, save_mean, save_invstd, training, eps, max):
    """Of given statistics, which PyTorch's own takes as running ones by their variance when not training."""
    mean, invstd, scale, shift = (
        None if v is None else v.double().view(1, -1, *[1] * (x.dim() - 2)) for v in (save_mean, save_invstd, weight, bias))
    result = y
    if y is None:
        result = (x.double() - mean) * invstd * (1 if weight is None else scale) + (0 if bias is None else shift)
    masked = torch.where((result <= 0) if max is None else (result <= 0) | (result >= max), 0, grad)
    running = (None, None) if training else (save_mean, (1 / save_invstd.double() ** 2 - eps).to(save_mean.dtype))
    three = torch.ops.aten.native_batch_norm_backward(
        masked, x, weight, *running, save_mean, save_invstd, training, eps, [True, True, True])
    return tuple(three) + (() if y is None else (masked,))


def slice_backward(grad, size, dim, first, step):
    return torch.ops.aten.slice_backward(grad, size, dim, first - 1, first - 1 + (grad.shape[dim] - 1) * step + 1, step)


def product(x, dim, keepdim):
    """Over any dims; torch.prod takes one."""
    dims = range(x.dim()) if dim is None else [d % x.dim() for d in (dim if isinstance(dim, list) else [dim])]
    for d in sorted(dims, reverse=True):
        x = x.prod(d, keepdim)
    return x.prod() if x.dtype == torch.bool else x


def scanned(f, x, dim, reverse):
    return f(x.flip(dim), dim).flip(dim) if reverse else f(x, dim)


def recurrence(x, decay, dim, reverse):
    pairs = list(zip(x.unbind(dim), decay.unbind(dim)))
    y, last = [], 0
    for entry, factor in reversed(pairs) if reverse else pairs:
        last = entry + factor * last
        y.append(last)
    return torch.stack(y[::-1] if reverse else y, dim)


def recurrent(gates, weight_hh, h0, c0, bias_hh, weight_hr, cell, reverse):
    """A layer in one direction, of what its inputs give: weight_ih is the identity."""
    n = gates.shape[1]
    x, none = gates.view(-1, h0.shape[0], n), gates.new_zeros(n)
    weights = [torch.eye(n, dtype=gates.dtype), weight_hh, none, none if bias_hh is None else bias_hh]
    weights += [] if weight_hr is None else [weight_hr]
    state = h0[None] if c0 is None else (h0[None], c0[None])
    y, *last = getattr(torch, cell)(x.flip(0) if reverse else x, state, weights, True, 1, 0.0, False, False, False)
    last = [t[0] for t in last] + ([gates.new_zeros(0)] if c0 is None else [])
    return (y.flip(0) if reverse else y).flatten(0, 1), *last


def dropout_by_draw(x, p, draw):
    """Philox4x32-10: element i, row-major, takes word i % 4 of block offset + i / 4, and is kept from p on."""
    if not x.is_floating_point():
        raise TypeError("dropout is of floating numbers")
    seed, offset = draw.tolist()
    low = 2**32 - 1
    kept = []
    for i in range(x.numel()):
        block = offset + i // 4
        c, k = [block & low, block >> 32, 0, 0], [seed & low, seed >> 32]
        for _ in range(10):
            a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
            c = [b >> 32 ^ c[1] ^ k[0], b & low, a >> 32 ^ c[3] ^ k[1], a & low]
            k = [k[0] + 0x9E3779B9 & low, k[1] + 0xBB67AE85 & low]
        kept.append((c[i % 4] >> 8) / 2**24 >= p)
    return torch.where(torch.tensor(kept, dtype=torch.bool).view(x.shape), x / (1 - p) if p < 1 else 0, 0).to(x.dtype)


def attention(query, key, value, attn_mask, is_causal, dropout_p, draw):
    if draw is None:
        return F.scaled_dot_product_attention(query, key, value, attn_mask, 0.0, is_causal)
    scores = query @ key.mT / query.shape[-1]**0.5
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -torch.inf)
    return dropout_by_draw(torch.nan_to_num(torch.softmax(scores, -1)), dropout_p, draw) @ value


def attention_backward(grad, query, key, value, out, log_sum, dropout_p, draw):
    weights = torch.exp(query @ key.mT / 2 - log_sum[..., None])
    left, slopes = weights, grad @ value.mT
    if draw is not None:
        left, slopes = (dropout_by_draw(t, dropout_p, draw) for t in (weights, slopes))
    slopes = weights * (slopes - (grad * out).sum(-1, keepdim=True)) / 2
    return slopes @ key, slopes.mT @ query, left.mT @ grad


def paged_attention(query, keys, values, pages, sequence, position, page_size, scale, window, cap):
    if not query.is_floating_point():
        raise RuntimeError("query must be floating")
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    keys, values = ((expand_q8_0(t) if t.dtype == torch.uint8 else t).to(dtype) for t in (keys, values))
    groups, rows = query.shape[1] // keys.shape[1], []
    for q, s, last in zip(query.to(dtype), sequence.tolist(), position.tolist()):
        seen = torch.arange(max(0, last + 1 - window) if window > 0 else 0, last + 1)
        slots = pages[s][seen // page_size] * page_size + seen % page_size
        k, v = (t[slots].repeat_interleave(groups, 1) for t in (keys, values))
        scores = torch.einsum("he,she->hs", q, k) * (scale or q.shape[1] ** -0.5)
        weights = torch.softmax(torch.tanh(scores / cap) * cap if cap else scores, 1)
        rows.append(torch.einsum("hs,shv->hv", weights, v).to(query.dtype))
    return torch.stack(rows) if rows else query.new_zeros([0, query.shape[1], values.shape[2]])


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
    if spec.get("dtype") in SMALL:
        dtype = SMALL[spec["dtype"]]
    if kind == "values":
        return torch.tensor([float(v) for v in spec["values"]], dtype=torch.float64).reshape(shape).to(dtype)
    if dtype == torch.bool:
        return torch.rand(shape, generator=gen) < 0.5
    if spec.get("whole") and dtype.is_floating_point:
        dtype = torch.int64
    lo, hi = spec["lo"], spec["hi"]
    count = 1
    for s in shape:
        count *= s
    if spec.get("sep") and not dtype.is_floating_point:
        return torch.randperm(count, generator=gen).reshape(shape).to(dtype)
    if kind == "int" or not dtype.is_floating_point:
        lo, hi = (max(lo, 0), max(hi, 2)) if dtype == torch.uint8 else (lo, hi)
        if lo > 0:  # positive domains stay so
            lo = max(1, lo)
        return torch.randint(int(lo), max(int(hi), int(lo) + 1) + (kind != "int"), shape, generator=gen).to(dtype)
    if spec.get("sep"):
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


def lua_text(text):
    """What PyTorch prints, in Lua's spelling. Its dtypes are shorter and may fit where PyTorch begins a line."""
    text = text.replace("True", "true").replace("False", "false").replace("torch.", "")
    own_line = re.search(r",\n +(dtype=\w+)\)$", text)
    if own_line:
        values = text[:own_line.start()]
        if len(values) - values.rfind("\n") + 1 + len(own_line[1]) + 2 <= 80:  # torch._tensor_str's count
            return f"{values}, {own_line[1]})"
    return text


# Tensors whose text is compared: an expression that is both Python and, after as_lua, Lua. T(values, dtype) is a
# tensor of a nested list; the rest are creation functions and methods that both have.
FLOATS = ["T(3.14159)", "T(0)", "T(-2.5)", "T(1e10)", "T(1e-10)", "T(nan)", "T(-inf)", "T(100000)", "T([0])",
          "T([1, 2, 3])", "T([1.5, 2, -3])", "T([0.00001, 1])", "T([1e9, 1])", "T([0.1, 1000.5])", "T([0.001, 1])",
          "T([nan, inf, -inf, 1])", "T([nan, 0.5])", "T([nan, nan])", "T([-0.0, 0.0])", "T([60000, 1])",
          "T([123456.78, 1])", "T([0.00012, 0.5])", "T([99999, 0.25])", "T([[1, 2.25], [-3, 4]])", "T([[1, inf], [nan, -4]])",
          "T([[[1, 2], [3, 4]], [[5, 6], [7, 8.5]]])", "T([])", "T([[], []])"]
INTS = ["T(7)", "T([0, 100, 7])", "T([[1, 20], [3, 4]])", "T([])", "T([[]])", "T([[[1], [2]], [[3], [4]]])"]
BOOLS = ["T(1)", "T([1, 0])", "T([[1, 1], [0, 1]])", "T([[0, 0]])", "T([])"]
OTHERS = ["T([-5, 10, -100000], 'int64')", "T([-5, 10, -100000], 'int32')", "T([1e300, -1e-300, 0], 'float64')",
          "T([1e300, 2e300], 'float64')", "T([1.0000001, 2], 'float64')", "T([1e8, 5], 'float64')", "T([100000001, 5], 'float64')",
          "T([65504, 0.5], 'float16')", "T([65504, 3], 'float16')", "T([3e38, 1], 'bfloat16')",
          "arange(30)", "arange(60)", "arange(1000)", "arange(1001)", "arange(2000)", "arange(1000000)",
          "arange(40).float() / 7", "arange(27).float().exp()", "arange(90).reshape(3, 30)", "arange(60).reshape(2, 30).double() / 3",
          "arange(24).reshape(2, 3, 4)", "arange(24).reshape(2, 3, 2, 2).float()", "arange(16).reshape(1, 2, 2, 2, 2)",
          "arange(10000).reshape(100, 100)", "arange(10000).reshape(100, 100).float() / 3", "arange(10000).reshape(100, 100).t()",
          "arange(5000).reshape(5, 1000)", "arange(5000).reshape(1000, 5)", "arange(8000).reshape(20, 20, 20)",
          "arange(8000).reshape(20, 20, 20).float().square()", "arange(1200).reshape(2, 2, 300).half()",
          "arange(3000).float().add(0.5).bfloat16()", "arange(3000).lt(5)", "arange(3000).reshape(60, 50).remainder(7).int()",
          "arange(12).reshape(3, 4).t()", "T([[1], [2]]).expand(2, 3)", "T([1, 2.5]).requires_grad_()",
          "T([[0.5, 1e-7, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]])", "arange(30).float().requires_grad_()",
          "arange(60).double() * 1000", "arange(20).half() / 3", "T([], 'float64').requires_grad_()",
          "zeros(3, 0, 2)", "zeros(0, 3).int()", "zeros(0).double()", "zeros(2, 3, 4, 0).half()", "ones(1, 1, 1)"]


def text_row(expression, text, dtypes=None):
    """A row {expression, text} of a Lua list; with dtypes a third word list."""
    more = f', "{" ".join(dtypes)}"' if dtypes else ""
    row = f'  {{ "{expression}", [=[{text}]=]{more} }},\n'
    return row if len(row) <= 121 and "\n" not in text else f'  {{ "{expression}",\n[=[\n{text}]=]{more} }},\n'


def printing():
    """PyTorch's text of many tensors: a Lua list of {expression, text}, or {expression with %s for a dtype, text without
    its dtype, dtypes} where these differ in no more."""
    def T(values, dtype="float32"):
        return torch.tensor(values, dtype={**DTYPES, **SMALL}[dtype])

    def as_lua(expression):
        expression = re.sub(r"\bT\((.*?)\)($|[. ])", lambda m: "T(" + m[1].replace("[", "{").replace("]", "}") + ")" + m[2],
                            expression)
        expression = re.sub(r"\.([a-z])", r":\1", expression)  # methods; no number here has a letter after its dot
        return re.sub(r"\b(arange|zeros|ones)\(", r"lm.\1(", expression)

    names = {"T": T, "arange": torch.arange, "zeros": torch.zeros, "ones": torch.ones, "nan": float("nan"), "inf": float("inf")}
    by_text = {}
    for dtype in DTYPES | SMALL:
        wide = BOOLS if dtype == "bool" else FLOATS if dtype in DTYPES and DTYPES[dtype].is_floating_point else INTS
        for e in wide:
            text = lua_text(str(eval(e[:-1] + f", '{dtype}')", names)))
            by_text.setdefault((e[:-1] + ", '%s')", text.replace(f", dtype={dtype})", ")")), []).append(dtype)
    with open(os.path.join(ROOT, "spec/golden/print.lua"), "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_golden.py: expressions, and how PyTorch prints them in Lua's spelling.\nreturn {\n")
        for case in OTHERS:
            out.write(text_row(as_lua(case), lua_text(str(eval(case, names)))))
        for (case, text), dtypes in by_text.items():
            out.write(text_row(as_lua(case), text, dtypes))
        out.write("}\n")


def promotion():
    """torch.result_type of every pair: a Lua table of the right operands, each a kind ("dims", "zero_dim") and dtype, or a
    number, whole or not; and of a row of results for each left operand."""
    def operand(kind, dtype):
        return torch.ones([2] if kind == "dims" else [], dtype=dtype)

    rights = {f"{kind} {name}": operand(kind, dtype) for kind in ("dims", "zero_dim")
              for name, dtype in (DTYPES | SMALL).items()}
    rights.update({"number 3": 3, "number 0.5": 0.5})
    with open(os.path.join(ROOT, "spec/golden/promotion.lua"), "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_golden.py: torch.result_type(left, right), a row for each left operand.\n")
        out.write("return {\n  rights = [[\n%s]],\n" % textwrap.fill(
            ", ".join(rights), 116, initial_indent="    ", subsequent_indent="    "))
        for kind in ("dims", "zero_dim"):
            for name, dtype in (DTYPES | SMALL).items():
                row = " ".join(lua_text(str(torch.result_type(operand(kind, dtype), value))) for value in rights.values())
                out.write(f'  ["{kind} {name}"] = [[\n%s]],\n' % textwrap.fill(
                    row, 116, initial_indent="    ", subsequent_indent="    "))
        out.write("}\n")


def layers():
    """Layers and losses on given state: input, output, the state before and after, gradients of sum(y^2)."""
    nn, gen, store = torch.nn, torch.Generator().manual_seed(2), {}

    def put(name, t):
        store[name] = t.detach().contiguous().clone()

    def layer(name, module, *shape, index=None, training=True):
        module.train(training)
        with torch.no_grad():
            for key, t in module.state_dict().items():
                if t.is_floating_point():
                    t.copy_(torch.rand(t.shape, generator=gen) + (0.5 if key.endswith("var") else -0.5))
        for key, t in module.state_dict().items():
            put(f"{name}.state.{key}", t)
        x = torch.randint(0, index, shape, generator=gen) if index else torch.randn(shape, generator=gen)
        y = module(x)
        if y.requires_grad:
            y.square().sum().backward()
        put(f"{name}.x", x + 1 if index else x)
        put(f"{name}.y", y)
        for key, t in module.named_buffers():
            put(f"{name}.after.{key}", t)
        for key, t in module.named_parameters():
            put(f"{name}.grad.{key}", t.grad)

    layer("linear", nn.Linear(5, 3), 2, 4, 5)
    layer("linear_bare", nn.Linear(5, 3, bias=False), 5)
    layer("conv", nn.Conv2d(4, 6, (3, 2), stride=(2, 1), padding=(1, 0), dilation=(1, 2), groups=2), 2, 4, 7, 6)
    layer("conv_bare", nn.Conv2d(2, 3, 3, bias=False), 1, 2, 5, 5)
    layer("embedding", nn.Embedding(7, 3, padding_idx=2), 2, 5, index=7)
    layer("bn1d", nn.BatchNorm1d(3), 6, 3)
    layer("bn1d_length", nn.BatchNorm1d(3, eps=0.01, momentum=0.3), 2, 3, 4)
    layer("bn2d", nn.BatchNorm2d(3), 2, 3, 4, 3)
    layer("bn2d_eval", nn.BatchNorm2d(3), 2, 3, 4, 3, training=False)
    layer("bn2d_average", nn.BatchNorm2d(3, momentum=None), 2, 3, 4, 3)
    layer("bn2d_plain", nn.BatchNorm2d(3, affine=False), 2, 3, 4, 3)
    layer("bn2d_batch", nn.BatchNorm2d(3, track_running_stats=False), 2, 3, 4, 3, training=False)
    layer("layer_norm", nn.LayerNorm(6), 3, 6)
    layer("layer_norm_dims", nn.LayerNorm([3, 4], eps=0.01), 2, 3, 4)
    layer("layer_norm_plain", nn.LayerNorm(6, elementwise_affine=False), 3, 6)
    layer("layer_norm_unbiased", nn.LayerNorm(6, bias=False), 3, 6)
    layer("max_pool", nn.MaxPool2d((3, 2), stride=2, padding=1, ceil_mode=True), 2, 2, 7, 6)
    layer("avg_pool", nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), 2, 2, 7, 6)
    layer("adaptive_pool", nn.AdaptiveAvgPool2d((3, 2)), 2, 2, 7, 5)
    layer("sequential", nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Sequential(nn.Linear(5, 3), nn.ReLU())), 2, 4)
    for module in (nn.ReLU(), nn.LeakyReLU(0.2), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Tanh(),
                   nn.Sigmoid(), nn.Softplus(), nn.Softmax(dim=1), nn.LogSoftmax(dim=0), nn.Flatten(), nn.Identity()):
        tanh = "_tanh" if getattr(module, "approximate", "") == "tanh" else ""
        layer(type(module).__name__ + tanh, module, 3, 4, 2)

    def loss(name, module, x, target, base=0):
        x = x.requires_grad_()
        y = module(x, target)
        y.sum().backward()
        for key, t in (("x", x), ("target", target + base), ("y", y), ("grad", x.grad)):
            put(f"{name}.{key}", t)

    weight = torch.tensor([0.5, 1.0, 2.0, 0.25])
    put("class_weight", weight)
    classes = torch.tensor([0, 3, 1, 2, 3])
    for reduction in ("mean", "sum", "none"):
        loss("ce_" + reduction, nn.CrossEntropyLoss(reduction=reduction), torch.randn(5, 4, generator=gen), classes, 1)
        loss("nll_" + reduction, nn.NLLLoss(weight, reduction=reduction, ignore_index=3),
             torch.randn(5, 4, generator=gen).log_softmax(1), classes, 1)
        loss("mse_" + reduction, nn.MSELoss(reduction=reduction), torch.randn(3, 2, generator=gen),
             torch.randn(3, 2, generator=gen))
        loss("bce_" + reduction, nn.BCEWithLogitsLoss(pos_weight=weight, reduction=reduction),
             torch.randn(3, 4, generator=gen), torch.rand(3, 4, generator=gen))
    loss("ce_weight", nn.CrossEntropyLoss(weight, label_smoothing=0.1), torch.randn(5, 4, generator=gen), classes, 1)
    loss("ce_ignore", nn.CrossEntropyLoss(ignore_index=3), torch.randn(5, 4, generator=gen), classes, 1)
    loss("ce_probabilities", nn.CrossEntropyLoss(), torch.randn(5, 4, generator=gen),
         torch.rand(5, 4, generator=gen).softmax(1))

    grads = [torch.randn(3, 4, generator=gen), torch.randn(5, generator=gen)]
    for k, g in enumerate(grads):
        put(f"clip.grad.{k + 1}", g)
    for norm in (1.0, 2.0, 0.5, float("inf")):
        ps = [torch.zeros_like(g).requires_grad_() for g in grads]
        for p, g in zip(ps, grads):
            p.grad = g.clone()
        total = nn.utils.clip_grad_norm_(ps, 1.5, norm_type=norm)
        put(f"clip.{norm:g}.total", total)
        put(f"clip.{norm:g}.grads", torch.cat([p.grad.flatten() for p in ps]))

    layer("conv_same", nn.Conv2d(2, 3, (2, 3), padding="same", dilation=(1, 2)), 2, 2, 5, 6)
    for mode in ("reflect", "replicate", "circular"):
        layer("conv_" + mode, nn.Conv2d(2, 3, 3, stride=2, padding=(2, 1), padding_mode=mode), 2, 2, 5, 6)
        layer(f"conv_{mode}_same", nn.Conv2d(2, 3, (2, 3), padding="same", padding_mode=mode), 2, 5, 6)
    layer("conv_reflect_valid", nn.Conv2d(2, 3, 3, padding="valid", padding_mode="reflect"), 2, 2, 5, 6)
    layer("group_norm", nn.GroupNorm(2, 4), 2, 4, 3)
    layer("group_norm_plain", nn.GroupNorm(4, 4, eps=0.1, affine=False), 2, 4, 3, 2)
    layer("instance_norm", nn.InstanceNorm2d(3), 2, 3, 4, 3)
    layer("instance_norm_running", nn.InstanceNorm1d(3, momentum=0.3, affine=True, track_running_stats=True), 2, 3, 4)
    layer("instance_norm_eval", nn.InstanceNorm1d(3, affine=True, track_running_stats=True), 2, 3, 4, training=False)
    layer("instance_norm_single", nn.InstanceNorm1d(3, affine=True), 3, 4)
    layer("rms_norm", nn.RMSNorm(6), 3, 6)
    layer("rms_norm_dims", nn.RMSNorm([3, 4], eps=0.01), 2, 3, 4)
    for reduction in ("mean", "none"):
        labels = torch.tensor([[0, 3, -1, 1, 2], [2, 1, 4, -1, 0], [-1, 0, 1, 2, 3]])
        loss("multilabel_margin_" + reduction, nn.MultiLabelMarginLoss(reduction=reduction),
             torch.randn(3, 5, generator=gen), labels, 1)
        loss("kl_" + reduction, nn.KLDivLoss(reduction=reduction, log_target=True), torch.randn(3, 4, generator=gen),
             torch.randn(3, 4, generator=gen))
    layer("avg_pool_divisor", nn.AvgPool2d(3, stride=2, padding=1, ceil_mode=True, divisor_override=4), 2, 2, 7, 6)
    save_file(store, os.path.join(ROOT, "spec/golden/_nn.safetensors"))


def sequences():
    """Layers of sequences on given state: inputs, outputs (nested ones flat), gradients of the sum of their squares."""
    nn, gen, store = torch.nn, torch.Generator().manual_seed(5), {}

    def put(name, t):
        store[name] = t.detach().contiguous().clone()

    def flat(values):
        for value in values:
            if isinstance(value, torch.Tensor):
                yield value
            elif value is not None:
                yield from flat(value)

    def fill(name, module):
        module.double()
        with torch.no_grad():
            for key, t in module.state_dict().items():
                t.copy_(torch.rand(t.shape, generator=gen, dtype=torch.float64) - 0.5)
                put(f"{name}.state.{key}", t)

    def randoms(shapes):
        return [torch.randn(s, generator=gen, dtype=torch.float64).requires_grad_() for s in shapes]

    def differentiate(name, module, inputs, results):
        results = list(flat([results]))
        sum(y.square().sum() for y in results).backward()
        for k, x in enumerate(inputs):
            put(f"{name}.in.{k + 1}", x)
            put(f"{name}.in_grad.{k + 1}", x.grad)
        for k, y in enumerate(results):
            put(f"{name}.out.{k + 1}", y)
        for key, t in module.named_parameters():
            put(f"{name}.grad.{key}", torch.zeros_like(t) if t.grad is None else t.grad)

    def layer(name, module, *shapes, **masks):
        fill(name, module)
        inputs = randoms(shapes)
        if masks.pop("same", False):
            inputs = inputs[:1]
            results = module(inputs[0], inputs[0], inputs[0], **masks)
        else:
            results = module(*inputs, **masks)
        differentiate(name, module, inputs, results)
        for key, mask in masks.items():
            if isinstance(mask, torch.Tensor):
                put(f"{name}.mask.{key}", mask)

    def recurrent(name, module, *shapes, lengths=None):
        fill(name, module)
        inputs = randoms(shapes)
        x, states = inputs[0], inputs[1:]
        if lengths:
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=lengths == sorted(lengths, reverse=True))
        results = module(x, *([] if not states else states if len(states) == 1 else [tuple(states)]))
        if lengths:
            results = [results[0].data, results[1]]
        differentiate(name, module, inputs, results)

    def bools(*shape):
        seen = torch.rand(shape, generator=gen) > 0.7
        seen[..., 0] = False
        return seen

    heads = nn.MultiheadAttention
    layer("mha", heads(6, 2), (4, 3, 6), (5, 3, 6), (5, 3, 6))
    layer("mha_self", heads(6, 3, batch_first=True), (3, 4, 6), same=True)
    layer("mha_plain", heads(6, 2, bias=False), (4, 3, 6), same=True, need_weights=False)
    layer("mha_widths", heads(6, 2, kdim=4, vdim=5), (4, 3, 6), (5, 3, 4), (5, 3, 5), average_attn_weights=False)
    layer("mha_more", heads(6, 2, add_bias_kv=True, add_zero_attn=True), (4, 3, 6), (5, 3, 6), (5, 3, 6),
          attn_mask=bools(4, 5), key_padding_mask=bools(3, 5))
    layer("mha_numbers", heads(6, 2), (4, 3, 6), (5, 3, 6), (5, 3, 6),
          attn_mask=torch.randn(6, 4, 5, generator=gen, dtype=torch.float64),
          key_padding_mask=torch.randn(3, 5, generator=gen, dtype=torch.float64))
    layer("mha_single", heads(6, 2), (4, 6), (5, 6), (5, 6), attn_mask=bools(4, 5))
    quiet = dict(dim_feedforward=7, dropout=0.0)
    layer("encoder_layer", nn.TransformerEncoderLayer(6, 2, **quiet), (4, 3, 6), src_key_padding_mask=bools(3, 4))
    layer("encoder_layer_first", nn.TransformerEncoderLayer(6, 2, norm_first=True, activation="gelu", batch_first=True,
                                                            bias=False, **quiet), (3, 4, 6), src_mask=bools(4, 4))
    layer("decoder_layer", nn.TransformerDecoderLayer(6, 2, **quiet), (4, 3, 6), (5, 3, 6), tgt_mask=bools(4, 4))
    layer("encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(6, 2, **quiet), 2, nn.LayerNorm(6)), (4, 3, 6))
    layer("transformer", nn.Transformer(6, 2, 2, 2, batch_first=True, **quiet), (3, 5, 6), (3, 4, 6),
          tgt_mask=nn.Transformer.generate_square_subsequent_mask(4, dtype=torch.float64))
    whole = dict(num_layers=2, bidirectional=True)
    for name, kind in dict(rnn=nn.RNN, gru=nn.GRU, lstm=nn.LSTM).items():
        states = lambda *size: (size,) * (2 if name == "lstm" else 1)
        recurrent(f"{name}_plain", kind(3, 4), (5, 2, 3))
        recurrent(f"{name}_states", kind(3, 4, **whole), (4, 2, 3), *states(4, 2, 4))
        recurrent(f"{name}_no_bias", kind(3, 4, bias=False, batch_first=True), (2, 4, 3), *states(1, 2, 4))
        recurrent(f"{name}_single", kind(3, 4, bidirectional=True), (4, 3), *states(2, 4))
        recurrent(f"{name}_packed", kind(3, 4, **whole), (4, 3, 3), *states(4, 3, 4), lengths=[4, 2, 1])
        recurrent(f"{name}_unsorted", kind(3, 4, bidirectional=True), (4, 3, 3), *states(2, 3, 4), lengths=[2, 4, 2])
    recurrent("rnn_relu", nn.RNN(3, 4, nonlinearity="relu", **whole), (4, 2, 3), (4, 2, 4))
    recurrent("lstm_projected", nn.LSTM(3, 4, proj_size=2, **whole), (4, 2, 3), (4, 2, 2), (4, 2, 4))
    recurrent("lstm_projected_packed", nn.LSTM(3, 4, proj_size=2, bidirectional=True), (4, 3, 3), lengths=[1, 4, 2])
    recurrent("rnn_cell", nn.RNNCell(3, 4), (2, 3), (2, 4))
    recurrent("rnn_cell_relu", nn.RNNCell(3, 4, nonlinearity="relu", bias=False), (2, 3))
    recurrent("gru_cell", nn.GRUCell(3, 4), (2, 3), (2, 4))
    recurrent("gru_cell_single", nn.GRUCell(3, 4), (3,), (4,))
    recurrent("lstm_cell", nn.LSTMCell(3, 4), (2, 3), (2, 4), (2, 4))
    recurrent("lstm_cell_single", nn.LSTMCell(3, 4, bias=False), (3,))
    save_file(store, os.path.join(ROOT, "spec/golden/_sequences.safetensors"))


# Optimizers by name, and what they are made with. As Lua's options in spec/optim/optim_spec.lua.
OPTIMIZERS = {
    "sgd": ("SGD", dict(lr=0.1)),
    "sgd_momentum": ("SGD", dict(lr=0.1, momentum=0.9)),
    "sgd_dampening": ("SGD", dict(lr=0.1, momentum=0.9, dampening=0.3)),
    "sgd_nesterov": ("SGD", dict(lr=0.1, momentum=0.9, nesterov=True)),
    "sgd_decay": ("SGD", dict(lr=0.1, momentum=0.5, weight_decay=0.1)),
    "sgd_nesterov_decay": ("SGD", dict(lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True)),
    "sgd_maximize": ("SGD", dict(lr=0.1, momentum=0.9, weight_decay=0.1, maximize=True)),
    "adam": ("Adam", dict()),
    "adam_options": ("Adam", dict(lr=0.05, betas=(0.8, 0.95), eps=0.001)),
    "adam_decay": ("Adam", dict(lr=0.05, weight_decay=0.1)),
    "adam_amsgrad": ("Adam", dict(lr=0.05, amsgrad=True, betas=(0.5, 0.6))),
    "adam_maximize": ("Adam", dict(lr=0.05, weight_decay=0.1, maximize=True)),
    "adamw": ("AdamW", dict()),
    "adamw_decay": ("AdamW", dict(lr=0.05, weight_decay=0.3)),
    "adamw_amsgrad": ("AdamW", dict(lr=0.05, amsgrad=True, betas=(0.5, 0.6))),
    "adamw_maximize": ("AdamW", dict(lr=0.05, maximize=True)),
}


def optimizers():
    """Six steps of each optimizer from given parameters and gradients (all parameters, flat, after each step), and
    learning rates of the schedulers."""
    gen, store, steps = torch.Generator().manual_seed(3), {}, 6
    sizes = [(3, 4), (5,)]
    start = [torch.randn(s, generator=gen, dtype=torch.float64) for s in sizes]
    grads = [[torch.randn(s, generator=gen, dtype=torch.float64) for s in sizes] for _ in range(steps)]
    for k in range(len(sizes)):
        store[f"start.{k + 1}"] = start[k]
        store[f"grad.{k + 1}"] = torch.stack([g[k] for g in grads])
    for name, (cls, options) in OPTIMIZERS.items():
        for dtype in (torch.float32, torch.float64):
            ps = [p.to(dtype, copy=True).requires_grad_() for p in start]
            opt = getattr(torch.optim, cls)(ps, foreach=False, **options)
            after = []
            for g in grads:
                for p, v in zip(ps, g):
                    p.grad = v.to(dtype)
                opt.step()
                after.append(torch.cat([p.detach().flatten() for p in ps]))
            store[f"{name}.{str(dtype).split('.')[1]}"] = torch.stack(after)

    def rates(make, count, change=None):
        p = torch.zeros(1).requires_grad_()
        opt = torch.optim.SGD([{"params": [p]}, {"params": [p.detach().clone().requires_grad_()], "lr": 0.03}], lr=0.1)
        scheduler = make(opt)
        seen = [[g["lr"] for g in opt.param_groups]]
        for k in range(count):
            if k == change:
                opt.param_groups[0]["lr"] = 0.5
            opt.step()
            scheduler.step()
            seen.append([g["lr"] for g in opt.param_groups])
        return torch.tensor(seen, dtype=torch.float64)

    sched = torch.optim.lr_scheduler
    store["rate.step"] = rates(lambda o: sched.StepLR(o, 3), 10)
    store["rate.step_gamma"] = rates(lambda o: sched.StepLR(o, 2, gamma=0.5), 9, change=5)
    store["rate.cosine"] = rates(lambda o: sched.CosineAnnealingLR(o, 10), 10)
    store["rate.cosine_min"] = rates(lambda o: sched.CosineAnnealingLR(o, 4, eta_min=0.01), 17)
    store["rate.cosine_changed"] = rates(lambda o: sched.CosineAnnealingLR(o, 8, eta_min=0.01), 12, change=5)
    save_file(store, os.path.join(ROOT, "spec/golden/_optim.safetensors"))


class Block(torch.nn.Module):
    """As spec/nn/nn_spec.lua's."""
    def __init__(self, cin, cout, stride=1):
        super().__init__()
        nn = torch.nn
        self.conv1 = nn.Conv2d(cin, cout, 3, padding=1, stride=stride)
        self.bn1 = nn.BatchNorm2d(cout)
        if stride != 1:
            self.skip = nn.Sequential(nn.Conv2d(cin, cout, 1, stride=stride, bias=False), nn.BatchNorm2d(cout))
        self.tail = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)] + [nn.Linear(4, 2)])


MODULES = [
    ("nn.Linear(3, 4)",),
    ("nn.Linear(3, 4, bias=False)", "nn.Linear(3, 4, {bias = false})"),
    ("nn.Conv2d(3, 8, 3)",),
    ("nn.Conv2d(4, 8, (3, 2), stride=2, padding=(1, 0), dilation=2, groups=4, bias=False)",
     "nn.Conv2d(4, 8, {3, 2}, {stride = 2, padding = {1, 0}, dilation = 2, groups = 4, bias = false})"),
    ("nn.Conv2d(1, 1, 2, padding='same', padding_mode='reflect')", "nn.Conv2d(1, 1, 2, {padding = 'same', padding_mode = 'reflect'})"),
    ("nn.Conv2d(1, 1, 3, padding='valid')", "nn.Conv2d(1, 1, 3, {padding = 'valid'})"),
    ("nn.Conv2d(1, 1, 3, padding=1, bias=False, padding_mode='circular')",
     "nn.Conv2d(1, 1, 3, {padding = 1, bias = false, padding_mode = 'circular'})"),
    ("nn.BatchNorm1d(8)",),
    ("nn.BatchNorm2d(8, eps=0.001, momentum=None, affine=False)",
     "nn.BatchNorm2d(8, {eps = 0.001, momentum = false, affine = false})"),
    ("nn.BatchNorm2d(8, momentum=0.01, track_running_stats=False)",
     "nn.BatchNorm2d(8, {momentum = 0.01, track_running_stats = false})"),
    ("nn.LayerNorm(8)",),
    ("nn.LayerNorm([3, 4], eps=1e-6, elementwise_affine=False)",
     "nn.LayerNorm({3, 4}, {eps = 1e-6, elementwise_affine = false})"),
    ("nn.MaxPool2d(2)",),
    ("nn.MaxPool2d((3, 2), stride=(2, 1), padding=1, ceil_mode=True)",
     "nn.MaxPool2d({3, 2}, {stride = {2, 1}, padding = 1, ceil_mode = true})"),
    ("nn.MaxPool2d(2, return_indices=True)", "nn.MaxPool2d(2, {return_indices = true})"),
    ("nn.MaxUnpool2d((3, 2), stride=2, padding=1)", "nn.MaxUnpool2d({3, 2}, {stride = 2, padding = 1})"),
    ("nn.AvgPool2d(2)",),
    ("nn.AvgPool2d(3, stride=1, padding=1)", "nn.AvgPool2d(3, {stride = 1, padding = 1})"),
    ("nn.AdaptiveAvgPool2d(1)",),
    ("nn.AdaptiveAvgPool2d((2, 3))", "nn.AdaptiveAvgPool2d({2, 3})"),
    ("nn.ReLU()",), ("nn.ReLU(inplace=True)", "nn.ReLU{inplace = true}"), ("nn.LeakyReLU()",),
    ("nn.LeakyReLU(0.2, inplace=True)", "nn.LeakyReLU(0.2, {inplace = true})"), ("nn.GELU()",),
    ("nn.GELU(approximate='tanh')", "nn.GELU{approximate = 'tanh'}"), ("nn.SiLU()",), ("nn.Tanh()",), ("nn.Sigmoid()",),
    ("nn.Softplus()",), ("nn.Softplus(2.5, 5.5)",), ("nn.ELU(0.5)",), ("nn.SELU()",), ("nn.CELU(0.5, inplace=True)", "nn.CELU(0.5, {inplace = true})"),
    ("nn.Mish()",), ("nn.Hardswish()",), ("nn.Hardsigmoid()",), ("nn.LogSigmoid()",), ("nn.Softsign()",), ("nn.Tanhshrink()",),
    ("nn.Threshold(0.1, 20.5)",), ("nn.Hardshrink()",), ("nn.Softshrink(1.5)",), ("nn.GLU()",),
    ("nn.RReLU(0.1, 0.3)",), ("nn.PReLU()",), ("nn.PReLU(3)",), ("nn.Dropout()",), ("nn.Dropout(0.25, inplace=True)", "nn.Dropout(0.25, {inplace = true})"),
    ("nn.Identity()",), ("nn.Embedding(10, 3)",), ("nn.CrossEntropyLoss()",), ("nn.NLLLoss()",), ("nn.MSELoss()",),
    ("nn.BCEWithLogitsLoss()",), ("nn.Sequential()",), ("nn.ModuleList()",),
    ("nn.Sequential(nn.Conv2d(1, 20, 3), nn.ReLU(), nn.Sequential(nn.AvgPool2d(2), nn.Identity()), nn.Linear(8, 2))",),
    ("Block(3, 8)",), ("nn.Sequential(Block(3, 8, stride=2), nn.Dropout(0.5))", "nn.Sequential(Block(3, 8, 2), nn.Dropout(0.5))"),
]


def module_texts():
    """How PyTorch prints modules: a Lua list of {expression, text}."""
    with open(os.path.join(ROOT, "spec/golden/modules.lua"), "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_golden.py: expressions, and how PyTorch prints their modules.\nreturn {\n")
        for case in MODULES:
            text = str(eval(case[0], {"nn": torch.nn, "Block": Block}))
            out.write(text_row(case[-1], text))
        out.write("}\n")


# What autocast is asked about: Python, and Lua where that differs by more than a method's colon. Every tensor argument is
# of [4, 4] but where it says otherwise; "w" and "b" are leaves, "p" lies in (0, 1), "i" and "c" index.
AUTOCAST = [
    ("x.mm(w)",), ("x.matmul(w)",), ("x.matmul(w[0])", "x:matmul(w[1])"), ("torch.bmm(x[None], w[None])", "lm.bmm(x:view(1, 4, 4), w:view(1, 4, 4))"),
    ("torch.addmm(b, x, w)", "lm.addmm(b, x, w)"), ("F.linear(x, w, b)",), ("F.linear(x, w)",),
    ("F.conv2d(x.view(1, 1, 4, 4), w.view(1, 1, 4, 4))",), ("F.conv2d(x.view(1, 4, 2, 2), w.view(4, 4, 1, 1), b)",),
    ("p.pow(2)",), ("p.pow(w)",), ("p.square()",), ("p.exp()",), ("p.expm1()",), ("p.log()",), ("p.log1p()",), ("p.rsqrt()",),
    ("p.reciprocal()",), ("p.sqrt()",), ("F.softplus(x)",), ("F.logsigmoid(x)",), ("x.sin()",), ("x.cos()",), ("x.tanh()",),
    ("x.erf()",), ("x.sigmoid()",), ("x.relu()",), ("torch.nn.functional.relu6(x)", "x:relu6()"), ("F.leaky_relu(x, 0.1)",),
    ("F.gelu(x)",), ("F.silu(x)",), ("x.neg()",), ("x.abs()",), ("x.sign()",), ("x.floor()",), ("x.round()",), ("x.clamp(-1, 1)",),
    ("x + w",), ("x - w",), ("x * w",), ("x / w",), ("x + 1",), ("2 * x",), ("x.maximum(w)",), ("x.minimum(w)",), ("x.lt(w)",),
    ("torch.where(c, x, w)", "lm.where(c, x, w)"), ("x.masked_fill(c, 0)",),
    ("x.sum()",), ("x.sum(0)", "x:sum(1)"), ("x.sum(0, dtype=torch.float64)", "x:sum(1, {dtype = 'float64'})"), ("x.mean()",),
    ("x.mean(0)", "x:mean(1)"), ("x.var(0)", "x:var(1)"), ("x.std(0)", "x:std(1)"), ("x.norm()",), ("x.norm(1, 0)", "x:norm(1, 1)"),
    ("x.logsumexp(0)", "x:logsumexp(1)"), ("x.amax(0)", "x:amax(1)"), ("x.max(0)[0]", "(x:max(1))"), ("x.topk(2)[0]", "(x:topk(2))"),
    ("x.softmax(0)", "x:softmax(1)"), ("x.log_softmax(0)", "x:log_softmax(1)"), ("F.layer_norm(x, (4,))", "F.layer_norm(x, {4})"),
    ("F.layer_norm(x, (4,), b, b)", "F.layer_norm(x, {4}, b, b)"),
    ("F.batch_norm(x, None, None, b.to(torch.promote_types(x.dtype, torch.float32)), None, training=True)",
     "F.batch_norm(x, nil, nil, b:to(x.dtype == 'float64' and x.dtype or 'float32'), nil, {training = true})"),
    ("torch.cat([x, w])", "lm.cat {x, w}"), ("torch.stack([x, w])", "lm.stack {x, w}"), ("x.gather(0, i)", "x:gather(1, i)"),
    ("x.scatter_add(0, i, w)", "x:scatter_add(1, i, w)"), ("F.embedding(i, w)",), ("x[i[0]]", "x[i[1]]"), ("x[1]", "x[2]"),
    ("x.index_put((i[0],), w)", "x:index_put({i[1]}, w)"),
    ("F.max_pool2d(x.view(1, 1, 4, 4), 2)",), ("F.avg_pool2d(x.view(1, 1, 4, 4), 2)",), ("F.adaptive_avg_pool2d(x.view(1, 1, 4, 4), 2)",),
    ("F.dropout(x, 0.5)",), ("F.nll_loss(x, i[0])", "F.nll_loss(x, i[1])"), ("F.cross_entropy(x, i[0])", "F.cross_entropy(x, i[1])"),
    ("F.cross_entropy(x, p)",), ("F.mse_loss(x, w)",), ("F.binary_cross_entropy_with_logits(x, p)",),
    ("F.binary_cross_entropy(p, p)",), ("x.view(2, 8)",), ("x.t()",), ("x.clone()",), ("x.detach()",), ("x.to(torch.float32)", "x:to('float32')"),
    ("torch.zeros_like(x)", "lm.zeros_like(x)"),
]

# A model through every list, step by step: h is the step before's result, w1 … and so on leaves.
AUTOCAST_MODEL = [
    ("F.conv2d(h, w1, b1, padding=1)", "F.conv2d(h, w1, b1, {padding = 1})"),
    ("F.batch_norm(h, None, None, s2, b2, training=True)", "F.batch_norm(h, nil, nil, s2, b2, {training = true})"),
    ("F.relu(h)",), ("F.max_pool2d(h, 2)",), ("h.flatten(1)", "h:flatten(2)"), ("F.linear(h, w3, b3)",), ("F.layer_norm(h, (8,), s4, b4)",
     "F.layer_norm(h, {8}, s4, b4)"), ("F.gelu(h)",), ("torch.cat([h, x.flatten(1)[:, :8]], 1)", "lm.cat({h, x:flatten(2):narrow(2, 1, 8)}, 2)"),
    ("F.linear(h, w5)",), ("h * h.exp()", "h * h:exp()"), ("h.matmul(w6)",), ("h + x.flatten(1)[:, :4]", "h + x:flatten(2):narrow(2, 1, 4)"),
    ("F.linear(h, w7)",), ("F.linear(h, w7)",), ("h.softmax(1)", "h:softmax(2)"), ("h.matmul(w8)",), ("F.cross_entropy(h, y)",),
]
AUTOCAST_LEAVES = {"w1": (2, 1, 3, 3), "b1": (2,), "s2": (2,), "b2": (2,), "w3": (8, 18), "b3": (8,), "s4": (8,), "b4": (8,),
                   "w5": (4, 16), "w6": (4, 4), "w7": (4, 4), "w8": (4, 3)}


def autocast():
    """Under torch.autocast, the dtype of every expression's result for several dtypes of its arguments, on the CPU and, as
    fake tensors, on CUDA; and of a model's every step, with its gradients (on the CPU: those of fake tensors on CUDA
    need a device)."""
    from contextlib import nullcontext
    from torch._subclasses.fake_tensor import FakeTensorMode

    def text(e):
        return e[1] if len(e) > 1 else re.sub(r"(?<=[\w\)\]])(?<!\bF)\.([a-z])", r":\1", e[0])

    def under(device, low, f):
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, low)
        torch.autocast_increment_nesting()
        try:
            return f()
        finally:
            torch.set_autocast_enabled(device, False)
            if torch.autocast_decrement_nesting() == 0:
                torch.clear_autocast_cache()

    def name(dtype):
        return str(dtype).split(".")[1]

    def outcome(expression, device, low, dtypes):
        with FakeTensorMode() if device == "cuda" else nullcontext():
            env = {n: torch.rand(shape, device=device, dtype=d).requires_grad_() if n in "wb" else torch.rand(shape, device=device, dtype=d)
                   for n, shape, d in (("x", (4, 4), dtypes[0]), ("p", (4, 4), dtypes[0]), ("w", (4, 4), dtypes[1]), ("b", (4,), dtypes[1]))}
            env["i"] = torch.zeros(4, 4, dtype=torch.int64, device=device)
            env["c"] = torch.zeros(4, 4, dtype=torch.bool, device=device)
            try:
                return name(under(device, low, lambda: eval(expression, globals(), env)).dtype)
            except RuntimeError:
                return "error"

    targets = (("cpu", torch.bfloat16), ("cpu", torch.float16), ("cuda", torch.float16), ("cuda", torch.bfloat16))
    f32, f64 = torch.float32, torch.float64
    with open(os.path.join(ROOT, "spec/golden/autocast.lua"), "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_golden.py: for each expression the result's dtype in PyTorch where x and w are\n"
                  "-- float32, low, low and float32, float32 and low, float64; autocast's dtype is low. [2] holds on each device with\n"
                  "-- float16 and bfloat16; a field, where another result is, has the name of its device, or its dtype too.\n"
                  "return {\n  ops = {\n")
        for e in AUTOCAST:
            found = {}
            for device, low in targets:
                pairs = [(f32, f32), (low, low), (low, f32), (f32, low), (f64, f64)]
                results = (outcome(e[0], device, low, pair) for pair in pairs)
                found[device, low] = " ".join("low" if result == name(low) else result for result in results)
            all_of = found[targets[0]]
            parts = [f"[=[{text(e)}]=]", f'"{all_of}"']
            for device in ("cpu", "cuda"):
                both = {low: of for (on, low), of in found.items() if on == device}
                if len(set(both.values())) > 1:
                    parts += [f'["{device} {name(low)}"] = "{of}"' for low, of in both.items() if of != all_of]
                elif all_of not in both.values():
                    parts.append(f'{device} = "{both[torch.float16]}"')
            separator = ", " if len(", ".join(parts)) <= 111 else ",\n      "
            out.write(f"    {{ {separator.join(parts)} }},\n")
        out.write("  },\n  -- Of the model below: each step's dtype, and whether the gradient of each leaf fits into the low dtype, as one does\n"
                  "  -- that was computed in it.\n  model = {\n")
        for device, low in targets:
            with FakeTensorMode() if device == "cuda" else nullcontext():
                gen = torch.Generator().manual_seed(5)
                def rand(*shape):
                    return torch.rand(shape, generator=gen).sub(0.5).to(device)
                x, y = rand(5, 1, 6, 6), torch.tensor([0, 2, 1, 1, 0], device=device)
                leaves = {n: rand(*s).requires_grad_() for n, s in AUTOCAST_LEAVES.items()}
                env, steps = {"x": x, "y": y, "h": x, **leaves}, []

                def forward():
                    for e in AUTOCAST_MODEL:
                        env["h"] = eval(e[0], globals(), env)
                        steps.append(name(env["h"].dtype))

                under(device, low, forward)
                fits = []
                if device == "cpu":
                    env["h"].backward()
                    fits = [f'{n} = {str(bool((t.grad == t.grad.to(low).float()).all())).lower()}' for n, t in leaves.items()]
                    if low == torch.bfloat16:
                        save_file({"x": x, "y": y + 1, "loss": env["h"].detach(), **{n: t.detach() for n, t in leaves.items()},
                                   **{"grad." + n: t.grad for n, t in leaves.items()}},
                                  os.path.join(ROOT, "spec/golden/_autocast.safetensors"))
                wrapped = [f"{chr(10) + ' ' * 8 if k % 6 == 0 else ' '}{fit}," for k, fit in enumerate(fits)]
                out.write(f'    ["{device} {name(low)}"] = {{\n      steps = "{" ".join(steps[:9])} "\n        .. "{" ".join(steps[9:])}",\n'
                          f'      fits = {{{"".join(wrapped)} }},\n    }},\n')
        out.write("  },\n  steps = {\n")
        for e in AUTOCAST_MODEL:
            out.write(f"    [=[{text(e)}]=],\n")
        out.write("  },\n}\n")


def scaler():
    """Fifty steps of two parameters under GradScaler, each with an optimizer and a loss of its own; inputs of some steps
    overflow. Parameters, momentum and scale after each step."""
    gen, store, steps = torch.Generator().manual_seed(6), {}, 50
    x = torch.randn(steps, 4, 3, generator=gen)
    for step, value in ((6, float("inf")), (7, float("nan")), (20, 1e38), (33, float("-inf")), (49, float("inf"))):
        x[step, 1, 2] = value
    store["x"], store["start"] = x, torch.randn(2, 3, generator=gen)
    for name, options in (("two", dict(init_scale=1024.0, growth_interval=4)),
                          ("odd", dict(init_scale=1000.0, growth_factor=1.3, backoff_factor=0.7, growth_interval=3))):
        ps = [p.clone().requires_grad_() for p in store["start"]]
        opts = [torch.optim.SGD([ps[0]], lr=0.05, momentum=0.9), torch.optim.Adam([ps[1]], lr=0.05)]
        scaler = torch.amp.GradScaler("cpu", **options)
        after, scales = [], []
        for step in range(steps):
            losses = [(x[step] @ ps[0]).square().mean(), (x[step, :, :2] @ ps[1][:2]).sub(1).square().mean()]
            for opt, loss in zip(opts, scaler.scale(losses)):
                opt.zero_grad()
                loss.backward()
            if step % 2:
                scaler.unscale_(opts[0])
                torch.nn.utils.clip_grad_norm_([ps[0]], 1.0)
            for opt in opts:
                scaler.step(opt)
            scaler.update()
            after.append(torch.stack([p.detach() for p in ps]).clone())
            scales.append(scaler.get_scale())
        store[name + ".after"], store[name + ".scale"] = torch.stack(after), torch.tensor(scales, dtype=torch.float64)
    save_file(store, os.path.join(ROOT, "spec/golden/_scaler.safetensors"))


def windows():
    """Functions over windows, spec/nn/windows_spec.lua: "name.in.i", "name.out", and gradients of its sum with "name.w"."""
    gen = torch.Generator().manual_seed(23)
    store = {}

    def case(name, f, *shapes):
        xs = [torch.randn(*s, generator=gen) if isinstance(s, tuple) else s for s in shapes]
        xs = [x.requires_grad_() for x in xs]
        y = f(*xs)
        w = torch.randn(*y.shape, generator=gen)
        (y * w).sum().backward()
        store[f"{name}.out"], store[f"{name}.w"] = y.detach().contiguous(), w
        for i, x in enumerate(xs, 1):
            store[f"{name}.in.{i}"], store[f"{name}.grad.{i}"] = x.detach().contiguous(), x.grad.contiguous()

    case("conv1d", lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2, 2), (2, 4, 9), (6, 2, 3), (6,))
    case("conv3d", lambda x, w, b: F.conv3d(x, w, b, (2, 1, 1), (1, 0, 1), (1, 2, 1), 2), (2, 4, 4, 5, 3), (4, 2, 2, 2, 3), (4,))
    case("conv3d_same", lambda x, w: F.conv3d(x, w, None, 1, "same"), (2, 3, 3, 4), (2, 2, 2, 3, 1))
    case("conv_transpose1d", lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1, 2, 2), (2, 4, 5), (4, 3, 3), (6,))
    case("conv_transpose2d", lambda x, w, b: F.conv_transpose2d(x, w, b, (2, 1), 1, (1, 0), 2), (1, 4, 3, 4), (4, 2, 3, 2), (4,))
    case("conv_transpose2d_wide", lambda x, w: F.conv_transpose2d(x, w, None, 1, 0, 1, 1, 2), (2, 3, 3), (2, 1, 2, 2))
    case("conv_transpose3d", lambda x, w, b: F.conv_transpose3d(x, w, b, 2, 1, (1, 0, 1), 2), (1, 4, 2, 3, 2), (4, 1, 3, 2, 3), (2,))
    case("max_pool3d", lambda x: F.max_pool3d(x, (2, 3, 2), (1, 2, 2), (1, 1, 0), (1, 1, 2), True), (2, 3, 5, 6))
    case("avg_pool3d", lambda x: F.avg_pool3d(x, 2, (1, 2, 2), 1, True, False), (1, 2, 3, 4, 5))
    case("avg_pool3d_divisor", lambda x: F.avg_pool3d(x, 2, divisor_override=3), (1, 4, 4, 5))
    case("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, (2, None, 3)), (2, 1, 3, 4, 5))
    case("adaptive_max_pool3d", lambda x: F.adaptive_max_pool3d(x, (2, 3, 2)), (1, 2, 3, 4, 5))
    case("lp_pool2d", lambda x: F.lp_pool2d(x.abs() + 0.1, 3.0, (2, 3), 2, True), (1, 2, 5, 6))
    for mode, align, shape, size in (
            ("linear", False, (2, 2, 5), 8), ("linear", True, (2, 2, 5), 3), ("bilinear", False, (1, 2, 4, 5), (7, 3)),
            ("bilinear", True, (1, 2, 4, 5), (7, 3)), ("bicubic", False, (1, 2, 4, 5), (7, 3)),
            ("trilinear", False, (1, 2, 2, 3, 4), (3, 5, 2))):
        case(f"interpolate.{mode}.{align}".lower(),
             lambda x: F.interpolate(x, size, mode=mode, align_corners=align), shape)
    for mode in ("bilinear", "bicubic"):
        case("interpolate.antialias." + mode,
             lambda x: F.interpolate(x, scale_factor=(0.4, 1.3), mode=mode, antialias=True), (1, 2, 9, 5))
    for mode in ("nearest", "nearest-exact", "area"):
        case("interpolate." + mode, lambda x: F.interpolate(x, (3, 8), mode=mode), (1, 2, 7, 5))
    for mode in ("bilinear", "nearest", "bicubic"):
        for padding in ("zeros", "border", "reflection"):
            case(f"grid_sample.{mode}.{padding}",
                 lambda x, grid: F.grid_sample(x, grid, mode, padding, padding == "border"), (2, 2, 4, 5), (2, 3, 2, 2))
    case("grid_sample.volume", lambda x, grid: F.grid_sample(x, grid, align_corners=False), (1, 2, 3, 4, 5), (1, 2, 1, 3, 3))
    case("affine_grid", lambda theta: F.affine_grid(theta, (2, 1, 3, 4), align_corners=False), (2, 2, 3))
    case("affine_grid_volume", lambda theta: F.affine_grid(theta, (1, 1, 2, 3, 2), align_corners=True), (1, 3, 4))
    case("unfold", lambda x: F.unfold(x, (2, 3), 2, (1, 0), (1, 2)), (2, 2, 4, 7))
    case("fold", lambda x: F.fold(x, (4, 7), (2, 3), 2, (1, 0), (1, 2)), (1, 12, 8))
    case("fractional_max_pool2d", lambda x: F.fractional_max_pool2d(
        x, (2, 3), (3, 2), _random_samples=torch.tensor([[[0.3, 0.8], [0.6, 0.1]]])), (1, 2, 7, 6))
    save_file(store, os.path.join(ROOT, "spec/golden/_windows.safetensors"))


def ctc():
    """spec/nn/ctc_spec.lua: losses, and gradients of their sums; classes count from 1."""
    gen = torch.Generator().manual_seed(29)
    x = torch.randn(9, 5, 6, generator=gen).log_softmax(2)
    padded = torch.randint(1, 6, (5, 4), generator=gen)
    padded[0, 1] = padded[0, 0]
    others = torch.randint(0, 5, (5, 2), generator=gen)
    inputs, targets = [9, 8, 9, 3, 0], [4, 2, 0, 4, 0]
    store = {"x": x, "padded": padded + 1, "others": others + 1,
             "joined": torch.cat([padded[i, :n] for i, n in enumerate(targets)]) + 1,
             "blank": F.ctc_loss(x, others, [9] * 5, [2] * 5, blank=5),
             "alone": F.ctc_loss(x[:, 0], padded[0], torch.tensor(9), torch.tensor(4), reduction="none")}
    for reduction in ("none", "mean", "sum"):
        for zero in (False, True):
            v = x.clone().requires_grad_()
            y = F.ctc_loss(v, padded, inputs, targets, reduction=reduction, zero_infinity=zero)
            y.sum().backward()
            store[f"{reduction}.{str(zero).lower()}"] = y.detach()
            store[f"{reduction}.{str(zero).lower()}.grad"] = v.grad
    save_file(store, os.path.join(ROOT, "spec/golden/_ctc.safetensors"))


def cross_entropies():
    """spec/nn/cross_entropy_spec.lua: losses and gradients of their sums in float64, of logits that every dtype has
    exactly. Of many classes a part of the gradient."""
    store = {}
    for classes in (1, 7, 300, 50257):
        i, j = torch.arange(4).view(4, 1), torch.arange(classes)
        x = ((i * 37 + j * 101 + j * j % 53) % 257 - 128).double() / 32
        weight = (1 + j % 5).double() / 4
        target = torch.tensor([0, classes // 2, -100, classes - 1])
        cases = {"mean": {}, "sum": {"reduction": "sum", "weight": weight}, "none": {"reduction": "none"},
                 "smooth": {"label_smoothing": 0.1}, "weighted": {"label_smoothing": 0.25, "weight": weight},
                 "each": {"label_smoothing": 0.25, "weight": weight, "reduction": "none"}}
        for name, options in cases.items():
            for labels in (target, torch.full_like(target, -100)):
                v = x.clone().requires_grad_()
                y = F.cross_entropy(v, labels, **options)
                y.sum().backward()
                key = f"{classes}.{name}" + ("" if labels is target else ".ignored")
                store[key] = y.detach()
                store[key + ".grad"] = v.grad[:, ::1009 if classes > 1000 else 1].clone()
    save_file(store, os.path.join(ROOT, "spec/golden/_cross_entropy.safetensors"))


EXTRAS = {"_ctc": ctc, "_cross_entropy": cross_entropies, "_autocast": autocast, "_scaler": scaler, "_lenet": lenet, "_print": printing, "_promotion": promotion, "_nn": layers, "_windows": windows, "_optim": optimizers,
          "_sequences": sequences,
          "_modules": module_texts}


def main():
    wanted = sys.argv[1:]
    for name, write in EXTRAS.items():
        if not wanted or name in wanted:
            write()
    table = eval(subprocess.check_output(["luajit", os.path.join(ROOT, "scripts/dev/golden/cases.lua")], text=True),
                 {"inf": float("inf"), "nan": float("nan")})
    wanted = wanted or [row["name"] for row in table]
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
                except (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError):
                    pass  # PyTorch has it not: nothing to compare with
        save_file(store, os.path.join(ROOT, "spec/golden", row["name"] + ".safetensors"))
    print(f"{len(wanted)} files")


main()
