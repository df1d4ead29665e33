#!/usr/bin/env python3
"""Files of other people's formats, and what is in them: scripts/dev/golden/gen_files.py, with a Python that has torch,
numpy and safetensors.

Writes spec/golden/_files.safetensors: files' bytes by name ("new.pt"), and the tensors in them by the file's name and
theirs ("new.pt w"). PyTorch and NumPy write theirs; GGUF and Torch7's files are written here, and GGUF's blocks expanded
element by element, as ggml-quants.c has it. Writes spec/golden/_pickles.safetensors: the same of what else torch.save
can write, and the names that PyTorch's own restricted unpickler allows.
"""
import argparse
import collections
import datetime
import decimal
import enum
import io
import os
import pathlib
import random
import struct
import types
import warnings
import zipfile

import numpy as np
import torch
from safetensors.torch import save_file

out = {}
rng = np.random.default_rng(0)
torch.manual_seed(0)


def put(name, data):
    out[name] = torch.frombuffer(bytearray(data), dtype=torch.uint8)


def expect(name, **tensors):
    for key, t in tensors.items():
        out[f"{name} {key}"] = (t if isinstance(t, torch.Tensor) else torch.from_numpy(np.asarray(t))).contiguous().clone()


# ---- NumPy


def npy(name, array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    put(name, file.getvalue())
    plain = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("="))) if array.shape else array
    expect(name, x=plain.reshape(array.shape).copy())


grid = np.arange(24).reshape(2, 3, 4)
for code in "?1", "u1", "i1", "i2", "u2", "i4", "i8", "f2", "f4", "f8":
    dtype = np.dtype("?" if code == "?1" else code)
    for order in "<", ">":
        npy(f"{order}{code}.npy", np.asarray(grid % 7 - (3 if code[0] in "if" else 0), dtype.newbyteorder(order)))
npy("fortran.npy", np.asfortranarray(grid.astype("f4")))
npy("scalar.npy", np.array(2.5))
npy("empty.npy", np.zeros((0, 3), "f4"))
npy("2.npy", grid.astype("f4"), version=(2, 0))
npy("3.npy", grid.astype("f4"), version=(3, 0))
for name, array in {"u4": np.zeros(2, "u4"), "u8": np.zeros(2, "u8"), "c8": np.zeros(2, "c8"), "c16": np.zeros(2, "c16"),
                    "U": np.array(["a"]), "fields": np.zeros(2, [("a", "i4"), ("b", "f4")])}.items():
    file = io.BytesIO()
    np.save(file, array)
    put(f"lacking {name}.npy", file.getvalue())
arrays = {"a": np.arange(3), "b/c": np.ones((20, 30), "f4"), "none": np.zeros((0,))}
for name, save in {"stored.npz": np.savez, "deflated.npz": np.savez_compressed}.items():
    file = io.BytesIO()
    save(file, **arrays)
    put(name, file.getvalue())
    expect(name, **arrays)

file = io.BytesIO()
np.savez(file, a=np.arange(3), objects=np.array([{"x": 1}], dtype=object), words=np.array(["x"]), b=np.ones(2))
put("unreadable.npz", file.getvalue())
expect("unreadable.npz", a=np.arange(3), b=np.ones(2))

head, file = io.BytesIO(), io.BytesIO()
np.lib.format.write_array(head, np.zeros(3))
with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr(zipfile.ZipInfo("a.npy"), head.getvalue()[:-24] + bytes(4000000), zipfile.ZIP_DEFLATED)
put("bomb.npz", file.getvalue())

# ---- torch.save

base = torch.arange(40.).view(5, 8)
tensors = {
    "w": base, "transposed": base.t(), "row": base[2], "columns": base[:, 1::3], "expanded": torch.ones(1, 2).expand(3, 2),
    "scalar": torch.tensor(3.5), "empty": torch.zeros(0, 3), "u16": torch.arange(3).to(torch.uint16),
}
for dtype in "float64 float16 bfloat16 int64 int32 int16 int8 uint8 bool".split():
    tensors[dtype] = torch.tensor([[1, 0], [3, 2]]).to(getattr(torch, dtype))
state = collections.OrderedDict(tensors)
state["parameter"] = torch.nn.Parameter(base)
state._metadata = collections.OrderedDict([("", {"version": 1})])
value = {
    "state_dict": state, "epoch": 3, "lr": 0.1, "large": 2**60, "negative": -2**62, "huge": 2**70, "none": None,
    "list": [1, None, "x"], "tuple": (1, (2, 3)), "size": torch.Size([2, 3]), "dtype": torch.float16,
    "device": torch.device("cuda:1"), 5: {0: "zero"}, True: False, "bytes": b"\xff\x00z\xc3\xa9", "set": {1},
    "infinite": float("inf"), "text": "gr\u00fc\u00df",
}
shared = []
value["same"], value["again"] = shared, shared
for name, new in {"new.pt": True, "old.pt": False}.items():
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=new)
    put(name, file.getvalue())
    expect(name, **tensors, parameter=base)
numbers = {"f8": np.float64(0.1), "f4": np.float32(0.5), "i2": np.int16(-3), "i8": np.int64(2**40), "yes": np.bool_(True),
           "list": [np.uint8(7)], "w": base}
for protocol in 3, 4, 5:
    for name, new in {"new": True, "old": False}.items():
        file = io.BytesIO()
        torch.save(numbers, file, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
        put(f"{protocol} {name}.pt", file.getvalue())
file = io.BytesIO()
torch.save(torch.zeros(2, dtype=torch.float8_e4m3fn), file)
put("float8.pt", file.getvalue())
cyclic = []
cyclic.append(cyclic)
file = io.BytesIO()
torch.save({"cyclic": cyclic}, file)
put("cyclic.pt", file.getvalue())


class Evil:
    def __init__(self, call):
        self.call = call

    def __reduce__(self):
        return self.call


for name, call in {"os.system": (os.system, ("touch /tmp/never",)), "eval": (eval, ("1",)),
                   "layer": (torch.nn.Linear, (2, 3)), "complex": None}.items():
    for new in True, False:
        file = io.BytesIO()
        torch.save(Evil(call) if call else torch.zeros(2, dtype=torch.complex64), file, _use_new_zipfile_serialization=new)
        put(f"evil {name} {'new' if new else 'old'}.pt", file.getvalue())
mixed = {"w": base, "hooks": {"run": Evil((os.system, ("touch /tmp/never",))), "n": 1}, "layer": torch.nn.Linear(2, 3),
         "complex": torch.zeros(3, dtype=torch.complex64), (1, 2): "by a tuple", "list": [1, Evil((eval, ("1",))), "x"],
         "last": base[1]}
for new in True, False:
    file = io.BytesIO()
    torch.save(mixed, file, _use_new_zipfile_serialization=new)
    put(f"unreadable {'new' if new else 'old'}.pt", file.getvalue())
file = io.BytesIO()
torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), file)
put("script.pt", file.getvalue())

# Optimizers after two steps of two parameters out of three, and the parameters after a third.
rates = {"SGD": 0.1, "Adadelta": 0.5, "ASGD": 0.01}
steps = {}
for name in "SGD Adam AdamW RMSprop Adagrad Adadelta Adamax NAdam RAdam Rprop ASGD Adafactor".split():
    options = {"SGD": {"momentum": 0.9, "nesterov": True}, "Adam": {"amsgrad": True, "weight_decay": 0.1},
               "RMSprop": {"momentum": 0.9, "centered": True}}.get(name, {})
    idle, w, b = (torch.nn.Parameter(torch.randn(*sizes)) for sizes in [(2,), (2, 3), (2,)])
    lr = rates.get(name, 0.01)
    optimizer = getattr(torch.optim, name)([{"params": [idle, w]}, {"params": [b], "lr": 2 * lr}], lr=lr, **options)
    for step in range(3):
        w.grad, b.grad = torch.randn(2, 3), torch.randn(2)
        if step == 2:
            before = {"w": w.detach().clone(), "b": b.detach().clone(), "w_grad": w.grad, "b_grad": b.grad}
            file = io.BytesIO()
            torch.save({"optimizer": optimizer.state_dict()}, file) # before the step, which works in place
            before["optimizer"] = torch.load(io.BytesIO(file.getvalue()), weights_only=True)["optimizer"]
        optimizer.step()
    steps[name] = {**before, "w_after": w.detach(), "b_after": b.detach()}
file = io.BytesIO()
torch.save(steps, file, _use_new_zipfile_serialization=False)
put("optimizers.pt", file.getvalue())

# ---- GGUF


def text(s):
    return struct.pack("<Q", len(s.encode())) + s.encode()


def half(x):
    return np.frombuffer(x, "<f2")[0].astype(np.float32)


def expand_q8_0(b):
    return [half(b[:2]) * np.float32(np.int8(np.uint8(q))) for q in b[2:]]


def expand_q4_0(b):
    d = half(b[:2])
    return [d * np.float32((q & 15) - 8) for q in b[2:]] + [d * np.float32((q >> 4) - 8) for q in b[2:]]


def expand_q4_k(b):
    d, dmin, s, q, y = half(b[:2]), half(b[2:4]), b[4:16], b[16:], []

    def scale_min(j):
        if j < 4:
            return s[j] & 63, s[j + 4] & 63
        return (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4), (s[j + 4] >> 4) | ((s[j] >> 6) << 4)

    for j in range(0, 8, 2):
        (s1, m1), (s2, m2) = scale_min(j), scale_min(j + 1)
        part = q[16 * j:16 * j + 32]
        y += [d * np.float32(s1) * np.float32(v & 15) - dmin * np.float32(m1) for v in part]
        y += [d * np.float32(s2) * np.float32(v >> 4) - dmin * np.float32(m2) for v in part]
    return y


def expand_q6_k(b):
    d, y = half(b[208:]), np.zeros(256, np.float32)
    scales = np.frombuffer(b[192:208], np.int8)
    for n in 0, 1:
        low, high, scale, at = b[64 * n:], b[128 + 32 * n:], scales[8 * n:], 128 * n
        for i in range(32):
            q = [(low[i] & 15) | (high[i] & 3) << 4, (low[i + 32] & 15) | (high[i] >> 2 & 3) << 4,
                 (low[i] >> 4) | (high[i] >> 4 & 3) << 4, (low[i + 32] >> 4) | (high[i] >> 6) << 4]
            for g in range(4):
                y[at + i + 32 * g] = d * np.float32(scale[i // 16 + 2 * g]) * np.float32(q[g] - 32)
    return list(y)


def quantized(kind, nblocks):
    size, expand, halves = kind
    blocks = []
    for _ in range(nblocks):
        b = bytearray(rng.integers(0, 256, size, dtype=np.uint8).tobytes())
        for at in halves:
            b[at:at + 2] = np.float16(rng.normal()).tobytes()
        blocks.append(bytes(b))
    return b"".join(blocks), np.array([v for b in blocks for v in expand(b)], np.float32)


Q8_0, Q4_0 = (34, expand_q8_0, [0]), (18, expand_q4_0, [0])
Q4_K, Q6_K = (144, expand_q4_k, [0, 2]), (210, expand_q6_k, [208])
entries, expected = [], {}
for name, number, array in [("f32", 0, grid.astype("<f4")), ("f16", 1, grid.astype("<f2")), ("i8", 24, grid.astype("i1")),
                            ("i16", 25, grid.astype("<i2")), ("i32", 26, grid.astype("<i4")),
                            ("i64", 27, grid.astype("<i8")), ("f64", 28, grid.astype("<f8"))]:
    entries.append((name, number, array.shape, array.tobytes()))
    expected[name] = array
bf16 = torch.arange(6.).view(2, 3).bfloat16()
entries.append(("bf16", 30, (2, 3), bf16.view(torch.int16).numpy().tobytes()))
expected["bf16"] = bf16
for name, number, kind, shape in [("q8_0", 8, Q8_0, (3, 64)), ("q4_0", 2, Q4_0, (2, 96)), ("q4_k", 12, Q4_K, (3, 512)),
                                  ("q6_k", 14, Q6_K, (2, 512))]:
    data, values = quantized(kind, int(np.prod(shape)) // (32 if kind in (Q8_0, Q4_0) else 256))
    entries.append((name, number, shape, data))
    expected[name] = values.reshape(shape)
entries.append(("lacking", 9, (1, 256), bytes(84)))
keys = [("general.architecture", 8, text("test")), ("general.alignment", 4, struct.pack("<I", 64)),
        ("u8", 0, b"\xff"), ("i8", 1, b"\xff"), ("u16", 2, b"\xff\xff"), ("i16", 3, b"\xff\xff"), ("i32", 5, b"\xff" * 4),
        ("f32", 6, struct.pack("<f", 0.5)), ("yes", 7, b"\1"), ("u64", 10, struct.pack("<Q", 2**40)),
        ("i64", 11, struct.pack("<q", -2**62)), ("f64", 12, struct.pack("<d", 0.1)),
        ("tokens", 9, struct.pack("<IQ", 8, 2) + text("a") + text("b"))]
for version in 2, 3:
    head = b"GGUF" + struct.pack("<IQQ", version, len(entries), len(keys))
    for key, kind, data in keys:
        head += text(key) + struct.pack("<I", kind) + data
    body = b""
    for name, number, shape, data in entries:
        body += bytes(-len(body) % 64)
        head += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        head += struct.pack("<IQ", number, len(body))
        body += data
    put(f"{version}.gguf", head + bytes(-len(head) % 64) + body)
expect("gguf", **expected)

# ---- Torch7


class Torch7:
    def __init__(self, ascii):
        self.ascii, self.out, self.numbers, self.kept = ascii, b"", {}, []

    def word(self, format, *values):
        if self.ascii:
            self.out += (" ".join("%.17g" % v if isinstance(v, float) else str(int(v)) for v in values) + "\n").encode()
        else:
            self.out += struct.pack(f"<{len(values)}{format}", *values)

    def text(self, s):
        self.word("i", len(s))
        self.out += s.encode() + (b"\n" if self.ascii else b"")

    def index(self, value):  # whether it is new
        self.kept.append(value)
        new = id(value) not in self.numbers
        self.word("i", self.numbers.setdefault(id(value), len(self.numbers) + 1))
        return new

    def storage(self, kind, array):
        self.word("i", 4)
        if self.index(array):
            self.text("V 1")
            self.text(f"torch.{kind}Storage")
            self.word("q", array.size)
            if not self.ascii:
                self.out += array.tobytes()
            elif array.dtype.itemsize == 1:
                self.out += array.tobytes() + b"\n"
            else:
                self.word("q", *(v.item() for v in array))

    def put(self, value):
        if value is None:
            self.word("i", 0)
        elif isinstance(value, bool):
            self.word("i", 5)
            self.word("i", value)
        elif isinstance(value, (int, float)):
            self.word("i", 1)
            self.word("d", float(value))
        elif isinstance(value, str):
            self.word("i", 2)
            self.text(value)
        elif isinstance(value, dict):
            self.word("i", 3)
            if self.index(value):
                self.word("i", len(value))
                for k, v in value.items():
                    self.put(k)
                    self.put(v)
        elif value[0] == "tensor":
            _, kind, storage, sizes, strides, offset = value
            self.word("i", 4)
            if self.index(value):
                self.text("V 1")
                self.text(f"torch.{kind}Tensor")
                self.word("i", len(sizes))
                self.word("q", *sizes)
                self.word("q", *strides)
                self.word("q", offset)
                self.storage(kind, storage)
        elif value[0] == "storage":
            self.storage(value[1], value[2])
        elif value[0] == "function":
            self.word("i", 8)
            self.index(value)
            self.text("\x1bLJ")
            self.put({})
        else:
            self.word("i", 4)
            if self.index(value):
                self.text("V 1")
                self.text(value[1])
                self.put(value[2])


weights = np.arange(12, dtype="<f8") / 4
kinds = {"Double": "<f8", "Float": "<f4", "Long": "<i8", "Int": "<i4", "Short": "<i2", "Char": "i1", "Byte": "u1"}
seven = {
    "net": ("object", "nn.Sequential", {"modules": {1: ("object", "nn.Linear", {
        "weight": ("tensor", "Double", weights, (2, 3), (1, 2), 2), "train": True, "forward": ("function",)})}}),
    "whole": ("tensor", "Double", weights, (3, 4), (4, 1), 1), "storage": ("storage", "Double", weights),
    "size": ("storage", "Long", np.array([2, 2**60], "<i8")),
    "none": ("tensor", "Float", np.zeros(1, "<f4"), (0,), (1,), 1), "name": "x", 1: 0.5, 2: {3: False},
}
seven["self"] = seven
for kind, code in kinds.items():
    seven[kind] = ("tensor", kind, np.array([1, 2, 3, 97], code), (4,), (1,), 1)
for ascii in False, True:
    writer = Torch7(ascii)
    writer.put(seven)
    put("ascii.t7" if ascii else "binary.t7", writer.out)
expect("t7", weight=weights[1:7].reshape(3, 2).T, whole=weights.reshape(3, 4), storage=weights)

here = os.path.dirname(os.path.abspath(__file__))
save_file(out, os.path.join(here, "../../../spec/golden/_files.safetensors"))

# ---- what else torch.save can write: torch/_tensor.py __reduce_ex__, torch/_utils.py, torch/_weights_only_unpickler.py

out = {}
warnings.simplefilter("ignore")
torch.manual_seed(0)


def pt(name, value, expected=None, **options):
    file = io.BytesIO()
    torch.save(value, file, _use_new_zipfile_serialization=name.endswith("new"), **options)
    put(f"{name}.pt", file.getvalue())
    expect(f"{name}.pt", **{key: real(t) for key, t in (expected or {}).items()})


def real(t):  # as it is read: complex numbers as pairs, without a view's bits, dense
    if not isinstance(t, torch.Tensor):
        return torch.from_numpy(t.astype(t.dtype.newbyteorder("="), order="C").copy().reshape(t.shape))
    t = t.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(t) if t.is_complex() else t


class Call:
    def __init__(self, f, *args):
        self.call = f, args

    def __reduce__(self):
        return self.call


class Picture(torch.Tensor):
    pass


class Color(enum.Enum):
    RED = 1


def typed(t):
    return torch.storage.TypedStorage(wrap_storage=t.untyped_storage(), dtype=t.dtype, _internal=True)


z = torch.randn(3, 4, dtype=torch.complex64)
views = {"neg": z.clone().conj().imag, "conj": z.clone().conj(), "both": torch._neg_view(z.clone().conj()),
         "transposed": z.clone().mH, "double": z.to(torch.complex128), "part": z[1:, ::2],
         "int": torch._neg_view(torch.arange(5)), "half": torch._neg_view(torch.randn(4).half()),
         "complex32": torch.randn(5, dtype=torch.complex32), "beyond": torch.zeros(0, 3)[:, 1:]}
for age in "new", "old":
    pt(f"views {age}", views, views)

parameter, plain = torch.nn.Parameter(torch.randn(2, 3)), torch.randn(3)
with_state = torch.nn.Parameter(torch.randn(2))
with_state.tag = "x"
picture = torch.randn(2, 2).as_subclass(Picture)
picture.title = "a"
owners = {"parameter": parameter, "frozen": torch.nn.Parameter(torch.randn(2), requires_grad=False), "with_state": with_state,
          "buffer": torch.nn.Buffer(torch.randn(3)), "picture": picture, "leaf": torch.randn(2, requires_grad=True),
          "int": torch.arange(2)}
called = {"first": Call(torch._utils._rebuild_tensor, typed(plain), 1, (2,), (1,)),
          "from_numpy": Call(torch._utils._rebuild_device_tensor_from_numpy, np.arange(3), torch.float64, "xla:0", True),
          "from_cpu": Call(torch._utils._rebuild_device_tensor_from_cpu_tensor, plain, torch.float16, "xla:0", False),
          "by_type": Call(torch._tensor._rebuild_from_type, torch._utils._rebuild_tensor, Picture,
                          (typed(plain), 0, (3,), (1,)), {})}
results = {"first": plain[1:], "from_numpy": torch.arange(3.).double(), "from_cpu": plain.half(), "by_type": plain}
pt("owners new", {**owners, **called}, {**owners, **results})
pt("owners old", owners, owners)

storages, whole = {}, {}
for dtype in torch.storage._dtype_to_storage_type_map():
    if "q" not in str(dtype):
        t = torch.tensor([0, 1, 1]).to(dtype)
        storages[str(dtype)[6:]], whole[str(dtype)[6:]] = typed(t), t
raw = torch.tensor([1., 2.])
storages["untyped"], whole["untyped"] = raw.untyped_storage(), raw.view(torch.uint8)
pt("storages new", storages, whole)
pt("storages old", storages, whole)

codes, news, expected = torch.arange(256, dtype=torch.uint8), {}, {}
for name in "e5m2 e4m3fn e5m2fnuz e4m3fnuz e8m0fnu".split():
    news["float8_" + name] = codes.clone().view(getattr(torch, "float8_" + name))
news["transposed"] = codes.clone().view(16, 16).view(torch.float8_e4m3fn).t()[2:]
expected = {key: t.float().bfloat16() for key, t in news.items()}
for bits, most in (16, 2**16 - 1), (32, 2**32 - 1), (64, 2**63 - 1):
    news[f"uint{bits}"] = torch.tensor([0, most], dtype=getattr(torch, f"uint{bits}"))
    expected[f"uint{bits}"] = news["uint16"] if bits == 16 else torch.tensor([0, most])
pt("dtypes new", news, expected)
lacking = {"large": torch.tensor([1, 2**63], dtype=torch.uint64), "w": plain}
for dtype in torch.storage._new_dtypes():
    if str(dtype).startswith(("torch.bits", "torch.float4")):
        lacking[str(dtype)[6:]] = torch.zeros(2, dtype=torch.int16 if str(dtype)[-2:] == "16" else torch.uint8).view(dtype)
x = torch.randn(3, 4) * 3
lacking["quint4x2"] = torch.quantize_per_channel(x, torch.rand(3) / 10 + .1, torch.rand(3) * 3, 0, torch.quint4x2)
pt("lacking dtypes old", lacking, {"w": plain})

a = torch.randn(4, 6)
a[a.abs() < 0.7] = 0
batch = torch.stack([a, a * 2])
sparse = {
    "coo": a.to_sparse(), "hybrid": torch.randn(3, 2, 2).to_sparse(1), "bool": (a != 0).to_sparse(), "half": a.half().to_sparse(),
    "twice": torch.sparse_coo_tensor([[0, 0, 2], [1, 1, 0]], [1., 2., 3.], (3, 4)), "int": a.int().to_sparse(),
    "none": torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.long), torch.zeros(0), (3, 4)),
    "empty": torch.sparse_coo_tensor(torch.zeros(2, 0, dtype=torch.long), torch.zeros(0), (0, 4)),
    "scalar": torch.sparse_coo_tensor(torch.zeros(0, 2, dtype=torch.long), torch.tensor([5., 1.]), ()),
    "complex": torch.complex(a, a * 3).to_sparse(), "csr": a.to_sparse_csr(), "csc": a.to_sparse_csc(),
    "bsr": a.to_sparse_bsr((2, 3)), "bsc": a.to_sparse_bsc((2, 3)), "batch_csr": batch.to_sparse_csr(),
    "batch_bsc": batch.to_sparse_bsc((2, 2)), "dense_csr": torch.randn(2, 3, 2).to_sparse_csr(1),
    "dense_bsr": torch.randn(2, 4, 2).to_sparse_bsr((2, 2), 1), "complex_csc": torch.complex(a, a * 3).to_sparse_csc(),
    "int32": torch.sparse_csr_tensor(torch.tensor([0, 1, 3], dtype=torch.int32), torch.tensor([1, 0, 2], dtype=torch.int32),
                                     torch.tensor([1., 2., 3.]), (2, 3)),
    "grad": torch.eye(2).to_sparse().requires_grad_(),
}
pt("sparse old", sparse, {key: t.to_dense() for key, t in sparse.items()})
few = {key: sparse[key] for key in ("coo", "csr", "batch_bsc")}
pt("sparse new", few, {key: t.to_dense() for key, t in few.items()})

quantized = {
    "qint8": torch.quantize_per_tensor(x, 0.1, 3, torch.qint8), "quint8": torch.quantize_per_tensor(x, .037, 128, torch.quint8),
    "qint32": torch.quantize_per_tensor(x, 1e-4, -5, torch.qint32),
    "rows": torch.quantize_per_channel(x, torch.tensor([.1, .2, .03]), torch.tensor([0, 1, 5]), 0, torch.qint8),
    "columns": torch.quantize_per_channel(x, torch.rand(4) / 10 + .01, torch.tensor([0, 1, 5, -3]), 1, torch.qint8),
    "floats": torch.quantize_per_channel(x, torch.rand(3) / 10 + .01, torch.rand(3) * 10, 0, torch.quint8),
}
quantized["transposed"], quantized["part"] = quantized["qint8"].t(), quantized["quint8"][1:, ::2]
pt("quantized new", quantized, {key: t.dequantize() for key, t in quantized.items()})
pt("quantized old", quantized, {key: t.dequantize() for key, t in quantized.items()})

refused = {"meta": torch.ones(2, device="meta"), "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
           "masked": torch.masked.masked_tensor(torch.ones(2), torch.tensor([True, False])), "enum": Color.RED,
           "class": Picture, "random": np.random.default_rng(0), "dates": np.array(["2020-01-01"], dtype="M8[D]"),
           "records": np.zeros(2, [("a", "i4")]), "texts": np.array([["a"]]), "w": plain}
for age in "new", "old":
    pt(f"refused {age}", refused, {"w": plain})

zone = datetime.timezone(datetime.timedelta(hours=-3, minutes=-30))
values = {
    "counter": collections.Counter("aab"), "deque": collections.deque([1, 2, 3], 2), "ordered": collections.OrderedDict(a=1),
    "default": collections.defaultdict(list, {"x": [2]}), "custom": collections.defaultdict(Picture, {"x": 1}),
    "path": pathlib.PosixPath("/a/b"), "relative": pathlib.PurePosixPath("c/d"), "here": pathlib.PosixPath("."),
    "root": pathlib.PosixPath("/"), "windows": pathlib.PureWindowsPath("C:/x/y"), "date": datetime.date(1999, 12, 31),
    "datetime": datetime.datetime(2024, 5, 1, 13, 4, 5, 678), "zoned": datetime.datetime(2024, 5, 1, tzinfo=zone),
    "fold": datetime.datetime(2024, 5, 1, 1, fold=1), "time": datetime.time(1, 2, 3, 4), "delta": datetime.timedelta(1, 2, 3),
    "decimal": decimal.Decimal("1.50"), "slice": slice(1, None, 2), "range": range(0, 10, 3), "bytes": b"", "complex": 1 + 2j,
    "bytearray": bytearray(b"x\xffy"), "no_bytes": bytearray(), "frozenset": frozenset([1]), "set": {5}, "tuple": (1, (2,)),
    "namespace": argparse.Namespace(lr=0.1, inner=argparse.Namespace(k="v")), "simple": types.SimpleNamespace(b=2),
    "float64": np.float64(0.5), "int64": np.int64(2**60), "uint64": np.uint64(2**63 - 1), "float32": np.float32(.25),
    "float16": np.float16(.5), "bool": np.bool_(True), "complex64": np.complex64(1 + 2j), "str": np.str_("h\u00e9\U0001f600"),
    "bytes_": np.bytes_(b"ab"), "words": np.array(["cat", "d\u00f6g", "\U0001f600", ""]), "bytes_array": np.array([b"ab", b"c"]),
    "big_words": np.array(["a", "bc"], dtype=">U2"), "word": np.array("ab"), "dtype": np.dtype("float32"),
    "objects": np.array([{"x": 1}, None, [2]], dtype=object), "random": tuple(random.Random(1).getstate()[1][:3]),
    "size": torch.Size([2, 3]), "device": torch.device("cuda", 1), "torch_dtype": torch.float8_e5m2, "layout": torch.sparse_csr,
    "scheme": torch.per_channel_affine, "best": torch.ones(2, 2).max(0),
}
arrays = {
    "a": np.arange(6.).reshape(2, 3), "fortran": np.asfortranarray(np.arange(6, dtype="f4").reshape(2, 3)),
    "big": np.arange(5, dtype=">i4"), "u1": np.arange(5, dtype="u1"), "b1": np.array([True, False]), "none": np.zeros((0, 3), "f4"),
    "u8": np.array([2**63 - 1], dtype="u8"), "u4": np.array([2**32 - 1], dtype="u4"), "f2": np.array([.5], dtype="f2"),
    "scalar": np.array(3.), "c16": np.array([1 + 2j]), "big_c8": np.array([1 + 2j], dtype=">c8"),
    "reversed": np.arange(6)[::-1], "transposed": np.arange(6).reshape(2, 3).T,
}
expected = {key: real(array) for key, array in arrays.items()}
expected = {key: torch.view_as_real(t) if t.is_complex() else t for key, t in expected.items()}
expected["u8"], expected["u4"] = expected["u8"].long(), expected["u4"].long()
for protocol, age in (2, "new"), (3, "old"), (4, "old"), (5, "new"):
    pt(f"values {protocol} {age}", {**values, **arrays}, expected if protocol == 2 else {}, pickle_protocol=protocol)
pt("generator old", {"generator": torch.Generator().manual_seed(7)})

names = set(torch._weights_only_unpickler._get_allowed_globals())
names |= {"torch._utils." + name for name in dir(torch._utils) if name.startswith("_rebuild_")}
names |= {"torch._tensor." + name for name in dir(torch._tensor) if name.startswith("_rebuild_")}
put("names", "\n".join(sorted(names)).encode())
save_file(out, os.path.join(here, "../../../spec/golden/_pickles.safetensors"))
