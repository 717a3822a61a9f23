"""Settings of a target model, read from a Hugging Face config.json."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from specdiff_jax.errors import InputError
from specdiff_jax.ignored_keys import IGNORED_KEYS
from specdiff_jax.json_file import read_json
from specdiff_jax.keys import Keys, is_whole, shown
from specdiff_jax.rotary_config import RotaryConfig, read_rotary

Family = Literal["llama", "qwen2", "qwen3", "qwen3_moe", "fast_dllm_v2", "nemotron_labs_diffusion"]


@dataclass(frozen=True)
class MoEConfig:
    """Sparse feed-forward with softmax top-k routing (Qwen3-MoE).

    Attributes:
        num_experts: experts a sparse layer.
        experts_per_token: experts that each token is sent to.
        intermediate_size: width of one expert.
        normalize_weights: whether the chosen experts' probabilities are rescaled to sum to 1 (HF `norm_topk_prob`).
        sparse_layers: indices of the layers that are sparse; the others are dense.
    """

    num_experts: int
    experts_per_token: int
    intermediate_size: int
    normalize_weights: bool
    sparse_layers: tuple[int, ...]


@dataclass(frozen=True)
class ModelConfig:
    """A decoder-only transformer of any supported family.

    Sizes are counts of elements. `eos_token_ids` holds every stop id of config.json; generation_config.json may add
    more. `block_size` and `mask_token_id` are None for autoregressive families.
    """

    family: Family
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rotary: RotaryConfig
    max_position_embeddings: int
    tie_embeddings: bool = False
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    moe: MoEConfig | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    block_size: int | None = None
    mask_token_id: int | None = None

    @property
    def group_size(self) -> int:
        """Query heads per key/value head."""
        return self.num_heads // self.num_kv_heads


# What is created once per layer or per dimension stays within memory, whatever a broken file says.
MAX_LAYERS = 1_000
_MAX_HEAD_DIM = 65_536

# Architecture -> (model_type, family).
_ARCHITECTURES: dict[str, tuple[str, Family]] = {
    "LlamaForCausalLM": ("llama", "llama"),
    "Qwen2ForCausalLM": ("qwen2", "qwen2"),
    "Qwen3ForCausalLM": ("qwen3", "qwen3"),
    "Qwen3MoeForCausalLM": ("qwen3_moe", "qwen3_moe"),
    "Fast_dLLM_QwenForCausalLM": ("Fast_dLLM_Qwen", "fast_dllm_v2"),
    "NemotronLabsDiffusionModel": ("nemotron_labs_diffusion", "nemotron_labs_diffusion"),
}

# Fast-dLLM v2 checkpoints don't name it: it is the id of `|<MASK>|` among the added tokens.
_FAST_DLLM_MASK_TOKEN_ID = 151665

# Class defaults in Transformers, which old checkpoints rely on.
_LLAMA_THETA, _LLAMA_BOS, _LLAMA_EOS = 10000.0, 1, 2
_QWEN3_HEAD_DIM = 128

_QUANTIZED = "quantised Hugging Face checkpoints are not supported (use the unquantised one)"
_ONLY_FULL_ATTENTION = "sliding-window attention is not supported"

# The `quantization_config` of the one quantised layout that is read: int8 matrices with a scale a row, written by
# convert/hf_folder.py. Without a quant_method Transformers refuses the folder; one that it doesn't know it would only
# warn of, and take the steps for weights.
INT8_ROWS = {"format": "int8_rows"}

# Settings that change the maths and of which one value is supported.
_FIXED: dict[str, tuple[Any, str]] = {
    "hidden_act": ("silu", "only silu is supported"),
    "rope_interleaved": (False, "only the half-split rotary layout is supported"),
    "use_mrope": (False, "multimodal rotary embedding is not supported"),
    "is_encoder_decoder": (False, "encoder-decoder models are not supported"),
    "add_cross_attention": (False, "cross-attention is not supported"),
    "pruned_heads": ({}, "pruned heads are not supported"),
    "quantization_config": (INT8_ROWS, _QUANTIZED),
    "quantization": (None, _QUANTIZED),
    "compression_config": (None, _QUANTIZED),
}


def read_config(path: Path) -> ModelConfig:
    """Read a config.json, or the one in a folder.

    Raises:
        InputError: if there is none, it isn't a JSON object, or its settings are wrong or not supported.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    return parse_config(read_json(file), str(file))


def parse_config(raw: Mapping[str, Any], source: str) -> ModelConfig:
    """Settings from the content of a Hugging Face config.json.

    Args:
        raw: the JSON object.
        source: the file that it came from, for messages.

    Raises:
        InputError: one line with every key that is missing, wrong, contradicting, unknown or not supported.
    """
    family = _family(raw, source)
    keys = Keys(raw)
    refuse_unsupported(keys)
    vocab_size = keys.count("vocab_size")
    hidden_size = keys.count("hidden_size")
    num_layers = keys.count("num_hidden_layers", limit=MAX_LAYERS)
    num_heads, num_kv_heads = read_heads(keys, family)
    head_dim = read_head_dim(keys, family, hidden_size, num_heads)
    _refuse_sliding_window(keys, family, num_layers)
    qkv_bias, output_bias, mlp_bias = read_biases(keys, family)
    block_size, mask_token_id = _block(keys, family)
    llama = family == "llama"
    config = ModelConfig(
        family=family,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=keys.count("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=keys.number("rms_norm_eps"),
        max_position_embeddings=keys.count("max_position_embeddings"),
        tie_embeddings=keys.flag("tie_word_embeddings", False),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=family in ("qwen3", "qwen3_moe"),
        moe=_moe(keys, num_layers) if family == "qwen3_moe" else None,
        bos_token_id=keys.token_id("bos_token_id", _LLAMA_BOS if llama else None),
        eos_token_ids=keys.token_ids("eos_token_id", (_LLAMA_EOS,) if llama else ()),
        pad_token_id=keys.token_id("pad_token_id"),
        block_size=block_size,
        mask_token_id=mask_token_id,
        rotary=read_rotary(
            keys,
            head_dim,
            default_theta=_LLAMA_THETA if llama else None,
            query_scale=family == "nemotron_labs_diffusion",
        ),
    )
    _check_token_ids(keys, config)
    keys.refuse_unknown(IGNORED_KEYS)
    keys.raise_faults(source)
    return config


def read_stop_ids(generation_config: Mapping[str, Any], config: ModelConfig) -> tuple[int, ...]:
    """Every id that ends a text: those of generation_config.json, then those of config.json, without repeats.

    Raises:
        InputError: if generation_config's `eos_token_id` holds anything but token ids.
    """
    keys = Keys(generation_config)
    ids = keys.token_ids("eos_token_id")
    in_vocabulary = max(ids, default=0) < config.vocab_size
    keys.require(in_vocabulary, f"must be below the vocabulary size {config.vocab_size}", "eos_token_id")
    keys.raise_faults("generation_config.json")
    return tuple(dict.fromkeys((*ids, *config.eos_token_ids)))


def is_drafter(raw: Mapping[str, Any]) -> bool:
    """Whether a config.json is a drafter's, which needs a target, and no model's."""
    architectures = raw.get("architectures")
    return "dflash_config" in raw or (isinstance(architectures, list) and "DFlashDraftModel" in architectures)


def refuse_unsupported(keys: Keys) -> None:
    """Note every setting whose value no model here supports."""
    for key, (allowed, why) in _FIXED.items():
        keys.only(key, allowed, why)


def _family(raw: Mapping[str, Any], source: str) -> Family:
    """The family, by `architectures`, or by `model_type` where that is absent."""
    if is_drafter(raw):
        raise InputError(
            f"{source}: is a drafter's config, no model's: load its target, and give this one as --drafter or drafter="
        )
    architectures, model_type = raw.get("architectures"), raw.get("model_type")
    if architectures is None:
        for expected, family in _ARCHITECTURES.values():
            if model_type == expected:
                return family
        named = f"architectures is missing and model_type={shown(model_type)}"
    else:
        for architecture, (expected, family) in _ARCHITECTURES.items():
            if architectures == [architecture]:
                if model_type not in (None, expected):
                    why = f"contradicts architectures={shown(architectures)}, which has {expected}"
                    raise InputError(f"{source}: model_type={shown(model_type)}: {why}")
                return family
        named = f"architectures={shown(architectures)}"
    raise InputError(f"{source}: {named}: not supported (supported: {', '.join(_ARCHITECTURES)})")


def read_heads(keys: Keys, family: Family) -> tuple[int, int]:
    """Query heads and key/value heads; only Llama, older than grouped queries, may leave the latter out."""
    heads = keys.count("num_attention_heads")
    kv_heads = keys.count("num_key_value_heads", heads if family == "llama" else None)
    why = "query heads must be a multiple of key/value heads"
    keys.require(heads % kv_heads == 0, why, "num_attention_heads", "num_key_value_heads")
    return heads, kv_heads


def read_head_dim(keys: Keys, family: Family, hidden_size: int, num_heads: int) -> int:
    """The size of a head: as named, or else what the family's class in Transformers falls back to."""
    if keys.given("head_dim") or family == "nemotron_labs_diffusion":
        head_dim = keys.count("head_dim", limit=_MAX_HEAD_DIM)
        keys.require(head_dim % 2 == 0, "must be even", "head_dim")
        return head_dim
    if family == "qwen3":
        return _QWEN3_HEAD_DIM
    head_dim, rest = divmod(hidden_size, num_heads)
    fits = rest == 0 and head_dim % 2 == 0 and head_dim <= _MAX_HEAD_DIM
    why = "head_dim is missing and hidden_size / num_attention_heads is no even whole number"
    keys.require(fits, why, "hidden_size", "num_attention_heads")
    return head_dim if fits else 2


def _refuse_sliding_window(keys: Keys, family: Family, num_layers: int) -> None:
    """Every layer must see everything. The Qwen families use a window only where `use_sliding_window` says so."""
    keys.only("use_sliding_window", False, _ONLY_FULL_ATTENTION)
    if family in ("llama", "nemotron_labs_diffusion"):
        keys.only("sliding_window", None, _ONLY_FULL_ATTENTION)
    kinds = keys.items("layer_types")
    keys.require(all(kind == "full_attention" for kind in kinds), "only full_attention is supported", "layer_types")
    if keys.given("layer_types"):
        why = f"must have one entry a layer, but there are {len(kinds)}"
        keys.require(len(kinds) == num_layers, why, "layer_types", "num_hidden_layers")


def read_biases(keys: Keys, family: Family) -> tuple[bool, bool, bool]:
    """Whether there are biases on query, key and value; on the attention output; in the feed-forward."""
    if family in ("qwen2", "fast_dllm_v2"):
        return True, False, False
    if family == "nemotron_labs_diffusion":
        for key in ("attention_bias", "mlp_bias"):
            keys.only(key, False, "biases are not supported in this family")
        return False, False, False
    attention = keys.flag("attention_bias", False)
    return attention, attention, family == "llama" and keys.flag("mlp_bias", False)


def _block(keys: Keys, family: Family) -> tuple[int | None, int | None]:
    """Block size and mask id of a diffusion family."""
    if family == "fast_dllm_v2":
        size = keys.count("bd_size")
        keys.agree("bd_size", "block_size")
        return size, keys.token_id("mask_token_id", _FAST_DLLM_MASK_TOKEN_ID)
    if family == "nemotron_labs_diffusion":
        keys.need("mask_token_id")
        return keys.count("block_size"), keys.token_id("mask_token_id")
    return None, None


def _moe(keys: Keys, num_layers: int) -> MoEConfig:
    """Experts, and which layers have them: every `decoder_sparse_step`-th one that isn't in `mlp_only_layers`."""
    # Published files have the first name, those that Transformers 5 writes the second.
    keys.agree("num_experts", "num_local_experts")
    renamed = keys.given("num_local_experts") and not keys.given("num_experts")
    name = "num_local_experts" if renamed else "num_experts"
    num_experts, per_token = keys.count(name), keys.count("num_experts_per_tok")
    why = "a token can't go to more experts than there are"
    keys.require(per_token <= num_experts, why, "num_experts_per_tok", name)
    step = keys.count("decoder_sparse_step", 1)
    dense = keys.items("mlp_only_layers")
    whole = all(is_whole(layer) and 0 <= layer < num_layers for layer in dense)
    keys.require(whole, f"must hold indices of the {num_layers} layers", "mlp_only_layers")
    return MoEConfig(
        num_experts=num_experts,
        experts_per_token=per_token,
        intermediate_size=keys.count("moe_intermediate_size"),
        normalize_weights=keys.flag("norm_topk_prob", False),
        sparse_layers=tuple(i for i in range(num_layers) if (i + 1) % step == 0 and i not in dense),
    )


def _check_token_ids(keys: Keys, config: ModelConfig) -> None:
    """Every id must be in the vocabulary."""
    ids = {
        "bos_token_id": (config.bos_token_id,),
        "eos_token_id": config.eos_token_ids,
        "pad_token_id": (config.pad_token_id,),
        "mask_token_id": (config.mask_token_id,),
    }
    for key, values in ids.items():
        highest = max((value for value in values if value is not None), default=0)
        keys.require(highest < config.vocab_size, f"{key} {highest} is not in the vocabulary", key, "vocab_size")
