#!/usr/bin/env python3
"""The positional order of PyTorch's and torchvision's arguments: scripts/dev/golden/gen_positions.py, with a Python that
has torch and torchvision.

Writes spec/golden/positions.lua: signatures, each as the names of the arguments that may be given by position (the first
argument of a method, self, is left out), of which a name may have several, and the names by which this library would have
the functions that have them. Left out are names that a module of theirs only imports, torchvision's kernels by type, and most of its datasets.
"""
import inspect
import multiprocessing
import multiprocessing.pool
import os
import re
import textwrap

import torch
import torch.distributed
import torch.multiprocessing
import torch.nn.utils.parametrizations
import torch.nn.utils.parametrize
import torch.nn.utils.rnn
import torch.optim.swa_utils
import torch.utils.checkpoint
import torch.utils.data
import torchvision
from torchvision.transforms import v2

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..", "spec", "golden")

# Our path, and where PyTorch has these names.
LIBRARIES = [
    ("nn", torch.nn), ("F", torch.nn.functional), ("nn.init", torch.nn.init), ("nn.utils", torch.nn.utils),
    ("nn.utils.rnn", torch.nn.utils.rnn), ("nn.utils.parametrize", torch.nn.utils.parametrize),
    ("nn.utils.parametrizations", torch.nn.utils.parametrizations), ("nn.parallel", torch.nn.parallel),
    ("nn.parallel.comm", torch.nn.parallel.comm), ("optim", torch.optim),
    ("optim.lr_scheduler", torch.optim.lr_scheduler), ("optim.swa_utils", torch.optim.swa_utils),
    ("data", torch.utils.data), ("lm.func", torch.func), ("lm.autograd", torch.autograd),
    ("lm.autograd.functional", torch.autograd.functional), ("dist", torch.distributed), ("lm.cuda", torch.cuda),
    ("transforms", v2), ("transforms.functional", v2.functional), ("data", torchvision.datasets),
    ("vision", torchvision.utils), ("vision", torchvision.io), ("vision", torchvision.ops), ("lm.fft", torch.fft),
    ("lm.linalg", torch.linalg), ("lm", torch),
]
SINGLE = {
    "lm.GradScaler": torch.amp.GradScaler, "lm.autocast": torch.amp.autocast,
    "lm.amp.custom_fwd": torch.amp.custom_fwd, "lm.autograd.checkpoint": torch.utils.checkpoint.checkpoint,
    "lm.autograd.checkpoint_sequential": torch.utils.checkpoint.checkpoint_sequential,
    "lm.mp.spawn": torch.multiprocessing.spawn, "lm.mp.Process": multiprocessing.process.BaseProcess,
    "lm.mp.Pool": multiprocessing.Pool, "lm.mp.Queue": multiprocessing.Queue, "lm.mp.Pipe": multiprocessing.Pipe,
    "lm.mp.Barrier": multiprocessing.Barrier, "optim.AveragedModel": torch.optim.swa_utils.AveragedModel,
    "optim.SWALR": torch.optim.swa_utils.SWALR,
}
DATASETS = ("CIFAR10", "CIFAR100", "DatasetFolder", "FakeData", "FashionMNIST", "ImageFolder", "ImageNet", "KMNIST", "MNIST")
BY_TYPE = ("_image", "_video", "_mask", "_bounding_boxes", "_keypoints")
METHODS = {"Module": torch.nn.Module, "Optimizer": torch.optim.Optimizer, "Pool": multiprocessing.pool.Pool}


def of_parameters(parameters):
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def of_docs(name, value):
    """The signatures at the beginning of a docstring, and those that follow as .. function::"""
    found = []
    doc = (value.__doc__ or "").replace("\\*", "*").replace("\\_", "_")
    lines = [line for line in doc.split("\n")]
    for i, line in enumerate(lines):
        match = re.match(r"^\s*(?:\.\. function:: )?(?:torch\.)?%s\((.*)$" % re.escape(name), line)
        if not match or i > 0 and not line.strip().startswith("..") and "->" not in line and found:
            continue
        text, k = match.group(1), i
        while text.count("(") >= text.count(")") and k + 1 < len(lines):
            k += 1
            text += " " + lines[k].strip()
        depth, end = 1, None
        for j, c in enumerate(text):
            depth += (c in "([{") - (c in ")]}")
            if depth == 0:
                end = j
                break
        if end is None:
            continue
        names, part, depth = [], "", 0
        for c in text[:end] + ",":
            depth += (c in "([{") - (c in ")]}")
            if c == "," and depth == 0:
                part = re.sub(r"^(?:Tensor|int|float|bool|Number|tuple|ByteTensor) ", "", part.strip())
                if part.startswith("*"):
                    break
                word = re.match(r"^\w*", part).group(0)
                if word:
                    names.append(word)
                part = ""
            else:
                part += c
        if names and names not in found:
            found.append(names)
    return found


def signatures(name, value, method=False):
    if inspect.isclass(value):
        try:
            parameters = list(inspect.signature(value.__init__).parameters.values())[1:]
        except ValueError:
            return []
        own = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if not own and parameters and value.__new__ is not object.__new__:
            parameters = list(inspect.signature(value.__new__).parameters.values())[1:]
        return [of_parameters(parameters)]
    try:
        parameters = list(inspect.signature(value).parameters.values())
        names = of_parameters(parameters)
        if method and names and names[0] == "self":
            names = names[1:]
        if names or not value.__doc__:
            return [names]
    except (ValueError, TypeError):
        pass
    return of_docs(name, value)


def main():
    table = {}

    def add(path, value, method=False):
        found = signatures(path.replace(":", ".").split(".")[-1], value, method)
        if any(found):
            table.setdefault(path, [names for names in found if names])

    for ours, library in LIBRARIES:
        for name in sorted(dir(library)):
            value = getattr(library, name)
            own = (getattr(value, "__module__", None) or "torch").split(".")[0] in ("torch", "torchvision")
            if not name.startswith("_") and callable(value) and not inspect.ismodule(value) and own and not (
                    library is v2.functional and name.endswith(BY_TYPE)
                    or library is torchvision.datasets and name not in DATASETS):
                add(ours + "." + name, value)
    for path, value in SINGLE.items():
        table.pop(path, None)
        add(path, value, inspect.ismethod(value))
    for ours, of in METHODS.items():
        for name in sorted(dir(of)):
            value = getattr(of, name)
            if not name.startswith("_") and callable(value):
                add(ours + ":" + name, value, True)
    # torch.jit's boolean_dispatch hides the signatures of these.
    for name in ("max_pool1d", "max_pool2d", "max_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
                 "adaptive_max_pool3d", "fractional_max_pool2d"):
        table["F." + name] = [of_parameters(inspect.signature(
            getattr(torch.nn.functional, name + "_with_indices")).parameters.values())]

    with open(os.path.join(GOLDEN, "positions.lua"), "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_positions.py from PyTorch %s and torchvision %s.\n" % (
            torch.__version__.split("+")[0], torchvision.__version__.split("+")[0]))
        out.write("return {\n")
        by_signatures = {}
        for path in sorted(table):
            by_signatures.setdefault(" | ".join(" ".join(names) for names in table[path]), []).append(path)
        for signatures_of, paths in by_signatures.items():
            row = "  {[[%s]], [[%s]]}," % (signatures_of, " ".join(paths))
            out.write(textwrap.fill(row, 120, subsequent_indent="    ", break_on_hyphens=False) + "\n")
        out.write("}\n")


main()
