"""GGUF files: values of every tensor type, settings from metadata, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Type
from tiny_gguf import HEAD_DIM, HIDDEN, MATRICES, VOCABULARY, WIDTH, hf_tensors, values, write_gguf
from tiny_models import assert_same, expected_params, load_params

from convert.checkpoint import open_checkpoint
from specdiff_jax.config import parse_config
from specdiff_jax.errors import InputError

KINDS = [Type.F32, Type.F16, Type.BF16, Type.Q8_0, Type.Q4_0, Type.Q4_1]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("architecture", ["llama", "qwen2"])
def test_values(architecture: str, kind: Type, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    written = write_gguf(path, architecture, kind)
    checkpoint = open_checkpoint(path)
    config = parse_config(checkpoint.config, str(path))
    assert config.qkv_bias == (architecture == "qwen2")
    expected = expected_params(hf_tensors(written, kind, architecture), config)
    assert_same(load_params(checkpoint), expected)


def test_quantised_values_reach_float32_unrounded(tmp_path: Path) -> None:
    written = write_gguf(tmp_path / "model.gguf", kind=Type.Q4_1)
    embedding = load_params(open_checkpoint(tmp_path / "model.gguf"))["embedding"]
    np.testing.assert_array_equal(embedding, values(written["token_embd.weight"], Type.Q4_1))
    assert not np.array_equal(embedding, embedding.astype(ml_dtypes.bfloat16))


def test_permutation_is_undone_for_llama_alone(tmp_path: Path) -> None:
    for architecture in ("llama", "qwen2"):
        path = tmp_path / f"{architecture}.gguf"
        stored = write_gguf(path, architecture)["blk.0.attn_k.weight"]
        read = open_checkpoint(path).tensors.read("model.layers.0.self_attn.k_proj.weight")
        np.testing.assert_array_equal(read[1], stored[2 if architecture == "llama" else 1])


def test_settings(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    checkpoint = open_checkpoint(path)
    config = parse_config(checkpoint.config, str(path))
    assert (config.family, config.num_layers, config.num_heads, config.num_kv_heads) == ("llama", 2, 4, 2)
    assert (config.hidden_size, config.intermediate_size, config.head_dim) == (HIDDEN, WIDTH, HEAD_DIM)
    assert (config.vocab_size, config.max_position_embeddings) == (VOCABULARY, 128)
    assert config.rms_norm_eps == np.float32(1e-5)
    assert not config.tie_embeddings
    assert checkpoint.dtype == "float32"


def test_qwen3_moe(tmp_path: Path) -> None:
    experts, width = 3, 32
    random = np.random.default_rng(1)
    shapes = {"ffn_gate_exps": (experts, width, HIDDEN), "ffn_up_exps": (experts, width, HIDDEN)}
    shapes |= {"ffn_down_exps": (experts, HIDDEN, width), "ffn_gate_inp": (experts, HIDDEN)}
    shapes |= {"attn_q_norm": (HEAD_DIM,), "attn_k_norm": (HEAD_DIM,)}
    extra = {
        f"blk.{i}.{name}.weight": random.normal(size=shape).astype(np.float32)
        for i in range(2)
        for name, shape in shapes.items()
    }
    path = tmp_path / "model.gguf"
    sizes = {".expert_count": experts, ".expert_used_count": 2, ".expert_feed_forward_length": width}
    write_gguf(path, "qwen3moe", metadata=sizes, extra=extra)
    checkpoint = open_checkpoint(path)
    assert parse_config(checkpoint.config, str(path)).moe.sparse_layers == (0, 1)
    read = checkpoint.tensors.read
    for name, part in (("gate_proj", "ffn_gate_exps"), ("up_proj", "ffn_up_exps"), ("down_proj", "ffn_down_exps")):
        tensor = read(f"model.layers.1.mlp.experts.2.{name}.weight")
        np.testing.assert_array_equal(tensor, extra[f"blk.1.{part}.weight"][2])
    np.testing.assert_array_equal(read("model.layers.0.mlp.gate.weight"), extra["blk.0.ffn_gate_inp.weight"])
    np.testing.assert_array_equal(read("model.layers.0.self_attn.q_norm.weight"), extra["blk.0.attn_q_norm.weight"])


ROPE = {".rope.scaling.type": "linear", ".rope.scaling.factor": 4.0}
YARN = {".rope.scaling.type": "yarn", ".rope.scaling.factor": 4.0, ".rope.scaling.original_context_length": 32}


@pytest.mark.parametrize(
    ("metadata", "kind"), [(ROPE, "linear"), (YARN, "yarn"), ({".rope.scaling.type": "none"}, "default")]
)
def test_rotary_scaling(metadata: dict[str, Any], kind: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", metadata=metadata)
    config = parse_config(open_checkpoint(tmp_path / "model.gguf").config, "model.gguf")
    assert config.rotary.kind == kind
    assert config.rotary.theta == 10000.0
    if kind == "linear":
        assert config.rotary.inverse_frequencies[0] == 0.25


def refused(path: Path) -> str:
    """The one line with which the file is refused."""
    with pytest.raises(InputError) as error:
        open_checkpoint(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("share", [0.0, 1e-4, 0.001, 0.01, 0.1, 0.5, 0.999])
def test_a_truncated_file(share: float, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert "truncated" in refused(path)


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({".rope.scaling.type": "longrope"}, "longrope"),
        ({".rope.scaling.type": "linear"}, "rope.scaling.factor"),
        ({".rope.dimension_count": 8}, "rope.dimension_count"),
        ({".attention.sliding_window": 16}, "attention.sliding_window"),
        ({".expert_count": 8}, "expert_count"),
        ({".block_count": None}, "block_count"),
        ({".attention.head_count_kv": [2, 2]}, "head_count_kv"),
        ({"split.count": 3}, "3 parts"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model=llama"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "dbrx"}, "tokenizer.ggml.pre=dbrx"),
        ({"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm"}, "tokenizer.ggml.*"),
    ],
)
def test_metadata_that_is_refused_by_name(metadata: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, metadata=metadata)
    assert message in refused(path)


def test_an_unknown_architecture(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", "gemma3")
    assert "gemma3" in refused(tmp_path / "model.gguf")


def test_rotary_factors(tmp_path: Path) -> None:
    extra = {"rope_freqs.weight": np.ones(HEAD_DIM // 2, np.float32)}
    write_gguf(tmp_path / "model.gguf", extra=extra)
    assert "rope_freqs.weight" in refused(tmp_path / "model.gguf")


def test_unexpected_tensors_are_named_as_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, extra={"blk.0.attn_sinks.weight": np.ones(4, np.float32)})
    with pytest.raises(InputError, match=r"blk\.0\.attn_sinks\.weight is unexpected"):
        load_params(open_checkpoint(path))


def test_a_type_that_cannot_be_dequantised(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    block, size = gguf.GGML_QUANT_SIZES[Type.Q8_1]
    writer.add_tensor("token_embd.weight", np.zeros((2, size), np.uint8), raw_dtype=Type.Q8_1)
    assert block == MATRICES["attn_q"][0] // 2
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    assert "Q8_1" in refused(path)
