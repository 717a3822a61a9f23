"""Drafts against layers of Transformers' Qwen3, whose rows are what the drafter's layers read beside each other."""

from __future__ import annotations

import numpy as np
import pytest
from published_drafter import CONFIGS, PublishedDrafter, Text, published_drafter

torch = pytest.importorskip("torch", reason="needs PyTorch")
qwen3 = pytest.importorskip("transformers.models.qwen3.modeling_qwen3", reason="needs Transformers")


def layers_of(model: PublishedDrafter) -> tuple[torch.nn.ModuleList, qwen3.Qwen3RotaryEmbedding]:
    """Transformers' layers, with all tensors of the drafter's layers, and the angles of its positions."""
    backbone = model.config.backbone
    config = qwen3.Qwen3Config(
        vocab_size=backbone.vocab_size,
        hidden_size=backbone.hidden_size,
        intermediate_size=backbone.intermediate_size,
        num_hidden_layers=backbone.num_layers,
        num_attention_heads=backbone.num_heads,
        num_key_value_heads=backbone.num_kv_heads,
        head_dim=backbone.head_dim,
        rms_norm_eps=backbone.rms_norm_eps,
        max_position_embeddings=backbone.max_position_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": backbone.rotary.theta},
        attn_implementation="eager",
    )
    layers = torch.nn.ModuleList(qwen3.Qwen3DecoderLayer(config, index) for index in range(backbone.num_layers))
    prefix = "layers."
    tensors = {name: tensor for name, tensor in model.tensors.items() if name.startswith(prefix)}
    layers.load_state_dict({name.removeprefix(prefix): torch.tensor(tensor) for name, tensor in tensors.items()})
    return layers.double(), qwen3.Qwen3RotaryEmbedding(config)


def norm_of(model: PublishedDrafter, name: str) -> qwen3.Qwen3RMSNorm:
    weight = torch.tensor(model.tensors[f"{name}.weight"])
    norm = qwen3.Qwen3RMSNorm(weight.shape[0], model.config.backbone.rms_norm_eps)
    norm.load_state_dict({"weight": weight})
    return norm.double()


def torch_draft(model: PublishedDrafter, text: Text) -> np.ndarray:
    """The block's rows: every layer's attention runs over the fused features and the normed block side by side."""
    layers, rotary = layers_of(model)
    fused = torch.tensor(np.concatenate(text.features, axis=-1)).double()
    context = norm_of(model, "hidden_norm")(fused @ torch.tensor(model.tensors["fc.weight"]).double().T)[None]
    x = torch.tensor(text.block).double()[None]
    start, rows = context.shape[1], context.shape[1] + x.shape[1]
    positions = torch.arange(rows)[None]
    for layer, sees in zip(layers, model.config.attentions, strict=True):
        normed = torch.cat([context, layer.input_layernorm(x)], dim=1)
        behind = positions[0][:, None] - positions[0][None]
        hidden = torch.zeros(rows, rows, dtype=torch.bool)
        if sees.causal:
            hidden |= behind < 0
        if sees.window is not None:
            hidden |= behind.abs() >= sees.window
        mask = torch.zeros(rows, rows, dtype=torch.float64).masked_fill(hidden, -torch.inf)[None, None]
        mixed, _ = layer.self_attn(normed, position_embeddings=rotary(x, positions), attention_mask=mask)
        x = x + mixed[:, start:]
        x = x + layer.mlp(layer.post_attention_layernorm(x))
    return norm_of(model, "norm")(x)[0].detach().numpy()


@pytest.mark.parametrize("name", ["as published", "group of 3", "window", "window, causal", "causal"])
def test_a_block_behind_a_text(name: str) -> None:
    model = published_drafter(CONFIGS[name])
    (text,) = model.texts([9])
    features = tuple(feature[None] for feature in text.features)
    output = model.run(features, text.context[None], text.block[None], (9,), model.empty(1, 14))
    truth = torch_draft(model, text)
    np.testing.assert_allclose(output.hidden[0], truth, rtol=0, atol=1e-5 * np.abs(truth).max())
