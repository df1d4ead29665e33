#!/usr/bin/env python3
"""Random calls of metrics and torchmetrics' values for them. Classes count from 1, as Luminary's do.

gen_metrics.py                  writes spec/golden/_metrics.safetensors, for spec/metrics/metrics_spec.lua
gen_metrics.py --compare 1000   compares Luminary's values on that many calls (compare_metrics.lua computes them)
"""
import json
import os
import random
import subprocess
import sys
import tempfile
import warnings

import torch
import torchmetrics
import torchmetrics.functional as F
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "..")
warnings.filterwarnings("ignore")
WORDS = "the cat is on a mat there dog sat with two red balls".split()


def scores(kind, ties, *shape):
    """Probabilities, or logits; some with ties, as scores of few digits have."""
    x = torch.rand(*shape) if kind == "probabilities" else torch.randn(*shape) * 3
    return (x * 8).round() / 8 if ties and random.random() < 0.3 else x


def options_of(task, name):
    options = {"task": task}
    if task == "multiclass":
        options["num_classes"] = random.randint(2, 6)
    if task == "multilabel":
        options["num_labels"] = random.randint(2, 5)
    if name not in ("auroc", "confusion_matrix") or task != "binary":
        averages = ["macro", "weighted", "none"] + (["micro"] if name != "auroc" or task == "multilabel" else [])
        if name != "confusion_matrix":
            options["average"] = random.choice(averages)
    if task != "multiclass" and name != "auroc":
        options["threshold"] = random.choice([0.5, 0.3])
    if random.random() < 0.3:
        options["ignore_index"] = random.choice([-100, 1]) if task == "multiclass" else -1
    if name == "confusion_matrix":
        options["normalize"] = random.choice(["none", "true", "pred", "all"])
    if name in ("precision", "recall", "f1_score", "fbeta_score", "jaccard_index") and random.random() < 0.3:
        options["zero_division"] = 1.0
    if name == "fbeta_score":
        options["beta"] = random.choice([0.5, 2.0])
    if name in ("accuracy", "precision", "recall", "f1_score") and task == "multiclass" and random.random() < 0.4:
        options["top_k"] = random.randint(1, options["num_classes"])
    if name == "auroc":
        if random.random() < 0.4:
            options["thresholds"] = random.choice([5, 20, [0.1, 0.5, 0.9]])
        if task == "binary" and random.random() < 0.3:
            options["max_fpr"] = 0.4
    return options


def classification(name):
    task = random.choice(["binary", "multiclass", "multilabel"])
    options = options_of(task, name)
    rest = random.choice([[], [3], [2, 3]])
    columns = {"multiclass": options.get("num_classes"), "multilabel": options.get("num_labels")}.get(task)
    kind = random.choice(["probabilities", "logits"])
    labeled = name != "auroc" and options.get("top_k", 1) == 1 and random.random() < 0.3

    # Which of equal scores is among the first k is arbitrary. PyTorch's sigmoid of equal logits may differ by one ulp
    # between the vectors of a tensor and its tail, which breaks ties.
    ties = options.get("top_k", 1) == 1 and (name != "auroc" or kind == "probabilities")

    def batch():
        n = random.choice([8, 13, 40])
        shape = [n, *([columns] if task == "multilabel" else []), *rest]
        target = torch.randint(0, columns if task == "multiclass" else 2, shape)
        if task == "multiclass" and random.random() < 0.3:
            target = target.clamp(max=max(columns - 2, 0))  # a class without samples
        if labeled:
            preds = torch.randint(0, columns if task == "multiclass" else 2, shape)
        elif task == "multiclass":
            preds = scores(kind, ties, n, columns, *rest)
            if kind == "probabilities":
                preds = preds / preds.sum(1, keepdim=True).clamp(min=1e-6)
        else:
            preds = scores(kind, ties, *shape)
        ignored = options.get("ignore_index")
        if ignored is not None:
            target = torch.where(torch.rand(target.shape) < 0.2, ignored, target)
        return preds, target

    return options, batch


def regression(name):
    outputs = random.choice([1, 3])
    options = {}
    if name == "mean_squared_error":
        options["squared"] = random.random() < 0.5
    if name == "r2_score":
        options = {"multioutput": random.choice(["uniform_average", "raw_values", "variance_weighted"])}
        if random.random() < 0.5:
            options["adjusted"] = random.randint(0, 4)
    elif outputs > 1:
        options["num_outputs"] = outputs

    def batch():
        n = random.choice([8, 13, 40])
        target = torch.randn(n, outputs, dtype=torch.float64) * 3 + 5
        preds = target + torch.randn(n, outputs, dtype=torch.float64)
        if outputs == 1:
            preds, target = preds[:, 0], target[:, 0]
        return preds, target

    return options, batch, outputs


def perplexity(_):
    options = random.choice([{}, {"ignore_index": -100}, {"ignore_index": 2}])
    size = random.randint(4, 9)

    def batch():
        target = torch.randint(0, size, (3, 7))
        if options:
            target = torch.where(torch.rand(3, 7) < 0.2, options["ignore_index"], target)
        return torch.randn(3, 7, size) * 2, target

    return options, batch


def bleu(_):
    options = {"n_gram": random.randint(1, 4), "smooth": random.random() < 0.5}
    if random.random() < 0.3:
        options["weights"] = [random.randint(1, 8) / 8 for _ in range(options["n_gram"])]

    def line(n):
        return "".join(random.choice(WORDS) + random.choice([" ", " ", " ", "  ", "\t", "\u00a0"]) for _ in range(n))

    def batch():
        target = [[line(random.randint(5, 12)) for _ in range(random.randint(1, 3))] for _ in range(4)]
        preds = []
        for references in target:
            words = random.choice(references).split()
            preds.append(" ".join(w if random.random() < 0.8 else random.choice(WORDS) for w in words))
        return preds, target

    return options, batch


CLASSES = {
    "accuracy": "Accuracy", "precision": "Precision", "recall": "Recall", "f1_score": "F1Score",
    "fbeta_score": "FBetaScore", "confusion_matrix": "ConfusionMatrix", "jaccard_index": "JaccardIndex",
    "auroc": "AUROC", "mean_squared_error": "MeanSquaredError", "mean_absolute_error": "MeanAbsoluteError",
    "r2_score": "R2Score", "perplexity": "Perplexity", "bleu_score": "BLEUScore",
}
REGRESSION = ("mean_squared_error", "mean_absolute_error", "r2_score")


def from_one(x, options, task):
    """Labels from 1; an index to ignore that is no class stays."""
    if x.is_floating_point() or task not in ("multiclass", "perplexity"):
        return x
    return torch.where(x < 0, x, x + 1)


def case(name, store, i):
    outputs = 1
    if name in REGRESSION:
        options, batch, outputs = regression(name)
    else:
        options, batch = {"perplexity": perplexity, "bleu_score": bleu}.get(name, classification)(name)
    task = options.get("task", name)
    batches = [batch() for _ in range(random.randint(1, 3))]
    metric = getattr(torchmetrics if name != "perplexity" else torchmetrics.text, CLASSES[name])(**options)
    for preds, target in batches:
        metric.update(preds, target)
    function = getattr(F if name != "perplexity" else F.text, name)
    store[f"{i}.want"] = metric.compute().double()
    store[f"{i}.first"] = function(*batches[0], **options).double()
    ours = dict(options)
    if ours.get("ignore_index", -1) >= 0:
        ours["ignore_index"] += 1
    if name == "r2_score" and outputs > 1:
        ours["num_outputs"] = outputs
    row = {"class": CLASSES[name], "function": name, "options": ours, "batches": len(batches)}
    if name == "bleu_score":
        row["texts"] = [{"preds": p, "target": t} for p, t in batches]
    else:
        for k, (preds, target) in enumerate(batches, 1):
            store[f"{i}.preds.{k}"] = from_one(preds, options, task)
            store[f"{i}.target.{k}"] = from_one(target, options, task)
    return row


def write(path, count, seed):
    torch.manual_seed(seed)
    random.seed(seed)
    names = list(CLASSES)
    store, rows = {}, []
    for i in range(1, count + 1):
        rows.append(case(names[(i - 1) % len(names)], store, i))
    text = json.dumps(rows).encode()
    store["cases"] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    save_file({k: v.contiguous() for k, v in store.items()}, path)


if len(sys.argv) == 3 and sys.argv[1] == "--compare":
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "metrics.safetensors")
        write(path, int(sys.argv[2]), 2)
        sys.exit(subprocess.call(["luajit", "scripts/dev/compare_metrics.lua", path], cwd=ROOT))
elif len(sys.argv) == 1:
    write(os.path.join(ROOT, "spec/golden/_metrics.safetensors"), 78, 1)
else:
    sys.exit(__doc__)
