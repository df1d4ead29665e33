#!/usr/bin/env python3
"""Golden run of PyTorch's powerSGD_hook over two gloo processes: spec/golden/_powersgd.safetensors.

  scripts/dev/golden/gen_powersgd.py      (with a Python that has torch and safetensors)

A network of two layers takes 8 steps of SGD, of which the first 2 are not compressed. The first right factors Q are
written, since PyTorch draws them at random, and the parameters after each step.
"""
import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import save_file
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook as power

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../spec/golden/_powersgd.safetensors")
STEPS, START, RANK = 8, 2, 2


def run(rank, path):
    dist.init_process_group("gloo", init_method="file://" + path, rank=rank, world_size=2)
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)).double()
    x, y = torch.randn(2, 6, 12).double(), torch.randn(2, 6, 10).double()
    q = {"0.weight": torch.randn(12, RANK).double(), "2.weight": torch.randn(16, RANK).double()}
    golden = {"x": x, "y": y}
    golden.update({"q." + name: t.clone() for name, t in q.items()})
    golden.update({"start." + name: p.detach().clone() for name, p in net.named_parameters()})
    names = {p: name for name, p in net.named_parameters()}
    state = power.PowerSGDState(None, matrix_approximation_rank=RANK, start_powerSGD_iter=START,
                                min_compression_rate=1)

    def hook(state, bucket):
        if state.iter == START and bucket.index() not in state.q_memory_dict:
            of = [names[p] for p in bucket.parameters() if names[p] in q]
            rows = {"0.weight": 16, "2.weight": 10}
            state.q_memory_dict[bucket.index()] = torch.cat([q[name].flatten() for name in of])
            state.p_memory_dict[bucket.index()] = torch.zeros(sum(rows[name] * RANK for name in of)).double()
        return power.powerSGD_hook(state, bucket)

    ddp = torch.nn.parallel.DistributedDataParallel(net)
    ddp.register_comm_hook(state, hook)
    opt = torch.optim.SGD(net.parameters(), lr=0.5)
    for step in range(1, STEPS + 1):
        opt.zero_grad()
        torch.nn.functional.mse_loss(ddp(x[rank]), y[rank]).backward()
        opt.step()
        golden.update({f"{step}.{name}": p.detach().clone() for name, p in net.named_parameters()})
    if rank == 0:
        save_file(golden, OUT)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (os.path.join(folder, "store"),), nprocs=2)
