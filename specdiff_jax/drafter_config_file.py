"""A drafter's config.json, in every layout that published drafters have, and written in the plainest of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast, get_args

from specdiff_jax.config import (
    MAX_LAYERS,
    ModelConfig,
    read_biases,
    read_head_dim,
    read_heads,
    refuse_unsupported,
)
from specdiff_jax.drafter_config import Conditioning, DraftAttention, DrafterConfig
from specdiff_jax.errors import InputError
from specdiff_jax.ignored_keys import IGNORED_KEYS
from specdiff_jax.json_file import read_json
from specdiff_jax.keys import Keys, is_whole, shown
from specdiff_jax.rotary_config import RotaryConfig, read_rotary

# Its modules, by what they are, and the names of their weights.
_DFLASH2 = "its convolutions (attention_conv, mlp_conv) and its candidate selector (candidate_selector)"

# Ids of the drafter's own that nothing here reads; a head that it doesn't have is tied to nothing.
_IGNORED = IGNORED_KEYS | {"bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings"}

# How it was trained; its mask token as text; the width of a window that use_swa leaves unused.
_IGNORED_SECTION = frozenset(
    {"backbone_rotary_base", "loss_decay_gamma", "mask_token", "num_anchors", "swa_window_size"}
)


def read_drafter_config(path: Path) -> DrafterConfig:
    """Read a drafter's config.json, or the one in a folder.

    Raises:
        InputError: there is none, it isn't a JSON object, or its settings are wrong or not supported.
    """
    file = path / "config.json" if os.path.isdir(path) else path
    return parse_drafter_config(read_json(file), str(file))


def parse_drafter_config(raw: Mapping[str, Any], source: str) -> DrafterConfig:
    """Settings from the content of a drafter's config.json, in any of the layouts that published ones have.

    Args:
        raw: the JSON object.
        source: the file that it came from, for messages.

    Raises:
        InputError: one line with every key that is missing, wrong, contradicting, unknown or not supported.
    """
    _check_architecture(raw, source)
    keys = _flat(raw)
    levels = _Levels(keys)
    backbone = _backbone(keys)
    depth, cap = "num_target_layers", "final_logit_softcapping"
    num_target_layers = levels.of(depth).count(depth, limit=MAX_LAYERS) if levels.of(depth).given(depth) else None
    config = DrafterConfig(
        backbone=backbone,
        block_size=levels.of("block_size").count("block_size", least=2, limit=max(2, backbone.max_position_embeddings)),
        mask_token_id=_mask_token_id(levels, backbone.vocab_size),
        target_layer_ids=_target_layer_ids(levels, num_target_layers, backbone.num_layers),
        attentions=_attentions(levels, backbone.num_layers),
        num_target_layers=num_target_layers,
        input_embedding_scale=levels.number("input_embedding_scale"),
        output_multiplier=levels.number("output_multiplier"),
        final_logit_softcapping=levels.number(cap) if levels.of(cap).given(cap) else None,
        attention_value_scale=levels.number("attention_value_scale"),
        attention_sinks=levels.flag("attention_sink_bias"),
        conditioning=_conditioning(levels.section),
    )
    levels.section.only("use_aux_hidden_state", True, "only drafters that read their target's features are supported")
    levels.section.refuse_unknown(_IGNORED_SECTION)
    keys.refuse_unknown(_IGNORED)
    keys.raise_faults(source)
    return config


def config_json(config: DrafterConfig) -> dict[str, Any]:
    """Content of a config.json in the published layout, of which `parse_drafter_config` makes the same settings.

    Raises:
        InputError: the layout has no words for some of the settings.
    """
    backbone = config.backbone
    settings: dict[str, Any] = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "attention_bias": backbone.qkv_bias,
        "block_size": config.block_size,
        "dflash_config": _section_json(config),
        "head_dim": backbone.head_dim,
        "hidden_act": "silu",
        "hidden_size": backbone.hidden_size,
        "intermediate_size": backbone.intermediate_size,
        "max_position_embeddings": backbone.max_position_embeddings,
        "num_attention_heads": backbone.num_heads,
        "num_hidden_layers": backbone.num_layers,
        "num_key_value_heads": backbone.num_kv_heads,
        "num_target_layers": config.num_target_layers,
        "rms_norm_eps": backbone.rms_norm_eps,
        "tie_word_embeddings": False,
        "vocab_size": backbone.vocab_size or None,
        **_attentions_json(config.attentions),
        **_rotary_json(backbone.rotary, backbone.head_dim),
    }
    written = {key: value for key, value in settings.items() if value is not None}
    read = parse_drafter_config(written, "config.json")
    if read != config:
        lost = [*_differences(read.backbone, backbone), *_differences(replace(read, backbone=backbone), config)]
        raise InputError(f"the config.json of a drafter can't say these of its settings: {', '.join(lost)}")
    return written


def _section_json(config: DrafterConfig) -> dict[str, Any]:
    """The settings that DFlash adds; those that published files leave out stand there only where they do something."""
    rare = {
        "attention_sink_bias": (config.attention_sinks, False),
        "attention_value_scale": (config.attention_value_scale, 1.0),
        "conditioning": (config.conditioning, "key_value"),
        "final_logit_softcapping": (config.final_logit_softcapping, None),
        "input_embedding_scale": (config.input_embedding_scale, 1.0),
        "output_multiplier": (config.output_multiplier, 1.0),
    }
    return {
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.target_layer_ids),
        **{key: value for key, (value, usual) in rare.items() if value != usual},
    }


def _attentions_json(attentions: tuple[DraftAttention, ...]) -> dict[str, Any]:
    """Kinds of the layers, the window of the sliding ones, and whether all are causal or none where it isn't usual."""
    windows = [sees.window for sees in attentions if sees.window is not None]
    usual = all(sees.causal == (sees.window is not None) for sees in attentions)
    return {
        "is_causal": None if usual else attentions[0].causal,
        "layer_types": ["full_attention" if sees.window is None else "sliding_attention" for sees in attentions],
        "sliding_window": windows[0] if windows else None,
        "use_sliding_window": bool(windows),
    }


def _rotary_json(rotary: RotaryConfig, head_dim: int) -> dict[str, Any]:
    part = 2 * len(rotary.inverse_frequencies) / head_dim
    outside = ("rope_theta", "partial_rotary_factor")
    rule = {key: value for key, value in rotary.rule if key not in outside}
    return {
        "partial_rotary_factor": None if part == 1 else part,
        "rope_scaling": None if rotary.kind == "default" else {"rope_type": rotary.kind, **rule},
        "rope_theta": rotary.theta,
    }


def _differences(found: DrafterConfig | ModelConfig, expected: DrafterConfig | ModelConfig) -> list[str]:
    """Names of the settings in which the two differ."""
    names = [field.name for field in fields(expected)]
    return [name for name in names if getattr(found, name) != getattr(expected, name)]


class _Levels:
    """A config and its section for DFlash, either of which may hold a setting.

    Attributes:
        keys: the config.
        section: its `dflash_config`.
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self.section = keys.section("dflash_config")
        outside = keys.content()
        for key, value in self.section.content().items():
            why = f"must be equal to dflash_config.{key}={shown(value)}"
            keys.require(outside.get(key, value) == value, why, key)

    def of(self, key: str) -> Keys:
        """The level that has the key; where both have it, they agree."""
        having = [level for level in (self.keys, self.section) if level.given(key)]
        return having[-1] if having else self.keys

    def flag(self, key: str) -> bool:
        """True or false; false where absent."""
        return self.of(key).flag(key, False)

    def number(self, key: str) -> float:
        """A positive number; 1 where absent."""
        return self.of(key).number(key, 1.0)


def _check_architecture(raw: Mapping[str, Any], source: str) -> None:
    architectures = raw.get("architectures")
    if architectures == ["DFlash2DraftModel"]:
        raise InputError(f"{source}: DFlash2DraftModel is not supported: {_DFLASH2} are missing here")
    if architectures != ["DFlashDraftModel"] and not (architectures is None and "dflash_config" in raw):
        named = f"architectures={shown(architectures)}"
        raise InputError(f"{source}: {named}: is no drafter (DFlashDraftModel): load a model as --model or with load")


def _flat(raw: Mapping[str, Any]) -> Keys:
    """All settings at one level, where some files have those of the layers in a `text_config`."""
    keys = Keys(raw)
    nested = keys.section("text_config").content()
    outer = {key: value for key, value in keys.content().items() if key != "text_config"}
    for key, value in nested.items():
        agree = key in _IGNORED or outer.get(key, value) == value
        keys.require(agree, f"must be equal to text_config.{key}={shown(value)}", key)
    if not nested:
        keys.only("model_type", "qwen3", "only drafters of Qwen3's form are supported")
    return Keys({**nested, **outer}, faults=keys.faults)


def _backbone(keys: Keys) -> ModelConfig:
    refuse_unsupported(keys)
    hidden_size = keys.count("hidden_size")
    num_heads, num_kv_heads = read_heads(keys, "qwen3")
    head_dim = read_head_dim(keys, "qwen3", hidden_size, num_heads)
    keys.only("v_head_dim", head_dim, f"must be equal to head_dim, {head_dim}")
    qkv_bias, output_bias, mlp_bias = read_biases(keys, "qwen3")
    return ModelConfig(
        family="qwen3",
        vocab_size=keys.count("vocab_size") if keys.given("vocab_size") else 0,
        hidden_size=hidden_size,
        intermediate_size=keys.count("intermediate_size"),
        num_layers=keys.count("num_hidden_layers", limit=MAX_LAYERS),
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=keys.number("rms_norm_eps"),
        rotary=read_rotary(keys, head_dim, query_scale=True, partial=True, nested_theta_wins=True),
        max_position_embeddings=keys.count("max_position_embeddings"),
        qkv_bias=qkv_bias,
        output_bias=output_bias,
        mlp_bias=mlp_bias,
        qk_norm=True,
    )


def _mask_token_id(levels: _Levels, vocab_size: int) -> int:
    place = levels.of("mask_token_id")
    place.need("mask_token_id")
    mask = place.token_id("mask_token_id") or 0
    place.require(mask < (vocab_size or mask + 1), f"is not in the vocabulary of {vocab_size}", "mask_token_id")
    return mask


def _target_layer_ids(levels: _Levels, num_target_layers: int | None, num_layers: int) -> tuple[int, ...]:
    """As named; else spread evenly, as the first published drafters do."""
    name, place = "target_layer_ids", levels.of("target_layer_ids")
    limit = num_target_layers or MAX_LAYERS
    spread = () if num_target_layers is None else _spread(num_target_layers, num_layers)
    if not place.given(name) and _are_layers(spread, limit):
        return spread
    place.need(name)
    ids = place.items(name)
    fits = _are_layers(ids, limit)
    place.require(fits, f"must hold different indices of the target's layers, each below {limit}", name)
    return tuple(ids) if fits else (0,)


def _are_layers(ids: Sequence[Any], limit: int) -> bool:
    return all(is_whole(layer) and 0 <= layer < limit for layer in ids) and 0 < len(ids) == len(set(ids))


def _spread(num_target_layers: int, count: int) -> tuple[int, ...]:
    """From the second layer to the third from last; a single one in the middle."""
    if count == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (count - 1)
    return tuple(round(1 + i * step) for i in range(count))


def _attentions(levels: _Levels, num_layers: int) -> tuple[DraftAttention, ...]:
    """Full layers see the block in both directions and sliding ones only backwards, unless the config says how."""
    keys, kinds = levels.keys, levels.keys.items("layer_types")
    causal = _causal(levels)
    switched_on = keys.flag("use_sliding_window", bool(kinds))
    if levels.flag("use_swa"):
        keys.require(not kinds, "contradicts use_swa, by which every layer has a window", "layer_types")
        return (DraftAttention(_swa_window(levels), bool(causal)),) * num_layers
    known = all(kind in ("full_attention", "sliding_attention") for kind in kinds)
    keys.require(known, "each must be full_attention or sliding_attention", "layer_types")
    sliding = [kind == "sliding_attention" for kind in kinds] or [False] * num_layers
    why = f"must have one entry a layer, but there are {len(sliding)}"
    keys.require(len(sliding) == num_layers, why, "layer_types", "num_hidden_layers")
    keys.require(bool(kinds) or not switched_on, "needs layer_types, to say in which layers", "use_sliding_window")
    keys.require(switched_on or not any(sliding), "contradicts layer_types", "use_sliding_window")
    window = keys.count("sliding_window") if any(sliding) else None
    return tuple(DraftAttention(window if near else None, near if causal is None else causal) for near in sliding)


def _swa_window(levels: _Levels) -> int:
    """The window of every layer, under either of its names."""
    place = levels.of("swa_window_size")
    if not place.given("swa_window_size"):
        return levels.keys.count("sliding_window")
    window = place.count("swa_window_size")
    same = not levels.keys.given("sliding_window") or levels.keys.count("sliding_window") == window
    levels.keys.require(same, f"must be equal to swa_window_size, {window}", "sliding_window")
    return window


def _causal(levels: _Levels) -> bool | None:
    """What the config says of every layer; None where it leaves that to the kinds of the layers."""
    places = ((levels.keys, "is_causal"), (levels.section, "causal"))
    given = [place.flag(key, False) for place, key in places if place.given(key)]
    levels.keys.require(len(set(given)) < 2, "must be equal to dflash_config.causal", "is_causal")
    return given[0] if given else None


def _conditioning(section: Keys) -> Conditioning:
    if not section.given("conditioning"):
        return "key_value"
    return cast(Conditioning, section.choice("conditioning", get_args(Conditioning)))
