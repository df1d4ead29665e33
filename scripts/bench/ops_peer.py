"""The PyTorch side of scripts/bench/ops; answers as ops_worker.lua does. Reads the inputs from lines "name kind size ...",
then "derived <tab> name <tab> expression", up to an empty line. Adds "forward_flops N" and "both_flops N", the operations
of products, convolutions and attention."""
import re
import sys
import time

import torch
import torch.nn.functional as F
from torch.utils.flop_counter import FlopCounterMode

torch.set_num_threads(int(sys.argv[1]))
WARM_CALLS, WARM_TIME, LEAST_TIME, LEAST_CALLS = 12, 0.4, 0.02, 3


def spd(size, _):
    a = torch.randn(size)
    return a @ a.mT / size[-1] + torch.eye(size[-1])


MAKE = {
    "uniform": lambda size, _: torch.rand(size) * 0.9 + 0.05,
    "normal": lambda size, _: torch.randn(size),
    "bool": lambda size, _: torch.rand(size) > 0.5,
    "zeroone": lambda size, _: (torch.rand(size) > 0.5).float(),
    "sign": lambda size, _: (torch.rand(size) > 0.5).float() * 2 - 1,
    "shift": lambda size, _: torch.randint(0, 8, size),
    "index": lambda size, high: torch.randint(0, int(high), size),
    "shuffled": lambda size, _: torch.randint(0, 1000000000, size),
    "shuffled32": lambda size, _: torch.randint(0, 1000000000, size).int(),
    "permutation": lambda size, _: torch.randperm(size[0]),
    "sorted": lambda size, _: torch.rand(size).sort()[0],
    "hann": lambda size, _: torch.hann_window(size[0]),
    "grid": lambda size, _: torch.rand(size) * 2 - 1,
    "spd": spd,
}
inputs = {"torch": torch, "F": F}
for line in sys.stdin:
    line = line.rstrip("\n")
    if not line:
        break
    if line.startswith("derived\t"):
        _, name, expression = line.split("\t")
        inputs[name] = eval(expression, inputs)
        continue
    name, kind, *size = line.split(" ")
    high = None
    if kind == "index":
        high, *size = size
    size = [int(n) for n in size]
    inputs[name] = MAKE[kind](size, high) if kind in MAKE else torch.randint(1, 101, size).to(getattr(torch, kind))


def first(y):
    return y if isinstance(y, torch.Tensor) else y[0]


def seconds_of(f):
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def least(f):
    best, spent, calls = 1e9, 0, 0
    while calls < WARM_CALLS and spent < WARM_TIME:
        calls, spent = calls + 1, spent + seconds_of(f)
    spent, calls = 0, 0
    while spent < LEAST_TIME or calls < LEAST_CALLS:
        seconds = seconds_of(f)
        best, spent, calls = min(best, seconds), spent + seconds, calls + 1
    return best


def flops(what, f):
    with FlopCounterMode(display=False) as counter:
        f()
    return " %s_flops %d" % (what, counter.get_total_flops())


def measured(grads, expression):
    code = compile(expression, expression, "eval")
    answer = "forward %.9f" % least(lambda: eval(code, inputs))
    answer += flops("forward", lambda: eval(code, inputs))
    if not grads:
        return answer
    env = dict(inputs)
    for name in grads.split():
        env[name] = inputs[name].clone().requires_grad_()
    ones = torch.ones_like(first(eval(code, env)))

    def step():
        first(eval(code, env)).backward(ones)
        for name in grads.split():
            env[name].grad = None

    return "%s both %.9f%s" % (answer, least(step), flops("both", step))


for line in sys.stdin:
    try:
        answer = measured(*line.rstrip("\n").split("\t"))
    except Exception as error:
        answer = "error " + re.sub(r"\s+", " ", str(error))
    print(answer, flush=True)
