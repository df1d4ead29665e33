"""What gen_families.py and gen_gguf.py share: the metadata of LLaMA's kin in GGUF files, as llama.cpp's
convert_hf_to_gguf.py writes it."""
import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS


def head_dim(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def fill_llama(writer, config, arch="llama"):
    head, rope = head_dim(config), config.rope_parameters.get("full_attention", config.rope_parameters)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if arch in ("llama", "smollm3", "phi3"):
        writer.add_rope_dimension_count(int(head * rope.get("partial_rotary_factor", 1)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if arch.startswith(("qwen3", "gemma")) or head * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head)
        writer.add_value_length(head)


def llama3_divisors(config):
    """The numbers that divide the rates of positions; None without LLaMA 3's scaling."""
    rope = getattr(config, "rope_parameters", {})
    if rope.get("rope_type") != "llama3":
        return None
    rates = 1 / rope["rope_theta"] ** (torch.arange(0, head_dim(config), 2) / head_dim(config))
    return rates / ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")[0]
