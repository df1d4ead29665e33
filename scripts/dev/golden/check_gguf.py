#!/usr/bin/env python3
"""Checks that llama.cpp computes what this library computes for GGUF files that lm.save wrote.

    python scripts/dev/golden/check_gguf.py        (with numpy and llama-cpp-python, after `. build/env`)

For each of check_gguf.lua's models: scores of a prompt within 3e-3 of their norm for floats (llama.cpp computes parts in
float16), 8e-2 for blocks, and the greedy tokens that follow up to the first near tie. LLAMA_CPP_LIB_PATH may name a
folder with another libllama.so.
"""
import ctypes
import json
import os
import subprocess
import sys
import tempfile

import numpy as np
from llama_cpp import llama_cpp as llama

HERE = os.path.dirname(os.path.abspath(__file__))


def scores_of(path, tokens):
    parameters = llama.llama_model_default_params()
    model = llama.llama_model_load_from_file(path.encode(), parameters)
    assert model, path
    parameters = llama.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = 128
    parameters.n_threads = parameters.n_threads_batch = 1
    parameters.type_k = parameters.type_v = 0
    context = llama.llama_init_from_model(model, parameters)
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, i, 1, 1
        batch.seq_id[i][0] = 0
    assert llama.llama_decode(context, batch) == 0
    words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    scores = [np.ctypeslib.as_array(llama.llama_get_logits_ith(context, i), (words,)).copy() for i in range(len(tokens))]
    llama.llama_batch_free(batch)
    llama.llama_free(context)
    llama.llama_model_free(model)
    return np.stack(scores)


def main():
    llama.llama_backend_init()
    quiet = llama.llama_log_callback(lambda *_: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        lines = subprocess.run(["luajit", HERE + "/check_gguf.lua", folder], check=True, stdout=subprocess.PIPE, text=True)
        for row in map(json.loads, lines.stdout.splitlines()):
            scores, n = scores_of(row["path"], row["tokens"]), len(row["ids"])
            want, name = np.array(row["y"]), os.path.basename(row["path"])
            off = np.linalg.norm(scores[:n] - want, axis=1) / np.linalg.norm(want, axis=1)
            off = float(np.median(off) if "olmoe" in name or "moe" in name else off.max())  # ties of experts
            chosen = np.array(row["tokens"])[n:]
            next_scores = scores[n - 1:-1]
            behind = next_scores.max(1) - next_scores[np.arange(len(chosen)), chosen]
            bound = 3e-3 if "float32" in name else 8e-2
            good = off < bound and float((behind / next_scores.std(1)).max()) < 4 * bound
            wrong += not good
            print("%-28s %.1e %s" % (name, off, "" if good else "WRONG"))
    sys.exit(wrong > 0)


main()
