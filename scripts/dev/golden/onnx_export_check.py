"""Runs the networks that scripts/dev/onnx_export.lua exported, NAME.onnx with inputs and outputs in NAME.safetensors,
with onnx.checker and onnxruntime. Prints a line for each; exit code 1 if one is refused or differs by more than 1e-5
of its largest element.

  python3 scripts/dev/golden/onnx_export_check.py FOLDER
"""
import glob
import json
import os
import struct
import sys

import numpy
import onnx
import onnxruntime

DTYPES = {"F32": "f4", "F64": "f8", "F16": "f2", "I64": "i8", "I32": "i4", "U8": "u1", "I8": "i1", "BOOL": "?"}


def read(path):
    """Returns the arrays of a safetensors file by name."""
    with open(path, "rb") as file:
        data = file.read()
    size = struct.unpack("<Q", data[:8])[0]
    arrays = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            part = data[8 + size + first:8 + size + last]
            arrays[name] = numpy.frombuffer(part, DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return arrays


def distance(path):
    """Returns the largest difference to onnxruntime, relative to the output's largest element."""
    onnx.checker.check_model(path, full_check=True)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    arrays, worst = read(path[:-5] + ".safetensors"), 0.0
    for call in "12":
        feeds = {v.name: arrays["in.%s.%d" % (call, i + 1)] for i, v in enumerate(session.get_inputs())}
        for i, got in enumerate(session.run(None, feeds)):
            wanted = arrays["out.%s.%d" % (call, i + 1)]
            if wanted.shape != got.shape or wanted.dtype != got.dtype:
                raise ValueError("output %d is %s %s, expected %s %s" % (
                    i + 1, got.dtype, got.shape, wanted.dtype, wanted.shape))
            gap = numpy.abs(wanted.astype("f8") - got.astype("f8")).max() if wanted.size else 0
            worst = max(worst, float(gap / max(numpy.abs(wanted).max(), 1e-30)))
    return worst


onnxruntime.set_default_logger_severity(3)
passed, paths = 0, sorted(glob.glob(os.path.join(sys.argv[1], "*.onnx")))
for path in paths:
    name = os.path.basename(path)[:-5]
    try:
        worst = distance(path)
        passed += worst <= 1e-5
        print("%-30s onnxruntime: %.1e%s" % (name, worst, "" if worst <= 1e-5 else "  TOO FAR"))
    except Exception as problem:  # a checker's or a session's error is a line of the report
        print("%-30s %s" % (name, str(problem).strip().splitlines()[0][:200]))
print("%d of %d checked and within 1e-5 of onnxruntime" % (passed, len(paths)))
sys.exit(passed < len(paths))
