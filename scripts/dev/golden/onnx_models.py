"""Exports models for scripts/dev/onnx_models, and runs them by onnxruntime.

    onnx_models.py FOLDER NAME    writes FOLDER/NAME.onnx and FOLDER/NAME.safetensors, its inputs and outputs

Networks are those of scripts/bench/onnx, from random weights; gpt2_cached takes and returns keys and values of earlier
tokens. forest, logistic and boosting are scikit-learn's. NAME.dynamo is written by PyTorch's newer exporter; the path of
an .onnx file is copied, and gets random inputs.
"""
import os
import sys

import numpy
import onnxruntime
from safetensors.numpy import save_file

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../../bench"))
import onnx_peer  # noqa: E402


def gpt2_cached():
    import torch
    import transformers as t
    model = t.GPT2Model(t.GPT2Config(attn_implementation="eager", n_layer=4))
    before, new = 8, 4
    mask = torch.full((new, before + new), torch.finfo(torch.float32).min).triu(before + 1)[None, None]

    def call(m, ids, *cached):
        cache = t.DynamicCache()
        for i in range(4):
            cache.update(cached[2 * i], cached[2 * i + 1], i)
        out = m(input_ids=ids, attention_mask=mask, position_ids=torch.arange(before, before + new)[None],
                past_key_values=cache, use_cache=True)
        return (out[0],) + tuple(x for layer in out[1].layers for x in (layer.keys, layer.values))
    seeded = torch.Generator().manual_seed(0)
    cached = [torch.randn(1, 12, before, 64, generator=seeded) for _ in range(8)]
    return onnx_peer.First(model, call), (*onnx_peer.tokens(1, new), *cached)


def exported(path, name):
    import torch
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # its fused op has no counterpart in ONNX
    dynamo, name = name.endswith(".dynamo"), name.removesuffix(".dynamo")
    model, inputs = gpt2_cached() if name == "gpt2_cached" else onnx_peer.MODELS[name](1)
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    model.eval()
    names = ["x"] + [f"x{i}" for i in range(1, len(inputs))]
    with torch.no_grad():
        if dynamo:
            torch.onnx.export(model, inputs, path, dynamo=True, external_data=False, input_names=names)
        else:
            torch.onnx.export(model, inputs, path, opset_version=17, dynamo=False, input_names=names)
    return [(x[0] if isinstance(x, list) else x).numpy() for x in inputs]


def fitted(path, name):
    import sklearn.datasets as data
    from skl2onnx import to_onnx
    from sklearn.ensemble import GradientBoostingRegressor, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    x, y = (data.load_diabetes if name == "boosting" else data.load_digits)(return_X_y=True)
    x = x.astype(numpy.float32)
    model = {"forest": RandomForestClassifier(20, random_state=0), "boosting": GradientBoostingRegressor(random_state=0),
             "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=300))}[name].fit(x, y)
    options = None if name == "boosting" else {"zipmap": False}
    with open(path, "wb") as file:
        file.write(to_onnx(model, x[:1], options=options).SerializeToString())
    return [x]


def given(path, name):
    """Copies a model; returns the first random inputs that it runs with: sizes that it names are among a few."""
    import shutil
    shutil.copy(name, path)
    wanted = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    numpy.random.seed(0)
    sizes = 64, 512, 96, 16, 1280, 16000, 48, 200, 2, 1
    for most, size, inner in [(most, size, inner) for most in (200, 2) for size in sizes for inner in (size, 1)]:
        inputs = []
        for each in wanted.get_inputs():
            last = max(len(each.shape) - 1, 1)
            dims = [d if isinstance(d, int) and d > 0 else size if k == last else inner if k else 1
                    for k, d in enumerate(each.shape)]
            if "float" in each.type:
                x = numpy.random.rand(*dims).astype(numpy.float32)
            else:
                x = numpy.full(dims, 16000) if each.name == "sr" else numpy.random.randint(0, most, dims)
            inputs.append(numpy.asarray(x, {"tensor(float16)": "float16", "tensor(double)": "float64", "tensor(bool)": "bool",
                                            "tensor(int32)": "int32", "tensor(float)": "float32"}.get(each.type, "int64")))
        try:
            wanted.run(None, dict(zip([i.name for i in wanted.get_inputs()], inputs)))
            return inputs
        except Exception as problem:
            why = problem
    raise why


folder, name = sys.argv[1:]
path = f"{folder}/{os.path.basename(name).removesuffix('.onnx')}.onnx"
make = given if name.endswith(".onnx") else fitted if name in ("forest", "logistic", "boosting") else exported
inputs = make(path, name)
session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
outputs = session.run(None, dict(zip([i.name for i in session.get_inputs()], inputs)))
outputs = [x for x in outputs if isinstance(x, numpy.ndarray)]
arrays = [("in", inputs), ("out", outputs)]
save_file({f"{kind}.{i}": numpy.array(x, order="C") for kind, list_ in arrays for i, x in enumerate(list_, 1)},
          path.removesuffix(".onnx") + ".safetensors")
