"""Hugging Face's side of scripts/bench/language: MODEL THREADS BATCH LENGTH NEW; answers each line "step|prompt|generate
DTYPE ATTENTION" with seconds of the clock and of the CPU."""
import sys
import time

import torch
import transformers

model = sys.argv[1]
threads, batch, length, new = map(int, sys.argv[2:])
torch.set_num_threads(threads)
torch.manual_seed(1)


def build():
    if model == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(embd_pdrop=0, attn_pdrop=0, resid_pdrop=0))
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=32000, hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
        num_key_value_heads=4, max_position_embeddings=2048))


net, net_dtype = None, None
ids = torch.randint(0, {"gpt2": 50257, "tinyllama": 32000}[model], (batch, length))
prompt = ids[:1, :32]
optimizer = None


def become(dtype):
    global net, net_dtype
    if dtype == net_dtype:
        return
    if net is None or net_dtype == "int8":
        net = None
        net = build()
    if dtype == "int8":
        net = torch.ao.quantization.quantize_dynamic(net.float().eval(), {torch.nn.Linear}, torch.qint8)
    else:
        net.to(getattr(torch, dtype))
    net_dtype = dtype


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
        if net is not None:
            net.zero_grad()
        optimizer = None
    become(dtype)
    net.set_attn_implementation(attention)
    clock, cpu = time.perf_counter(), time.process_time()
    work[what]()
    print("%.6f %.6f" % (time.perf_counter() - clock, time.process_time() - cpu), flush=True)
