"""Steady-state time of one greedy step in Transformers, on a model of the same shape with random weights."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any, Literal

import torch
import transformers
from transformers import DynamicCache, PreTrainedConfig, StaticCache

from bench.measure import SHORT, time_step
from bench.torch_clock import torch_seconds
from specdiff_jax.config_files import CONFIGS

Mode = Literal["eager", "compiled", "max-autotune", "generate"]

# Nemotron-Labs-Diffusion is not part of Transformers; read as an autoregressive model it is a Llama with YaRN.
CONFIG_CLASSES = {
    "LlamaForCausalLM": "LlamaConfig",
    "NemotronLabsDiffusionModel": "LlamaConfig",
    "Qwen2ForCausalLM": "Qwen2Config",
    "Qwen3ForCausalLM": "Qwen3Config",
}
OUR_OWN_KEYS = ("_notes", "architectures", "model_type", "use_cache")


def measure(
    name: str, mode: Mode, dtype: str, batch: int, cache_tokens: int, steps: int, repeats: int
) -> dict[str, Any]:
    """Time a step of `batch` rows that hold `cache_tokens` tokens each.

    Args:
        name: the geometry.
        mode: "eager" calls the model with a growing cache; "compiled" is `torch.compile` with CUDA graphs and a static
            cache, "max-autotune" the same with tuned kernels; "generate" is `model.generate` with a static cache.
        dtype: of weights and activations.
        batch: rows side by side.
        cache_tokens: tokens of each row when the timing begins.
        steps: steps that are timed in one go.
        repeats: how often.

    Returns:
        what ran, seconds and spread of a step, the bytes of weights and of cache that it reads, and whether the
        compiler gave up CUDA graphs anywhere (it says why on stderr).
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = random_model(read_config(name), dtype, device)
    prompt = torch.randint(model.config.vocab_size, (batch, cache_tokens), device=device)
    with torch.no_grad():
        room = SHORT + steps
        run = _generate(model, prompt) if mode == "generate" else _loop(model, prompt, mode, room)
        timing = time_step(lambda count: torch_seconds(lambda: run(count), device), steps=steps, repeats=repeats)
    return {
        "implementation": f"transformers {transformers.__version__}, torch {torch.__version__}, sdpa",
        "seconds": timing.seconds,
        "spread": timing.spread,
        "weight_bytes": _weight_bytes(model),
        "cache_bytes": _cache_bytes(model, prompt.numel()),
        "cuda_graphs_skipped": torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] > 0,
    }


def read_config(name: str) -> PreTrainedConfig:
    """The Transformers config of a bundled geometry."""
    file = CONFIGS / "models" / f"{name}.json"
    raw = json.loads(file.read_text(encoding="utf-8"))
    config_class = getattr(transformers, CONFIG_CLASSES[raw["architectures"][0]])
    raw.get("rope_parameters", {}).pop("llama_4_scaling_beta", None)
    return config_class(**{key: value for key, value in raw.items() if key not in OUR_OWN_KEYS})


def random_model(config: PreTrainedConfig, dtype: str, device: str) -> Any:
    """A model with initial weights, made on its device."""
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=getattr(torch, dtype), attn_implementation="sdpa"
        )
    return model.eval()


def _loop(model: Any, prompt: torch.Tensor, mode: Mode, room: int) -> Callable[[int], torch.Tensor]:
    """Our own loop of so many forwards (at most `room`) from a prefilled cache on; gives the newest tokens."""
    tokens = prompt.shape[1]
    cache_name = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
    dynamic = mode == "eager"
    cache: Any = (
        DynamicCache(config=model.config) if dynamic else StaticCache(model.config, max_cache_len=tokens + room)
    )

    def forward(ids: torch.Tensor, cache: Any) -> torch.Tensor:
        output = model(input_ids=ids, use_cache=True, logits_to_keep=1, **{cache_name: cache})
        return output.logits[:, -1].argmax(-1, keepdim=True)

    step = forward if mode == "eager" else _compiled(forward, mode)
    first = forward(prompt, cache)

    def run(count: int) -> torch.Tensor:
        newest = first
        for _ in range(count):
            newest = step(newest, cache)
        if dynamic:
            cache.crop(-count)
        else:
            for layer in cache.layers:
                layer.cumulative_length.fill_(tokens)  # in place: the graph knows the cache by its address
        return newest

    return run


def _compiled(forward: Callable[..., torch.Tensor], mode: Mode) -> Callable[..., torch.Tensor]:
    """The whole step, forward and argmax, as one compiled graph; both modes replay it as a CUDA graph."""
    name = "max-autotune" if mode == "max-autotune" else "reduce-overhead"
    graph = torch.compile(forward, mode=name, fullgraph=True, dynamic=False)

    def step(ids: torch.Tensor, cache: Any) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return graph(ids, cache).clone()  # the graph overwrites its output in its next run

    return step


def _generate(model: Any, prompt: torch.Tensor) -> Callable[[int], torch.Tensor]:
    """`generate` of so many tokens; gives prompt and answer. The prefill in a call drops out of a difference."""
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    mask = torch.ones_like(prompt)

    def run(count: int) -> torch.Tensor:
        return model.generate(
            prompt, attention_mask=mask, max_new_tokens=count, do_sample=False, cache_implementation="static"
        )

    return run


def _weight_bytes(model: Any) -> int:
    """Bytes of weights that a step reads; a table of embeddings that is no head as well counts for nothing."""
    total = sum(parameter.nbytes for parameter in model.parameters())
    return total if model.config.tie_word_embeddings else total - model.get_input_embeddings().weight.nbytes


def _cache_bytes(model: Any, tokens: int) -> int:
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * tokens * config.num_key_value_heads * head_dim * model.dtype.itemsize
