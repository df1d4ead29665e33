"""Writes spec/golden/language_gguf.safetensors: the models of language_gpt2, language_llama and language_llama_tied as
GGUF files, as llama.cpp's convert_hf_to_gguf.py makes them, "llama3" with LLaMA 3's scaling of positions. transformers' own
reader of such files must return the same weights. And spec/golden/_gguf.safetensors: a file with tensors of ggml's
quantized kinds, "file", and what gguf's quants make of them, by name.

    python scripts/dev/golden/gen_gguf.py        (with torch, transformers, gguf, safetensors; after gen_language.py)
"""
import os
import tempfile

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from gguf_llama import fill_llama, llama3_divisors

GOLDEN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../spec/golden/language_")
LLAMA = dict(vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5)
TIED = {**LLAMA, **dict(num_hidden_layers=1, num_attention_heads=2, head_dim=6, tie_word_embeddings=True)}
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=4.0, low_freq_factor=1.0, high_freq_factor=2.0,
              original_max_position_embeddings=32)  # as in gen_language.py


def in_turn(weight, heads):
    """The rows of q and k as llama.cpp wants them."""
    return weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def written(model, arch, state, fill, change):
    config = model.config
    with tempfile.TemporaryDirectory() as folder:
        path = folder + "/x.gguf"
        writer = gguf.GGUFWriter(path, arch.name.lower())
        writer.add_name("golden")
        writer.add_eos_token_id(7)
        fill(writer, config)
        names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
        for key, weight in state.items():
            name = names.get_name(key, try_suffixes=(".weight", ".bias"))
            writer.add_tensor(name, np.ascontiguousarray(change(key, weight.numpy(), config)))
        divisors = llama3_divisors(config)
        if divisors is not None:
            writer.add_tensor("rope_freqs.weight", divisors.numpy().astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        again = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
        for key, weight in state.items():
            assert torch.equal(again[key].reshape(weight.shape), weight), key
        return torch.frombuffer(bytearray(open(path, "rb").read()), dtype=torch.uint8)


def change_llama(key, weight, config):
    if "q_proj" in key:
        return in_turn(weight, config.num_attention_heads)
    return in_turn(weight, config.num_key_value_heads) if "k_proj" in key else weight


def fill_gpt2(writer, config):
    writer.add_block_count(config.n_layer)
    writer.add_context_length(config.n_positions)
    writer.add_embedding_length(config.n_embd)
    writer.add_feed_forward_length(4 * config.n_embd)
    writer.add_head_count(config.n_head)
    writer.add_layer_norm_eps(config.layer_norm_epsilon)


def change_gpt2(key, weight, config):
    return weight.T if key.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")) else weight


store = {}
for name, model, arch, fill, change in [
    ("gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=60, n_positions=128, n_embd=16, n_layer=2, n_head=4)), gguf.MODEL_ARCH.GPT2, fill_gpt2, change_gpt2),
    ("llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA)), gguf.MODEL_ARCH.LLAMA, fill_llama,
     change_llama),
    ("llama3", transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA, rope_parameters=LLAMA3)),
     gguf.MODEL_ARCH.LLAMA, fill_llama, change_llama),
    ("llama_tied", transformers.LlamaForCausalLM(transformers.LlamaConfig(**TIED)), gguf.MODEL_ARCH.LLAMA, fill_llama,
     change_llama),
]:
    golden = load_file(f"{GOLDEN}{'llama' if name == 'llama3' else name}.safetensors")
    state = {key[6:]: t for key, t in golden.items() if key.startswith("state.")}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    store[name] = written(model, arch, state, fill, change)
save_file(store, f"{GOLDEN}gguf.safetensors")

rng, store = np.random.default_rng(0), {}
with tempfile.TemporaryDirectory() as folder:
    writer = gguf.GGUFWriter(folder + "/x.gguf", "test")
    for name, halves in {
        "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q5_K": [0, 2], "Q2_K": [80, 82], "Q3_K": [108], "IQ2_XXS": [0],
        "IQ2_XS": [0], "IQ3_XXS": [0], "IQ1_S": [0], "IQ4_NL": [0], "IQ3_S": [0], "IQ2_S": [0], "IQ4_XS": [0],
        "IQ1_M": [], "TQ1_0": [52], "TQ2_0": [64], "MXFP4": [], "NVFP4": [],
    }.items():
        kind = gguf.GGMLQuantizationType[name]
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 256, (3, 512 // elements, size), dtype=np.uint8)
        for at in halves:  # float16, which random bytes would make infinite now and then
            data[:, :, at:at + 2] = rng.normal(size=data.shape[:2]).astype("<f2")[..., None].view(np.uint8)
        if name == "IQ1_M":  # its float16 is in the highest bits of the scales: below 1
            data[:, :, 55] &= 0x3F
        if name == "MXFP4":
            data[:, :, 0] = rng.integers(100, 140, data.shape[:2])
        data = data.reshape(3, -1)
        writer.add_tensor(name, data, raw_dtype=kind)
        store[name] = torch.from_numpy(gguf.quants.dequantize(data, kind).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    store["file"] = torch.frombuffer(bytearray(open(folder + "/x.gguf", "rb").read()), dtype=torch.uint8)
save_file(store, os.path.join(os.path.dirname(GOLDEN), "_gguf.safetensors"))
