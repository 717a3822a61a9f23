"""Which checkpoint tensors a parameter of a drafter is made of."""

from __future__ import annotations

from collections.abc import Container

from flax import nnx

from convert.assemble import assemble, check_tensors
from convert.names import Part, layer_parts, whole
from convert.tensors import TensorSource
from specdiff_jax.drafter_config import DrafterConfig

# Published files have no prefix; those that another model's wrapper saved have this one on every name.
WRAPPED = "model."


def drafter_parts(config: DrafterConfig, present: Container[str] = ()) -> dict[str, tuple[Part, ...]]:
    """The parts of every parameter, by its path in the drafter ("layers.0.attention.qkv").

    Args:
        config: settings of the drafter.
        present: the checkpoint's tensor names; they tell whether they are prefixed.
    """
    backbone, hidden = config.backbone, config.backbone.hidden_size
    prefix = WRAPPED if f"{WRAPPED}norm.weight" in present else ""
    table = {"norm.weight": whole(f"{prefix}norm.weight", hidden)}
    if config.conditioning != "none":
        table["fuse"] = whole(f"{prefix}fc.weight", hidden, len(config.target_layer_ids) * hidden)
        table["context_norm.weight"] = whole(f"{prefix}hidden_norm.weight", hidden)
    if config.attention_sinks:
        for index in range(backbone.num_layers):
            # One a query head; in the drafter the heads of a key/value head stand together, in the same order.
            name = f"{prefix}layers.{index}.self_attn.attention_sink_bias"
            table[f"layers.{index}.sinks"] = whole(name, backbone.num_heads)
    return table | layer_parts(backbone, f"{prefix}layers", present)


def load_drafter_parameters(source: TensorSource, config: DrafterConfig, abstract: nnx.State) -> nnx.State:
    """Read, pack, cast and place every parameter of a drafter, as `convert.assemble.load_parameters` does of a decoder.

    Raises:
        InputError: tensors are missing, unexpected or misshapen; all of them are listed, before anything is read.
    """
    table = drafter_parts(config, source.tensors)
    check_tensors(source, table, "drafter's")
    return assemble(source, table, abstract)
