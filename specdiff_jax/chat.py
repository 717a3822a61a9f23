"""Chat templates, rendered the way Transformers renders them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache, cached_property
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdiff_jax.errors import InputError


class ChatTemplate:
    """One Jinja template, together with the special tokens that it may name (`bos_token`, `eos_token`, ...).

    It is compiled when it is first rendered, so that a broken template does not stand in the way of plain text.
    """

    def __init__(self, text: str, source: str, special_tokens: Mapping[str, str]) -> None:
        self._text = text
        self._source = source
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The conversation as one text that ends where the assistant's answer begins.

        Args:
            messages: each {"role", "content"}; keys whose value is None are left out, as Transformers does.

        Raises:
            InputError: a message is malformed, or the template refuses the conversation or is itself broken.
        """
        check_messages(messages, self._source)
        present = [{key: value for key, value in message.items() if value is not None} for message in messages]
        variables = {**self._special_tokens, "messages": present, "tools": None, "documents": None}
        try:
            return self._template.render(variables, add_generation_prompt=True)
        except Exception as error:  # the template is foreign code: whatever it raises says that these inputs don't fit
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{self._source}: the chat template fails on these messages: {reason}") from error

    @cached_property
    def _template(self) -> jinja2.Template:
        return _environment().from_string(self._text)


def check_messages(messages: object, where: str) -> None:
    """Refuse anything but a non-empty list of objects that each have a textual `role` and a `content`.

    The content is a text, or a list where the template takes parts; a message with other keys (tool calls) needs none.

    Raises:
        InputError: naming `where` and the first message that is wrong.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise InputError(f'{where}: messages must be a non-empty list of {{"role", "content"}} objects')
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise InputError(f'{where}: message {index} must be an object with a textual "role" and its "content"')
        content = message.get("content")
        bare = content is None and message.keys() <= {"role", "content"}
        if bare or not isinstance(content, str | list | None):
            raise InputError(f'{where}: message {index} must have a textual "content"')


class _GenerationBlock(Extension):
    """`{% generation %}`: marks the assistant's words for training; here its body is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012  (declared so by jinja2)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


@cache
def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationBlock]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which no model was trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return datetime.now().strftime(pattern)
