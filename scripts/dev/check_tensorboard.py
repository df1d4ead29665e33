#!/usr/bin/env python3
"""Compares the event files of lm.watch.SummaryWriter with those of PyTorch's, as TensorBoard reads them. It needs
torch, tensorboard and pillow.

usage: . build/env; check_tensorboard.py
"""
import glob
import io
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
from PIL import Image
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto import event_pb2
from tensorboard.plugins.hparams import plugin_data_pb2
from torch.utils.tensorboard import SummaryWriter

HERE = os.path.dirname(os.path.abspath(__file__))


def numbers(n, *shape):
    return ((torch.arange(n) * 37 % 101 - 50) / 64).reshape(shape)


def write(folder):
    """As write_events.lua."""
    writer = SummaryWriter(folder)
    for step in range(0, 301, 100):
        writer.add_scalar("loss", 1 / (1 + step), step, 1000 + step)
    writer.add_scalar("negative", -3, -7, 5)
    writer.add_scalar("new", 0.1, 3, 5, new_style=True)
    writer.add_scalar("double", 0.1, 2 ** 40, 5, new_style=True, double_precision=True)
    writer.add_scalars("both", {"train": 1.5, "test": 2.5}, 3, 5)
    writer.add_histogram("weights", numbers(5000, -1), 1, walltime=5)
    writer.add_histogram("constant", torch.ones(7), 1, walltime=5)
    writer.add_histogram("ten", numbers(5000, -1), 1, bins=10, walltime=5)
    writer.add_histogram("joined", numbers(5000, -1), 1, bins=[-1, -0.5, 0, 0.25, 0.5, 0.75, 1, 2], walltime=5, max_bins=3)
    writer.add_image("chw", numbers(60, 3, 4, 5), 1, 5)
    writer.add_image("hw", numbers(20, 4, 5), 1, 5, dataformats="HW")
    writer.add_image("bytes", torch.arange(60).reshape(4, 5, 3).to(torch.uint8), 1, 5, dataformats="HWC")
    writer.add_images("grid", numbers(600, 10, 3, 4, 5), 1, 5)
    writer.add_text("notes", "# Title\n*text* ü", 1, 5)
    writer.add_hparams({"lr": 0.1, "opt": "sgd", "big": True}, {"hparam/accuracy": 0.5},
                       {"opt": ["sgd", "adam"]}, "trial")
    writer.close()


def numbers_of(message):
    return [(f.name, [round(x, 12) for x in v] if hasattr(v, "append") else round(v, 9))
            for f, v in message.ListFields()]


def described(event):
    """Step, time and content of an event; times of the clock are left out."""
    out = []
    for v in event.summary.value:
        content = v.SerializeToString(deterministic=True)
        if v.HasField("image"):
            pixels = np.asarray(Image.open(io.BytesIO(v.image.encoded_image_string)).convert("RGB"))
            content = (v.image.height, v.image.width, pixels.tobytes())
        elif v.HasField("histo"):
            content = numbers_of(v.histo)
        elif v.metadata.plugin_data.plugin_name == "hparams":
            data = plugin_data_pb2.HParamsPluginData.FromString(v.metadata.plugin_data.content)
            # Without the boolean, which PyTorch writes as the number 1.
            infos = sorted(str(each) for each in data.experiment.hparam_infos if each.name != "big")
            entries = sorted((k, str(e)) for k, e in data.session_start_info.hparams.items() if k != "big")
            content = (infos, [str(m) for m in data.experiment.metric_infos], entries, str(data.session_end_info))
        out.append((v.tag, event.step, event.wall_time if event.wall_time < 1e6 else None, content))
    return out


def events(folder):
    found = {}
    for path in sorted(glob.glob(os.path.join(folder, "**", "events*"), recursive=True)):
        run = os.path.relpath(os.path.dirname(path), folder)
        for raw in RawEventFileLoader(path).Load():  # which checks the checksums
            event = event_pb2.Event.FromString(raw)
            for each in described(event):
                found[(run, each[0], each[1])] = each
            if event.HasField("file_version"):
                found[(run, "version", 0)] = event.file_version
    return found


def graph(folder):
    accumulator = event_accumulator.EventAccumulator(folder)
    accumulator.Reload()
    return {node.name: (node.op, list(node.input)) for node in accumulator.Graph().node}


GRAPH = {
    "input": ("input", []), "Sequential/0": ("Conv2d", ["input"]), "Sequential/1/conv": ("Conv2d", ["Sequential/0"]),
    "Sequential/1/norm": ("BatchNorm2d", ["Sequential/1/conv"]),
    "Sequential/2": ("Flatten", ["Sequential/0", "Sequential/1/norm"]), "Sequential/3": ("Linear", ["Sequential/2"]),
    "output": ("output", ["Sequential/3"]),
}

with tempfile.TemporaryDirectory() as ours, tempfile.TemporaryDirectory() as theirs:
    subprocess.run(["luajit", os.path.join(HERE, "write_events.lua"), ours], check=True)
    write(theirs)
    got, want = events(ours), events(theirs)
    wrong = [key for key in want if got.get(key) != want[key]] + [key for key in got if key not in want]
    for key in wrong:
        print(key, "\n  got  ", got.get(key), "\n  want ", want.get(key))
    if graph(ours) != GRAPH:
        print("graph:", graph(ours))
        wrong.append("graph")
    print(f"{len(want)} entries, {len(wrong)} differ")
    sys.exit(bool(wrong))
