#!/usr/bin/env python3
"""Files of other people's formats, and what is in them: scripts/dev/golden/gen_files.py, with a Python that has torch,
numpy and safetensors.

Writes spec/golden/_files.safetensors: files' bytes by name ("new.pt"), and the tensors in them by the file's name and
theirs ("new.pt w"). PyTorch and NumPy write theirs; GGUF and Torch7's files are written here, and GGUF's blocks expanded
element by element, as ggml-quants.c has it.
"""
import collections
import io
import os
import struct
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
