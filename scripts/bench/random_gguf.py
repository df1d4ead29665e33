"""Writes a GGUF file of random weights, for llama.cpp's llama-bench beside scripts/bench/language and blocks:
random_gguf.py MODEL (gpt2, tinyllama, llama3b) TYPE (F32, BF16, Q4_0, Q8_0, Q4_K_M, Q6_K) FILE. Needs numpy and gguf."""
import sys

import gguf
import numpy

model, type_name, path = sys.argv[1:]
draw = numpy.random.default_rng(1)
writer = gguf.GGUFWriter(path, {"gpt2": "gpt2"}.get(model, "llama"), use_temp_file=True)
# Bytes of a block, and the offset of each half in it with the value that makes weights of about 0.02.
SUPER_BLOCKS = {"Q4_K": (144, {0: 8e-5, 2: 8e-5}), "Q6_K": (210, {208: 1e-5})}


def kind_of(name, layers=22):
    """Returns the kind of a matrix: of Q4_K_M, llama.cpp's mixture."""
    if type_name != "Q4_K_M":
        return type_name
    more = name == "output.weight"
    if "attn_v" in name or "ffn_down" in name:
        layer = int(name.split(".")[1])
        more = layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2
    return "Q6_K" if more else "Q4_K"


def matrix(name, rows, columns):
    kind = kind_of(name)
    if kind in SUPER_BLOCKS: # gguf rounds to no such blocks: random bytes
        size, halves = SUPER_BLOCKS[kind]
        data = draw.integers(0, 256, (rows, columns // 256, size), dtype=numpy.uint8)
        for at, value in halves.items():
            data[:, :, at:at + 2] = numpy.array([value], numpy.float16).view(numpy.uint8)
        data = data.reshape(rows, -1)
    else:
        data = draw.standard_normal((rows, columns), dtype=numpy.float32) * 0.02
        if kind != "F32":
            data = gguf.quants.quantize(data, gguf.GGMLQuantizationType[kind])
    writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType[kind])


def vector(name, length, value):
    writer.add_tensor(name, numpy.full(length, value, numpy.float32))


def head_of(width, inner, layers, heads, positions, words):
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(inner)
    writer.add_block_count(layers)
    writer.add_head_count(heads)
    writer.add_context_length(positions)
    writer.add_vocab_size(words)
    writer.add_tokenizer_model("none")


if model == "gpt2":
    width, words = 768, 50257
    head_of(width, 4 * width, 12, 12, 1024, words)
    writer.add_layer_norm_eps(1e-5)
    writer.add_tensor("position_embd.weight", draw.standard_normal((1024, width), dtype=numpy.float32) * 0.02)
    for layer in range(12):
        at = "blk.%d." % layer
        for norm in "attn_norm", "ffn_norm":
            vector(at + norm + ".weight", width, 1)
            vector(at + norm + ".bias", width, 0)
        for name, rows, columns in (("attn_qkv", 3 * width, width), ("attn_output", width, width),
                                    ("ffn_up", 4 * width, width), ("ffn_down", width, 4 * width)):
            matrix(at + name + ".weight", rows, columns)
            vector(at + name + ".bias", rows, 0)
    vector("output_norm.bias", width, 0)
else:
    width, inner, layers, heads, kv_heads, words = {
        "tinyllama": (2048, 5632, 22, 32, 4, 32000), "llama3b": (3072, 8192, 28, 24, 8, 128256)}[model]
    head_of(width, inner, layers, heads, 2048, words)
    writer.add_head_count_kv(kv_heads)
    writer.add_rope_dimension_count(width // heads)
    writer.add_layer_norm_rms_eps(1e-6)
    kv_width = width // heads * kv_heads
    for layer in range(layers):
        at = "blk.%d." % layer
        vector(at + "attn_norm.weight", width, 1)
        vector(at + "ffn_norm.weight", width, 1)
        for name, rows, columns in (("attn_q", width, width), ("attn_k", kv_width, width), ("attn_v", kv_width, width),
                                    ("attn_output", width, width), ("ffn_gate", inner, width),
                                    ("ffn_up", inner, width), ("ffn_down", width, inner)):
            matrix(at + name + ".weight", rows, columns)
    matrix("output.weight", words, width)
matrix("token_embd.weight", words, width)
vector("output_norm.weight", width, 1)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
