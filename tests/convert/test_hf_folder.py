"""Folders written back: the tensors that were read, a layout that Transformers reads, and int8 rows."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from safetensors import SafetensorError
from safetensors.numpy import load_file
from tiny_models import abstract_state, assert_same, by_path

from convert import hf_folder
from convert.assemble import load_parameters
from convert.check import check
from convert.checkpoint import Checkpoint, open_checkpoint
from convert.int8_rows import dequantize, quantize
from specdiff_jax.config import ModelConfig, parse_config, read_config
from specdiff_jax.conversion import convert_checkpoint
from specdiff_jax.errors import InputError
from specdiff_jax.loading import load

torch_families = pytest.importorskip("torch_families", reason="needs PyTorch and Transformers", exc_type=ImportError)

IN_TRANSFORMERS = ("llama", "llama, tied", "qwen2", "qwen3", "qwen3_moe")
TEXTS = {"tokenizer_config.json": '{"é": "\\r\\n"}\r\n', "chat_template.jinja": "{{ x }}"}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A family's folder as Transformers writes it, made once."""
    folders: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp("published")
            torch_families.save(family, folders[family])
        return folders[family]

    return folder


def settings_of(checkpoint: Checkpoint) -> ModelConfig:
    return parse_config(checkpoint.config, checkpoint.config_location)


def read_params(folder: Path, dtype: str = "float32") -> nnx.State:
    checkpoint = open_checkpoint(folder)
    assert checkpoint.tensors is not None
    return load_parameters(checkpoint.tensors, settings_of(checkpoint), abstract_state(settings_of(checkpoint), dtype))


def save_again(
    source: Path, destination: Path, weights: hf_folder.Weights, params: nnx.State | None = None, **changes: Any
) -> Path:
    """Write the params, by default those of the source, beside the source's settings."""
    checkpoint = open_checkpoint(source)
    options: dict[str, Any] = {
        "config": checkpoint.config,
        "model_config": settings_of(checkpoint),
        "generation_config": checkpoint.generation_config,
        "text_files": {},
        "weights": weights,
    }
    hf_folder.save(read_params(source) if params is None else params, destination, **(options | changes))
    return destination


@partial(jax.jit, static_argnums=0)
def logits(graphdef: nnx.GraphDef, params: nnx.State, ids: jax.Array) -> jax.Array:
    decoder = nnx.merge(graphdef, params)
    return decoder.logits(decoder(ids).hidden)


def tensors_of(folder: Path) -> dict[str, np.ndarray]:
    return load_file(folder / "model.safetensors")


def config_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", torch_families.FAMILIES)
def test_what_was_read_is_written(
    family: str, weights: hf_folder.Weights, published: Callable[[str], Path], tmp_path: Path
) -> None:
    source = published(family)
    params = read_params(source, weights)
    written = save_again(source, tmp_path / "written", weights, params)
    cast = {name: tensor.astype(weights) for name, tensor in tensors_of(source).items()}
    if config_of(source)["tie_word_embeddings"]:
        cast.pop("lm_head.weight", None)
    assert_same(tensors_of(written), cast)
    assert_same(by_path(read_params(written, weights)), by_path(params))
    assert read_config(written) == read_config(source)
    assert config_of(written) == config_of(source) | {"dtype": weights}
    assert open_checkpoint(written).dtype == weights


@pytest.mark.parametrize("family", IN_TRANSFORMERS)
def test_transformers_reads_it(family: str, published: Callable[[str], Path], tmp_path: Path) -> None:
    model = load(published(family), dtype="float32")
    written = save_again(published(family), tmp_path / "written", "float32", model.params)
    theirs = torch_families.transformers.AutoModelForCausalLM.from_pretrained(written).eval()
    assert theirs.dtype == torch_families.torch.float32
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=(2, 19)).astype(np.int32)
    ours = logits(model.graphdef, model.params, ids)
    with torch_families.torch.inference_mode():
        expected = theirs(torch_families.torch.from_numpy(ids).long()).logits.numpy()
    assert expected.std() > 0.01, "too small to tell anything"
    np.testing.assert_allclose(ours, expected, atol=1e-4)


def test_float32_params_are_rounded_to_bfloat16(published: Callable[[str], Path], tmp_path: Path) -> None:
    written = save_again(published("qwen3"), tmp_path / "written", "bfloat16")
    rounded = {name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in tensors_of(published("qwen3")).items()}
    assert_same(tensors_of(written), {name: rounded[name] for name in tensors_of(written)})


def test_texts_and_settings_are_kept(published: Callable[[str], Path], tmp_path: Path) -> None:
    config = config_of(published("qwen3")) | {"torch_dtype": "float16", "_notes": "tiny"}
    generation = {"eos_token_id": [2, 3]}
    changes = {"config": config, "generation_config": generation, "text_files": TEXTS}
    written = save_again(published("qwen3"), tmp_path / "written", "bfloat16", **changes)
    assert {name: (written / name).read_bytes().decode() for name in TEXTS} == TEXTS
    assert json.loads((written / "generation_config.json").read_text()) == generation
    del config["torch_dtype"]
    assert config_of(written) == config | {"dtype": "bfloat16"}
    modes = {path.stat().st_mode for path in written.iterdir()}
    assert len(modes) == 1, "some files are less readable than others"


def test_no_generation_config_makes_no_file(published: Callable[[str], Path], tmp_path: Path) -> None:
    written = save_again(published("qwen3"), tmp_path / "written", "float32", generation_config={})
    assert sorted(path.name for path in written.iterdir()) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt(), SafetensorError("no space left"), OSError(28, "no space")])
def test_a_failure_half_way_leaves_nothing(
    failure: BaseException, published: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(tensors: dict[str, np.ndarray], path: Path, **options: Any) -> None:
        path.write_bytes(b"half")
        raise failure

    monkeypatch.setattr(hf_folder, "save_file", crash)
    clear = isinstance(failure, Exception)
    with pytest.raises(
        InputError if clear else KeyboardInterrupt, match="written: can't be written" if clear else None
    ):
        save_again(published("qwen3"), tmp_path / "written", "float32")
    assert list(tmp_path.iterdir()) == []


def test_an_existing_destination_is_left_alone(published: Callable[[str], Path], tmp_path: Path) -> None:
    written = save_again(published("qwen3"), tmp_path / "written", "bfloat16")
    before = {path: path.read_bytes() for path in written.iterdir()}
    with pytest.raises(InputError, match=r"written: exists already"):
        save_again(published("qwen3"), written, "float32")
    assert {path: path.read_bytes() for path in written.iterdir()} == before


@pytest.mark.parametrize("family", ["llama, tied", "qwen3_moe", "nemotron_labs_diffusion"])
def test_int8_is_within_half_a_step(family: str, published: Callable[[str], Path], tmp_path: Path) -> None:
    source = published(family)
    written = save_again(source, tmp_path / "written", "int8")
    stored, original = tensors_of(written), tensors_of(source)
    checkpoint = open_checkpoint(written)
    assert (checkpoint.kind, checkpoint.dtype) == ("int8", "float32")
    assert checkpoint.tensors is not None
    assert not [name for name in checkpoint.tensors.tensors if name.endswith("_scale")]
    for name in checkpoint.tensors.tensors:
        weights = checkpoint.tensors.read(name)
        assert weights.dtype == np.float32
        if original[name].ndim == 1:
            np.testing.assert_array_equal(stored[name], original[name])
            continue
        scales = stored[f"{name}_scale"]
        assert (stored[name].dtype, scales.dtype, scales.shape) == (np.int8, np.float32, original[name].shape[:1])
        np.testing.assert_allclose(scales, np.abs(original[name]).max(axis=1) / 127, rtol=1e-6)
        error = np.abs(weights.astype(np.float64) - original[name]).max(axis=1)
        assert (error <= scales * (0.5 + 1e-5)).all(), name
        assert (error > 0).any()


def test_a_second_int8_save_changes_no_step(published: Callable[[str], Path], tmp_path: Path) -> None:
    first = save_again(published("qwen3"), tmp_path / "first", "int8")
    second = save_again(first, tmp_path / "second", "int8")
    again = tensors_of(second)
    assert again.keys() == tensors_of(first).keys()
    for name, tensor in tensors_of(first).items():
        if tensor.dtype == np.int8:
            np.testing.assert_array_equal(again[name], tensor)
        else:
            np.testing.assert_allclose(again[name], tensor, rtol=1e-6)
    assert config_of(second) == config_of(first)


def test_int8_vectors_keep_the_dtype_of_the_params(published: Callable[[str], Path], tmp_path: Path) -> None:
    source = published("qwen2")
    written = save_again(source, tmp_path / "written", "int8", read_params(source, "bfloat16"))
    dtypes = {name: str(tensor.dtype) for name, tensor in tensors_of(written).items()}
    assert dtypes["model.norm.weight"] == dtypes["model.layers.0.self_attn.q_proj.bias"] == "bfloat16"
    assert dtypes["model.embed_tokens.weight"] == "int8"
    assert set(dtypes.values()) == {"bfloat16", "int8", "float32"}


def test_int8_takes_one_byte_a_weight(tmp_path: Path, published: Callable[[str], Path]) -> None:
    config = config_of(published("qwen3")) | {"vocab_size": 256, "hidden_size": 256, "intermediate_size": 512}
    model_config = parse_config(config, "config.json")
    params = jax.tree.map(lambda leaf: jnp.ones(leaf.shape, leaf.dtype), abstract_state(model_config))
    changes = {"config": config, "model_config": model_config}
    written = save_again(published("qwen3"), tmp_path / "written", "int8", params, **changes)
    count = sum(leaf.size for leaf in jax.tree.leaves(params))
    assert count < (written / "model.safetensors").stat().st_size < 1.05 * count


def test_an_int8_folder_is_marked(published: Callable[[str], Path], tmp_path: Path) -> None:
    written = save_again(published("qwen3"), tmp_path / "written", "int8")
    assert config_of(written)["quantization_config"] == {"format": "int8_rows"}
    assert "dtype" not in config_of(written)
    assert read_config(written) == read_config(published("qwen3"))
    with pytest.raises(ValueError, match="quant_method"):
        torch_families.transformers.AutoModelForCausalLM.from_pretrained(written)
    floats = save_again(written, tmp_path / "floats", "float32")
    assert "quantization_config" not in config_of(floats)
    assert_same(by_path(read_params(floats)), by_path(read_params(written)))


def test_an_int8_folder_is_loaded_and_converted(published: Callable[[str], Path], tmp_path: Path) -> None:
    written = save_again(published("fast_dllm_v2"), tmp_path / "written", "int8")
    convert_checkpoint(written, tmp_path / "converted")
    assert "quantization_config" not in config_of(tmp_path / "converted")
    expected = by_path(read_params(written))
    assert_same(by_path(load(written, dtype="float32").params), expected)
    assert_same(by_path(load(tmp_path / "converted", dtype="float32").params), expected)
    narrow = {path: array.astype("bfloat16") for path, array in expected.items()}
    assert_same(by_path(load(written, dtype="bfloat16").params), narrow)


@pytest.mark.parametrize("family", ["qwen3_moe", "nemotron_labs_diffusion"])
def test_an_int8_folder_is_checked(
    family: str, published: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("convert.check._RANDOM_LENGTHS", (5,))
    report = check(save_again(published(family), tmp_path / "written", "int8"), max_new_tokens=2)
    assert report.passed
    assert 0 < report.max_abs_logit_diff < 1e-4


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_int8_refuses_what_it_cannot_hold(value: float, published: Callable[[str], Path], tmp_path: Path) -> None:
    params = read_params(published("qwen3"))
    params["layers"][1]["attention"]["out"][...] = params["layers"][1]["attention"]["out"][...].at[3, 4].set(value)
    with pytest.raises(InputError, match=r"model\.layers\.1\.self_attn\.o_proj\.weight: has NaN or infinite") as error:
        save_again(published("qwen3"), tmp_path / "written", "int8", params)
    assert "\n" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_a_zero_row() -> None:
    steps, scales = quantize(np.array([[0, 0, 0], [-2.54, 0.02, 0.031]], np.float32))
    np.testing.assert_array_equal(steps, [[0, 0, 0], [-127, 1, 2]])
    np.testing.assert_allclose(scales, [0, 0.02], rtol=1e-6)
    np.testing.assert_allclose(dequantize(steps, scales), [[0, 0, 0], [-2.54, 0.02, 0.04]], rtol=1e-6)


ANY_MATRIX = arrays(
    np.float32, array_shapes(min_dims=2, max_dims=3), elements=st.floats(-(2.0**100), 2.0**100, width=32)
)


@settings(max_examples=60, deadline=None)
@given(ANY_MATRIX)
def test_any_finite_matrix(matrix: np.ndarray) -> None:
    """Down to denormal numbers, whose scale has lost its digits, so that only its own size bounds the error."""
    steps, scales = quantize(matrix)
    weights = dequantize(steps, scales)
    error = np.abs(weights.astype(np.float64) - matrix).max(axis=-1)
    normal = scales > 1e-36
    assert (error[normal] <= scales[normal] * (0.5 + 1e-4)).all()
    assert (error[~normal] <= 1e-34).all()
    np.testing.assert_array_equal(quantize(weights)[0][normal], steps[normal])
