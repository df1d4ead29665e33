"""Times training steps of PyTorch, for ddp_peer.py and fully_shard_peer.py."""
import time


def median(net_loss, opt, steps):
    """Returns the median seconds of `steps` steps, after three that do not count. net_loss() computes the loss."""
    times = []
    for _ in range(3 + steps):
        start = time.perf_counter()
        loss = net_loss()
        opt.zero_grad()
        loss.backward()
        opt.step()
        loss.item()
        times.append(time.perf_counter() - start)
    times = sorted(times[3:])
    return times[(len(times) - 1) // 2]
