"""A PyTorch rank of scripts/bench/fully_shard: fully_shard_peer.py reshard|noreshard HIDDEN LAYERS BATCH LENGTH STEPS."""
import sys

import torch
import torch.distributed as dist
from peer_times import median
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

form, hidden, layers, batch, length, steps = sys.argv[1], *map(int, sys.argv[2:])


def status(name):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name + ":"))


dist.init_process_group("gloo")
torch.set_num_threads(1)
before = status("VmRSS")
net = nn.Sequential(*(nn.TransformerEncoderLayer(hidden, hidden // 64, 4 * hidden, 0, "gelu", batch_first=True,
                                                 norm_first=True) for _ in range(layers)))
how = {"mesh": init_device_mesh("cpu", (dist.get_world_size(),))}
if form == "noreshard":
    how["reshard_after_forward"] = False
for block in net:
    fully_shard(block, **how)
fully_shard(net, **how)
opt = torch.optim.AdamW(net.parameters(), lr=1e-4)
x = torch.randn(batch, length, hidden)
seconds = median(lambda: net(x).square().mean(), opt, steps)
if dist.get_rank() == 0:
    print("median %.6f peak %d" % (seconds, status("VmHWM") - before))
dist.barrier()
dist.destroy_process_group()
