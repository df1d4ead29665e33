#!/usr/bin/env python3
"""Writes spec/golden/_onnxruntime.safetensors: cases as in gen_onnx.py, of onnxruntime's own ops, of models that its
quantizer wrote, and of patterns that exporters write. onnxruntime computes what is expected, without its optimizer.

  scripts/dev/golden/gen_onnxruntime.py     (with a Python that has onnx, onnxruntime and safetensors)
"""
import tempfile

import numpy
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

from onnx_cases import filled, save, write

draw = numpy.random.default_rng(3)
folder = tempfile.mkdtemp()
names = []


def real(*shape):
    return draw.standard_normal(shape).astype(numpy.float32)


def integers(dtype, *shape):
    info = numpy.iinfo(dtype)
    return draw.integers(info.min, info.max + 1, shape).astype(dtype)


def number(value, dtype=numpy.float32):
    return numpy.array(value, dtype)


def add(name, model, inputs, atol=1e-5):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    feeds = dict(zip([value.name for value in session.get_inputs()], inputs))
    write(folder, name, "onnxruntime", model, inputs, session.run(None, feeds), 1e-4, atol)
    names.append(name)


def node(op, inputs, results=1, fixed=(), domain="com.microsoft", label="", **attributes):
    """Adds a case of one node. inputs: arrays, None for one left out; fixed: indices of those that are initializers."""
    values = {f"i{k}": value for k, value in enumerate(inputs) if value is not None}
    used = [f"i{k}" if value is not None else "" for k, value in enumerate(inputs)]
    free = [name for name in values if int(name[1:]) not in fixed]
    graph = helper.make_graph(
        [helper.make_node(op, used, [f"o{k}" if k in results_of(results) else "" for k in range(max(results_of(results)) + 1)],
                          domain=domain, **attributes)],
        op,
        [helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(values[name].dtype), values[name].shape)
         for name in free],
        [helper.make_empty_tensor_value_info(f"o{k}") for k in results_of(results)],
        [numpy_helper.from_array(values[name], name) for name in values if name not in free])
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                                  helper.make_opsetid("com.microsoft", 1)])
    add(f"node.{op}{label}", model, [values[name] for name in free], 2e-4)


def results_of(results):
    return range(results) if isinstance(results, int) else results


def quantized_nodes():
    one = numpy.uint8
    for x, w, label in ((numpy.uint8, numpy.int8, ""), (numpy.int8, numpy.int8, "_signed"),
                        (numpy.uint8, numpy.uint8, "_unsigned")):
        node("MatMulInteger", [integers(x, 2, 3, 37), integers(w, 37, 41), number(5, x), number(9, w)], fixed=(1, 3),
             domain="", label=label)
        node("MatMulIntegerToFloat", [integers(x, 3, 37), integers(w, 37, 5), number(.03), abs(real(5)), number(7, x),
                                      None, real(5)], fixed=(1,), label=label)
        node("QLinearMatMul", [integers(x, 3, 9), number(.02), number(7, x), integers(w, 9, 4), number(.03),
                               number(3, w), number(.5), number(100, x)], fixed=(3,), domain="", label=label)
        node("QLinearConv", [integers(x, 2, 3, 7, 6), number(.02), number(7, x), integers(w, 5, 3, 3, 2),
                             abs(real(5)) if w == numpy.int8 else number(.5), integers(w, 5) * 0 if w == numpy.int8
                             else number(90, w), number(3), number(99, x), draw.integers(-999, 999, 5).astype(numpy.int32)],
             fixed=(3,), domain="", label=label, pads=[1, 0, 0, 2], strides=[2, 1])
    node("MatMulInteger", [integers(one, 2, 3, 4, 5), integers(numpy.int8, 2, 3, 5, 6), number(5, one), number(1, numpy.int8)],
         domain="", label="_batches")
    node("ConvInteger", [integers(one, 1, 4, 6, 5), integers(one, 8, 2, 3, 3), number(8, one), number(77, one)],
         fixed=(1,), domain="", group=2, dilations=[2, 1])
    node("ConvInteger", [integers(one, 1, 4, 6, 5), integers(one, 4, 1, 3, 3), number(8, one), number(77, one)],
         fixed=(1,), domain="", label="_depthwise", group=4, pads=[1, 1, 1, 1])
    node("DynamicQuantizeLinear", [real(3, 5)], 3, domain="")
    node("DynamicQuantizeLinear", [real(3) * 0], 3, domain="", label="_zeros")
    node("DynamicQuantizeMatMul", [real(3, 8), integers(numpy.int8, 8, 5), number(.1), None, real(5)], fixed=(1,))
    pair = [integers(one, 2, 8, 5), number(.0213), number(17, one), integers(one, 2, 8, 5), number(.034), number(201, one),
            number(.05), number(90, one)]
    node("QLinearAdd", pair)
    node("QLinearMul", pair[:6] + [number(.2), number(90, one)])
    node("QLinearSigmoid", [integers(one, 40), number(.04), number(120, one), number(1 / 256), number(0, one)])
    node("QLinearLeakyRelu", [integers(numpy.int8, 40), number(.04), number(5, numpy.int8), number(.03), number(3, numpy.int8)],
         alpha=.2)
    node("QLinearGlobalAveragePool", [integers(one, 1, 9, 4, 5), number(.04), number(120, one), number(.02), number(99, one)])
    node("QLinearConcat", [number(.05), number(90, one), *pair[:3], *pair[3:6]], axis=1)
    node("QGemm", [integers(one, 3, 8), number(.02), number(7, one), integers(numpy.int8, 5, 8), number(.03),
                   number(0, numpy.int8), draw.integers(-999, 999, 5).astype(numpy.int32), number(.4), number(100, one)],
         fixed=(3,), transB=1)
    node("QGemm", [integers(one, 3, 8), number(.02), number(7, one), integers(numpy.int8, 8, 5), number(.03),
                   number(0, numpy.int8)], fixed=(3,), label="_float")
    for bits, per in ((4, 2), (8, 1)):
        node("MatMulNBits", [real(2, 3, 48), integers(one, 6, 3, 16 // per), abs(real(18)), integers(one, 6 * 3 if per == 1 else 6 * 2)],
             fixed=(1, 2, 3), label=f"_{bits}", K=48, N=6, bits=bits, block_size=16)
        node("MatMulNBits", [real(3, 48), integers(one, 6, 3, 16 // per), abs(real(18))], fixed=(1, 2),
             label=f"_{bits}_symmetric", K=48, N=6, bits=bits, block_size=16)


def fused_nodes():
    node("FusedMatMul", [real(2, 3, 5, 4), real(2, 3, 5, 6)], alpha=.5, transA=1)
    node("FusedMatMul", [real(3, 4), real(6, 4)], transB=1, label="_2d")
    node("FusedGemm", [real(3, 4), real(4, 5), real(5)], activation="Relu", alpha=2., beta=.5)
    node("FusedConv", [real(1, 3, 6, 6), real(4, 3, 3, 3), real(4)], activation="Clip", activation_params=[-.5, .6])
    node("FusedConv", [real(1, 3, 6, 6), real(4, 3, 3, 3), real(4), real(1, 4, 4, 4)], activation="Relu", label="_sum")
    node("Gelu", [real(20)])
    node("BiasGelu", [real(2, 3, 5), real(5)])
    node("FastGelu", [real(2, 3, 5), real(5)])
    node("QuickGelu", [real(20)], alpha=1.5)
    rows = [real(2, 3, 8), real(2, 3, 8), real(8)]
    node("SkipLayerNormalization", rows + [real(8), real(8)], (0, 3), epsilon=1e-5)
    node("SkipSimplifiedLayerNormalization", rows, (0, 3), epsilon=1e-5)
    node("SimplifiedLayerNormalization", [real(2, 3, 8), real(8)], domain="", epsilon=1e-5)
    ids, kinds = draw.integers(0, 9, (2, 4)).astype(numpy.int32), draw.integers(0, 2, (2, 4)).astype(numpy.int32)
    mask = number([[1, 1, 1, 0], [1, 1, 0, 0]], numpy.int32)
    node("EmbedLayerNormalization", [ids, kinds, real(9, 8), real(6, 8), real(2, 8), real(8), real(8), mask], 2)
    node("Attention", [real(2, 4, 8), real(8, 24), real(24), mask], num_heads=2)
    node("Attention", [real(2, 4, 8), real(8, 24), real(24), number([3, 4], numpy.int32)], num_heads=2, label="_lengths")
    node("Attention", [real(2, 4, 8), real(8, 24), real(24), None, real(2, 2, 2, 3, 4)], 2, num_heads=2, unidirectional=1,
         label="_past")
    node("Attention", [real(2, 4, 8), real(8, 24), real(24), None, None, real(2, 2, 4, 4)], num_heads=2, label="_bias")
    heads = [real(2, 4, 8), real(2, 5, 8), real(2, 5, 8)]
    node("MultiHeadAttention", heads + [real(24), number([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], numpy.int32)], num_heads=2)
    node("MultiHeadAttention", [real(2, 4, 8), real(2, 4, 8), real(2, 4, 8), None, None, real(2, 2, 4, 7), real(2, 2, 3, 4),
                                real(2, 2, 3, 4)], 3, num_heads=2, scale=.3, label="_past")
    node("MultiHeadAttention", [real(2, 4, 8), real(2, 4, 8), real(2, 4, 8)], num_heads=2, unidirectional=1,
         label="_causal")
    cache = [numpy.cos(real(9, 4)), numpy.sin(real(9, 4))]
    wide = [numpy.cos(real(9, 8)), numpy.sin(real(9, 8))]
    group = {"num_heads": 4, "kv_num_heads": 2}
    node("GroupQueryAttention", [real(2, 3, 64), real(2, 3, 32), real(2, 3, 32), None, None, number([2, 2], numpy.int32),
                                 number(3, numpy.int32), *wide], 3, fixed=(6,), do_rotary=1, **group)
    node("GroupQueryAttention", [real(1, 1, 64), real(1, 1, 32), real(1, 1, 32), real(1, 2, 4, 16), real(1, 2, 4, 16),
                                 number([4], numpy.int32), number(5, numpy.int32), *wide], 3, fixed=(6,), do_rotary=1,
         rotary_interleaved=1, local_window_size=3, label="_past", **group)
    node("GroupQueryAttention", [real(1, 3, 128), None, None, None, None, number([2], numpy.int32),
                                 number(3, numpy.int32)], 3, fixed=(6,), label="_packed", **group)
    node("RotaryEmbedding", [real(2, 3, 16), draw.integers(0, 9, (2, 3)), *cache])
    node("RotaryEmbedding", [real(2, 2, 3, 8), number([4], numpy.int64), *cache], interleaved=1, label="_heads")


BLOCK = """<ir_version: 8, opset_import: ["" : 17]>
block (float[B,T,8] x, float[B,1,1,T] mask) => (float[B,T,8] y)
<float half = {0.5}, float one = {1.0}, float two = {2.0}, float root = {1.4142135}, float eps = {0.00001},
 float by = {2.0}, int64[4] split = {0, 0, 2, 4}, int64[3] merge = {0, 0, 8}> {
  q = MatMul (x, q__weight)
  k = MatMul (x, k__weight)
  v = MatMul (x, v__weight)
  qs = Reshape (q, split)
  ks = Reshape (k, split)
  vs = Reshape (v, split)
  qh = Transpose <perm = [0,2,1,3]> (qs)
  kt = Transpose <perm = [0,2,3,1]> (ks)
  vh = Transpose <perm = [0,2,1,3]> (vs)
  scores = MatMul (qh, kt)
  scaled = Div (scores, by)
  masked = Add (scaled, mask)
  weights = Softmax <axis = -1> (masked)
  heads = MatMul (weights, vh)
  back = Transpose <perm = [0,2,1,3]> (heads)
  all = Reshape (back, merge)
  sum = Add (x, all)
  mean = ReduceMean <axes = [-1]> (sum)
  less = Sub (sum, mean)
  square = Pow (less, two)
  spread = ReduceMean <axes = [-1]> (square)
  safe = Add (spread, eps)
  deviation = Sqrt (safe)
  normal = Div (less, deviation)
  scaled2 = Mul (normal, ln__weight)
  shifted = Add (scaled2, ln__bias)
  up = MatMul (shifted, up__weight)
  part = Div (up, root)
  e = Erf (part)
  e1 = Add (e, one)
  g = Mul (up, e1)
  gelu = Mul (g, half)
  down = MatMul (gelu, down__weight)
  rest = Add (shifted, down)
  powers = Pow (rest, two)
  power = ReduceMean <axes = [-1]> (powers)
  power_eps = Add (power, eps)
  power_root = Sqrt (power_eps)
  inverse = Div (one, power_root)
  rms = Mul (rest, inverse)
  y = Mul (rms__weight, rms)
}"""
CNN = """<ir_version: 8, opset_import: ["" : 17]>
cnn (float[N,3,9,8] image) => (float[N,5] scores) {
  a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (image, one__weight, one__bias)
  b = Relu (a)
  c = Conv <kernel_shape = [3,3], pads = [1,1,1,1], group = 8> (b, two__weight, two__bias)
  d = Conv <kernel_shape = [1,1]> (c, three__weight, three__bias)
  e = Add (b, d)
  f = MaxPool <kernel_shape = [2,2], strides = [2,2]> (e)
  g = GlobalAveragePool (f)
  h = Flatten (g)
  scores = Gemm <transB = 1> (h, fc__weight, fc__bias)
}"""
MLP = """<ir_version: 8, opset_import: ["" : 17]>
mlp (float[N,6] x) => (float[N,4] y) {
  a = MatMul (x, a__weight)
  b = Add (a, a__bias)
  c = Relu (b)
  y = Gemm (c, b__weight, b__bias)
}"""


class Samples(CalibrationDataReader):
    def __init__(self, model, inputs):
        self.left = [dict(zip([value.name for value in model.graph.input], inputs))]

    def get_next(self):
        return self.left.pop() if self.left else None


def models():
    eight = (8, 8)
    shapes = {"q.weight": eight, "k.weight": eight, "v.weight": eight, "ln.weight": (8,), "ln.bias": (8,),
              "up.weight": (8, 12), "down.weight": (12, 8), "rms.weight": (8,)}
    mask = numpy.zeros((2, 1, 1, 5), numpy.float32)
    mask[1, ..., 3:] = -1e4
    block = filled(BLOCK, shapes)
    add("block", block, [real(2, 5, 8), mask])
    cnn = filled(CNN, {"one.weight": (8, 3, 3, 3), "one.bias": (8,), "two.weight": (8, 1, 3, 3), "two.bias": (8,),
                       "three.weight": (8, 8, 1, 1), "three.bias": (8,), "fc.weight": (5, 8), "fc.bias": (5,)})
    mlp = filled(MLP, {"a.weight": (6, 7), "a.bias": (7,), "b.weight": (7, 4), "b.bias": (4,)})
    path = f"{folder}/made"
    for name, model, inputs in (("block", block, [real(2, 5, 8), mask]), ("cnn", cnn, [real(2, 3, 9, 8)]),
                                ("mlp", mlp, [real(3, 6)])):
        onnx.save(model, path)
        for kind, form in (("QUInt8", "QDQ"), ("QInt8", "QDQ"), ("QUInt8", "QOperator")):
            if form == "QOperator" and name == "block":
                continue
            quantize_static(path, path + ".q", Samples(model, inputs), quant_format=QuantFormat[form],
                            activation_type=QuantType[kind], weight_type=QuantType.QInt8, per_channel=kind == "QInt8")
            add(f"{name}.{form}.{kind}", onnx.load(path + ".q"), inputs)
        quantize_dynamic(path, path + ".q", weight_type=QuantType.QInt8)
        add(f"{name}.dynamic", onnx.load(path + ".q"), inputs)


def found_by_random_graphs():
    one = numpy.uint8
    rows, columns = integers(one, 3, 8), integers(numpy.int8, 5, 8)
    node("QGemm", [rows, number(.02), number(7, one), columns, number(.03), number(0, numpy.int8),
                   numpy.array([77], numpy.int32), number(.4), number(100, one)], fixed=(3,), transB=1, label="_one_bias")
    around = [number(.04), number(120, one), number(.02), number(99, one)]
    node("QLinearGlobalAveragePool", [integers(one, 2, 4, 5, 3), *around], channels_last=1, label="_last")
    node("QLinearSoftmax", [integers(one, 2, 3, 4), number(.04), number(120, one), number(1 / 256), number(0, one)],
         axis=1, opset=11, label="_rows")
    node("FusedMatMul", [real(4, 2, 5), real(6, 2, 5)], transBatchA=1, transBatchB=1, transB=1, label="_batch")
    padded = numpy.array([[0, 0, 1], [1, 1, 0]], numpy.int32) # first rows see no key
    node("MultiHeadAttention", [real(2, 3, 4), real(2, 3, 4), real(2, 3, 4), None, padded], num_heads=2, unidirectional=1,
         label="_padded")
    node("MultiHeadAttention", [real(2, 3, 4), real(2, 2, 4), real(2, 2, 4), None, padded[:, :2]], num_heads=2,
         label="_hidden")
    node("Attention", [real(2, 3, 4), real(4, 12), real(12), padded], fixed=(1, 2), num_heads=2, unidirectional=1,
         label="_padded")
    node("CumSum", [real(2, 0), number(1, numpy.int64)], domain="", fixed=(1,), exclusive=1, label="_empty")
    signed = (draw.integers(-16, 16, (1, 2, 3, 3)) * 8).astype(numpy.int8)
    node("Resize", [signed, None, numpy.array([1, 1, 2, 4], numpy.float32)], domain="", fixed=(2,), mode="linear",
         coordinate_transformation_mode="asymmetric", label="_int8")
    node("Hardmax", [real(2, 0, 3)], domain="", axis=1, label="_empty")
    node("LayerNormalization", [real(2, 5), real(1), real(5)], domain="", label="_broadcast")


def gathered_nodes():
    one = numpy.uint8
    for bits, per in ((4, 2), (8, 1)):
        node("GatherBlockQuantized", [integers(one, 5, 40 // per), numpy.array([[1, 4, 0], [0, 1, 3]]), real(5, 3)],
             label=f"_{bits}", bits=bits, block_size=16)
        node("GatherBlockQuantized", [integers(one, 5, 2, 48 // per), numpy.array([3, 1]), real(5, 2, 3),
                                      integers(one, 5, 2, 3 if per == 1 else 2)], fixed=(0,), label=f"_{bits}_zeros",
             bits=bits, block_size=16, quantize_axis=2)


def main():
    quantized_nodes()
    fused_nodes()
    models()
    found_by_random_graphs()
    gathered_nodes()
    save(names, folder, "_onnxruntime")


main()
