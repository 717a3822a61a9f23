"""Text handling against Transformers."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, processors
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast, Qwen2Tokenizer

from specdiff_jax.errors import InputError
from specdiff_jax.text import TOKENIZER_FILES, TextStream, TextTokenizer

CHATS = [
    [{"role": "user", "content": "Hi <b> & 'é' 🙂\n"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 2+2?"}],
    [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": "  three"},
    ],
    [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y", "tool_calls": None}],
]
TEMPLATES = {
    "special tokens": "{{ bos_token }}{% for m in messages %}{{ m.content }}{{ eos_token }}{{ pad_token }}{% endfor %}",
    "tojson": "{{ messages | tojson }}{{ messages | tojson(indent=2, sort_keys=true) }}",
    "loop controls": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.content }}{% endfor %}",
    "block trimming": "{% for m in messages %}\n    {% if true %}\n{{ m.role }}\n    {% endif %}\n{% endfor %}\n",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "generation block": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "date": "{{ strftime_now('%Y') }}{% if tools is none and not documents %}plain{% endif %}",
    "generation prompt": "{{ messages[0].content }}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
}


def read(folder: Path) -> TextTokenizer:
    files = {name: (folder / name).read_text(encoding="utf-8") for name in TOKENIZER_FILES if (folder / name).exists()}
    return TextTokenizer.from_files(files, folder.name)


def with_config(folder: Path, **changes: object) -> TextTokenizer:
    """The tokenizer in `folder` with other keys in its config and no template file."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    files = {"tokenizer.json": (folder / "tokenizer.json").read_text()}
    return TextTokenizer.from_files({**files, "tokenizer_config.json": json.dumps({**config, **changes})}, "tiny")


def assert_same_chats(ours: TextTokenizer, theirs: PreTrainedTokenizerBase) -> None:
    for chat in CHATS:
        expected = theirs.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(chat) == expected


@pytest.fixture(scope="module")
def tiny(tiny_tokenizer_folder: Path) -> TextTokenizer:
    return read(tiny_tokenizer_folder)


@pytest.fixture(scope="module")
def tiny_reference(tiny_tokenizer_folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(tiny_tokenizer_folder)


@pytest.fixture(scope="module")
def byte_fallback() -> TextTokenizer:
    """A SentencePiece-like tokenizer: words start with a mark, unknown characters are spelled in byte tokens."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "▁a", "ab"]
    model = models.BPE(
        vocab={word: index for index, word in enumerate(words)},
        merges=[("▁", "a"), ("a", "b")],
        unk_token="<unk>",
        byte_fallback=True,
    )
    backend = Tokenizer(model)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["</s>"])
    return TextTokenizer(backend)


@pytest.mark.parametrize("text", ["the quick fox", " lead", "naïve 🙂 42", "a<|im_end|>b", "\n\n"])
def test_plain_text_is_encoded_and_decoded_as_transformers_does(tiny, tiny_reference, text):
    ids = tiny.encode(text)
    assert ids == tiny_reference(text)["input_ids"]
    assert tiny.decode(ids) == tiny_reference.decode(ids, skip_special_tokens=True)
    assert tiny.decode(ids, skip_special_tokens=False) == text


def test_chats_of_a_saved_template_are_encoded_as_transformers_does(tiny, tiny_reference):
    assert tiny.has_chat_template
    assert_same_chats(tiny, tiny_reference)


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES.keys())
def test_template_features_render_as_in_transformers(tiny_tokenizer_folder, tiny_reference, template):
    ours = with_config(tiny_tokenizer_folder, chat_template=template, pad_token="<|endoftext|>")
    for chat in CHATS:
        expected = tiny_reference.apply_chat_template(
            chat, chat_template=template, add_generation_prompt=True, return_dict=False, pad_token="<|endoftext|>"
        )
        assert ours.encode_chat(chat) == expected


def test_published_template_renders_as_in_transformers(shared, tiny_tokenizer_folder, tiny_reference):
    template = (shared / "fixtures" / "fast_dllm_v2_7b" / "chat_template.jinja").read_text()
    ours = with_config(tiny_tokenizer_folder, chat_template=template)
    tiny_reference.chat_template = template
    assert_same_chats(ours, tiny_reference)


def test_smollm2_text_and_chats_equal_transformers(smollm2, shared, tmp_path):
    spec = importlib.util.spec_from_file_location("smollm2_tool", shared / "tools" / "smollm2.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    meta, _ = tool.read_gguf(tool.find_gguf())
    (tmp_path / "tokenizer.json").write_text(json.dumps(tool.tokenizer(meta)))
    (tmp_path / "chat_template.jinja").write_text(meta["tokenizer.chat_template"])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours, theirs = read(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert_same_chats(ours, theirs)
    text = "In 1969, Ünïcode 🙂 wasn't\tthere.\n\n  def f(x):\n    return x"
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert ours.decode(ours.encode(text)) == text
    assert ours.vocab_size == len(theirs) == 49152


def test_the_template_file_wins_over_the_config(tiny_tokenizer_folder):
    files = {name: (tiny_tokenizer_folder / name).read_text() for name in ("tokenizer.json", "tokenizer_config.json")}
    files["tokenizer_config.json"] = json.dumps({"chat_template": "config"})
    both = TextTokenizer.from_files({**files, "chat_template.jinja": "file"}, "tiny")
    assert both.decode(both.encode_chat(CHATS[0])) == "file"
    one = TextTokenizer.from_files(files, "tiny")
    assert one.decode(one.encode_chat(CHATS[0])) == "config"


def test_the_default_of_several_templates_is_taken(tiny_tokenizer_folder):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "usual"}]
    ours = with_config(tiny_tokenizer_folder, chat_template=named)
    assert ours.decode(ours.encode_chat(CHATS[0])) == "usual"
    assert not with_config(tiny_tokenizer_folder, chat_template=named[:1]).has_chat_template


@pytest.mark.parametrize("add", [True, False])
def test_tokenizer_json_decides_on_the_begin_token(tiny_tokenizer_folder, tmp_path, add):
    backend = Tokenizer.from_file(str(tiny_tokenizer_folder / "tokenizer.json"))
    begin = ("<|endoftext|>", backend.token_to_id("<|endoftext|>"))
    backend.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[begin])
    PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<|endoftext|>", chat_template="{{ bos_token }}dog"
    ).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "add_bos_token": add}))
    ours, theirs = read(tmp_path), PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert ours.encode("dog") == theirs("dog")["input_ids"]
    assert ours.encode("dog")[0] == begin[1]
    assert ours.encode_chat(CHATS[0]) == ours.encode("dog")  # the template has written it: no second one


def test_tokens_beside_tokenizer_json_get_their_ids(tiny_tokenizer_folder):
    mask = {"content": "|<MASK|>", "lstrip": False, "normalized": False, "rstrip": False, "special": True}
    ours = with_config(tiny_tokenizer_folder, added_tokens_decoder={"290": {**mask, "single_word": False}})
    assert ours.token_id("|<MASK|>") == 290
    assert ours.vocab_size == 291
    assert ours.decode(ours.encode("a|<MASK|>b")) == "ab"

    files = {"tokenizer.json": (tiny_tokenizer_folder / "tokenizer.json").read_text()}
    listed = TextTokenizer.from_files({**files, "added_tokens.json": json.dumps({"|<MASK|>": 290})}, "tiny")
    assert listed.token_id("|<MASK|>") == 290
    with pytest.raises(InputError, match=r"\|<MASK\|>.* has id 999, but 290 in tokenizer.json"):
        TextTokenizer.from_files({**files, "added_tokens.json": json.dumps({"|<MASK|>": 999})}, "tiny")


@pytest.mark.parametrize("add", [True, False])
def test_qwen2_without_tokenizer_json_is_built_from_vocab_and_merges(tiny_tokenizer_folder, tmp_path, add):
    model = json.loads((tiny_tokenizer_folder / "tokenizer.json").read_text())["model"]
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    files = {
        "vocab.json": json.dumps(model["vocab"]),
        "merges.txt": f"#version: 0.2\n{merges}",
        "tokenizer_config.json": json.dumps(
            {
                "tokenizer_class": "Qwen2Tokenizer",
                "bos_token": "<|im_start|>",
                "eos_token": "<|im_end|>",
                "add_bos_token": add,
            }
        ),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    ours, theirs = TextTokenizer.from_files(files, "tiny"), Qwen2Tokenizer.from_pretrained(tmp_path)
    text = "The quick, brown fox's\n\n  dog 123 cafe\N{COMBINING ACUTE ACCENT} 🙂<|im_end|>"
    assert ours.encode(text) == theirs(text)["input_ids"]
    assert (ours.encode(text)[0] == ours.token_id("<|im_start|>")) == add
    assert ours.decode(ours.encode(text)) == theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "tokenizer.json is absent: write it there with transformers"),
        ({"vocab.json": "{}", "merges.txt": ""}, "tokenizer.json is absent"),
        ({"tokenizer.json": "{}"}, "tokenizer.json can't be read"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "["}, "tokenizer_config.json is not JSON"),
        ({"tokenizer.json": "{}", "tokenizer_config.json": "[]"}, "tokenizer_config.json must hold an object"),
        ({"tokenizer_config.json": '{"tokenizer_class": 3}'}, "tokenizer setting tokenizer_class=3: must be a text"),
        ({"tokenizer_config.json": '{"eos_token": ["x"]}'}, r'tokenizer setting eos_token=\["x"\]: must be a text'),
        ({"special_tokens_map.json": '{"bos_token": {"id": 1}}'}, "tokenizer setting bos_token="),
        ({"tokenizer_config.json": '{"chat_template": 5}'}, "tokenizer setting chat_template=5"),
    ],
)
def test_unusable_files_are_named(files, message):
    with pytest.raises(InputError, match=f"somewhere: {message}"):
        TextTokenizer.from_files(files, "somewhere")


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ raise_exception('roles must\nalternate') }}", "roles must alternate"),
        ("{{ messages[0].content + 1 }}", "concatenate"),
        ("{% if %}", "Expected an expression"),
        ("{{ messages.append(1) }}", "unsafe"),
    ],
)
def test_a_failing_template_is_bad_input_in_one_line(tiny_tokenizer_folder, template, reason):
    ours = with_config(tiny_tokenizer_folder, chat_template=template)
    with pytest.raises(InputError, match=reason) as caught:
        ours.encode_chat(CHATS[0])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("messages", [[], [{"content": "no role"}]])
def test_malformed_messages_are_refused(tiny, messages):
    with pytest.raises(InputError, match="role"):
        tiny.encode_chat(messages)


def test_no_template_is_said(tiny_tokenizer_folder):
    ours = TextTokenizer.from_files({"tokenizer.json": (tiny_tokenizer_folder / "tokenizer.json").read_text()}, "tiny")
    assert not ours.has_chat_template
    with pytest.raises(InputError, match="no chat template"):
        ours.encode_chat(CHATS[0])


def pieces_of(tokenizer: TextTokenizer, ids: list[int], size: int) -> list[str]:
    stream = TextStream(tokenizer)
    pushed = [stream.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [*pushed, stream.finish()]


@given(text=st.text(), size=st.integers(1, 5))
def test_a_stream_of_any_text_shows_whole_characters_only(tiny, byte_fallback, text, size):
    for tokenizer in (tiny, byte_fallback):
        ids = tokenizer.encode(text)
        *pieces, last = pieces_of(tokenizer, ids, size)
        assert "".join([*pieces, last]) == tokenizer.decode(ids)
        if "\N{REPLACEMENT CHARACTER}" not in text:
            assert "\N{REPLACEMENT CHARACTER}" not in "".join(pieces)


@given(data=st.data(), size=st.integers(1, 5))
def test_a_stream_of_any_ids_joins_to_what_decode_says(tiny, byte_fallback, data, size):
    for tokenizer in (tiny, byte_fallback):
        ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 1), max_size=30))
        assert "".join(pieces_of(tokenizer, ids, size)) == tokenizer.decode(ids)


def test_an_id_without_a_token_parts_no_bytes(byte_fallback):
    ids = [1, byte_fallback.vocab_size, 129]  # <0x00>, nothing, <0x80>
    assert "".join(pieces_of(byte_fallback, ids, 1)) == byte_fallback.decode(ids)


def test_a_split_emoji_is_shown_at_its_last_byte(tiny):
    ids = tiny.encode("a🙂b")
    assert len(ids) == 6
    assert pieces_of(tiny, ids, 1) == ["a", "", "", "", "🙂", "b", ""]
    assert pieces_of(tiny, ids[:3], 1) == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]
