"""Text to token ids and back, with the tokenizer files of a Hugging Face checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from specdiff_jax.chat import ChatTemplate
from specdiff_jax.errors import InputError
from specdiff_jax.keys import shown

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
)
"""The files that `TextTokenizer.from_files` reads; only tokenizer.json is needed."""

_SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TextTokenizer:
    """A checkpoint's tokenizer and chat template.

    Attributes:
        vocab_size: number of tokens, added ones included; a model's embedding may be padded beyond it.
        special_ids: ids that stand for no text (begin, end, mask, ...).
    """

    def __init__(self, backend: Tokenizer, template: ChatTemplate | None = None) -> None:
        """Wrap a tokenizer, whose padding and truncation are switched off, and its chat template, if it has one."""
        backend.no_padding()
        backend.no_truncation()
        self._backend = backend
        self._template = template
        self.vocab_size: int = backend.get_vocab_size(with_added_tokens=True)
        self.special_ids = frozenset(
            token for token, added in backend.get_added_tokens_decoder().items() if added.special
        )
        pieces = (backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        self._byte_ids = frozenset(token for token in pieces if token is not None)

    @classmethod
    def from_files(cls, files: Mapping[str, str], source: str) -> TextTokenizer:
        """Read a tokenizer.

        Args:
            files: contents by file name; names outside `TOKENIZER_FILES` are ignored.
            source: what to call the checkpoint in errors.

        Raises:
            InputError: tokenizer.json is absent or broken, or the files contradict each other.
        """
        settings = _json_object(files, "tokenizer_config.json", source)
        named = {**_json_object(files, "special_tokens_map.json", source), **settings}
        _check_types(named, source)
        backend = _read_backend(files, settings, source)
        _add_tokens(backend, settings, _json_object(files, "added_tokens.json", source), source)
        special = _special_tokens(named)
        known = [content for content in special.values() if backend.token_to_id(content) is not None]
        backend.add_special_tokens(known)
        text = files.get("chat_template.jinja") or _template_of(settings)
        template = None if text is None else ChatTemplate(text, source, special)
        if "tokenizer.json" not in files and settings.get("add_bos_token") and "bos_token" in special:
            _begin_with(backend, special["bos_token"])
        return cls(backend, template)

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` works."""
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Ids of a plain text; as in Transformers, tokenizer.json decides whether a begin token comes first."""
        return self._backend.encode(text).ids

    def encode_chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        """Ids of a conversation, up to where the assistant's answer begins.

        Args:
            messages: each {"role", "content"}.

        Raises:
            InputError: there is no chat template, or it refuses these messages.
        """
        if self._template is None:
            raise InputError("the tokenizer has no chat template: give plain text (--raw)")
        # The template writes the begin token itself.
        return self._backend.encode(self._template.render(messages), add_special_tokens=False).ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Text of ids; ids beyond the vocabulary stand for nothing."""
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def token_id(self, content: str) -> int | None:
        """Id of the token that is written `content`, if there is one."""
        return self._backend.token_to_id(content)

    def is_byte(self, token: int) -> bool:
        """Whether a token is one byte of a character that has no token of its own (`<0xE2>`)."""
        return token in self._byte_ids


class TextStream:
    """Decodes ids as they come; the pieces, joined, are what `decode` makes of all ids at once, special tokens skipped.

    A piece ends at the end of a character: bytes of a character whose rest may still come are held back.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        # What was shown last is decoded again as context, since a token's text may depend on the token before it.
        self._shown: list[int] = []
        self._held: list[int] = []

    def push(self, ids: Sequence[int]) -> str:
        """Take the next ids and return the text that they complete, maybe none."""
        # Ids without a text (a padded vocabulary has some past its tokens) must not part bytes that decode joins.
        silent, size = self._tokenizer.special_ids, self._tokenizer.vocab_size
        self._held += [token for token in ids if token not in silent and token < size]
        if not self._held or self._tokenizer.is_byte(self._held[-1]):
            return ""
        piece = self._piece()
        if not piece or piece.endswith(_REPLACEMENT):
            return ""
        self._shown, self._held = self._held, []
        return piece

    def finish(self) -> str:
        """The text that was held back; a character that stayed incomplete is U+FFFD, as in `decode`."""
        piece = self._piece()
        self._shown, self._held = [], []
        return piece

    def _piece(self) -> str:
        decode = self._tokenizer.decode
        return decode(self._shown + self._held)[len(decode(self._shown)) :]


def _json_object(files: Mapping[str, str], name: str, source: str) -> dict[str, Any]:
    """The object in a file; {} where the file is absent."""
    if name not in files:
        return {}
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{source}: {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise InputError(f"{source}: {name} must hold an object")
    return value


def _check_types(settings: Mapping[str, Any], source: str) -> None:
    """Refuse values that Transformers never writes, rather than take them for absent."""
    for key in ("tokenizer_class", *_SPECIAL_ROLES):
        value = settings.get(key)
        content = value.get("content", 0) if isinstance(value, dict) and key in _SPECIAL_ROLES else value
        if not isinstance(content, str | None):
            raise InputError(f"{source}: tokenizer setting {key}={shown(value)}: must be a text")
    if not isinstance(settings.get("chat_template"), str | list | None):
        raise InputError(
            f"{source}: tokenizer setting chat_template={shown(settings['chat_template'])}: must be a text"
        )


def _read_backend(files: Mapping[str, str], settings: Mapping[str, Any], source: str) -> Tokenizer:
    is_qwen2 = (settings.get("tokenizer_class") or "").startswith("Qwen2Tokenizer")
    try:
        if "tokenizer.json" in files:
            return Tokenizer.from_str(files["tokenizer.json"])
        if is_qwen2 and {"vocab.json", "merges.txt"} <= files.keys():
            return _qwen2_backend(json.loads(files["vocab.json"]), files["merges.txt"])
    except Exception as error:  # the library raises bare Exception
        name = "tokenizer.json" if "tokenizer.json" in files else "vocab.json with merges.txt"
        raise InputError(f"{source}: {name} can't be read: {error}") from error
    raise InputError(
        f"{source}: tokenizer.json is absent: write it there with transformers, "
        "AutoTokenizer.from_pretrained(...).save_pretrained(...)"
    )


def words_with_digits(digits: str) -> pre_tokenizers.PreTokenizer:
    """The cut into words of Qwen2 and Llama 3, which differ in how many digits stay together (a regex)."""
    pattern = (
        rf"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _qwen2_backend(vocab: dict[str, int], merges: str) -> Tokenizer:
    lines = merges.removesuffix("\n").split("\n")
    pairs = [line.partition(" ")[::2] for line in lines[lines[0].startswith("#version") :]]
    backend = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = words_with_digits(r"\p{N}")
    backend.decoder = decoders.ByteLevel()
    return backend


def _add_tokens(backend: Tokenizer, settings: Mapping[str, Any], listed: Mapping[str, Any], source: str) -> None:
    """Add the tokens that stand beside tokenizer.json, each at the id that its file gives."""
    try:
        tokens = {int(token): AddedToken(content) for content, token in listed.items()}
        tokens |= {
            int(token): AddedToken(**fields) for token, fields in settings.get("added_tokens_decoder", {}).items()
        }
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"{source}: the added tokens beside tokenizer.json can't be read: {error}") from error
    backend.add_tokens([tokens[token] for token in sorted(tokens)])
    for token, added in tokens.items():
        actual = backend.token_to_id(added.content)
        if actual != token:
            raise InputError(f"{source}: added token {added.content!r} has id {token}, but {actual} in tokenizer.json")


def _special_tokens(settings: Mapping[str, Any]) -> dict[str, str]:
    """Contents of the named special tokens, by role."""
    contents = {}
    for role in _SPECIAL_ROLES:
        value = settings.get(role)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            contents[role] = content
    return contents


def _template_of(settings: Mapping[str, Any]) -> str | None:
    """The template in tokenizer_config.json: one text, or the one named "default" of a list."""
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        return named.get("default")
    return template


def _begin_with(backend: Tokenizer, content: str) -> None:
    begin = (content, backend.token_to_id(content))
    backend.post_processor = processors.TemplateProcessing(single=[content, "$A"], special_tokens=[begin])
