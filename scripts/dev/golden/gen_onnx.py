#!/usr/bin/env python3
"""Writes spec/golden/_onnx.safetensors: small ONNX models with inputs and expected outputs, as bytes of files, each
NAME.onnx and NAME.data.onnx as onnx_cases.py writes them.

  scripts/dev/golden/gen_onnx.py FOLDER     (with a Python that has onnx, onnxruntime and safetensors)

FOLDER has the cases that onnx_cases.py wrote: of these the smallest for each operator is taken. The others are made
here; onnxruntime computes what is expected of them.
"""
import glob
import os
import sys

import numpy
import onnx
import onnxruntime
from onnx import parser

from onnx_cases import filled, save, write

RANDOM = {"Bernoulli", "RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Multinomial"}
ABSENT = {"ImageDecoder", "StringConcat", "StringSplit", "RegexFullMatch"}
MOST = 3000  # bytes of a case; an operator whose cases are larger is left out

CNN = """<ir_version: 8, opset_import: ["" : 17]>
cnn (float[N,2,8,8] image) => (float[N,3] scores, int64[N] class) {
  a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (image, conv__weight, conv__bias)
  b = BatchNormalization (a, bn__weight, bn__bias, bn__running_mean, bn__running_var)
  c = Relu (b)
  d = MaxPool <kernel_shape = [2,2], strides = [2,2]> (c)
  e = GlobalAveragePool (d)
  f = Flatten (e)
  scores = Gemm <transB = 1> (f, fc__weight, fc__bias)
  class = ArgMax <axis = 1, keepdims = 0> (scores)
}"""
TRANSFORMER = """<ir_version: 8, opset_import: ["" : 17]>
transformer (int64[B,T] ids, float[B,T] mask) => (float[B,T,8] y) {
  x = Gather (embed__weight, ids)
  q = MatMul (x, q__weight)
  k = MatMul (x, k__weight)
  k_t = Transpose <perm = [0,2,1]> (k)
  scores = MatMul (q, k_t)
  scale = Constant <value = float {2.8284271}> ()
  scaled = Div (scores, scale)
  axes = Constant <value_ints = [1]> ()
  row = Unsqueeze (mask, axes)
  one = Constant <value = float {1.0}> ()
  hidden = Sub (one, row)
  least = Constant <value = float {-10000.0}> ()
  added = Mul (hidden, least)
  masked = Add (scaled, added)
  weights = Softmax <axis = -1> (masked)
  z = MatMul (weights, x)
  r = Add (x, z)
  y = LayerNormalization <axis = -1> (r, ln__weight, ln__bias)
}"""
CONTROL = """<ir_version: 8, opset_import: ["" : 17]>
control (float[3] x, bool keep, int64 times) => (float[3] y, float[K,3] steps)
<float[3] w = {1.0, 2.0, 3.0}> {
  start = If (keep) <
    then_branch = yes () => (float[3] a) { a = Add (x, w) },
    else_branch = no () => (float[3] b) { b = Mul (x, w) }
  >
  y, steps = Loop (times, , start) <
    body = step (int64 i, bool go, float[3] s) => (bool on, float[3] t, float[3] seen) {
      on = Identity (go)
      t = Add (s, w)
      seen = Neg (t)
    }
  >
}"""
FUNCTION = """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
agraph (float[N] x) => (float[N] y) {
  a = own.scaled <factor = 2.0> (x)
  y = own.scaled <factor = 3.0> (a)
}
<domain: "own", opset_import: ["" : 17]>
scaled <factor> (v) => (w) {
  f = Constant <value_float: float = @factor> ()
  w = Mul (v, f)
}"""
QUANTIZED = """<ir_version: 8, opset_import: ["" : 17]>
quantized (float[N,4] x) => (float[N,2] y)
<uint8[4,2] w = {1,2,3,4,5,6,7,8}, float scale = {0.1}, uint8 zero = {3}> {
  q, s, z = DynamicQuantizeLinear (x)
  p = MatMulInteger (q, w, z, zero)
  f = Cast <to = 1> (p)
  both = Mul (s, scale)
  y = Mul (f, both)
}"""


def own_cases(folder):
    draw = numpy.random.default_rng(1)

    def real(*shape):
        return draw.standard_normal(shape).astype(numpy.float32)

    cnn = filled(CNN, {"conv.weight": (4, 2, 3, 3), "conv.bias": (4,), "bn.weight": (4,), "bn.bias": (4,),
                       "bn.running_mean": (4,), "bn.running_var": (4,), "fc.weight": (3, 4), "fc.bias": (3,)})
    transformer = filled(TRANSFORMER, {"embed.weight": (11, 8), "q.weight": (8, 8), "k.weight": (8, 8),
                                       "ln.weight": (8,), "ln.bias": (8,)})
    mask = numpy.ones((2, 5), numpy.float32)
    mask[1, 3:] = 0
    cases = {
        "cnn": (cnn, [real(2, 2, 8, 8)]),
        "transformer": (transformer, [draw.integers(0, 11, (2, 5)), mask]),
        "control": (parser.parse_model(CONTROL), [real(3), numpy.array(True), numpy.array(3)]),
        "function": (parser.parse_model(FUNCTION), [real(4)]),
        "quantized": (parser.parse_model(QUANTIZED), [real(3, 4)]),
    }
    for name, (model, inputs) in cases.items():
        names = [value.name for value in model.graph.input]
        session = onnxruntime.InferenceSession(model.SerializeToString())
        outputs = session.run(None, dict(zip(names, inputs)))
        write(folder, f"own.{name}", "own", model, inputs, outputs, 1e-4, 1e-5)


def small_cases(folder):
    """Returns the names of the smallest cases of each operator."""
    best = {}
    for path in glob.glob(f"{folder}/node.*.data.onnx"):
        name = path[:-len(".data.onnx")]
        data = onnx.load(path)
        kind = next(entry.value for entry in data.metadata_props if entry.key == "kind")
        if kind not in ("node plain", "node sequence", "node optional", "node string") or "training_dropout" in name:
            continue
        model = onnx.load(name + ".onnx")
        size = os.path.getsize(path) + os.path.getsize(name + ".onnx")
        ops = {(node.domain, node.op_type) for node in model.graph.node}
        if {op for _, op in ops} & (RANDOM | ABSENT) or size > MOST:
            continue
        if kind == "node string" and not any(domain == "ai.onnx.ml" for domain, _ in ops):
            continue
        for op in ops:
            best[op] = min(best.get(op, (MOST + 1, "")), (size, name))
    return sorted({os.path.basename(name) for _, name in best.values()})


def main():
    folder = sys.argv[1]
    own_cases(folder)
    names = small_cases(folder) + sorted(os.path.basename(path)[:-5] for path in glob.glob(f"{folder}/own.*.onnx")
                                         if not path.endswith(".data.onnx"))
    save(names, folder, "_onnx")


main()
