"""The decoding loop against re-reading the whole text for every token, and the promises of `generate`."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import specdiff_jax.decode.prefill as prefill
from specdiff_jax.config import ModelConfig, RotaryConfig
from specdiff_jax.decode.generate import generate
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model, load
from specdiff_jax.model import Decoder

CONFIG = ModelConfig(
    family="llama",
    vocab_size=97,
    hidden_size=48,
    intermediate_size=80,
    num_layers=2,
    num_heads=6,
    num_kv_heads=2,
    head_dim=8,
    rms_norm_eps=1e-5,
    rotary=RotaryConfig("default", 1e4, tuple(1e4 ** (-np.arange(0, 8, 2) / 8))),
    max_position_embeddings=512,
)
STOP = 5
RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, 97, length).tolist() for length in (1, 3, 31, 32, 33, 64, 7)]


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    return Decoder(CONFIG, dtype=jnp.float32, rngs=nnx.Rngs(3))


@pytest.fixture(scope="module")
def model(decoder) -> Model:
    graphdef, params = nnx.split(decoder)
    return Model("tiny", CONFIG, graphdef, params, None, (STOP, 11))


def reread(decoder: Decoder, prompt: list[int], count: int, stops: tuple[int, ...]) -> tuple[int, ...]:
    """Greedy decoding without a cache: one forward over everything for every token, padded to one length."""
    padded = np.zeros((1, 96), np.int32)
    ids = list(prompt)
    forward = jax.jit(lambda tokens: decoder.logits(decoder(tokens).hidden))
    while len(ids) - len(prompt) < count:
        padded[0, : len(ids)] = ids
        ids.append(int(jnp.argmax(forward(padded)[0, len(ids) - 1])))
        if ids[-1] in stops:
            break
    return tuple(ids[len(prompt) :])


@pytest.fixture(scope="module")
def expected(decoder) -> list[tuple[int, ...]]:
    return [reread(decoder, prompt, 20, (STOP, 11)) for prompt in PROMPTS]


@pytest.mark.parametrize("batch_size", [1, 4])
def test_greedy_tokens_equal_rereading(model, expected, batch_size):
    results = generate(model, PROMPTS, max_new_tokens=20, batch_size=batch_size)
    assert [result.tokens for result in results] == expected
    assert [result.prompt_tokens for result in results] == [len(prompt) for prompt in PROMPTS]
    for result in results:
        assert result.forwards == result.new_tokens - 1
        assert result.stop == ("eos" if result.tokens[-1] in (STOP, 11) else "length")
        assert result.stop == "eos" or result.new_tokens == 20
        assert result.seconds > 0


def test_every_stop_id_stops(model, expected):
    ended = [tokens for tokens in expected if tokens[-1] == STOP]
    assert ended, "the random model never stops: choose another seed"
    without = dataclasses.replace(model, stop_ids=(96,), programs={})
    longer = generate(without, [PROMPTS[expected.index(ended[0])]], max_new_tokens=20)[0]
    assert longer.tokens[: len(ended[0])] == ended[0]
    assert longer.new_tokens == 20 or longer.tokens[-1] == 96


@pytest.mark.parametrize("count", [1, 2, 31, 32, 33])
def test_max_new_tokens_is_exact(model, count):
    endless = dataclasses.replace(model, stop_ids=())
    result = generate(endless, [PROMPTS[0]], max_new_tokens=count)[0]
    assert result.new_tokens == len(result.tokens) == count
    assert result.tokens_per_forward == (None if count == 1 else count / (count - 1))


def test_prefill_in_chunks_equals_one_piece(model, expected, monkeypatch):
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", 16)
    fresh = dataclasses.replace(model, programs={})
    results = generate(fresh, PROMPTS, max_new_tokens=20, batch_size=len(PROMPTS))
    assert [result.tokens for result in results] == expected


def test_a_row_samples_the_same_at_any_place(model):
    seeds = list(range(len(PROMPTS)))
    options = {"max_new_tokens": 12, "temperature": 0.9, "top_p": 0.95, "top_k": 30}
    forward = generate(model, PROMPTS, batch_size=4, seed=seeds, **options)
    backward = generate(model, PROMPTS[::-1], batch_size=4, seed=seeds[::-1], **options)
    assert [r.tokens for r in forward] == [r.tokens for r in backward[::-1]]
    assert forward[0].tokens != generate(model, PROMPTS[:1], seed=[99], **options)[0].tokens


def test_one_seed_gives_equal_prompts_different_draws(model):
    twice = generate(model, [PROMPTS[2]] * 2, max_new_tokens=12, temperature=1.0, seed=7)
    again = generate(model, [PROMPTS[2]] * 2, max_new_tokens=12, temperature=1.0, seed=7)
    assert twice[0].tokens != twice[1].tokens
    assert [r.tokens for r in twice] == [r.tokens for r in again]


def test_streamed_pieces_are_the_results(tiny_checkpoint):
    streamed = load(tiny_checkpoint, dtype="float32")
    pieces: dict[int, list[str]] = {0: [], 1: [], 2: []}
    prompts = ["the dog", "é", "日本"]
    # Sampled hot, the random model writes bytes that form characters only by chance: the hardest text to cut.
    options = {"max_new_tokens": 30, "batch_size": 2, "temperature": 3.0}
    results = generate(streamed, prompts, on_text=lambda index, piece: pieces[index].append(piece), **options)
    assert ["".join(pieces[index]) for index in range(3)] == [result.text for result in results]
    assert max(map(len, pieces.values())) > 3
    assert [result.tokens for result in results] == [r.tokens for r in generate(streamed, prompts, **options)]


def test_streaming_needs_a_tokenizer(model):
    with pytest.raises(InputError, match="tokenizer"):
        generate(model, PROMPTS[:1], on_text=lambda index, piece: None)


def test_the_loop_writes_the_cache_in_place(model):
    fresh = dataclasses.replace(model, programs={})
    generate(fresh, PROMPTS[:1], max_new_tokens=4)
    (loop,) = (program for key, program in fresh.programs.items() if key[0] == "advance")
    capacity = 128 + 32  # the shortest prompts and room
    cache_bytes = 2 * CONFIG.num_layers * CONFIG.num_kv_heads * capacity * CONFIG.head_dim * 4
    assert loop.memory_analysis().alias_size_in_bytes >= cache_bytes


def test_results_arrive_as_they_are_made(model):
    seen = []
    results = generate(model, PROMPTS[:3], max_new_tokens=4, batch_size=2, on_result=lambda i, r: seen.append((i, r)))
    assert seen == list(enumerate(results))


def test_a_second_short_prompt_compiles_nothing(model):
    compiled = []

    def count(event: str, duration: float, **_: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    fresh = dataclasses.replace(model, programs={})
    jax.monitoring.register_event_duration_secs_listener(count)
    try:
        generate(fresh, [PROMPTS[1]], max_new_tokens=9)
        assert compiled, "the listener saw no compilation at all"
        compiled.clear()
        generate(fresh, [PROMPTS[2]], max_new_tokens=17)
        generate(fresh, [PROMPTS[3]], max_new_tokens=30, temperature=0.0)
    finally:
        jax.monitoring.unregister_event_duration_listener(count)
    assert not compiled


def test_another_temperature_compiles_nothing(model):
    generate(model, [PROMPTS[1]], max_new_tokens=9, temperature=0.5)
    before = len(model.programs)
    generate(model, [PROMPTS[2]], max_new_tokens=9, temperature=1.5)
    assert len(model.programs) == before


def test_exact_does_not_depend_on_the_batch(model, expected):
    results = generate(model, PROMPTS, max_new_tokens=20, exact=True, batch_size=4)
    assert [result.tokens for result in results] == expected


def test_exact_needs_float32(decoder):
    graphdef, params = nnx.split(decoder)
    half = jax.tree.map(lambda x: x.astype(jnp.bfloat16), params)
    with pytest.raises(InputError, match="float32"):
        generate(Model("tiny", CONFIG, graphdef, half, None, ()), PROMPTS[:1], exact=True)


@pytest.mark.parametrize(
    ("prompts", "options", "message"),
    [
        ([[]], {}, "empty"),
        ([""], {}, "empty"),
        (["text"], {}, "tokenizer"),
        (["half \ud83d a character"], {}, "surrogate"),
        ([[1, 97]], {}, "97"),
        ([[1, -1]], {}, "-1"),
        ([[1] * 500], {"max_new_tokens": 13}, "512"),
        ([[1]], {"max_new_tokens": 0}, "max_new_tokens"),
        ([[1]], {"max_new_tokens": -3}, "-3"),
        ([[1]], {"batch_size": 0}, "batch_size"),
        ([[1]], {"temperature": -1.0}, "temperature"),
        ([[1]], {"top_p": 0.0}, "top_p"),
        ([[1]], {"seed": [1, 2]}, "seeds"),
        ([[1]], {"seed": -1}, "seed must be .* not -1"),
        ([[1]], {"seed": [2**32]}, "seed must be .* not 4294967296"),
    ],
)
def test_bad_requests_are_refused(model, prompts, options, message):
    with pytest.raises(InputError, match=message):
        generate(model, prompts, **options)


def test_the_context_can_be_filled_to_the_brim(model):
    result = generate(dataclasses.replace(model, stop_ids=()), [[1] * 500], max_new_tokens=12)[0]
    assert result.new_tokens == 12


def test_a_block_diffusion_target_refuses_autoregression(model):
    other = dataclasses.replace(model, config=dataclasses.replace(CONFIG, family="fast_dllm_v2"))
    with pytest.raises(InputError, match="fast_dllm_v2"):
        generate(other, PROMPTS[:1])
