"""The onnxruntime side of scripts/bench/convolutions: a model of one node for each case, on argv[1] threads. Answers
each line, a batch and a case, with the median seconds of a call."""
import sys
import time

import numpy
import onnx
import onnxruntime
from onnx import helper

THREADS, LEAST_TIME, LEAST_CALLS = int(sys.argv[1]), 0.02, 5


def node_of(batch, kind, sizes):
    """Returns a node, the shape of x, and its other inputs."""
    rand = lambda *shape: numpy.random.rand(*shape).astype(numpy.float32)
    if kind == "linear":
        rows, k, n = sizes
        return helper.make_node("MatMul", ["x", "w"], ["y"]), [batch * rows, k], {"w": rand(k, n)}
    if kind == "layer_norm":
        rows, n = sizes
        return (helper.make_node("LayerNormalization", ["x", "w", "b"], ["y"], axis=-1), [batch * rows, n],
                {"w": rand(n), "b": rand(n)})
    if kind == "attention":
        heads, length, width, causal = sizes
        node = helper.make_node("MultiHeadAttention", ["x", "x", "x"], ["y"], domain="com.microsoft", num_heads=heads,
                                unidirectional=causal)
        return node, [batch, length, heads * width], {}
    c, k, size, stride, side, groups = sizes
    pad = size // 2 if size != stride else 0
    node = helper.make_node("Conv", ["x", "w"], ["y"], kernel_shape=[size, size], strides=[stride, stride],
                            pads=[pad] * 4, group=groups)
    return node, [batch, c, side, side], {"w": rand(k, c // groups, size, size)}


def call_of(line):
    batch, case = line.split()
    words = case.split("_")
    numbers = [int(word) for word in words if word.isdigit()]
    kind = "_".join(word for word in words if not word.isdigit()) or "conv2d"
    node, shape, constants = node_of(int(batch), kind, numbers)
    tensor = lambda name, shape: helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
    graph = helper.make_graph([node], "case", [tensor("x", shape)], [tensor("y", None)],
                              [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    x = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.random.rand(*shape).astype(numpy.float32))
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", x)
    binding.bind_output("y")
    return lambda: session.run_with_iobinding(binding)


calls = {}
for line in sys.stdin:
    if line not in calls:
        calls = {line: call_of(line)}
    call = calls[line]
    call()
    times, start = [], time.perf_counter()
    while time.perf_counter() - start < LEAST_TIME or len(times) < LEAST_CALLS:
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
    print(sorted(times)[len(times) // 2], flush=True)
