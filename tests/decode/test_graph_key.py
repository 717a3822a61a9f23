"""What a draft graph is tied to: the model as it is, not how its files word it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from drafter_files import TARGET

from convert.resolve import resolve
from specdiff_jax.decode.graph_key import fingerprint
from specdiff_jax.draft_graph_file import read_graph
from specdiff_jax.loading import load, random_model


def test_another_wording_of_the_same_rotary_is_the_same_model() -> None:
    worded = replace(TARGET, rotary=replace(TARGET.rotary, rule=(("rope_type", "default"),)))
    other = replace(TARGET, rotary=replace(TARGET.rotary, theta=20000.0))
    ours, same, different = (fingerprint(random_model(config, dtype="float32")) for config in (TARGET, worded, other))
    assert ours == same
    assert ours != different


@pytest.mark.parametrize("name", ["pico-fdv2", "pico-nld"])
def test_bundled_graphs_belong_to_their_models(name: str) -> None:
    assert read_graph(resolve(name) / "draft_graph.json").key.model == fingerprint(load(name))
