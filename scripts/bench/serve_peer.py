"""FastAPI's side of scripts/bench/serve, the same networks in PyTorch: SERVE_FOLDER has the weights, and with
SERVE_BATCH=1 the requests of one turn of the event loop are one forward. One compute thread a process is fastest: with
two, small ops wait for each other."""
import asyncio
import json
import os
import struct

import torch
from fastapi import FastAPI, Request, Response
from torch import nn

torch.set_num_threads(1)
folder, batched = os.environ["SERVE_FOLDER"], os.environ.get("SERVE_BATCH") == "1"
networks = {
    "mlp": nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
    "cnn": nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)), nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5),
        nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
        nn.Linear(84, 10)),
}


def weights(path):
    with open(path, "rb") as file:
        data = file.read()
    n, = struct.unpack_from("<Q", data)
    state = {}
    for name, entry in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            values = torch.frombuffer(bytearray(data[8 + n + begin:8 + n + end]), dtype=torch.float32)
            state[name] = values.reshape(entry["shape"])
    return state


for name, net in networks.items():
    net.load_state_dict(weights(f"{folder}/{name}.safetensors"))
    net.eval()


def pixels(bodies):
    return torch.frombuffer(bytearray(b"".join(bodies)), dtype=torch.uint8).view(len(bodies), 784)


@torch.inference_mode()
def classify(net, x):
    """Returns a list of probabilities and one of classes."""
    p, c = net(x.float() / 255).softmax(1).max(1)
    return p.tolist(), c.tolist()


class Batcher:
    def __init__(self, net):
        self.net, self.waiting = net, []

    def run(self):
        while self.waiting:
            now, self.waiting = self.waiting[:32], self.waiting[32:]
            for (_, future), p, c in zip(now, *classify(self.net, pixels([body for body, _ in now]))):
                if not future.done():
                    future.set_result((p, c))

    async def submit(self, body):
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        if not self.waiting:
            loop.call_soon(self.run)
        self.waiting.append((body, future))
        return await future


batchers = {name: Batcher(net) for name, net in networks.items()}
app = FastAPI()


def add_route(name, net):
    async def answer(request: Request):
        body = await request.body()
        if batched:
            p, c = await batchers[name].submit(body)
        else:
            (p,), (c,) = classify(net, pixels([body]))
        return Response(f'{{"class":{c + 1},"p":{p:.4f}}}', media_type="application/json")

    app.add_api_route(f"/{name}", answer, methods=["POST"])


for name, net in networks.items():
    add_route(name, net)
