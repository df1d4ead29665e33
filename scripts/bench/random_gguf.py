"""Writes a GGUF file of random weights, for llama.cpp's llama-bench beside scripts/bench/language:
random_gguf.py MODEL (gpt2, tinyllama) TYPE (F32, BF16, Q8_0) FILE. Needs numpy and gguf."""
import sys

import gguf
import numpy

model, kind, path = sys.argv[1], gguf.GGMLQuantizationType[sys.argv[2]], sys.argv[3]
draw = numpy.random.default_rng(1)
writer = gguf.GGUFWriter(path, {"gpt2": "gpt2", "tinyllama": "llama"}[model], use_temp_file=True)


def matrix(name, rows, columns):
    values = (draw.standard_normal((rows, columns), dtype=numpy.float32) * 0.02)
    data = values if kind == gguf.GGMLQuantizationType.F32 else gguf.quants.quantize(values, kind)
    writer.add_tensor(name, data, raw_dtype=kind)


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
    width, inner, words = 2048, 5632, 32000
    head_of(width, inner, 22, 32, 2048, words)
    writer.add_head_count_kv(4)
    writer.add_rope_dimension_count(64)
    writer.add_layer_norm_rms_eps(1e-6)
    for layer in range(22):
        at = "blk.%d." % layer
        vector(at + "attn_norm.weight", width, 1)
        vector(at + "ffn_norm.weight", width, 1)
        for name, rows, columns in (("attn_q", width, width), ("attn_k", 256, width), ("attn_v", 256, width),
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
