"""The Hugging Face config that a GGUF file's metadata stands for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from convert.gguf_file import GgufFile
from convert.gguf_metadata import ARCHITECTURES, ArchitectureKeys
from specdiff_jax.errors import InputError

ROPE_FACTORS = "rope_freqs.weight"


def model_config(file: GgufFile) -> dict[str, Any]:
    """Content of the config.json that the file was made from, as far as the decoder needs it.

    Raises:
        InputError: a key is missing or of the wrong type, or the file scales its rotary frequencies by a tensor.
    """
    keys, architecture = file.keys, file.keys.architecture
    if ROPE_FACTORS in file.tensors:
        raise InputError(
            f"{file.location}: {ROPE_FACTORS} scales the rotary frequencies (Llama 3.1) and isn't supported; "
            "give the model's safetensors folder"
        )
    if "model.embed_tokens.weight" not in file.tensors:
        raise InputError(f"{file.location}: has no token_embd.weight; give the GGUF file of a language model")
    heads = keys.whole("attention.head_count")
    model_type, model_class = ARCHITECTURES[architecture]
    config = {
        "architectures": [model_class],
        "model_type": model_type,
        "head_dim": keys.head_dim,
        "hidden_act": "silu",
        "hidden_size": keys.whole("embedding_length"),
        "intermediate_size": keys.whole("feed_forward_length"),
        "max_position_embeddings": keys.whole("context_length"),
        "num_attention_heads": heads,
        "num_hidden_layers": keys.whole("block_count"),
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "rms_norm_eps": keys.number("attention.layer_norm_rms_epsilon"),
        "rope_parameters": _rope_parameters(keys),
        "tie_word_embeddings": "lm_head.weight" not in file.tensors,
        "vocab_size": file.tensors["model.embed_tokens.weight"].shape[0],
        **_token_ids(file.metadata),
    }
    if architecture != "qwen2":  # whose biases are fixed
        config["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in file.tensors
    if architecture == "llama":
        config["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in file.tensors
    if architecture == "qwen3moe":
        config |= {
            "num_experts": keys.whole("expert_count"),
            "num_experts_per_tok": keys.whole("expert_used_count"),
            "moe_intermediate_size": keys.whole("expert_feed_forward_length"),
            "norm_topk_prob": True,  # llama.cpp knows this architecture only so
            "decoder_sparse_step": 1,
            "mlp_only_layers": [],
        }
    return config


def generation_config(file: GgufFile) -> dict[str, Any]:
    """Content of generation_config.json: begin, pad and every stop id (end of text, of turn, of message)."""
    return _token_ids(file.metadata)


def _rope_parameters(keys: ArchitectureKeys) -> dict[str, Any]:
    kind = keys.choice("rope.scaling.type", ("none", "linear", "yarn"), "none")
    parameters: dict[str, Any] = {"rope_theta": keys.number("rope.freq_base", 10000.0)}
    if kind == "none":
        return {**parameters, "rope_type": "default"}
    parameters |= {"rope_type": kind, "factor": keys.number("rope.scaling.factor")}
    if kind == "yarn":
        parameters["original_max_position_embeddings"] = keys.whole("rope.scaling.original_context_length")
    return parameters


def _token_ids(metadata: Mapping[str, Any]) -> dict[str, Any]:
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot", "eom", "padding")}
    stops = list(dict.fromkeys(ids[name] for name in ("eos", "eot", "eom") if ids[name] is not None))
    given = {"bos_token_id": ids["bos"], "eos_token_id": stops or None, "pad_token_id": ids["padding"]}
    return {name: value for name, value in given.items() if value is not None}
