"""Writes the test cases of the Python package onnx to a folder: NAME.onnx, the model, and NAME.data.onnx, whose
initializers are its inputs and expected outputs: "in.0", "out.0", ..., "in.0.2" for an item of a sequence. Its metadata
says of each which kind it is, and the tolerances.

  python3 scripts/dev/golden/onnx_cases.py FOLDER [REGEX]
"""
import importlib
import os
import re
import sys
import warnings

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper, parser
from onnx.backend.test import loader
from onnx.backend.test.case import node

PLAIN = {TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT8, TensorProto.UINT16, TensorProto.INT16,
         TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16, TensorProto.DOUBLE,
         TensorProto.BFLOAT16}


def filled(model, shapes, seed=0):
    """Returns a model of that text, which has __ for dots, with random initializers of those shapes."""
    model = parser.parse_model(model)
    for node in model.graph.node:
        node.input[:] = [name.replace("__", ".") for name in node.input]
    draw = numpy.random.default_rng(seed)
    for name, shape in shapes.items():
        value = draw.standard_normal(shape).astype(numpy.float32)
        if name.endswith("running_var"):
            value = numpy.abs(value) + 0.5
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def kind_of(values):
    """Returns "plain" if all values of a graph are tensors of dtypes that Luminary has, else what they are."""
    kinds = set()
    for value in values:
        field = value.type.WhichOneof("value")
        if field == "tensor_type":
            dtype = value.type.tensor_type.elem_type
            kinds.add("plain" if dtype in PLAIN else TensorProto.DataType.Name(dtype).lower())
        elif field in ("sequence_type", "optional_type"):
            kinds.add(field[:-5])
        else:
            kinds.add(str(field))
    return " ".join(sorted(kinds - {"plain"})) or "plain"


def add(values, prefix, graph, entries):
    for i, value in enumerate(values):
        name = f"{prefix}.{i}"
        if value is None:
            entries[name] = "none"
        elif isinstance(value, (list, tuple)):
            entries[name] = f"sequence {len(value)}"
            for k, item in enumerate(value):
                graph.initializer.append(tensor(item, f"{name}.{k}"))
        elif isinstance(value, dict):
            entries[name] = "map"
        else:
            entries[name] = "tensor"
            graph.initializer.append(tensor(value, name))


def tensor(value, name):
    if isinstance(value, TensorProto):
        out = TensorProto()
        out.CopyFrom(value)
        out.name = name
        return out
    return numpy_helper.from_array(numpy.asarray(value), name)


def write(folder, name, kind, model, inputs, outputs, rtol, atol):
    graph = onnx.GraphProto(name="data")
    entries = {"kind": kind, "rtol": repr(rtol), "atol": repr(atol)}
    add(inputs, "in", graph, entries)
    add(outputs, "out", graph, entries)
    data = helper.make_model(graph)
    helper.set_model_props(data, entries)
    with open(f"{folder}/{name}.onnx", "wb") as file:
        file.write(model if isinstance(model, bytes) else model.SerializeToString())
    with open(f"{folder}/{name}.data.onnx", "wb") as file:
        file.write(data.SerializeToString())


def save(names, folder, golden):
    """Writes the files of cases of those names to spec/golden/GOLDEN.safetensors."""
    from safetensors.numpy import save_file
    files = {}
    for name in names:
        for suffix in (".onnx", ".data.onnx"):
            files[name + suffix] = numpy.fromfile(f"{folder}/{name}{suffix}", numpy.uint8)
    here = os.path.dirname(os.path.abspath(__file__))
    save_file(files, f"{here}/../../../spec/golden/{golden}.safetensors")
    print(f"{len(names)} models, {sum(f.size for f in files.values())} bytes")


def read(path, value):
    """Returns the value of a graph's input or output from a file of a data set."""
    field = value.type.WhichOneof("value") if value is not None else "tensor_type"
    proto = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}.get(field, TensorProto)()
    with open(path, "rb") as file:
        proto.ParseFromString(file.read())
    if field == "sequence_type":
        return numpy_helper.to_list(proto)
    return numpy_helper.to_optional(proto) if field == "optional_type" else proto


def write_files(folder, kind, pattern):
    """Writes the cases that the package has as folders of files."""
    for case in loader.load_model_tests(kind=kind):
        if not re.search(pattern, case.name) or case.model_dir is None:
            continue
        model = onnx.load(f"{case.model_dir}/model.onnx")
        at = f"{case.model_dir}/test_data_set_0"
        sides = []
        for side, values in (("input", model.graph.input), ("output", model.graph.output)):
            count = len([f for f in os.listdir(at) if f.startswith(side + "_")])
            sides.append([read(f"{at}/{side}_{i}.pb", values[i]) for i in range(count)])
        write(folder, f"{kind}.{case.name}", kind, model, *sides, case.rtol, case.atol)


def write_light(folder, pattern):
    """Writes the cases "light", whose inputs are made of a formula."""
    at = os.path.join(os.path.dirname(onnx.__file__), "backend", "test", "data", "light")
    for file in sorted(os.listdir(at)):
        name = file[:-5]
        if not file.endswith(".onnx") or not re.search(pattern, name):
            continue
        model = onnx.load(f"{at}/{file}")
        known = {t.name for t in model.graph.initializer}
        inputs = []
        for value in model.graph.input:
            if value.name not in known:
                shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
                count = int(numpy.prod(shape))
                inputs.append((numpy.arange(count).reshape(shape) / count).astype(numpy.float32))
        expected = [read(f"{at}/{name}_output_0.pb", None)]
        write(folder, f"light.{name}", "light", model, inputs, expected, 1e-3, 1e-5)


def main():
    folder, pattern = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else ""
    warnings.filterwarnings("ignore")
    os.makedirs(folder, exist_ok=True)
    for case in node.collect_testcases():
        if not re.search(pattern, case.name):
            continue
        graph = case.model.graph
        kind = "node " + kind_of(list(graph.input) + list(graph.output))
        for inputs, outputs in case.data_sets[:1]:
            write(folder, f"node.{case.name}", kind, case.model, inputs, outputs, case.rtol, case.atol)
    importlib.import_module("onnx.backend.test.case.model").collect_testcases()
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        write_files(folder, kind, pattern)
    write_light(folder, pattern)


if __name__ == "__main__":
    main()
