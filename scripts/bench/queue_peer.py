"""What scripts/bench/queue measures, by torch.multiprocessing: seconds, and seconds of the processors."""
import sys
import time

import torch
import torch.multiprocessing as mp


def drain(queue, answer, n):
    torch.set_num_threads(1)
    answer.put("ready")
    began = time.process_time()
    for _ in range(n):
        v = queue.get()
        if isinstance(v, torch.Tensor):
            assert v[0] == 1
        del v
    answer.put(time.process_time() - began)


def timed(n, make):
    queue, answer = mp.Queue(), mp.Queue()
    worker = mp.Process(target=drain, args=(queue, answer, n))
    worker.start()
    answer.get()
    began, clock = time.perf_counter(), time.process_time()
    for i in range(n):
        queue.put(make(i))
    there = answer.get()
    print(time.perf_counter() - began)
    print(time.process_time() - clock + there)
    worker.join()


if __name__ == "__main__":
    values, tensors, size = (int(v) for v in sys.argv[1:])
    torch.set_num_threads(1)
    mp.set_sharing_strategy("file_descriptor")
    timed(values, lambda i: i)
    timed(values, lambda i: [i, "some text", [True]])
    timed(tensors, lambda i: torch.ones(size // 4))
    x = torch.ones(1000).share_memory_()
    timed(-(-values // 10), lambda i: x)
