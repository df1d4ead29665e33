#!/usr/bin/env python3
"""Golden values of lm.models: scripts/dev/golden/gen_models.py, with a Python that has torch and torchvision.

Writes spec/golden/models.lua: for each model of torchvision's its number of parameters, a hash of the names in its
state_dict, and logits of one image, with weights and pixels by a formula that models_spec.lua has too. The phase of a
weight's formula is the index of its name in order.
"""
import os
import textwrap
import torch
import torchvision

SKIPPED = {"maxvit_t"}  # not in lm.models
LARGE = {"vit_h_14", "regnet_y_128gf"}  # names and numbers alone


def wave(shape, phase):
    n = 1
    for size in shape:
        n *= size
    return torch.sin(torch.arange(n, dtype=torch.float64) * 0.7 + phase).reshape(shape)


def fill(state):
    for i, (name, t) in enumerate(sorted(state.items())):
        if name.endswith(("num_batches_tracked", "relative_position_index", "relative_coords_table")):
            continue
        if t.dim() > 1 and not name.endswith("logit_scale"):  # as wide as ReLU wants it
            value = wave(t.shape, i) * (2 * 2 / t[0].numel()) ** 0.5
        elif name.endswith("running_var"):
            value = 1 + 0.1 * wave(t.shape, i)
        elif name.endswith("logit_scale"):
            value = 2 + 0.1 * wave(t.shape, i)
        elif name.endswith("weight"):  # so that sums of residuals do not grow
            value = 0.6 + 0.1 * wave(t.shape, i)
        else:
            value = 0.1 * wave(t.shape, i)
        t.copy_(value.to(t.dtype))


def hash_of(text):
    value = 0
    for byte in text.encode():
        value = (value * 31 + byte) % 2**32
    return value


def main():
    torch.set_num_threads(1)
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../../spec/golden/models.lua"), "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_models.py with torchvision %s: parameters, hash of their names, largest\n"
                  "-- logit, size of the image, first logits.\nreturn {\n" % torchvision.__version__)
        for name in torchvision.models.list_models(torchvision.models):
            if name in SKIPPED:
                continue
            more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}
            net = getattr(torchvision.models, name)(**more).eval()
            state = net.state_dict()
            count = sum(p.numel() for p in net.parameters())
            text, scale = "", 0
            size = 299 if name == "inception_v3" else 224 if name.startswith(("vit", "alex", "vgg", "resnet")) else 64
            if name not in LARGE:
                with torch.no_grad():
                    fill(state)
                    logits = net(wave((1, 3, size, size), 0).float())[0]
                text = ", ".join("%.8g" % v for v in logits[:6].tolist())
                scale = logits.abs().max().item()
            row = "  %s = { %d, %d, %.9g, %d, { %s } }," % (name, count, hash_of(" ".join(sorted(state))), scale, size, text)
            out.write(textwrap.fill(row, 120, subsequent_indent="    ", break_on_hyphens=False) + "\n")
            print(name, count, text, flush=True)
        out.write("}\n")


main()
