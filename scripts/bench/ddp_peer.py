"""The PyTorch side of scripts/bench/ddp: ddp_peer.py MODEL BATCH STEPS LAYOUT, alone or under torchrun."""
import os
import sys

name, batch, steps, layout = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
sys.argv = [sys.argv[0], "1"]
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from compute_peer import model  # noqa: E402
from peer_times import median  # noqa: E402

form = torch.channels_last if layout == "channels_last" else torch.contiguous_format
net = model(name).to(memory_format=form)
several = "RANK" in os.environ
if several:
    dist.init_process_group("gloo")
    net = torch.nn.parallel.DistributedDataParallel(net, gradient_as_bucket_view=True)
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
x, y = torch.rand(batch, 1, 28, 28).to(memory_format=form), torch.randint(0, 10, (batch,))
seconds = median(lambda: F.cross_entropy(net(x), y), opt, steps)
if not several or dist.get_rank() == 0:
    print("median %.6f" % seconds)
if several:
    dist.barrier()
    dist.destroy_process_group()
