#!/usr/bin/env python3
"""Golden trajectories of optimizers, from PyTorch: spec/golden/_trajectories.safetensors and what they are of,
trajectories.lua beside it. spec/optim/trajectories_spec.lua walks all of them.

  scripts/dev/golden/gen_trajectories.py [NAME ...]      (with a Python that has torch and safetensors)

With names, those optimizers' values are replaced and others kept: float32 differs in its last digits between CPUs.

Each case goes 50 steps on three problems, in float32 and float64; those that maximize, on the problems upside down.
Its parameters are written after some of the steps, and the optimizer's state_dict after 20. PyTorch keeps numbers such
as mu_product in the default dtype: that is float64 here, which is what Luminary keeps them in. Lion, LAMB and AdaBelief
are not in PyTorch: here they are in NumPy, after Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023,
algorithm 2, You et al., "Large Batch Optimization for Deep Learning: Training BERT in 76 minutes", 2020, algorithm 2,
and Zhuang et al., "AdaBelief Optimizer: Adapting Stepsizes by the Belief in Observed Gradients", 2020, algorithm 2.
"""
import os
import sys

import numpy
import torch
from safetensors.torch import load_file, save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
STEPS, SEEN, SAVED = 50, (1, 2, 3, 6, 10, 20, 35, 50), 20


class Lion:
    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, maximize=False):
        self.params, self.lr, self.betas = params, lr, betas
        self.weight_decay, self.maximize = weight_decay, maximize
        self.m = [numpy.zeros_like(p.detach().numpy()) for p in params]

    def step(self):
        b1, b2 = self.betas
        for p, m in zip(self.params, self.m):
            w, g = p.detach().numpy(), p.grad.numpy()
            g = -g if self.maximize else g
            c = b1 * m + (1 - b1) * g
            w -= self.lr * (numpy.sign(c) + self.weight_decay * w)
            m[...] = b2 * m + (1 - b2) * g

    def state_dict(self):
        group = dict(lr=self.lr, betas=self.betas, weight_decay=self.weight_decay, maximize=self.maximize,
                     params=list(range(len(self.params))))
        return {"state": {k: {"exp_avg": torch.from_numpy(m)} for k, m in enumerate(self.m)}, "param_groups": [group]}


class LAMB:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.01, bias_correction=True,
                 maximize=False):
        self.params, self.t = params, 0
        self.group = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, bias_correction=bias_correction,
                          maximize=maximize)
        self.m = [numpy.zeros_like(p.detach().numpy()) for p in params]
        self.v = [numpy.zeros_like(p.detach().numpy()) for p in params]

    def step(self):
        o = self.group
        self.t += 1
        b1, b2 = o["betas"]
        for p, m, v in zip(self.params, self.m, self.v):
            x, g = p.detach().numpy(), p.grad.numpy()
            g = -g if o["maximize"] else g
            m[...] = b1 * m + (1 - b1) * g
            v[...] = b2 * v + (1 - b2) * g * g
            c1, c2 = (1 - b1 ** self.t, 1 - b2 ** self.t) if o["bias_correction"] else (1, 1)
            r = m / c1 / (numpy.sqrt(v / c2) + o["eps"]) + o["weight_decay"] * x
            size, length = numpy.linalg.norm(x), numpy.linalg.norm(r)
            x -= o["lr"] * (size / length if size > 0 and length > 0 else 1) * r

    def state_dict(self):
        states = {k: {"step": torch.tensor(float(self.t)), "exp_avg": torch.from_numpy(self.m[k]),
                      "exp_avg_sq": torch.from_numpy(self.v[k])} for k in range(len(self.params))}
        return {"state": states, "param_groups": [dict(self.group, params=list(range(len(self.params))))]}


class AdaBelief:
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-16, weight_decay=0.0, amsgrad=False,
                 maximize=False, decoupled_weight_decay=True):
        self.params, self.t = params, 0
        self.group = dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, maximize=maximize,
                          decoupled_weight_decay=decoupled_weight_decay)
        self.m, self.s, self.most = ([numpy.zeros_like(p.detach().numpy()) for p in params] for _ in range(3))

    def step(self):
        o = self.group
        self.t += 1
        b1, b2 = o["betas"]
        for p, m, s, most in zip(self.params, self.m, self.s, self.most):
            x, g = p.detach().numpy(), p.grad.numpy()
            g = -g if o["maximize"] else g
            if o["decoupled_weight_decay"]:
                x -= o["lr"] * o["weight_decay"] * x
            else:
                g = g + o["weight_decay"] * x
            m[...] = b1 * m + (1 - b1) * g
            s[...] = b2 * s + (1 - b2) * (g - m) ** 2 + o["eps"]
            most[...] = numpy.maximum(most, s)
            variance = (most if o["amsgrad"] else s) / (1 - b2 ** self.t)
            x -= o["lr"] * m / (1 - b1 ** self.t) / (numpy.sqrt(variance) + o["eps"])

    def state_dict(self):
        states = {k: {"step": torch.tensor(float(self.t)), "exp_avg": torch.from_numpy(self.m[k]),
                      "exp_avg_var": torch.from_numpy(self.s[k])} for k in range(len(self.params))}
        if self.group["amsgrad"]:
            for k, state in states.items():
                state["max_exp_avg_var"] = torch.from_numpy(self.most[k])
        return {"state": states, "param_groups": [dict(self.group, params=list(range(len(self.params))))]}


OWN = {"Lion": Lion, "LAMB": LAMB, "AdaBelief": AdaBelief}

# Every option of every optimizer is in one of its cases with another value than its default. `shape` is the
# parameter's, [6] if there is none.
CASES = {
    "SGD": [dict(), dict(lr=0.02, momentum=0.9), dict(lr=0.02, momentum=0.9, dampening=0.3, weight_decay=0.1),
            dict(lr=0.02, momentum=0.8, nesterov=True), dict(lr=0.001, momentum=0.5, nesterov=True, maximize=True)],
    "Adam": [dict(), dict(lr=0.05, betas=(0.8, 0.95), eps=1e-3), dict(lr=0.05, weight_decay=0.1),
             dict(lr=0.05, weight_decay=0.1, decoupled_weight_decay=True),
             dict(lr=0.05, amsgrad=True, betas=(0.5, 0.6)), dict(lr=0.02, weight_decay=0.1, maximize=True)],
    "AdamW": [dict(), dict(lr=0.05, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.3),
              dict(lr=0.05, weight_decay=0, amsgrad=True), dict(lr=0.02, maximize=True)],
    "Adamax": [dict(), dict(lr=0.05, betas=(0.8, 0.95), eps=1e-3), dict(lr=0.02, weight_decay=0.1, maximize=True)],
    "NAdam": [dict(), dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3, momentum_decay=0.1),
              dict(lr=0.02, weight_decay=0.1, maximize=True),
              dict(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True)],
    "RAdam": [dict(), dict(lr=0.05, betas=(0.8, 0.95), eps=1e-3), dict(lr=0.02, weight_decay=0.1, maximize=True),
              dict(lr=0.02, weight_decay=0.1, decoupled_weight_decay=True)],
    "Adagrad": [dict(), dict(lr=0.1, lr_decay=0.05, initial_accumulator_value=0.5, eps=1e-3),
                dict(lr=0.05, weight_decay=0.1, maximize=True)],
    "Adadelta": [dict(), dict(lr=0.5, rho=0.7, eps=1e-3), dict(weight_decay=0.1, maximize=True)],
    "RMSprop": [dict(), dict(lr=0.005, alpha=0.9, eps=1e-3), dict(lr=0.005, momentum=0.9),
                dict(lr=0.005, centered=True, eps=1e-3),
                dict(lr=0.005, centered=True, momentum=0.5, weight_decay=0.1, eps=1e-3, maximize=True)],
    "Rprop": [dict(), dict(lr=0.02, etas=(0.4, 1.3), step_sizes=(1e-3, 0.1)), dict(lr=0.005, maximize=True)],
    "ASGD": [dict(), dict(lr=0.02, lambd=0.01, alpha=0.5, t0=10),
             dict(lr=0.002, weight_decay=0.1, t0=5, maximize=True)],
    "Lion": [dict(), dict(lr=0.01, betas=(0.8, 0.95)), dict(lr=0.01, weight_decay=0.3, maximize=True)],
    "AdaBelief": [dict(), dict(lr=0.02, betas=(0.8, 0.95), eps=1e-6, amsgrad=True), dict(lr=0.02, weight_decay=0.3),
                  dict(lr=0.01, weight_decay=0.1, decoupled_weight_decay=False, maximize=True)],
    "LAMB": [dict(), dict(lr=0.02, betas=(0.8, 0.95), eps=1e-3, weight_decay=0),
             dict(lr=0.02, weight_decay=0.3, bias_correction=False, shape=(2, 3)),
             dict(lr=0.01, weight_decay=0.1, maximize=True)],
    "Muon": [dict(shape=(2, 3)), dict(shape=(3, 2), lr=0.02, momentum=0.7, nesterov=False, weight_decay=0.3),
             dict(shape=(6, 1), lr=0.01, adjust_lr_fn="match_rms_adamw", ns_steps=3, eps=1.5),
             dict(shape=(2, 3), lr=0.01, adjust_lr_fn="spectral_unclamped", ns_coefficients=(2.0, -1.5, 0.5))],
    "Adafactor": [dict(), dict(shape=(2, 3)), dict(shape=(1, 3, 2), lr=0.05, eps=(1e-3, 0.3), weight_decay=0.1),
                  dict(shape=(2, 3), lr=0.2, beta2_decay=-0.5, d=2.0, maximize=True),
                  dict(lr=0.05, eps=(0.1, 1e-2), d=1.5)],
}

# Where the parameters start, and the gradients there. As spec/optim/trajectories_spec.lua's.
START = [-1.2, 0.8, 0.3, -0.4, 1.5, -0.7]


def bowl(p, k):
    """The gradient of the sum of c (p - 1)^2 / 2, for curvatures c from 0.125 to 4."""
    return torch.tensor([0.125, 0.25, 0.5, 1, 2, 4], dtype=p.dtype) * (p - 1)


def valley(p, k):
    """Of the sum of (1 - x)^2 / 2 + (y - x^2)^2 / 2 over the pairs x, y: Rosenbrock's, less steep."""
    x, y = p[0::2], p[1::2]
    d = y - x * x
    return torch.stack([(x - 1) - 2 * x * d, d], 1).flatten()


def noise(p, k):
    """Whatever p: many sizes and signs, and zeros."""
    i = numpy.arange(6)
    return torch.tensor(((7 * k + 5 * i) % 11 - 5) / 8 * 2.0 ** -(i - 1.0), dtype=p.dtype)


def lua(v):
    if isinstance(v, bool) or v is None:
        return str(bool(v)).lower()
    if isinstance(v, str):
        return f'"{v}"'
    return "{ %s }" % ", ".join(map(lua, v)) if isinstance(v, tuple) else repr(v)


def main():
    torch.set_default_dtype(torch.float64)
    store, rows = {}, []
    for name, cases in CASES.items():
        for n, options in enumerate(cases):
            shape = options.pop("shape", (6,))
            cls = OWN.get(name) or getattr(torch.optim, name)
            extra = {} if name in OWN or name == "Muon" else dict(foreach=False)
            for dtype in (torch.float32, torch.float64):
                kind, problems = str(dtype).split(".")[1], []
                for problem in (bowl, valley, noise):
                    p = torch.tensor(START, dtype=dtype).reshape(shape).requires_grad_()
                    opt, after = cls([p], **options, **extra), []
                    for k in range(1, STEPS + 1):
                        grad = problem(p.detach().flatten(), k) * (-1 if options.get("maximize") else 1)
                        p.grad = grad.reshape(shape)
                        opt.step()
                        if k in SEEN:
                            after.append(p.detach().flatten().clone())
                        if k == SAVED and problem is valley and dtype == torch.float64:
                            saved = opt.state_dict()
                            for key, value in saved["state"].get(0, {}).items():
                                if value is not None:
                                    store[f"{name}.{n + 1}.state.{key}"] = value.clone()
                    problems.append(torch.stack(after))
                store[f"{name}.{n + 1}.{kind}"] = torch.stack(problems)
            group = {k: v for k, v in saved["param_groups"][0].items() if v is not None and k != "params"}
            if n == 0:
                first, items = group, [f"{k} = {lua(v)}" for k, v in sorted(group.items())]
                saved_group = ",\n    group = { %s }" % ",\n      ".join(", ".join(items[i:i + 4]) for i in range(0, len(items), 4))
            else:  # PyTorch's defaults, which the first case has, and the options
                assert group == {**first, **options}, (name, n, group)
                saved_group = ""
            row = '  { "%s", %d, { %s }' % (name, n + 1, ", ".join(f"{k} = {lua(v)}" for k, v in options.items()))
            if shape != (6,):
                row += ",%sshape = %s" % (" " if len(row) < 95 else "\n    ", lua(shape))
            rows.append(row + saved_group + " },")
    for key, value in store.items():
        assert torch.isfinite(value).all(), key
    path = os.path.join(ROOT, "spec/golden/_trajectories.safetensors")
    if sys.argv[1:]:
        kept = {key: value for key, value in load_file(path).items() if key.split(".")[0] not in sys.argv[1:]}
        store = {**{key: value for key, value in store.items() if key.split(".")[0] in sys.argv[1:]}, **kept}
    save_file(store, path)
    with open(os.path.join(ROOT, "spec/golden/trajectories.lua"), "w") as out:
        out.write("-- Written by gen_trajectories.py: optimizers' cases and their options. The first of each has the group that\n"
                  "-- PyTorch saves; a later case's is the first's with the case's options.\nreturn {\n  seen = { %s }, saved = %d,\n" % (", ".join(map(str, SEEN)), SAVED))
        out.write("\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
