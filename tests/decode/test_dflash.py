"""DFlash: its tokens are those of autoregressive decoding, whatever its drafter is worth; what that remembers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drafters import MASK, STOP, TARGETS, drafter_of, knowing, target_of
from flax import nnx
from random_decoder import random_decoder, small_config
from tiny_models import save_family
from workers import run_worker

import specdiff_jax.decode.prefill as prefill
from specdiff_jax.decode import dflash
from specdiff_jax.decode.generate import Generation, generate
from specdiff_jax.decode.methods import Autoregressive, DFlash
from specdiff_jax.decode.requests import make_requests, row_keys
from specdiff_jax.decode.sampling import sampling
from specdiff_jax.errors import InputError
from specdiff_jax.loading import Model, load
from specdiff_jax.model.cache import empty_cache
from specdiff_jax.model.drafter import embed_block

RNG = np.random.default_rng(0)
PROMPTS = [RNG.integers(0, MASK, length).tolist() for length in RNG.integers(1, 60, 200)]
LIMIT, BLOCK = 30, 8


def tokens(results: list[Generation]) -> list[tuple[int, ...]]:
    return [result.tokens for result in results]


def fresh(model: Model, **changes: object) -> Model:
    """The same target, with nothing compiled yet: programs hold what a test has put in place of the drafts."""
    return dataclasses.replace(model, programs={}, **changes)


def endless(family: str) -> Model:
    return fresh(target_of(family), stop_ids=())


def forwards(result: Generation) -> list[int]:
    """Tokens that each verification brought, in order."""
    return np.bincount(result.step_map)[1:].tolist()


@pytest.mark.parametrize(
    ("family", "count"), [(family, 200 if family == "qwen3" else 12) for family in TARGETS], ids=list(TARGETS)
)
def test_exact_tokens_are_those_of_autoregressive_decoding(family, count):
    model, prompts = target_of(family), PROMPTS[:count]
    own = generate(model, prompts, Autoregressive(), max_new_tokens=LIMIT, exact=True)
    drafted = generate(model, prompts, DFlash(drafter_of(model)), max_new_tokens=LIMIT, exact=True)
    assert tokens(drafted) == tokens(own)
    assert len(set(tokens(own))) > count // 2, "too much alike to tell anything"


@pytest.mark.parametrize("exact", [False, True])
def test_every_accepted_length(monkeypatch, exact):
    """Drafts that are right up to a slot which differs from row to row and cycle to cycle."""
    monkeypatch.setattr(dflash, "draft", knowing(lambda state: (2 * state.counts + state.cache.lengths) % BLOCK))
    model, prompts = endless("llama"), PROMPTS[:16]
    options = {"max_new_tokens": LIMIT, "exact": exact, "batch_size": 16}
    own = generate(model, prompts, Autoregressive(), **options)
    drafted = generate(model, prompts, DFlash(drafter_of(model)), **options)
    assert tokens(drafted) == tokens(own)
    assert {count for result in drafted for count in forwards(result)[:-1]} == set(range(1, BLOCK + 1))
    for result in drafted:
        assert result.forwards == len(forwards(result))
        assert result.acceptance_length == (LIMIT - 1) / result.forwards
        cut = result.new_tokens - 1 - result.accepted_drafts - result.forwards
        assert cut in (0, -1), "the last verification alone may end in a draft"


def test_a_batch_gives_what_single_prompts_give(monkeypatch):
    monkeypatch.setattr(dflash, "draft", knowing(lambda state: (2 * state.counts + state.cache.lengths) % BLOCK))
    model, method = fresh(target_of("llama")), DFlash(drafter_of(target_of("llama")))
    single = generate(model, PROMPTS[:20], method, max_new_tokens=LIMIT)
    assert {result.stop for result in single} == {"eos", "length"}
    for batch_size in (3, 20):
        together = generate(model, PROMPTS[:20], method, max_new_tokens=LIMIT, batch_size=batch_size)
        for ours, theirs in zip(together, single, strict=True):
            assert ours.tokens == theirs.tokens
            assert ours.step_map == theirs.step_map
            assert ours.accepted_drafts == theirs.accepted_drafts


def test_the_budget_is_exact_at_every_place_of_a_block(monkeypatch):
    monkeypatch.setattr(dflash, "draft", knowing(lambda state: jnp.full_like(state.counts, BLOCK)))
    model, method = endless("llama"), DFlash(drafter_of(target_of("llama")))
    whole = generate(model, PROMPTS[:1], Autoregressive(), max_new_tokens=32)[0].tokens
    for limit in range(1, 33):
        result = generate(model, PROMPTS[:1], method, max_new_tokens=limit)[0]
        assert result.tokens == whole[:limit]
        assert result.forwards == -(-(limit - 1) // BLOCK)
        assert result.accepted_drafts == limit - 1 - (limit - 1) // BLOCK
        assert result.stop == "length"


def test_a_stop_id_ends_a_row_at_every_place_of_a_block(monkeypatch):
    monkeypatch.setattr(dflash, "draft", knowing(lambda state: jnp.full_like(state.counts, BLOCK)))
    model, method = endless("llama"), DFlash(drafter_of(target_of("llama")))
    places = set()
    for prompt in PROMPTS[:6]:
        whole = generate(model, [prompt], Autoregressive(), max_new_tokens=32)[0].tokens
        for stop in set(whole):
            count = whole.index(stop) + 1
            stopping = dataclasses.replace(model, stop_ids=(stop,))
            result = generate(stopping, [prompt], method, max_new_tokens=32)[0]
            assert result.tokens == whole[:count]
            assert result.stop == "eos"
            assert result.forwards == -(-(count - 1) // BLOCK)
            places.add((count - 1) % BLOCK)
    assert places == set(range(BLOCK))


@pytest.mark.parametrize("exact", [False, True])
def test_a_cache_row_that_is_used_to_its_end(monkeypatch, exact):
    """Prompts as wide as their bucket and a limit as wide as its own: the last blocks reach beyond both."""
    monkeypatch.setattr(dflash, "draft", knowing(lambda state: (3 * state.counts + state.cache.lengths) % BLOCK))
    model, prompts = endless("qwen3"), RNG.integers(0, MASK, (4, 128)).tolist()
    options = {"max_new_tokens": 32, "batch_size": 4, "exact": exact}
    own = generate(model, prompts, Autoregressive(), **options)
    assert tokens(generate(model, prompts, DFlash(drafter_of(model)), **options)) == tokens(own)


def test_bfloat16():
    """Everything is of the target's dtype, or the loop would not compile."""
    model, drafter = (
        dataclasses.replace(loaded, params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), loaded.params))
        for loaded in (endless("llama"), drafter_of(target_of("llama")))
    )
    result = generate(model, PROMPTS[:1], DFlash(drafter), max_new_tokens=LIMIT)[0]
    assert result.new_tokens == LIMIT
    assert sum(forwards(result)) == LIMIT - 1


def test_fewer_slots_than_the_drafter_was_trained_on(monkeypatch):
    model = endless("llama")
    drafter = drafter_of(model, block_size=16)
    own = tokens(generate(model, PROMPTS[:8], Autoregressive(), max_new_tokens=LIMIT))
    assert tokens(generate(model, PROMPTS[:8], DFlash(drafter, block_size=8), max_new_tokens=LIMIT)) == own
    monkeypatch.setattr(dflash, "draft", knowing(lambda state: jnp.full_like(state.counts, 16)))
    for block_size, expected in ((8, [8, 8, 8, 5]), (2, [2] * 14 + [1]), (16, [16, 13]), (None, [16, 13])):
        result = generate(fresh(model), PROMPTS[:1], DFlash(drafter, block_size), max_new_tokens=LIMIT)[0]
        assert result.tokens == own[0]
        assert forwards(result) == expected


def test_streamed_tokens_are_a_final_prefix():
    model = target_of("llama")
    looks: list[list[list[int]]] = []
    asked = make_requests(model, PROMPTS[:3], 3, row_keys(0, 3), LIMIT, sampling(0.0, 1.0, 0, 40))

    def look(new: np.ndarray, counts: np.ndarray) -> None:
        looks.append([row[:count].tolist() for row, count in zip(new, counts, strict=True)])

    result = dflash.run(model, asked, DFlash(drafter_of(model)), LIMIT, look)
    final = [row[:count].tolist() for row, count in zip(result.tokens, result.counts, strict=True)]
    assert len(looks) > 3
    assert looks[-1] == final
    for seen in looks:
        assert all(row == last[: len(row)] for row, last in zip(seen, final, strict=True))


def test_streamed_text_is_the_result(tiny_checkpoint):
    model = load(tiny_checkpoint, dtype="float32")
    drafter = drafter_of(model, target_layer_ids=(0,))
    pieces: list[str] = []
    options = {"max_new_tokens": LIMIT, "temperature": 3.0}
    result = generate(model, ["the dog"], DFlash(drafter), on_text=lambda _, piece: pieces.append(piece), **options)[0]
    assert "".join(pieces) == result.text
    assert result.tokens == generate(model, ["the dog"], Autoregressive(), **options)[0].tokens


# The drafter.


@pytest.mark.parametrize("chunk", [512, 16])
@pytest.mark.parametrize("conditioning", ["key_value", "input", "none"])
def test_the_drafter_remembers_what_it_would_compute_anew(monkeypatch, conditioning, chunk):
    """Every cycle's draft, against one from an empty cache and the target's features of the whole text."""
    monkeypatch.setattr(prefill, "PREFILL_CHUNK", chunk)
    monkeypatch.setattr(dflash, "draft", knowing(lambda state: (2 * state.counts + state.cache.lengths) % BLOCK))
    model = endless("llama")
    drafter = drafter_of(model, conditioning=conditioning)
    config, prompts = drafter.config, [*PROMPTS[:2], RNG.integers(0, MASK, 128).tolist()]
    asked = make_requests(model, prompts, 3, row_keys(0, 3), 32, sampling(0.0, 1.0, 0, 40))
    room = dflash.room_for(model, asked, DFlash(drafter), 32, serial=False)
    target, module = nnx.merge(model.graphdef, model.params), nnx.merge(drafter.graphdef, drafter.params)
    cycle = jax.jit(lambda state: dflash.cycle(target, module, state, asked, serial=False))

    def block_of(newest: jax.Array) -> jax.Array:
        ids = jnp.full((newest.size, BLOCK), MASK, jnp.int32).at[:, 0].set(newest)
        return embed_block(target, config, ids)

    @jax.jit
    def anew(text: jax.Array, length: jax.Array, newest: jax.Array) -> jax.Array:
        features = target(text, taps=config.target_layer_ids).features
        context = module.context(features, embed_block(target, config, text))
        empty = empty_cache(config.backbone, 1, 256, jnp.float32)
        return module(block_of(newest), context, length, empty).hidden[0]

    cached = jax.jit(lambda state: module(block_of(state.newest), state.context, state.fresh, state.drafter_cache))
    state = jax.jit(lambda: dflash.begin(target, module, asked, room))()
    while not np.all(state.done):
        drafted = cached(state)
        for row, prompt in enumerate(prompts):
            known = [*prompt, *state.generated[row, : state.counts[row]].tolist()]
            length = len(known) - 1
            if not state.done[row]:
                assert int(drafted.cache.lengths[row]) == int(state.cache.lengths[row]) == length
            text = jnp.asarray([known[:-1] + [0] * (160 - length)], jnp.int32)
            truth = anew(text, jnp.asarray([length], jnp.int32), jnp.asarray(known[-1:], jnp.int32))
            np.testing.assert_allclose(drafted.hidden[row], truth, atol=2e-5)
        state = cycle(state)
    assert state.forwards.min() > 3


def test_shorter_verifications_take_the_first_drafts_of_the_whole_block():
    model = endless("llama")
    drafter = drafter_of(model)
    asked = make_requests(model, PROMPTS[:4], 4, row_keys(0, 4), 32, sampling(0.0, 1.0, 0, 40))
    target, module = nnx.merge(model.graphdef, model.params), nnx.merge(drafter.graphdef, drafter.params)

    def drafts(width: int) -> np.ndarray:
        room = dflash.room_for(model, asked, DFlash(drafter, width), 32, serial=False)
        state = dflash.begin(target, module, asked, room)
        return np.asarray(dflash.draft(target, module, state)[0])

    whole = drafts(BLOCK)
    assert whole.shape == (4, BLOCK - 1)
    np.testing.assert_array_equal(drafts(3), whole[:, :2])


@pytest.mark.parametrize("family", ["Llama", "Qwen3", "Qwen3Moe"])
def test_features_are_transformers_hidden_states_behind_the_layer(family, tmp_path):
    import torch
    import transformers

    save_family(family, tmp_path)
    model = load(tmp_path, dtype="float32")
    text = np.random.default_rng(1).integers(0, 50, (1, 12))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        hidden = theirs(torch.tensor(text), output_hidden_states=True).hidden_states
    decoder = nnx.merge(model.graphdef, model.params)
    layers = tuple(range(model.config.num_layers))
    features = decoder(jnp.asarray(text, jnp.int32), taps=layers).features
    for layer in layers[:-1]:
        scale = np.abs(hidden[layer + 1].numpy()).max()
        np.testing.assert_allclose(features[layer], hidden[layer + 1].numpy(), atol=1e-5 * scale)
    np.testing.assert_allclose(decoder.norm(features[-1]), hidden[-1].numpy(), atol=1e-4)


def test_a_mask_in_the_text_is_a_token_like_any_other():
    """An autoregressive target may read and write the id that stands for a mask in the drafter's block."""
    model = endless("llama")
    own = generate(model, PROMPTS[:1], Autoregressive(), max_new_tokens=LIMIT)[0].tokens
    for mask in (own[3], own[4]):
        prompts = [PROMPTS[0], [*PROMPTS[0], mask]]
        drafter = drafter_of(model, mask_token_id=mask)
        drafted = generate(model, prompts, DFlash(drafter), max_new_tokens=LIMIT)
        assert tokens(drafted) == tokens(generate(model, prompts, Autoregressive(), max_new_tokens=LIMIT))
        assert mask in drafted[0].tokens


def test_weights_of_the_drafter_are_an_argument_of_the_programs():
    model = endless("llama")
    few = generate(model, PROMPTS[:9], DFlash(drafter_of(model, seed=0)), max_new_tokens=LIMIT)
    compiled = dict(model.programs)
    others = generate(model, PROMPTS[:9], DFlash(drafter_of(model, seed=1)), max_new_tokens=LIMIT)
    assert model.programs == compiled
    assert tokens(few) == tokens(others)
    assert [result.step_map for result in few] != [result.step_map for result in others]
    generate(model, PROMPTS[:1], DFlash(drafter_of(model, mask_token_id=0)), max_new_tokens=LIMIT)
    assert len(model.programs) == 2 * len(compiled)


def test_the_loop_writes_both_caches_in_place():
    model = endless("llama")
    drafter = drafter_of(model)
    generate(model, PROMPTS[:1], DFlash(drafter), max_new_tokens=4)
    (loop,) = (program for key, program in model.programs.items() if key[0] == "advance")
    capacity = 128 + 32 + BLOCK  # the shortest prompts, room and a block
    heads = 2 * (2 * model.config.num_kv_heads + 2 * drafter.config.backbone.num_kv_heads)
    assert loop.memory_analysis().alias_size_in_bytes >= heads * capacity * model.config.head_dim * 4


def test_meshes_give_one_devices_tokens():
    runs = run_worker(Path(__file__).with_name("dflash_sharded_worker.py"), devices=4)
    expected, alone = runs.pop("autoregressive"), runs.pop("None")
    assert list(runs) == ["(1, 4)", "(2, 2)"]
    assert alone["tokens"] == expected["tokens"]
    assert sum(alone["accepted"]) > 0
    for mesh, answers in runs.items():
        assert answers == alone, mesh


# Refusals.


@pytest.mark.parametrize("block_size", [-1, 0, 1, 9])
def test_block_sizes_out_of_range(block_size):
    message = f"block_size must be from 2 to 8, which small was trained for, not {block_size}"
    with pytest.raises(InputError, match=message):
        DFlash(drafter_of(target_of("llama")), block_size)


def test_a_block_diffusion_target_is_refused():
    config = small_config(family="fast_dllm_v2", qkv_bias=True, block_size=8, mask_token_id=MASK)
    decoder = random_decoder(config)
    model = Model("tiny", config, decoder.graphdef, decoder.params, None, (STOP,))
    with pytest.raises(InputError, match="method dflash is not available for tiny: a fast_dllm_v2 model is no"):
        generate(model, [[1]], DFlash(drafter_of(model)))


def test_a_drafter_for_another_target_is_refused():
    model = target_of("llama")
    changed = drafter_of(model, target_layer_ids=(0, 2))
    with pytest.raises(
        InputError, match="not available for tiny: drafter small was made for another target: target_la"
    ):
        generate(model, [[1]], DFlash(changed))


def test_a_drafter_that_was_loaded_for_another_dtype_is_refused():
    drafter = drafter_of(target_of("llama"))
    half = dataclasses.replace(drafter, params=jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), drafter.params))
    with pytest.raises(InputError, match="drafter small was loaded for a model of another dtype"):
        generate(target_of("llama"), [[1]], DFlash(half))
