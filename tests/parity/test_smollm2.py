"""A real model: SmolLM2 from its package, against Transformers."""

from __future__ import annotations

import numpy as np
import pytest

from convert.check import MAX_LOGIT_DIFF, CheckReport, check
from convert.checkpoint import open_checkpoint
from convert.resolve import resolve

pytest.importorskip("torch")

FEW = ("The capital of Norway is", "def fibonacci(n):\n    if n < 2:\n", "Water boils on a mountain")


def assert_equal_up_to_rounding(report: CheckReport) -> None:
    assert report.family == "llama"
    assert report.layers == 30
    assert report.max_abs_logit_diff <= MAX_LOGIT_DIFF
    assert report.argmax_agreement == 1.0
    assert report.passed


def test_few_prompts(smollm2: str) -> None:
    assert_equal_up_to_rounding(check(smollm2, FEW, max_new_tokens=4))


@pytest.mark.slow
def test_all_prompts(smollm2: str) -> None:
    assert_equal_up_to_rounding(check(smollm2))


@pytest.mark.slow
def test_transformers_reads_the_same_weights_and_settings(smollm2: str) -> None:
    """Transformers has its own GGUF reader; `check` gives it this library's tensors, so that is proved here."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    path = resolve(smollm2)
    ours = open_checkpoint(path)
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig.from_dict(ours.config))
    theirs = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)
    assert ours.tensors is not None
    assert set(ours.tensors.tensors) == set(theirs["tensors"])
    for name, tensor in theirs["tensors"].items():
        np.testing.assert_array_equal(ours.tensors.read(name), tensor.numpy(), err_msg=name)
    for key in ("rms_norm_eps", "tie_word_embeddings", "max_position_embeddings", "head_dim", "num_key_value_heads"):
        assert ours.config[key] == theirs["config"][key]
    assert ours.config["rope_parameters"]["rope_theta"] == theirs["config"]["rope_theta"]
