"""Block diffusion against the oracle, token for token, and the promises of `generate` that it has to keep."""

from __future__ import annotations

import dataclasses

import block_oracle
import dual_cache_oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from random_decoder import SCALED_ROTARY, RandomDecoder, random_decoder, small_config

from specdiff_jax.decode import block_diffusion, prefill
from specdiff_jax.decode.generate import Generation, generate
from specdiff_jax.decode.methods import Autoregressive, LinearSpeculation, Vanilla, denoising_spec
from specdiff_jax.decode.requests import make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model
from specdiff_jax.model import empty_cache

MASK, STOP = 39, 5
LIMIT = 21  # no multiple of the block
SHARPNESS = 4.0  # of the head: random logits are so flat that no token would pass a threshold


def decoder_of(family: str, block: int) -> RandomDecoder:
    changes = {"family": family, "block_size": block, "mask_token_id": MASK, "max_position_embeddings": 512}
    if family == "fast_dllm_v2":
        changes["qkv_bias"] = True
    else:
        changes["rotary"] = SCALED_ROTARY
    plain = random_decoder(small_config(**changes))
    params = jax.tree.map(lambda leaf: leaf, plain.params)
    params["head"] = params["head"].replace(SHARPNESS * params["head"].get_value())
    tensors = {**plain.tensors, "lm_head.weight": SHARPNESS * plain.tensors["lm_head.weight"]}
    return dataclasses.replace(plain, params=params, tensors=tensors)


def model_of(decoder: RandomDecoder, stop_ids: tuple[int, ...] = (STOP,)) -> Model:
    return Model("tiny", decoder.config, decoder.graphdef, decoder.params, None, stop_ids)


def prompts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [generator.integers(0, MASK, length).tolist() for length in lengths]


MANY = prompts([1, 7, 8, 9, 16, *np.random.default_rng(1).integers(1, 40, 195).tolist()])
ORACLES = {"fast_dllm_v2": block_oracle.fast_dllm_v2, "nemotron_labs_diffusion": block_oracle.nemotron}
FAMILIES = list(ORACLES)


def rules(decoder: RandomDecoder, threshold: float, sub_block: int, limit: int = LIMIT) -> block_oracle.Rules:
    assert decoder.config.block_size is not None
    return block_oracle.Rules(decoder.config.block_size, MASK, (STOP,), threshold, limit, sub_block)


def expect(result: Generation, trace: block_oracle.Trace) -> None:
    assert result.tokens == trace.tokens
    assert result.step_map == trace.steps
    assert result.forwards == trace.forwards


@pytest.mark.parametrize("threshold", [0.5, 0.9, 1.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_200_prompts_equal_the_oracle(family, threshold):
    decoder = decoder_of(family, 8)
    sub_block = 4 if family == "fast_dllm_v2" else 8
    method = Vanilla(threshold, sub_block=sub_block)
    results = generate(model_of(decoder), MANY, method, max_new_tokens=LIMIT, batch_size=50)
    for prompt, result in zip(MANY, results, strict=True):
        trace = ORACLES[family](decoder.tensors, decoder.settings, prompt, rules(decoder, threshold, sub_block))
        expect(result, trace)
    together = {step for result in results for step in result.step_map if result.step_map.count(step) > 1}
    assert bool(together) == (threshold < 1), "the model is too flat, or too sure, to test a threshold"
    assert {result.stop for result in results} == {"eos", "length"}


@pytest.mark.parametrize("family", FAMILIES)
def test_blocks_of_32_see_the_whole_prompt(family):
    decoder = decoder_of(family, 32)
    asked = prompts([1, 31, 32, 33, 64])
    results = generate(model_of(decoder), asked, Vanilla(0.5), max_new_tokens=40, batch_size=5)
    for prompt, result in zip(asked, results, strict=True):
        expect(result, ORACLES[family](decoder.tensors, decoder.settings, prompt, rules(decoder, 0.5, 8, limit=40)))


@pytest.mark.parametrize(
    ("family", "cached", "temperature"),
    [
        ("fast_dllm_v2", False, 0.0),
        pytest.param("fast_dllm_v2", False, 0.8, marks=pytest.mark.slow),
        ("fast_dllm_v2", True, 0.0),
        pytest.param("fast_dllm_v2", True, 0.8, marks=pytest.mark.slow),
        ("nemotron_labs_diffusion", False, 0.0),
        ("nemotron_labs_diffusion", False, 0.8),
    ],
)
def test_a_row_is_the_same_alone_and_in_any_batch(family, cached, temperature):
    model = model_of(decoder_of(family, 8))
    method = Vanilla(0.5, sub_block=4 if cached else None, sub_block_cache=cached)
    asked, seeds = MANY[:5], [*range(5)]
    options = {"max_new_tokens": LIMIT, "temperature": temperature, "top_p": 0.95}
    alone = generate(model, asked, method, seed=seeds, **options)
    batched = generate(model, asked[::-1], method, seed=seeds[::-1], batch_size=4, **options)[::-1]
    assert [(r.tokens, r.step_map, r.forwards) for r in batched] == [(r.tokens, r.step_map, r.forwards) for r in alone]
    if temperature:
        others = generate(model, asked, method, seed=[seed + 5 for seed in seeds], **options)
        assert [r.tokens for r in others] != [r.tokens for r in alone]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("block", [4, 16])
def test_other_block_sizes(family, block):
    decoder = decoder_of(family, block)
    asked = MANY[:8]
    results = generate(model_of(decoder), asked, Vanilla(0.5), max_new_tokens=LIMIT, batch_size=8)
    for prompt, result in zip(asked, results, strict=True):
        expect(result, ORACLES[family](decoder.tensors, decoder.settings, prompt, rules(decoder, 0.5, min(8, block))))


@pytest.mark.parametrize("family", FAMILIES)
def test_prefill_in_chunks_equals_one_piece(family, monkeypatch):
    model = model_of(decoder_of(family, 8))
    asked = prompts([33, 64, 40])
    whole = generate(model, asked, Vanilla(0.5), max_new_tokens=LIMIT, batch_size=3)
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", 16)
    chunks = generate(dataclasses.replace(model, programs={}), asked, Vanilla(0.5), max_new_tokens=LIMIT, batch_size=3)
    assert [r.tokens for r in chunks] == [r.tokens for r in whole]


def test_the_loop_writes_the_cache_in_place():
    model = model_of(decoder_of("fast_dllm_v2", 8))
    generate(model, MANY[:1], Vanilla(0.5), max_new_tokens=4)
    (loop,) = (program for key, program in model.programs.items() if key[0] == "advance")
    capacity = 32 + 32 + 8
    cache_bytes = 2 * 2 * 2 * capacity * 8 * 4  # keys and values, layers, heads
    assert loop.memory_analysis().alias_size_in_bytes >= cache_bytes


def test_a_stop_id_counts_only_where_no_mask_stands_before_it():
    config = decoder_of("fast_dllm_v2", 8).config
    asked = make_requests(
        model_of(decoder_of("fast_dllm_v2", 8)), [[1] * 8, [1] * 8], 2, row_keys(0, 2), 99, sampling(0.0, 1.0, 0, 40)
    )
    block = jnp.asarray([[3, MASK, STOP, 4, 4, 4, 4, 4], [3, 4, STOP, MASK, 4, MASK, 4, 4]])
    nothing = jnp.zeros((2,), jnp.int32)
    state = block_diffusion.BlockState(
        cache=empty_cache(config, 2, 32, jnp.float32).with_lengths(nothing + 8),
        block=block,
        cached_sub_block=nothing,
        generated=jnp.zeros((2, 32), jnp.int32),
        step_map=jnp.full((2, 32), block_diffusion.NEVER),
        counts=nothing,
        steps=nothing + 6,
        done=nothing > 0,
    )
    seen = block_diffusion.record(state, asked, denoising_spec(config, Vanilla()))
    assert seen.done.tolist() == [False, True]
    assert seen.counts.tolist() == [1, 3]
    assert seen.generated[1, :3].tolist() == [3, 4, STOP]
    assert seen.step_map[1, :3].tolist() == [6, 6, 6]


def test_bidirectional_keys_are_not_those_that_are_committed():
    """Of a Nemotron-Labs-Diffusion block only the first layer's keys and values could be kept from denoising."""
    decoder = decoder_of("nemotron_labs_diffusion", 8)
    tokens = np.asarray(prompts([8]))
    causal = decoder.run(tokens, empty_cache(decoder.config, 1, 8, jnp.float32)).cache
    denoising = decoder.run(tokens, empty_cache(decoder.config, 1, 8, jnp.float32), visible=np.full((1, 8), 8)).cache
    for kind in ("keys", "values"):
        (first, second), (own_first, own_second) = getattr(causal, kind), getattr(denoising, kind)
        np.testing.assert_allclose(first, own_first, atol=1e-5)
        assert np.abs(np.asarray(second) - np.asarray(own_second)).max() > 0.1


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("limit", [1, 7, 8, 9, 24])
def test_max_new_tokens_is_exact_and_a_shorter_run_is_a_prefix(family, limit):
    model = model_of(decoder_of(family, 8), stop_ids=())
    short = generate(model, MANY[:4], Vanilla(0.5), max_new_tokens=limit, batch_size=4)
    longer = generate(model, MANY[:4], Vanilla(0.5), max_new_tokens=30, batch_size=4)
    assert [r.new_tokens for r in short] == [limit] * 4
    assert [r.tokens for r in short] == [r.tokens[:limit] for r in longer]


def test_threshold_one_fixes_one_token_a_step():
    model = model_of(decoder_of("fast_dllm_v2", 8), stop_ids=())
    (result,) = generate(model, [MANY[0]], Vanilla(1.0), max_new_tokens=23)
    assert len(set(result.step_map)) == 23


@pytest.mark.parametrize(("block", "sub_block"), [(8, 4), (8, 2), pytest.param(16, 8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("threshold", [0.4, 1.0])
def test_the_sub_block_cache_equals_the_oracle_with_stale_keys(block, sub_block, threshold):
    decoder = decoder_of("fast_dllm_v2", block)
    method = Vanilla(threshold, sub_block=sub_block, sub_block_cache=True)
    asked = MANY[:12]
    results = generate(model_of(decoder), asked, method, max_new_tokens=LIMIT, batch_size=6)
    widths = set()
    for prompt, result in zip(asked, results, strict=True):
        asked_for = rules(decoder, threshold, sub_block)
        trace, rows = dual_cache_oracle.fast_dllm_v2(decoder.tensors, decoder.settings, prompt, asked_for)
        expect(result, trace)
        widths |= set(rows)
    assert widths == {block, sub_block}


def test_sub_blocks_of_one_slot_make_the_sub_block_cache_exact():
    """Its rows are then never read again before the commit computes them anew."""
    model = model_of(decoder_of("fast_dllm_v2", 8), stop_ids=())
    plain = generate(model, MANY[:5], Vanilla(0.5, sub_block=1), max_new_tokens=24)
    cached = generate(model, MANY[:5], Vanilla(0.5, sub_block=1, sub_block_cache=True), max_new_tokens=24)
    assert [r.tokens for r in cached] == [r.tokens for r in plain]


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_linear_speculation_equals_autoregressive(temperature):
    model = model_of(decoder_of("nemotron_labs_diffusion", 8))
    options = {"max_new_tokens": LIMIT, "temperature": temperature, "batch_size": 20}
    own = generate(model, MANY[:60], Autoregressive(), **options)
    drafted = generate(model, MANY[:60], LinearSpeculation(), **options)
    assert [r.tokens for r in drafted] == [r.tokens for r in own]
    for result in drafted:
        assert result.forwards % 2 == 0
        if result.forwards:
            assert result.acceptance_length == (result.new_tokens - 1) / (result.forwards / 2)
    assert sum(r.accepted_drafts for r in drafted) > 0


def test_linear_speculation_equals_the_oracle():
    decoder = decoder_of("nemotron_labs_diffusion", 8)
    results = generate(model_of(decoder), MANY[:60], LinearSpeculation(), max_new_tokens=LIMIT, batch_size=20)
    for prompt, result in zip(MANY, results, strict=False):
        expect(
            result,
            block_oracle.linear_speculation(decoder.tensors, decoder.settings, prompt, rules(decoder, 1.0, 8)),
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_another_threshold_or_length_compiles_nothing(family):
    model = model_of(decoder_of(family, 8))
    generate(model, [MANY[5]], Vanilla(0.5), max_new_tokens=20)
    before = dict(model.programs)
    generate(model, [MANY[6], MANY[7]], Vanilla(0.7), max_new_tokens=25)
    assert model.programs == before


def test_streamed_tokens_are_a_final_prefix():
    model = model_of(decoder_of("nemotron_labs_diffusion", 8))
    looks: list[list[int]] = []
    asked = make_requests(model, MANY[:1], 1, row_keys(0, 1), LIMIT, sampling(0.0, 1.0, 0, 40))
    result = block_diffusion.run(
        model, asked, Vanilla(0.5), LIMIT, lambda tokens, counts: looks.append(tokens[0, : counts[0]].tolist())
    )
    final = result.tokens[0, : result.counts[0]].tolist()
    assert len(looks) > 2
    assert all(look == final[: len(look)] for look in looks)
    assert MASK not in final


@pytest.mark.parametrize(
    ("family", "method", "message"),
    [
        ("llama", Vanilla(), "method vanilla is not available for tiny: a llama model is no diffusion model"),
        ("llama", LinearSpeculation(), "no diffusion model"),
        ("fast_dllm_v2", Autoregressive(), "method autoregressive is not available for tiny: a fast_dllm_v2 model"),
        ("fast_dllm_v2", LinearSpeculation(), "causal commits"),
        ("fast_dllm_v2", Vanilla(block_size=16), "block size 16: the model was trained for blocks of 8"),
        ("fast_dllm_v2", Vanilla(sub_block=3), "sub_block 3 does not divide"),
        ("fast_dllm_v2", Vanilla(block_size=513, force=True), "block size 513 exceeds the context of 512"),
        ("nemotron_labs_diffusion", Vanilla(sub_block_cache=True), "sub_block_cache needs"),
    ],
)
def test_methods_that_do_not_fit_are_refused(family, method, message):
    model = model_of(random_decoder(small_config()) if family == "llama" else decoder_of(family, 8))
    with pytest.raises(InputError, match=message):
        generate(model, [[1]], method)


@pytest.mark.parametrize(
    ("family", "block", "sub_block"),
    [
        ("fast_dllm_v2", 4, 4),
        ("fast_dllm_v2", 12, 6),  # the largest that is no wider than its own 8
        ("nemotron_labs_diffusion", 24, 24),
    ],
)
def test_a_forced_block_size_warns_and_equals_the_oracle(family, block, sub_block):
    decoder = decoder_of(family, 8)
    with pytest.warns(UserWarning, match=f"trained for blocks of 8, not of {block}"):
        results = generate(
            model_of(decoder), MANY[:6], Vanilla(0.5, block_size=block, force=True), max_new_tokens=LIMIT
        )
    asked = dataclasses.replace(rules(decoder, 0.5, sub_block), block=block)
    for prompt, result in zip(MANY, results, strict=False):
        expect(result, ORACLES[family](decoder.tensors, decoder.settings, prompt, asked))


def test_a_long_prompt_in_blocks_that_do_not_divide_a_chunk():
    """The commit of a block needs all of it in one chunk."""
    decoder = decoder_of("fast_dllm_v2", 24)
    (prompt,) = prompts([140])
    lengths = jnp.asarray([120])
    tokens = jnp.zeros((1, 256), jnp.int32).at[0, :140].set(jnp.asarray(prompt))
    caches = []
    for chunk in (512, 32):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(prefill, "PREFILL_CHUNK", chunk)
            read = jax.jit(
                lambda: prefill.read_prompts(
                    nnx.merge(decoder.graphdef, decoder.params), tokens, lengths, capacity=300, block=24
                )
            )
            caches.append(read())
    (whole, hidden), (pieces, hidden_of_pieces) = caches
    for ours, theirs in zip((*whole.keys, *whole.values), (*pieces.keys, *pieces.values), strict=True):
        np.testing.assert_allclose(ours[:, :, :120], theirs[:, :, :120], atol=1e-5)
    np.testing.assert_allclose(hidden, hidden_of_pieces, atol=1e-5)


def test_a_mask_in_the_prompt_is_refused():
    model = model_of(decoder_of("fast_dllm_v2", 8))
    with pytest.raises(InputError, match=f"token id {MASK}, the mask of tiny"):
        generate(model, [[1, MASK]], Vanilla())


@pytest.mark.parametrize("threshold", [0.0, -0.5, 1.01, float("nan")])
def test_thresholds_out_of_range_are_refused(threshold):
    with pytest.raises(InputError, match="threshold must be above 0 and at most 1"):
        Vanilla(threshold)


@pytest.mark.parametrize("name", ["block_size", "sub_block"])
def test_sizes_below_one_are_refused(name):
    with pytest.raises(InputError, match=f"{name} must be at least 1"):
        Vanilla(**{name: 0})
