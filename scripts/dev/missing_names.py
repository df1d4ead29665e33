"""Lists what PyTorch offers, a line each: "library name". For missing_names.lua.

    python missing_names.py > names.txt
"""
import inspect

import torch

LIBRARIES = {
    "torch": (torch, "functions"),
    "Tensor": (torch.Tensor, "all"),
    "nn": (torch.nn, "classes"),
    "nn.functional": (torch.nn.functional, "functions"),
    "nn.init": (torch.nn.init, "functions"),
    "nn.utils": (torch.nn.utils, "functions"),
    "optim": (torch.optim, "classes"),
    "optim.lr_scheduler": (torch.optim.lr_scheduler, "classes"),
    "linalg": (torch.linalg, "functions"),
    "fft": (torch.fft, "functions"),
    "distributions": (torch.distributions, "classes"),
}


def names_of(library, what):
    for name in dir(library):
        value = getattr(library, name, None)
        if name.startswith("_") or inspect.ismodule(value):
            continue
        if what == "classes" and not getattr(value, "__module__", "").startswith(library.__name__):
            continue
        is_class = inspect.isclass(value)
        if what == "all" or (is_class if what == "classes" else callable(value) and not is_class):
            yield name


for title, (library, what) in LIBRARIES.items():
    for name in names_of(library, what):
        print(title, name)
