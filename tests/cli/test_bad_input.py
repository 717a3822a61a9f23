"""Bad input ends with exit code 2 and one line on stderr that says what is wrong; stdout stays empty."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

AUTOREGRESSIVE = ("--method", "autoregressive")
VANILLA = ("--method", "vanilla")


def test_unknown_model(refused, tmp_path):
    line = refused("generate", "--model", tmp_path / "absent", *AUTOREGRESSIVE, "--prompt", "a", "--json")
    assert "absent" in line
    assert "no such file or folder" in line


def test_absent_tokenizer(refused, tiny_checkpoint, tmp_path):
    for name in ("config.json", "model.safetensors"):
        shutil.copy(tiny_checkpoint / name, tmp_path)
    line = refused("generate", "--model", tmp_path, *AUTOREGRESSIVE, "--prompt", "a", "--json")
    assert "tokenizer" in line


def test_empty_prompt(refused, tiny_checkpoint):
    assert "prompt is empty" in refused("generate", "--model", tiny_checkpoint, *AUTOREGRESSIVE, "--prompt", "")


def test_prompt_longer_than_the_context(refused, tiny_checkpoint):
    line = refused("generate", "--model", tiny_checkpoint, *AUTOREGRESSIVE, "--prompt", "fox " * 100)
    assert "context of 128 tokens" in line


@pytest.mark.parametrize(
    ("flag", "value", "name"),
    [
        ("--max-new-tokens", -1, "max_new_tokens"),
        ("--max-new-tokens", 0, "max_new_tokens"),
        ("--temperature", -0.5, "temperature"),
        ("--top-p", 0, "top_p"),
        ("--top-p", 1.5, "top_p"),
        ("--top-k", -2, "top_k"),
        ("--batch-size", 0, "batch_size"),
    ],
)
def test_number_out_of_range(refused, tiny_checkpoint, flag, value, name):
    line = refused("generate", "--model", tiny_checkpoint, *AUTOREGRESSIVE, "--prompt", "a", flag, value, "--json")
    assert name in line
    assert str(value) in line


def test_unknown_method_lists_the_methods(refused):
    line = refused("generate", "--model", "m", "--method", "magic", "--prompt", "a")
    assert "'magic'" in line
    assert "'autoregressive'" in line


def test_dflash_needs_a_drafter(refused):
    line = refused("generate", "--model", "m", "--method", "dflash", "--prompt", "a")
    assert "method dflash needs a drafter that was made for m: give one with --drafter" in line


def test_methods_of_the_other_kind_of_model(refused, tiny_checkpoint, tiny_diffusion_checkpoint):
    line = refused("generate", "--model", tiny_checkpoint, "--method", "vanilla", "--prompt", "a")
    assert "method vanilla is not available for" in line
    assert "a llama model is no diffusion model: decode it with method autoregressive" in line
    line = refused("generate", "--model", tiny_diffusion_checkpoint, *AUTOREGRESSIVE, "--prompt", "a")
    assert "a fast_dllm_v2 model is no autoregressive one: decode it with method vanilla" in line


@pytest.mark.parametrize("threshold", [0, -1, 1.5, "nan"])
def test_thresholds_out_of_range(refused, threshold):
    line = refused("generate", "--model", "m", *VANILLA, "--prompt", "a", "--threshold", threshold)
    assert "threshold must be above 0 and at most 1" in line


def test_a_block_size_that_the_model_was_not_trained_for(refused, specdiff, tiny_diffusion_checkpoint):
    asked = ("generate", "--model", tiny_diffusion_checkpoint, *VANILLA, "--prompt", "a", "--max-new-tokens", 4)
    line = refused(*asked, "--block-size", 16)
    assert "block size 16: the model was trained for blocks of 8" in line
    with pytest.warns(UserWarning, match="blocks of 8, not of 16"):
        assert specdiff(*asked, "--block-size", 16, "--force").code == 0
    assert "--force has no effect without --block-size" in refused(*asked, "--force")


def test_a_warning_is_one_line(tiny_diffusion_checkpoint):
    asked = ["--model", tiny_diffusion_checkpoint, *VANILLA, "--prompt", "a", "--max-new-tokens", "4"]
    done = subprocess.run(
        [sys.executable, "-m", "specdiff_jax", "generate", *asked, "--block-size", "16", "--force"],
        capture_output=True,
        text=True,
        check=True,
    )
    warning, counters = done.stderr.splitlines()
    assert warning.startswith("specdiff: warning: ")
    assert warning.endswith("was trained for blocks of 8, not of 16")
    assert "4 new tokens" in counters


def test_a_prompt_that_holds_the_mask(refused, tiny_diffusion_checkpoint, tmp_path):
    settings = json.loads((tiny_diffusion_checkpoint / "tokenizer_config.json").read_text())
    mask = {"content": "<mask>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    shutil.copytree(tiny_diffusion_checkpoint, tmp_path, dirs_exist_ok=True)
    changed = {**settings, "added_tokens_decoder": {"290": {**mask, "special": True}}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(changed))
    line = refused("generate", "--model", tmp_path, *VANILLA, "--prompt", "a <mask>", "--max-new-tokens", 4)
    assert "token id 290, the mask of" in line


@pytest.mark.parametrize("flag", ["--drafter", "--graph", "--threshold", "--delta", "--budget", "--block-size"])
def test_flag_that_the_method_does_not_read(refused, flag):
    line = refused("generate", "--model", "m", *AUTOREGRESSIVE, "--prompt", "a", flag, "1")
    assert f"{flag} has no effect with --method autoregressive" in line


def test_both_or_neither_of_prompt_and_prompts(refused, tmp_path):
    wanted = "give either --prompt TEXT or --prompts FILE.jsonl"
    assert wanted in refused("generate", "--model", "m", *AUTOREGRESSIVE)
    both = ("--prompt", "a", "--prompts", tmp_path / "p.jsonl")
    assert wanted in refused("generate", "--model", "m", *AUTOREGRESSIVE, *both)


@pytest.mark.parametrize(("line", "reason"), [("{broken", "not JSON"), ('{"text": "a"}', '"prompt"')])
def test_broken_line_of_a_prompts_file(refused, tmp_path, line, reason):
    path = tmp_path / "prompts.jsonl"
    path.write_text(f'{{"prompt": "a"}}\n{line}\n')
    message = refused("generate", "--model", "m", *AUTOREGRESSIVE, "--prompts", path)
    assert f"{path}, line 2: " in message
    assert reason in message


def test_absent_prompts_file(refused, tmp_path):
    message = refused("generate", "--model", "m", *AUTOREGRESSIVE, "--prompts", tmp_path / "absent.jsonl")
    assert "absent.jsonl can't be read" in message


def test_stream_is_refused_where_it_can_not_work(refused):
    common = ("generate", "--model", "m", *AUTOREGRESSIVE, "--prompt", "a", "--stream")
    assert "--json" in refused(*common, "--json")
    assert "--batch-size" in refused(*common, "--batch-size", 2)


def test_exact_needs_float32(refused, tiny_checkpoint):
    common = ("generate", "--model", tiny_checkpoint, *AUTOREGRESSIVE, "--prompt", "a")
    assert "float32" in refused(*common, "--exact", "--dtype", "bfloat16")


def test_messages_without_a_chat_template(refused, tiny_checkpoint, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, folder)
    (folder / "chat_template.jinja").unlink()
    line = refused("generate", "--model", folder, *AUTOREGRESSIVE, "--prompt", "a", "--chat")
    assert "no chat template" in line


def test_failing_chat_template(refused, tiny_checkpoint, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, folder)
    (folder / "chat_template.jinja").write_text("{{ raise_exception('only\\nsystem prompts') }}")
    assert "only system prompts" in refused("generate", "--model", folder, *AUTOREGRESSIVE, "--prompt", "a")


def test_config_with_an_unknown_family(refused, tiny_checkpoint, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "mamba"}))
    assert "mamba" in refused("generate", "--model", folder, *AUTOREGRESSIVE, "--prompt", "a")


def test_destination_that_exists(refused, tiny_checkpoint, tmp_path):
    line = refused("convert", tiny_checkpoint, tmp_path)
    assert str(tmp_path) in line
    assert "exists" in line
    assert list(tmp_path.iterdir()) == []


def test_absent_source(refused, tmp_path):
    destination = tmp_path / "out"
    assert "no such file or folder" in refused("convert", tmp_path / "absent", destination)
    assert "no such file or folder" in refused("check", tmp_path / "absent", "--json")
    assert not Path(destination).exists()


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ((), "Missing command; see specdiff --help"),
        (("unknown",), "'unknown'; see specdiff --help"),
        (("generate", "--xyz"), "No such option: --xyz; see specdiff generate --help"),
        (("generate", "--method", "autoregressive", "--prompt", "a"), "'--model'; see specdiff generate --help"),
        (("generate", "--model", "m", "--prompt", "a"), "'--method'"),
        (("generate", "--seed", "x"), "'--seed'"),
        (("convert", "only-a-source"), "'DESTINATION'; see specdiff convert --help"),
        (("models", "surplus"), "surplus"),
    ],
)
def test_usage(refused, arguments, hint):
    assert hint in refused(*arguments)
