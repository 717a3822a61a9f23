"""Small GGUF files, and a dequantisation that shares no code with the product."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import ml_dtypes
import numpy as np
from gguf import GGMLQuantizationType as Type

VOCABULARY = 64
HIDDEN, WIDTH, LAYERS, HEADS, KV_HEADS = 64, 96, 2, 4, 2
HEAD_DIM = HIDDEN // HEADS
MATRICES = {
    "attn_q": (HIDDEN, HIDDEN),
    "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output": (HIDDEN, HIDDEN),
    "ffn_gate": (WIDTH, HIDDEN),
    "ffn_up": (WIDTH, HIDDEN),
    "ffn_down": (HIDDEN, WIDTH),
}
HF_NAMES = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def write_gguf(
    path: Path,
    architecture: str = "llama",
    kind: Type = Type.F32,
    *,
    metadata: Mapping[str, Any] | None = None,
    extra: Mapping[str, np.ndarray] | None = None,
) -> dict[str, np.ndarray]:
    """Write a model of random weights: matrices as `kind`, norms and biases as float32.

    Args:
        path: the file.
        architecture: llama or qwen2 (which has biases on q, k and v).
        kind: tensor type of the matrices.
        metadata: more keys, without the architecture's prefix where they start with a dot; None leaves one out.
        extra: more tensors.

    Returns:
        The raw bytes or values of every tensor, by GGUF name.
    """
    random = np.random.default_rng(0)
    writer = gguf.GGUFWriter(path, architecture)
    keys: dict[str, Any] = {
        ".block_count": LAYERS,
        ".context_length": 128,
        ".embedding_length": HIDDEN,
        ".feed_forward_length": WIDTH,
        ".attention.head_count": HEADS,
        ".attention.head_count_kv": KV_HEADS,
        ".attention.layer_norm_rms_epsilon": 1e-5,
        ".rope.freq_base": 10000.0,
        **(metadata or {}),
    }
    for key, value in keys.items():
        add_metadata(writer, f"{architecture}{key}" if key.startswith(".") else key, value)
    shapes = {"token_embd.weight": (VOCABULARY, HIDDEN), "output.weight": (VOCABULARY, HIDDEN)}
    shapes |= {f"blk.{i}.{name}.weight": shape for i in range(LAYERS) for name, shape in MATRICES.items()}
    written: dict[str, np.ndarray] = {}
    for name, shape in shapes.items():
        written[name] = gguf.quants.quantize(random.normal(size=shape).astype(np.float32), kind)
        writer.add_tensor(name, written[name], raw_dtype=kind)
    vectors = {"output_norm.weight": HIDDEN}
    vectors |= {f"blk.{i}.{name}.weight": HIDDEN for i in range(LAYERS) for name in ("attn_norm", "ffn_norm")}
    if architecture == "qwen2":
        names = ("attn_q", "attn_k", "attn_v")
        vectors |= {f"blk.{i}.{name}.bias": MATRICES[name][0] for i in range(LAYERS) for name in names}
    plain = {name: random.normal(size=size).astype(np.float32) for name, size in vectors.items()}
    for name, tensor in {**plain, **(extra or {})}.items():
        written[name] = tensor
        writer.add_tensor(name, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return written


def add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add one key by the type of its value."""
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if value is not None:
        kinds.get(type(value), writer.add_array)(key, value)


def values(raw: np.ndarray, kind: Type) -> np.ndarray:
    """Float32 values of a matrix from its raw rows, by the published block formats."""
    if kind == Type.F32:
        return raw.view(np.float32)
    if kind == Type.F16:
        return raw.view(np.float16).astype(np.float32)
    if kind == Type.BF16:
        return raw.view(ml_dtypes.bfloat16).astype(np.float32)
    size = {Type.Q8_0: 34, Type.Q4_0: 18, Type.Q4_1: 20}[kind]
    rows = []
    for row in raw:
        row_values: list[np.ndarray] = []
        for start in range(0, len(row), size):
            block = row[start : start + size].tobytes()
            scale = np.frombuffer(block[:2], np.float16).astype(np.float32)
            if kind == Type.Q8_0:
                row_values.append(scale * np.frombuffer(block[2:], np.int8).astype(np.float32))
                continue
            offset = np.frombuffer(block[2:4], np.float16).astype(np.float32) if kind == Type.Q4_1 else -8 * scale
            packed = np.frombuffer(block[-16:], np.uint8)
            quants = np.array([*(packed % 16), *(packed // 16)], np.float32)
            row_values.append(scale * quants + offset if kind == Type.Q4_1 else scale * (quants - 8))
        rows.append(np.concatenate(row_values))
    return np.array(rows)


def hf_tensors(written: Mapping[str, np.ndarray], kind: Type, architecture: str) -> dict[str, np.ndarray]:
    """What the file means under Hugging Face names, row by row."""
    tensors = {}
    for name, raw in written.items():
        tensor = values(raw, kind) if raw.ndim == 2 else raw
        *layer, part, suffix = name.split(".")
        if architecture == "llama" and part in ("attn_q", "attn_k"):
            half = HEAD_DIM // 2
            order = [
                head + 2 * (i % half) + i // half for head in range(0, len(tensor), HEAD_DIM) for i in range(HEAD_DIM)
            ]
            tensor = tensor[order]
        prefix = f"model.layers.{layer[1]}." if layer else ""
        tensors[f"{prefix}{HF_NAMES[part]}.{suffix}"] = tensor
    return tensors
