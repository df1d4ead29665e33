"""Exports models from random weights, and times onnxruntime for scripts/bench/onnx.

    onnx_peer.py export FOLDER NAME BATCH    writes FOLDER/NAME.BATCH.onnx, and its inputs and outputs as .npy
    onnx_peer.py time THREADS                 answers lines: "load PATH" by ok, "run" by the seconds of a call
"""
import sys
import time

import numpy

BATCHLESS = {"detector"}  # batch 1 alone


def image(batch, side=224):
    import torch
    return (torch.randn(batch, 3, side, side, generator=torch.Generator().manual_seed(0)),)


def tokens(batch, length=64, most=1000):
    import torch
    return (torch.randint(0, most, (batch, length), generator=torch.Generator().manual_seed(0)),)


def vision(name):
    def make(batch):
        import torchvision
        return getattr(torchvision.models, name)(), image(batch)
    return make


class First:
    """Makes a module that returns the first output of a Hugging Face model, of positional tensors."""

    def __new__(cls, model, call):
        import torch

        class Wrapped(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.model = model

            def forward(self, *inputs):
                return call(self.model, *inputs)
        return Wrapped()


def text(kind):
    def make(batch):
        import transformers as t
        plain = dict(attn_implementation="eager")
        if kind == "bert":
            model = t.BertModel(t.BertConfig(**plain))
        elif kind == "distilbert":
            model = t.DistilBertModel(t.DistilBertConfig(**plain))
        elif kind == "gpt2":
            import torch
            model = t.GPT2Model(t.GPT2Config(**plain, use_cache=False))
            causal = torch.full((64, 64), torch.finfo(torch.float32).min).triu(1)[None, None]  # else by diff, which has
            return First(model, lambda m, ids: m(input_ids=ids, attention_mask=causal)[0]), tokens(batch)  # no op
        else:
            model = t.T5EncoderModel(t.T5Config())
        return First(model, lambda m, ids: m(input_ids=ids)[0]), tokens(batch)
    return make


def whisper(batch):
    import torch
    import transformers as t
    model = t.WhisperModel(t.WhisperConfig(attn_implementation="eager")).encoder
    sound = torch.randn(batch, 80, 3000, generator=torch.Generator().manual_seed(0))
    return First(model, lambda m, x: m(x)[0]), (sound,)


def unet(batch):
    import torch
    nn = torch.nn

    def block(cin, cout):
        return nn.Sequential(nn.Conv2d(cin, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU(),
                             nn.Conv2d(cout, cout, 3, padding=1, bias=False), nn.BatchNorm2d(cout), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self, sizes=(32, 64, 128, 256)):
            super().__init__()
            self.down = nn.ModuleList(block(a, b) for a, b in zip((3,) + sizes, sizes))
            self.up = nn.ModuleList(nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(sizes, sizes[1:]))
            self.join = nn.ModuleList(block(2 * a, a) for a in sizes[:-1])
            self.last = nn.Conv2d(sizes[0], 2, 1)

        def forward(self, x):
            kept = []
            for down in self.down[:-1]:
                x = down(x)
                kept.append(x)
                x = nn.functional.max_pool2d(x, 2)
            x = self.down[-1](x)
            for up, join, skip in reversed(list(zip(self.up, self.join, kept))):
                x = join(torch.cat([skip, up(x)], 1))
            return self.last(x)
    return UNet(), image(batch, 128)


def lstm(batch):
    import torch

    class Recurrent(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.LSTM(64, 128, 2, bidirectional=True)

        def forward(self, x):
            return self.layers(x)[0]
    return Recurrent(), (torch.randn(100, batch, 64, generator=torch.Generator().manual_seed(0)),)


def gru_lengths(batch):
    """Tagger of characters in sequences of several lengths, whose nodes have the input sequence_lens."""
    import torch
    nn, rnn = torch.nn, torch.nn.utils.rnn

    class Tagger(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.layers = nn.Embedding(1000, 64), nn.GRU(64, 112, 3, bidirectional=True, batch_first=True)
            self.head = nn.Linear(224, 20)
            self.register_buffer("lengths", torch.arange(2 * batch, 0, -1) * 24 // (2 * batch) + 40)

        def forward(self, ids):
            packed = rnn.pack_padded_sequence(self.table(ids), self.lengths, batch_first=True)
            return self.head(rnn.pad_packed_sequence(self.layers(packed)[0], batch_first=True)[0])
    return Tagger(), tokens(2 * batch)


def branches(batch):
    """Detector of speech with a branch for loud and one for quiet sound, between layers that both have."""
    import torch
    nn = torch.nn

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.Sequential(nn.Conv1d(1, 64, 64, 16), nn.ReLU(), nn.Conv1d(64, 128, 3, 2, 1), nn.ReLU())
            self.loud = nn.Sequential(nn.Conv1d(128, 64, 3, 1, 1), nn.ReLU())
            self.quiet = nn.Sequential(nn.Conv1d(128, 64, 1), nn.ReLU())
            self.cell, self.last = nn.LSTM(64, 128), nn.Linear(128, 1)

        def forward(self, x):
            y = self.first(x)
            if bool(y.mean() > 0.5):
                y = self.loud(y) * 0.5
            else:
                y = self.quiet(y) + 0.1
            return torch.sigmoid(self.last(self.cell(y.permute(2, 0, 1))[0].mean(0)))
    x = torch.randn(batch, 1, 576, generator=torch.Generator().manual_seed(0))
    return torch.jit.script(Branches().eval()), (x,)


def loop(batch):
    """Layers with one set of weights, run as often as a value says."""
    import torch
    nn = torch.nn

    class Loop(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.step, self.last = nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 10)

        def forward(self, x):
            h = torch.tanh(self.first(x))
            for _ in range(int((h.abs().max() > 0).long() * 8)):
                h = h + 0.5 * torch.tanh(self.step(h))
            return self.last(h)
    return torch.jit.script(Loop().eval()), (torch.randn(16 * batch, 64, generator=torch.Generator().manual_seed(0)),)


def detector(batch):
    import torchvision
    model = torchvision.models.detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
    return model, ([image(batch, 320)[0][0]],)


MODELS = {"resnet18": vision("resnet18"), "resnet50": vision("resnet50"), "mobilenet_v2": vision("mobilenet_v2"),
          "mobilenet_v3": vision("mobilenet_v3_large"), "efficientnet": vision("efficientnet_b0"),
          "vit": vision("vit_b_16"), "convnext": vision("convnext_tiny"), "detector": detector, "unet": unet,
          "bert": text("bert"), "distilbert": text("distilbert"), "t5": text("t5"), "gpt2": text("gpt2"),
          "whisper": whisper, "lstm": lstm, "gru_lengths": gru_lengths, "branches": branches, "loop": loop}


def quantized(path, name, x):
    """Replaces the file by its model in 8 bits: resnet18_qdq, calibrated by x, or bert_dynamic."""
    from onnxruntime import quantization as q

    class Reader(q.CalibrationDataReader):
        def __init__(self):
            self.left = [{"x": x}]

        def get_next(self):
            return self.left.pop() if self.left else None
    if name.endswith("_dynamic"):
        q.quantize_dynamic(path, path, weight_type=q.QuantType.QInt8)
    else:
        q.quantize_static(path, path, Reader(), per_channel=True)


def export(folder, name, batch):
    import torch
    if name in BATCHLESS and batch > 1:
        sys.exit("it takes one image")
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)  # its fused op has no counterpart in ONNX
    model, inputs = MODELS[name.replace("_qdq", "").replace("_dynamic", "")](batch)
    for weight in model.parameters():
        if weight.ndim > 1 and not weight.any():  # a head that begins at 0, whose results would all be 0
            torch.nn.init.normal_(weight, std=0.02)
    model.eval()
    path = f"{folder}/{name}.{batch}.onnx"
    with torch.no_grad():
        torch.onnx.export(model, inputs, path, opset_version=17, dynamo=False, input_names=["x"])
    x = inputs[0][0] if isinstance(inputs[0], list) else inputs[0]
    if name.endswith(("_qdq", "_dynamic")):
        quantized(path, name, x.numpy())
    numpy.save(path + ".npy", x.numpy())


def serve(threads):
    import onnxruntime
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = inputs = None
    for line in sys.stdin:
        words = line.split()
        if words[0] == "load":
            session = onnxruntime.InferenceSession(words[1], options, providers=["CPUExecutionProvider"])
            inputs = {session.get_inputs()[0].name: numpy.load(words[1] + ".npy")}
            numpy.save(words[1] + ".out.npy", session.run(None, inputs)[0])
            print("ok", flush=True)
        else:
            began = time.perf_counter()
            session.run(None, inputs)
            print(time.perf_counter() - began, flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "export":
        export(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        serve(int(sys.argv[2]))
