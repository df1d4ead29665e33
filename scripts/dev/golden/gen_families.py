#!/usr/bin/env python3
"""Golden values of folders of Hugging Face's: scripts/dev/golden/gen_families.py, with a Python that has torch and
transformers.

Writes spec/golden/families.lua: for each configuration its config.json, the names and shapes of its file's weights,
results, and the tokens that it generates greedily. Weights are by a formula that families_spec.lua has too, with the
index of a name in order as phase, tokens from 0 too.
"""
import json
import os
import tempfile

import torch
import transformers
from safetensors import safe_open
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
TEXT = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0)
GPT2 = dict(vocab_size=40, n_positions=64, n_embd=16, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
BERT = dict(vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
            max_position_embeddings=40, type_vocab_size=1, num_labels=3, pad_token_id=1)
DISTIL = dict(vocab_size=40, dim=16, hidden_dim=24, n_layers=2, n_heads=4, max_position_embeddings=40, num_labels=3)
IMAGE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24, image_size=12,
             patch_size=4, num_labels=5)
DINO = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=12, patch_size=4, num_labels=5,
            layerscale_value=0.7)

FOLDERS = {
    "llama_biases": ("LlamaForCausalLM", {**TEXT, "attention_bias": True, "mlp_bias": True}),
    "llama_yarn": ("LlamaForCausalLM", {**TEXT, "rope_parameters": YARN}),
    "llama_yarn_mscale": ("LlamaForCausalLM", {**TEXT, "hidden_act": "gelu", "rope_parameters": {
        **YARN, "mscale": 0.8, "mscale_all_dim": 0.5, "truncate": False, "beta_fast": 16.0}}),
    "mistral": ("MistralForCausalLM", {**TEXT, "sliding_window": 5, "head_dim": 6}),
    "mistral_plain": ("MistralForCausalLM", {**TEXT, "sliding_window": None}),
    "qwen2": ("Qwen2ForCausalLM", {**TEXT, "tie_word_embeddings": True}),
    "qwen2_window": ("Qwen2ForCausalLM", {**TEXT, "use_sliding_window": True, "sliding_window": 4,
                                          "max_window_layers": 1}),
    "qwen3": ("Qwen3ForCausalLM", {**TEXT, "head_dim": 8, "attention_bias": True}),
    "gemma": ("GemmaForCausalLM", {**TEXT, "head_dim": 8, "num_key_value_heads": 1}),
    "phi3": ("Phi3ForCausalLM", {**TEXT, "rope_parameters": dict(
        rope_type="default", rope_theta=10000.0, partial_rotary_factor=0.5)}),
    "phi3_long": ("Phi3ForCausalLM", {**TEXT, "original_max_position_embeddings": 12, "rope_parameters": dict(
        rope_type="longrope", rope_theta=10000.0, short_factor=[1.0, 1.5], long_factor=[1.0, 4.0])}),
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


def wave(shape, phase):
    n = torch.Size(shape).numel()
    return torch.sin(torch.arange(n, dtype=torch.float64) * 0.7 + phase).reshape(shape)


def lua(value):
    if isinstance(value, torch.Tensor):
        value = value.tolist()
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
    if "CausalLM" in type(model).__name__ or "LMHead" in type(model).__name__:
        options = dict(max_new_tokens=16, do_sample=False, eos_token_id=None, pad_token_id=0)
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
            for key in ("transformers_version", "dtype", "initializer_range"):
                text.pop(key, None)
            out.write("  %s = {\n    config = [==[%s]==],\n    names = [[%s]],\n" % (name, json.dumps(text), " ".join(
                "%s:%s" % (key, "x".join(map(str, shape))) for key, shape in shapes.items())))
            for key, value in values.items():
                out.write("    %s = %s,\n" % (key, lua(value)))
            out.write("  },\n")
            print(name, float(values["y"].abs().max()))
        out.write("}\n")


main()
