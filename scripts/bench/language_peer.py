"""Hugging Face's side of scripts/bench/language: THREADS BATCH LENGTH NEW; answers each line "step|prompt|generate DTYPE
ATTENTION" with seconds of the clock and of the CPU."""
import sys
import time

import torch
import transformers

threads, batch, length, new = map(int, sys.argv[1:])
torch.set_num_threads(threads)
torch.manual_seed(1)
net = transformers.GPT2LMHeadModel(transformers.GPT2Config(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0))
ids = torch.randint(0, 50257, (batch, length))
prompt = ids[:1, :32]
optimizer = None


def step():
    global optimizer
    net.train()
    optimizer = optimizer or torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    loss = net(ids, labels=ids, use_cache=False).loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def all_scores():
    net.eval()
    with torch.no_grad():
        return net(ids, use_cache=False).logits[0, 0, 0].item()


def generate():
    net.eval()
    return net.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=new, min_new_tokens=new,
                        do_sample=False, eos_token_id=None, pad_token_id=0)


work = {"step": step, "prompt": all_scores, "generate": generate}
for line in sys.stdin:
    what, dtype, attention = line.split()
    if what != "step":
        net.zero_grad()
        optimizer = None
        net.to(getattr(torch, dtype))
    net.set_attn_implementation(attention)
    clock, cpu = time.perf_counter(), time.process_time()
    work[what]()
    print("%.6f %.6f" % (time.perf_counter() - clock, time.process_time() - cpu), flush=True)
