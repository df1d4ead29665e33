#!/usr/bin/env python3
"""Writes PyTorch's own samples of its operators, with its answers and gradients, for walk_samples.lua.

    scripts/dev/walk_samples.py FOLDER [op ...]

Samples come from torch.testing._internal.common_methods_invocations (with expecttest), in float32 and float64. For each
op FOLDER has NAME.json, its calls, and NAME.safetensors, their tensors. Random ops, and those of dtypes and layouts that
Luminary has not (complex, sparse, quantized), are left out. Dims and indices are written as Lua counts them, from 1.
"""
import inspect
import json
import math
import os
import sys
import warnings

import torch
from safetensors.torch import save_file
from torch.testing._internal.common_methods_invocations import op_db

warnings.simplefilter("ignore")

# Not ops of ours to have: internal, other layouts and number systems, random numbers, special functions of physics.
LEFT_OUT = ("_", "jiterator", "masked.", "sparse", "special.", "torch.", "complex", "conj", "signal.windows",
            "resolve_", "empty", "new_empty", "rand", "bernoulli", "cauchy", "exponential", "geometric", "log_normal",
            "multinomial", "normal", "uniform", "native_dropout", "chalf", "cdouble", "cfloat", "view_as_", "to_sparse",
            "linalg.eig", "polar", "imag", "real", "isreal", "H", "mH", "angle", "hash_tensor", "svd_lowrank", "pca_lowrank",
            "nn.functional.dropout", "nn.functional.alpha_dropout", "nn.functional.feature_alpha", "nn.functional.rrelu",
            "nn.functional.fractional_max_pool", "unsafe_", "nonzero_static", "zero_", "slice", "dist", "linalg.ldl", "nn.functional.linear_cross")
KEPT = {"reciprocal", "linalg.eigh", "linalg.eigvalsh", "normalize", "geqrf"}
DIMS = {"dim", "dims", "dim0", "dim1", "dim2", "start_dim", "end_dim", "axis", "axes", "axis0", "axis1", "source", "destination"}
# Arguments that hold indices or labels, beside every `index` and `indices`.
LABELS = {"nn.functional.nll_loss": ("target",), "nn.functional.cross_entropy": ("target",), "nn.functional.embedding": ("input", "idx"),
          "nn.functional.embedding_bag": ("input",), "nn.functional.one_hot": ("self", "tensor"), "bincount": ("self",),
          "nn.functional.multi_margin_loss": ("target",), "nn.functional.multilabel_margin_loss": ("target",),
          "nn.functional.ctc_loss": ("targets", "blank")}
START = {"narrow": ("start",), "slice": ("start",)}
# Ops whose results are indices.
INDEX_OPS = {"argmax", "argmin", "argsort", "sort", "topk", "kthvalue", "median", "nanmedian", "mode", "max", "min", "cummax", "cummin",
          "nonzero", "argwhere", "searchsorted", "bucketize", "tril_indices", "triu_indices", "nn.functional.max_pool1d",
          "nn.functional.max_pool2d", "nn.functional.max_pool3d", "nn.functional.adaptive_max_pool1d",
          "nn.functional.adaptive_max_pool2d", "nn.functional.adaptive_max_pool3d", "unravel_index"}
DROPPED = {"layout", "device", "pin_memory", "memory_format", "out"}


def fits(value, kind):
    kind = str(kind)
    if kind.startswith("Optional["):
        return value is None or fits(value, kind[9:-1])
    if kind == "Tensor":
        return isinstance(value, torch.Tensor)
    if kind in ("number", "Scalar"):
        return isinstance(value, (int, float, bool, complex))
    if kind == "int":
        return (isinstance(value, int) and not isinstance(value, bool)) or isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
    if kind == "float":
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if kind == "bool":
        return isinstance(value, bool)
    if kind == "str":
        return isinstance(value, str)
    if kind.startswith("List["):
        inner = kind[5:-1]
        return isinstance(value, (list, tuple)) and all(fits(v, inner) for v in value)
    return True


def named(op, args, kwargs):
    """The call's arguments by PyTorch's names, in its order; None where no schema fits."""
    name = op.name.split(".")[-1]
    schema_names = ["aten::" + name, "aten::" + op.name.replace(".", "_")] if "functional" not in op.name else ["aten::" + name]
    for schema_name in schema_names:
        for schema in torch._C._jit_get_schemas_for_operator(schema_name):
            spots = [a for a in schema.arguments]
            if schema.overload_name.endswith("out") or len(args) > len([a for a in spots if not a.kwarg_only]):
                continue
            listed = args
            bound = dict(zip([a.name for a in spots], listed))
            if set(kwargs) & set(bound):
                continue
            bound.update(kwargs)
            if "input" in bound and spots and spots[0].name == "self":
                bound["self"] = bound.pop("input")
            kinds = {a.name: a.type for a in spots}
            if not set(bound) <= set(kinds) or any(a.name not in bound and not a.has_default_value() for a in spots):
                continue
            if all(fits(v, kinds[k]) for k, v in bound.items()):
                return bound
    try:
        bound = inspect.signature(op.op).bind(*args, **kwargs).arguments
        flat = {}
        for k, v in bound.items():
            parameter = inspect.signature(op.op).parameters[k]
            if parameter.kind == inspect.Parameter.VAR_KEYWORD:
                flat.update(v)
            elif parameter.kind == inspect.Parameter.VAR_POSITIONAL:
                return None
            else:
                flat[k] = v
        return flat
    except (ValueError, TypeError):
        return None


class Calls:
    def __init__(self, op):
        self.op, self.tensors, self.calls = op, {}, []

    def tensor(self, t, role):
        if t.is_complex() or t.is_sparse or t.layout != torch.strided or t.is_quantized or t.numel() > 2**20:
            raise TypeError("not ours")
        key = f"{len(self.calls)}.{role}"
        t = t.detach()
        if t.dtype in (torch.int64, torch.int32) and role.endswith("+1"):
            t = torch.where(t >= 0, t + 1, t)
        self.tensors[key] = t.clone(memory_format=torch.contiguous_format)
        return key

    def value(self, v, role, dim=False, index=False):
        if isinstance(v, torch.Tensor):
            integer = v.dtype in (torch.int64, torch.int32)
            return {"t": self.tensor(v, role + ("+1" if index and integer else "")), "grad": v.requires_grad}
        if v is None:
            return {}
        if isinstance(v, (bool, str)):
            return {"v": v}
        if isinstance(v, int):
            return {"v": v + 1 if (dim or index) and v >= 0 else v}
        if isinstance(v, float):
            return {"v": v} if math.isfinite(v) else {"n": str(v)}
        if isinstance(v, torch.dtype):
            return {"v": str(v).split(".")[-1]}
        if isinstance(v, (list, tuple, torch.Size)):
            return {"list": [self.value(x, f"{role}.{i}", dim, index) for i, x in enumerate(v)]}
        if isinstance(v, slice):
            raise TypeError("a slice")
        raise TypeError(f"a {type(v).__name__}")

    def add(self, sample):
        op, labels = self.op, LABELS.get(self.op.name, ())
        if op.name == "as_strided" and sample.input.untyped_storage().nbytes() > sample.input.nbytes:
            raise TypeError("part of a storage that the file does not have")
        args = [sample.input, *sample.args]
        inputs = []

        def leaves(v):
            if isinstance(v, torch.Tensor):
                if v.requires_grad:
                    inputs.append(v)
            elif isinstance(v, (list, tuple)):
                for x in v:
                    leaves(x)
        leaves(args)
        leaves(list(sample.kwargs.values()))
        out = op(sample.input, *sample.args, **sample.kwargs)
        outs = [out] if isinstance(out, torch.Tensor) else list(out) if isinstance(out, (list, tuple)) else None
        if outs is None or not all(isinstance(o, torch.Tensor) for o in outs):
            raise TypeError("no tensors")
        bound = named(op, args, {k: v for k, v in sample.kwargs.items()})

        def convert(name, v, i):
            dim = name in DIMS and not (op.name == "tensordot" and isinstance(v, int))
            index = name in ("index", "indices") or (name == "ind" and op.name != "linalg.tensorinv") or name in labels or name in START.get(op.name, ())
            if op.name in ("nn.functional.nll_loss", "nn.functional.cross_entropy") and name == "ignore_index":
                index = True
            return self.value(v, f"in.{i}", dim, index)
        call = {}
        if bound is None:
            call["args"] = [convert("", v, i) for i, v in enumerate(args)]
            call["kwargs"] = {k: convert(k, v, k) for k, v in sample.kwargs.items() if k not in DROPPED}
        else:
            keep = [(k, v) for k, v in bound.items() if k not in DROPPED]
            call["args"] = [convert(k, v, i) for i, (k, v) in enumerate(keep) if k not in sample.kwargs]
            call["names"] = [k for k, _ in keep if k not in sample.kwargs]
            call["kwargs"] = {k: convert(k, v, k) for k, v in keep if k in sample.kwargs}
        returns_indices = op.name in INDEX_OPS
        call["out"] = [self.tensor(o, f"out.{i}" + ("+1" if returns_indices or op.name == "unique" and i == 1 else "")) for i, o in enumerate(outs)]
        floating = [(i, o) for i, o in enumerate(outs) if o.requires_grad]
        call["cotangents"], call["grads"] = {}, {}
        if floating and inputs:
            generator = torch.Generator().manual_seed(len(self.calls))
            total = 0
            for i, o in floating:
                w = torch.randn(o.shape, dtype=torch.float64, generator=generator).to(o.dtype)
                call["cotangents"][str(i + 1)] = self.tensor(w, f"w.{i}")
                total = total + (o * w).sum()
            grads = torch.autograd.grad(total, inputs, allow_unused=True)
            for i, g in enumerate(grads):
                if g is not None:
                    call["grads"][str(i + 1)] = self.tensor(g, f"grad.{i}")
        self.calls.append(call)


def main():
    folder, only = sys.argv[1], set(sys.argv[2:])
    os.makedirs(folder, exist_ok=True)
    torch.set_num_threads(1)
    lists = {}
    for op in op_db:
        if only and op.name not in only and op.name.split(".")[-1] not in only:
            continue
        if not only and op.name.startswith(LEFT_OUT) and op.name not in KEPT:
            continue
        calls = lists.setdefault(op.name, Calls(op))
        calls.op = op
        for dtype in (torch.float32, torch.float64):
            if not op.supports_dtype(dtype, "cpu"):
                continue
            torch.manual_seed(0)
            try:
                for sample in op.sample_inputs("cpu", dtype, requires_grad=op.supports_autograd):
                    kept = dict(calls.tensors)
                    try:
                        calls.add(sample)
                    except (TypeError, RuntimeError, NotImplementedError, AttributeError, ValueError):
                        calls.tensors = kept
            except Exception as e:  # a generator of samples that needs what is not installed
                print(f"{op.name}: {e}", file=sys.stderr)
    for name, calls in lists.items():
        if calls.calls:
            save_file(calls.tensors, os.path.join(folder, name + ".safetensors"))
            with open(os.path.join(folder, name + ".json"), "w") as file:
                json.dump(calls.calls, file)
    print(f"{sum(len(c.calls) for c in lists.values())} samples of {sum(bool(c.calls) for c in lists.values())} ops")


main()
