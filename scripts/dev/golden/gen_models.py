#!/usr/bin/env python3
"""Golden values of lm.models: scripts/dev/golden/gen_models.py, with a Python that has torch and torchvision.

Writes spec/golden/models.lua: for each model of torchvision's its number of parameters, the names in its state_dict, and
logits of one image, with weights and pixels by a formula that models_spec.lua has too.
"""
import hashlib
import os
import torch
import torchvision

NAMES = """alexnet vgg11 vgg13 vgg16 vgg19 vgg11_bn vgg13_bn vgg16_bn vgg19_bn resnet18 resnet34 resnet50 resnet101
    resnet152 mobilenet_v2""".split()


def wave(shape, phase):
    n = 1
    for size in shape:
        n *= size
    return torch.sin(torch.arange(n, dtype=torch.float64) * 0.7 + phase).reshape(shape)


def fill(state):
    for i, (name, t) in enumerate(state.items()):
        if name.endswith("num_batches_tracked"):
            continue
        if t.dim() > 1:  # as wide as ReLU wants it
            value = wave(t.shape, i) * (2 * 2 / t[0].numel()) ** 0.5
        elif name.endswith("running_var"):
            value = 1 + 0.1 * wave(t.shape, i)
        elif name.endswith("weight"):  # so that sums of residuals do not grow
            value = 0.6 + 0.1 * wave(t.shape, i)
        else:
            value = 0.1 * wave(t.shape, i)
        t.copy_(value.to(t.dtype))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "../../../spec/golden/models.lua"), "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_models.py with torchvision %s.\nreturn {\n" % torchvision.__version__)
        for name in NAMES:
            net = getattr(torchvision.models, name)().eval()
            state = net.state_dict()
            with torch.no_grad():
                fill(state)
                logits = net(wave((1, 3, 224, 224), 0).float())[0]
            count = sum(p.numel() for p in net.parameters())
            names = " ".join(sorted(state))
            text = ", ".join("%.8g" % v for v in logits[:6].tolist())
            scale = logits.abs().max().item()
            out.write("  %s = {\n    parameters = %d, entries = %d, names = \"%s\", largest = %.9g,\n    logits = {%s},\n  },\n"
                      % (name, count, len(state), hashlib.md5(names.encode()).hexdigest(), scale, text))
            print(name, count, text)
        out.write("}\n")


main()
