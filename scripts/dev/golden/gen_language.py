"""Writes spec/golden/language_*.safetensors: small models of language by Hugging Face's transformers, drawn from a seed:
their state_dict under "state.", tokens, scores, and what they go on with, greedily and by beams.

    python scripts/dev/golden/gen_language.py        (with torch, transformers, safetensors)
"""
import os

import torch
import transformers
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")


def write(name, model, vocabulary, drop=()):
    model.eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3 + (p.ndim == 1))
        ids = torch.randint(0, vocabulary, (2, 7))
        settings = dict(do_sample=False, pad_token_id=0, eos_token_id=None, max_new_tokens=40)
        store = {"ids": ids + 1, "logits": model(ids).logits, "greedy": model.generate(ids, **settings) + 1,
                 "penalized": model.generate(ids, repetition_penalty=1.3, **settings) + 1,
                 "beams": model.generate(ids[:1], num_beams=3, **settings) + 1}
    for key, t in model.state_dict().items():
        if key not in drop:
            store["state." + key] = t.clone()
    save_file({k: t.contiguous() for k, t in store.items()}, f"{ROOT}/spec/golden/language_{name}.safetensors")


torch.manual_seed(11)
write("gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=60, n_positions=64, n_embd=16, n_layer=2, n_head=4)), 60)
write("llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5)), 60)
write("llama_tied", transformers.LlamaForCausalLM(transformers.LlamaConfig(
    vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, head_dim=6,
    max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True)), 60)
