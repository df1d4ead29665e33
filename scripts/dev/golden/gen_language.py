"""Writes spec/golden/language_*.safetensors: small language models by Hugging Face's transformers, drawn from a seed:
their state_dict under "state.", tokens, scores, and the tokens that they generate, greedily and by beams, of a padded
batch, with the options of generate, and for LLaMA by each scaling of rotary positions; what sampling leaves of some scores'
probabilities; and how often beams that are drawn come out as what.

    python scripts/dev/golden/gen_language.py        (with torch, transformers, tokenizers, safetensors)
"""
import os

import tokenizers
import torch
import transformers
from safetensors.torch import save_file

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../..")
LETTERS = "abcdefghij"
VOCABULARY = list(LETTERS) + [LETTERS[i // 10] + LETTERS[i % 10] for i in range(10, 60)]  # language_spec.lua has it too
ROPES = {
    "llama3": dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=2.0,
                   original_max_position_embeddings=32),
    "linear": dict(rope_type="linear", factor=2.5),
    "dynamic": dict(rope_type="dynamic", factor=2.0),
}


def tokenizer():
    model = tokenizers.models.BPE({word: i for i, word in enumerate(VOCABULARY)}, [])
    bare = tokenizers.Tokenizer(model)
    bare.decoder = tokenizers.decoders.Fuse()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=bare)


def generated(model, ids, **options):
    settings = dict(do_sample=False, pad_token_id=1, eos_token_id=None, max_new_tokens=100)
    settings["attention_mask"] = torch.ones_like(ids)
    return model.generate(ids, **{**settings, **options}) + 1


def save(name, store):
    save_file({k: t.contiguous() for k, t in store.items()}, f"{ROOT}/spec/golden/language_{name}.safetensors")


def drawn(model):
    model.eval()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.3 + (p.ndim == 1))


def padded(model, ids):
    """A batch whose rows are 4, 7 and 6 tokens long, padded on the left with token 1, and on the right."""
    left, right, mask = torch.full((3, 7), 1), torch.full((3, 7), 1), torch.zeros(3, 7, dtype=torch.long)
    for i, row in enumerate([ids[0, 3:], ids[1], ids[0, :6]]):
        left[i, 7 - len(row):], right[i, :len(row)], mask[i, 7 - len(row):] = row, row, 1
    few = dict(max_new_tokens=20, attention_mask=mask)
    return {
        "padded.ids": left + 1, "padded.mask": mask, "padded.logits": model(left, attention_mask=mask).logits,
        "padded.greedy": generated(model, left, **few),
        "padded.beams": generated(model, left, num_beams=3, num_return_sequences=2, **few),
        "right.ids": right + 1, "right.logits": model(right, attention_mask=mask.flip(1)).logits,
    }


def write(name, model, vocabulary, more=lambda model, ids: {}):
    drawn(model)
    ids = torch.randint(0, vocabulary, (2, 7))
    with torch.no_grad():
        store = {**padded(model, ids), "ids": ids + 1, "logits": model(ids).logits, "greedy": generated(model, ids),
                 "penalized": generated(model, ids, repetition_penalty=1.3, max_new_tokens=40),
                 "beams": generated(model, ids[:1], num_beams=3, max_new_tokens=40), **more(model, ids)}
    for key, t in model.state_dict().items():
        store["state." + key] = t.clone()
    save(name, store)


def with_options(model, ids):
    """Results of generate's options; eos and the strings occur in the tokens that it generates."""
    greedy = generated(model, ids)[:, 7:] - 1
    end = greedy[0, 9].item()
    words = "".join(VOCABULARY[i] for i in greedy[1, :12].tolist())
    few = dict(max_new_tokens=40)
    return {
        "end": torch.tensor(end + 1),
        "ended": generated(model, ids, eos_token_id=end, **few),
        "not_before": generated(model, ids, eos_token_id=end, min_new_tokens=25, **few),
        "no_pairs": generated(model, ids, no_repeat_ngram_size=2, **few),
        "no_triples": generated(model, ids, no_repeat_ngram_size=3, repetition_penalty=1.1, **few),
        "strings": torch.tensor(list((words[-3:-1] + " " + words[4:7]).encode()), dtype=torch.uint8),
        "stopped": generated(model, ids, stop_strings=[words[-3:-1], words[4:7]], tokenizer=tokenizer(), **few),
        "beams.ended": generated(model, ids, num_beams=4, num_return_sequences=3, eos_token_id=[end, 3],
                               min_new_tokens=6, **few),
        "beams.early": generated(model, ids, num_beams=4, num_return_sequences=4, eos_token_id=[end, 3],
                               early_stopping=True, length_penalty=0.5, **few),
        "beams.no_pairs": generated(model, ids, num_beams=3, no_repeat_ngram_size=2, eos_token_id=end, length_penalty=2.0,
                                  **few),
        "no_words": generated(model, ids, bad_words_ids=[[end], [24, 24, 24], [8]], **few),
        "beams.no_words": generated(model, ids, num_beams=3, eos_token_id=end, min_new_tokens=9,
                                  bad_words_ids=[[end], [24, 24]], **few),
        "beams.never": generated(model, ids, num_beams=3, num_return_sequences=3, eos_token_id=[end, 3],
                               early_stopping="never", length_penalty=1.5, **few),
        "beams.never_short": generated(model, ids, num_beams=3, num_return_sequences=3, eos_token_id=[end, 3],
                                     early_stopping="never", length_penalty=-0.5, **few),
        "beams.stopped": generated(model, ids, num_beams=3, stop_strings=[words[4:6]], tokenizer=tokenizer(), **few),
    }


def ropes(model, ids):
    store = {}
    for kind, parameters in ROPES.items():
        config = llama_config(rope_parameters={"rope_theta": 10000.0, **parameters},
                              max_position_embeddings=128 if kind == "llama3" else 64)
        other = transformers.LlamaForCausalLM(config).eval()
        other.load_state_dict(model.state_dict())
        longer = torch.cat([ids, ids.flip(0), ids], 1).repeat(1, 4)[:, :80]
        store[kind + ".logits"] = other(longer).logits[:, -1]
        store[kind + ".greedy"] = generated(other, ids)
    return store


def llama_config(**more):
    return transformers.LlamaConfig(**{**dict(
        vocab_size=60, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5), **more})


def sampling():
    """Probabilities of scores after temperature, top_k, top_p and min_p, in generate's order."""
    from transformers.generation import logits_process as warpers
    scores = torch.randn(1, 12) * 2
    store = {"scores": scores}
    for name, chain in {
        "plain": [], "cold": [warpers.TemperatureLogitsWarper(0.7)], "top_k": [warpers.TopKLogitsWarper(4)],
        "top_p": [warpers.TopPLogitsWarper(0.8)], "min_p": [warpers.MinPLogitsWarper(0.15)],
        "all": [warpers.TemperatureLogitsWarper(1.5), warpers.TopKLogitsWarper(8), warpers.TopPLogitsWarper(0.9),
                warpers.MinPLogitsWarper(0.1)],
    }.items():
        warped = scores
        for each in chain:
            warped = each(None, warped)
        store[name] = warped.softmax(-1)[0]
    return store


BEAMS = {  # language_spec.lua has them too; None: no end
    "top_k": dict(num_beams=2, top_k=3, temperature=8.0, length_penalty=0.5),
    "top_p": dict(num_beams=3, top_p=0.8, top_k=0, num_return_sequences=2, temperature=1.5),
    "two": dict(num_beams=3, top_p=0.01, top_k=0, num_return_sequences=2, temperature=15.0),
    "min_p": dict(num_beams=2, min_p=0.3, top_k=0, eos_token_id=None, repetition_penalty=1.2),
}


def beam_sampling(model):
    """What beams that are drawn give most, as rows of new tokens, and how often of 20000 times."""
    ids = torch.arange(7)[None]
    end = generated(model, ids, max_new_tokens=2)[0, -1].item() - 1
    store = {"end": torch.tensor(end + 1)}
    for name, options in BEAMS.items():
        options = {**dict(eos_token_id=end, max_new_tokens=4, do_sample=True), **options}
        rows = generated(model, ids.repeat(20000, 1), **options)[:, 7:]
        rows = torch.nn.functional.pad(rows, (0, 4 - rows.shape[1]), value=2).reshape(20000, -1)
        rows, counts = rows.unique(dim=0, return_counts=True)
        store[name + ".rows"], store[name + ".counts"] = rows[counts >= 100], counts[counts >= 100]
    return store


torch.manual_seed(11)
gpt2 = transformers.GPT2LMHeadModel(transformers.GPT2Config(
    vocab_size=60, n_positions=128, n_embd=16, n_layer=2, n_head=4))
write("gpt2", gpt2, 60, with_options)
write("llama", transformers.LlamaForCausalLM(llama_config()), 60, ropes)
write("llama_tied", transformers.LlamaForCausalLM(llama_config(
    num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2, head_dim=6, tie_word_embeddings=True)), 60)
save("sampling", sampling())
save("beam_sampling", beam_sampling(gpt2))
