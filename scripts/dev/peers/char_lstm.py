"""examples/char_lstm.lua for PyTorch, with its data, sizes and steps:

    luajit examples/sentences.lua 20000 > corpus.txt
    PYTHON scripts/dev/peers/char_lstm.py corpus.txt [--steps N] [--seed N]
    luajit examples/char_lstm.lua --text corpus.txt [--steps N] [--seed N] --sample 0
"""
import argparse
import time

import torch
from torch import nn
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("text")
for name, value in dict(hidden=128, layers=2, batch_size=32, length=64, steps=1000, seed=1, threads=2).items():
    parser.add_argument("--" + name.replace("_", "-"), type=int, default=value)
parser.add_argument("--lr", type=float, default=0.003)
o = parser.parse_args()
torch.set_num_threads(o.threads)

text = torch.frombuffer(bytearray(open(o.text, "rb").read()), dtype=torch.uint8)
chars, ids = text.unique(return_inverse=True)


def in_rows(stretch, rows):
    columns = (len(stretch) - 1) // rows
    return [stretch[i : i + rows * columns].view(rows, columns) for i in (0, 1)]


split = int(0.9 * len(ids))
inputs, targets = in_rows(ids[:split], o.batch_size)
valid_inputs, valid_targets = in_rows(ids[split:], 8)


class CharLSTM(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, o.hidden)
        self.lstm = nn.LSTM(o.hidden, o.hidden, num_layers=o.layers, batch_first=True)
        self.head = nn.Linear(o.hidden, vocabulary)

    def forward(self, x, state=None):
        y, state = self.lstm(self.embed(x), state)
        return self.head(y), state


torch.manual_seed(o.seed)
net = CharLSTM(len(chars))
opt = torch.optim.Adam(net.parameters(), lr=o.lr)
began, first, state = time.time(), 0, None
for step in range(1, o.steps + 1):
    if first + o.length > inputs.shape[1]:
        first, state = 0, None
    logits, state = net(inputs[:, first : first + o.length], state)
    loss = F.cross_entropy(logits.flatten(0, 1), targets[:, first : first + o.length].flatten())
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1)
    opt.step()
    state, first = tuple(s.detach() for s in state), first + o.length
    if step % 100 == 0:
        print(f"step {step}  loss {loss.item():.4f}  {time.time() - began:.1f} s", flush=True)
with torch.no_grad():
    loss = F.cross_entropy(net(valid_inputs)[0].flatten(0, 1), valid_targets.flatten())
print(f"loss on text not seen: {loss.item():.4f} nats a character")
