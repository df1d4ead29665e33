#!/usr/bin/env python3
"""Golden values of folders of Hugging Face's: scripts/dev/golden/gen_families.py, with a Python that has torch,
transformers and gguf.

Writes spec/golden/families.lua: for each configuration its config.json, the names and shapes of its file's weights,
results, and the tokens that it generates greedily; for some the metadata of a GGUF file and its tensors, as llama.cpp's
convert_hf_to_gguf.py makes them. Weights are by a formula that families_spec.lua has too, with the index of a name in
order as phase, tokens from 0 too.
"""
import json
import os
import re
import tempfile

import gguf
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

from gguf_llama import fill_llama, llama3_divisors

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
TEXT = dict(vocab_size=96, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0)
LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32)
CAPS = dict(attn_logit_softcapping=2.0, final_logit_softcapping=3.0, query_pre_attn_scalar=12, head_dim=12)
LOCAL = {**TEXT, "head_dim": 12, "query_pre_attn_scalar": 12, "sliding_window": 5, "num_hidden_layers": 6,
         "rope_parameters": {"full_attention": dict(rope_type="linear", factor=8.0, rope_theta=1e6),
                             "sliding_attention": dict(rope_type="default", rope_theta=1e4)}}
LONG = dict(rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.5, 1.7, 2.0], long_factor=[1.0, 4.0, 5.0, 9.0])
MINI = {**LONG, "partial_rotary_factor": 0.75, "short_factor": LONG["short_factor"][:3],
        "long_factor": LONG["long_factor"][:3]}
EXPERTS = dict(num_experts=6, num_experts_per_tok=2)
IMAGES = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, image_size=56, patch_size=14)
GPT2 = dict(vocab_size=96, n_positions=128, n_embd=32, n_layer=3, n_head=4, bos_token_id=1, eos_token_id=2)
BERT = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=40, type_vocab_size=1, num_labels=3, pad_token_id=1)
DISTIL = dict(vocab_size=40, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=40, num_labels=3)
IMAGE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=12,
             patch_size=4, num_labels=5)
DINO = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4, num_labels=5,
            layerscale_value=0.7)

FOLDERS = {
    "llama_biases": ("LlamaForCausalLM", {**TEXT, "attention_bias": True, "mlp_bias": True}),
    "llama_3_2": ("LlamaForCausalLM", {**TEXT, "tie_word_embeddings": True, "rope_parameters": LLAMA3}),
    "llama_yarn": ("LlamaForCausalLM", {**TEXT, "rope_parameters": YARN}),
    "llama_yarn_mscale": ("LlamaForCausalLM", {**TEXT, "hidden_act": "gelu", "rope_parameters": {
        **YARN, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False, "beta_fast": 16.0}}),
    "mistral": ("MistralForCausalLM", {**TEXT, "sliding_window": 5, "head_dim": 6}),
    "mistral_plain": ("MistralForCausalLM", {**TEXT, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**TEXT, "tie_word_embeddings": True}),
    "qwen2_yarn": ("Qwen2ForCausalLM", {**TEXT, "rope_parameters": {**YARN, "rope_theta": 1e6}}),
    "qwen2_window": ("Qwen2ForCausalLM", {**TEXT, "use_sliding_window": True, "sliding_window": 4,
                                          "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", {**TEXT, "head_dim": 8, "attention_bias": True}),
    "qwen3_tied": ("Qwen3ForCausalLM", {**TEXT, "head_dim": 12, "tie_word_embeddings": True}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**TEXT, **EXPERTS, "head_dim": 12, "moe_intermediate_size": 20,
                                          "norm_topk_prob": True}),
    "qwen3_moe_mixed": ("Qwen3MoeForCausalLM", {
        **TEXT, **EXPERTS, "num_hidden_layers": 6, "moe_intermediate_size": 20, "decoder_sparse_step": 2,
        "mlp_only_layers": [3], "use_sliding_window": True, "sliding_window": 6}),
    "olmoe": ("OlmoeForCausalLM", {**TEXT, **EXPERTS, "num_key_value_heads": 4}),
    "olmoe_clipped": ("OlmoeForCausalLM", {**TEXT, **EXPERTS, "clip_qkv": 0.4, "norm_topk_prob": True}),
    "smollm3": ("SmolLM3ForCausalLM", TEXT),
    "smollm3_window": ("SmolLM3ForCausalLM", {**TEXT, "no_rope_layers": [1, 0, 0, 1], "use_sliding_window": True,
                                              "sliding_window": 5, "tie_word_embeddings": False}),
    "gemma": ("GemmaForCausalLM", {**TEXT, "head_dim": 8, "num_key_value_heads": 1}),
    "gemma2": ("Gemma2ForCausalLM", {**TEXT, **CAPS, "sliding_window": 5}),
    "gemma2_plain": ("Gemma2ForCausalLM", {**TEXT, "head_dim": 8, "sliding_window": 6, "query_pre_attn_scalar": 5,
                                           "attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("Gemma3ForCausalLM", LOCAL),
    "gemma3_image": ("Gemma3ForConditionalGeneration", dict(
        text_config={**LOCAL, "layer_types": ["full_attention", "sliding_attention"] * 3}, vision_config=IMAGES,
        mm_tokens_per_image=4)),
    "phi3": ("Phi3ForCausalLM", {**TEXT, "sliding_window": 7, "rope_parameters": dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)}),
    "phi3_long": ("Phi3ForCausalLM", {**TEXT, "original_max_position_embeddings": 12, "rope_parameters": LONG}),
    "phi4_mini": ("Phi3ForCausalLM", {**TEXT, "original_max_position_embeddings": 64, "tie_word_embeddings": True,
                                      "rope_parameters": MINI}),
    "gpt2_relu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "relu"}),
    "gpt2_gelu": ("GPT2LMHeadModel", {**GPT2, "activation_function": "gelu", "scale_attn_weights": False,
                                      "scale_attn_by_inverse_layer_idx": True}),
    "roberta": ("RobertaForMaskedLM", BERT), "roberta_classes": ("RobertaForSequenceClassification", BERT),
    "roberta_bare": ("RobertaModel", BERT), "xlm_roberta": ("XLMRobertaForTokenClassification", BERT),
    "distilbert": ("DistilBertForMaskedLM", DISTIL), "distilbert_bare": ("DistilBertModel", DISTIL),
    "distilbert_classes": ("DistilBertForSequenceClassification", {**DISTIL, "activation": "relu"}),
    "deit": ("DeiTForImageClassification", IMAGE), "deit_bare": ("DeiTModel", IMAGE),
    "deit_teacher": ("DeiTForImageClassificationWithTeacher", {**IMAGE, "hidden_act": "gelu_new"}),
    "dinov2": ("Dinov2ForImageClassification", DINO), "dinov2_bare": ("Dinov2Model", {**DINO, "qkv_bias": False}),
}


# Fields as in the published config.json of older versions, in place of others.
PUBLISHED = {
    "gemma2": (["layer_types", "rope_parameters"], {"rope_theta": 10000.0}),
    "gemma3": (["layer_types", "rope_parameters", "_sliding_window_pattern"], {
        "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}}),
    "qwen3_moe": (["num_local_experts", "rope_parameters"], {"num_experts": 6, "rope_theta": 10000.0}),
    "smollm3": (["layer_types", "no_rope_layers", "rope_parameters"], {"rope_theta": 2e6}),
    "phi4_mini": (["rope_parameters"], {
        "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
        "rope_scaling": {"type": "longrope", "short_factor": MINI["short_factor"], "long_factor": MINI["long_factor"]}}),
    "qwen2_yarn": (["rope_parameters"], {"rope_theta": 1e6, "rope_scaling": {
        "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}}),
}

# Architectures of GGUF; those whose rows of q and k are pairs of neighbors.
GGUF = {
    "llama_3_2": "llama", "qwen2": "qwen2", "qwen2_yarn": "qwen2", "qwen3_tied": "qwen3", "qwen3_moe": "qwen3moe",
    "olmoe": "olmoe", "smollm3": "smollm3", "gemma": "gemma", "gemma2": "gemma2", "gemma3": "gemma3", "phi3": "phi3",
    "phi4_mini": "phi3",
}
PAIRS = ("llama", "smollm3")


def wave(shape, phase):
    n = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return torch.sin(n * n * 0.37 + n * 0.7 + phase).reshape(shape)


def grouped(shapes):
    """Names and shapes as text; "a.*.b:2x3@4" is a.0.b to a.3.b."""
    groups, rows = {}, []
    for key, shape in shapes.items():
        numbers = tuple(map(int, re.findall(r"(?<=\.)\d+(?=\.)", key)))
        group = re.sub(r"(?<=\.)\d+(?=\.)", "*", key), "x".join(map(str, shape))
        groups.setdefault(group, {})[numbers] = key
    for (pattern, shape), keys in groups.items():
        counts = [max(column) + 1 for column in zip(*keys)]
        if len(keys) == torch.Size(counts).numel():
            rows.append("%s:%s%s" % (pattern, shape, "".join("@%d" % n for n in counts)))
        else:
            rows.extend("%s:%s" % (key, shape) for key in keys.values())
    return " ".join(rows)


def gguf_tensors(arch, shapes, config):
    """The tensors of a GGUF file, those of layer 0 for all: "name=key", "name=key/heads" with rows of heads in pairs, "name=key+1", or "name=key:n"
    for the stacked keys of n experts."""
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch], config.num_hidden_layers)
    rows = []
    for key in shapes:
        expert = re.search(r"experts\.(\d+)\.", key)
        if expert and expert[1] != "0" or re.search(r"layers\.[1-9]", key):
            continue
        base = key.replace("experts.0.", "experts.")
        row = names.get_name(base, try_suffixes=(".weight", ".bias")) + "=" + key
        if expert:
            row += ":%d" % config.num_experts
        if "norm" in key and arch.startswith("gemma"):
            row += "+1"
        if re.search("[qk]_proj", key) and arch in PAIRS:
            row += "/%d" % (config.num_attention_heads if "q_proj" in key else config.num_key_value_heads)
        rows.append(row)
    return rows


def gguf_values(arch, config):
    """The metadata and additional tensors of a GGUF file."""
    writer, more = gguf.GGUFWriter("/dev/null", arch), {}
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    fill_llama(writer, config, arch)
    writer.add_eos_token_id(2)
    if arch in ("gemma2", "gemma3", "phi3"):
        writer.add_sliding_window(config.sliding_window or 0)
    if arch == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if arch in ("qwen3moe", "olmoe"):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if arch == "qwen3moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    kind = rope.get("rope_type")
    if kind in ("yarn", "linear"):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN if kind == "yarn" else gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind in ("yarn", "longrope"):
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        writer.add_rope_scaling_attn_factors(
            (1 + torch.tensor(128 / 64).log() / torch.tensor(64.0).log()).sqrt().item())
        more = {"rope_factors_%s.weight" % of: rope[of + "_factor"] for of in ("long", "short")}
    divisors = llama3_divisors(config)
    if divisors is not None:
        more = {"rope_freqs.weight": divisors.tolist()}
    values = {key: value.value for key, value in writer.kv_data[0].items()}
    return values, more


def lua(value):
    if isinstance(value, torch.Tensor):
        value = value.tolist()
    if isinstance(value, dict):
        return "{%s}" % ", ".join('["%s"] = %s' % (key, lua(each)) for key, each in value.items())
    if isinstance(value, (list, tuple)):
        return "{%s}" % ", ".join(map(lua, value))
    return '"%s"' % value if isinstance(value, str) else "%.7g" % value


def results(model, name):
    """Inputs and results; tokens count from 1."""
    if hasattr(model.config, "image_size"):
        size = 20 if name.startswith("dinov2") else 12
        y = model(wave((2, 3, size, size), 0.3).float())
        return {"image": [size], "y": y.logits if hasattr(y, "logits") else y.last_hidden_state[:, 0]}
    ids = (torch.arange(18).reshape(2, 9) * 7 + 5) % 36 + 3
    if "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__ or name == "gemma3_image":
        options = dict(max_new_tokens=100, do_sample=False, eos_token_id=None, pad_token_id=0)
        greedy = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
        return {"ids": ids + 1, "y": model(ids).logits[:, -1], "greedy": greedy + 1}
    mask = torch.ones_like(ids)
    mask[0, 6:], ids[0, 6:] = 0, model.config.pad_token_id
    y = model(ids, attention_mask=mask)
    y = y.logits if hasattr(y, "logits") else y.last_hidden_state
    return {"ids": ids + 1, "mask": mask, "y": y[:, 0] if y.dim() == 3 else y}


def main():
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    with open(f"{ROOT}/spec/golden/families.lua", "w") as out:
        out.write("-- Written by scripts/dev/golden/gen_families.py with transformers %s.\nreturn {\n"
                  % transformers.__version__)
        for name, (architecture, options) in FOLDERS.items():
            kind = getattr(transformers, architecture)
            config = kind.config_class(**options)
            config._attn_implementation = "eager"
            model = kind(config).eval()
            with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
                model.save_pretrained(folder)
                with safe_open(folder + "/model.safetensors", "pt") as file:
                    shapes = {key: file.get_slice(key).get_shape() for key in sorted(file.keys())}
                state = {}
                for i, (key, shape) in enumerate(shapes.items()):
                    near_1 = "gemma" not in name and len(shape) == 1 and key.endswith("weight") or "lambda1" in key
                    state[key] = (wave(shape, i) * (0.4 if len(shape) > 1 else 0.2) + near_1).float()
                save_file(state, folder + "/model.safetensors", {"format": "pt"})
                model = kind.from_pretrained(folder, attn_implementation="eager").eval()
                values = results(model, name)
                text = json.loads(open(folder + "/config.json").read())
            left_out, others = PUBLISHED.get(name, ([], {}))
            for key in ["transformers_version", "dtype", "initializer_range"] + left_out:
                text.pop(key, None)
            text.update(others)
            if name in GGUF:
                metadata, more = gguf_values(GGUF[name], model.config)
                values["gguf"] = {"tensors": " ".join(gguf_tensors(GGUF[name], shapes, model.config)),
                                  "metadata": metadata, "more": more}
            out.write("  %s = {\n    config = [==[%s]==],\n    names = [[%s]],\n" % (name, json.dumps(text), grouped(shapes)))
            for key, value in values.items():
                out.write("    %s = %s,\n" % (key, lua(value)))
            out.write("  },\n")
            print(name, float(values["y"].abs().max()), "greedy" in values and len(set(values["greedy"][0].tolist())))
        out.write("}\n")


main()
