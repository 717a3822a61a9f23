"""Typed reading of a JSON object, in which faults are collected so that one error can name them all."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from specdiff_jax.errors import InputError

MAX_COUNT = 2**31 - 1  # what an int32 can index
MIN_NUMBER, MAX_NUMBER = 1e-30, 1e30  # no setting of a model lies outside, and arithmetic on what lies inside is safe
_SHOWN = 80


def shown(value: object) -> str:
    """The value as the JSON file has it, shortened to fit in a message."""
    text = json.dumps(value, default=repr)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def is_whole(value: object) -> bool:
    """Whether it is an integer; JSON's true and false, which Python counts as integers, are not."""
    return isinstance(value, int) and not isinstance(value, bool)


class Keys:
    """A JSON object that is being read.

    Where a key is missing or wrong, the fault is noted and a stand-in of the right type is returned, so that reading
    goes on; the values mean something only after `raise_faults`. A null counts as absent, as it does in Hugging Face
    configs.

    Attributes:
        faults: one clause a fault, naming key and value; shared with the sections of the object.
    """

    def __init__(self, values: Mapping[str, Any], prefix: str = "", faults: list[str] | None = None) -> None:
        self.faults: list[str] = [] if faults is None else faults
        self._values = values
        self._prefix = prefix
        self._known: set[str] = set()
        self._faulty: set[str] = set()

    def given(self, key: str) -> bool:
        """Whether the key is there with a value."""
        return self._get(key) is not None

    def content(self) -> dict[str, Any]:
        """Every key that has a value, read or not."""
        return {key: value for key, value in self._values.items() if value is not None}

    def count(self, key: str, default: int | None = None, limit: int = MAX_COUNT, least: int = 1) -> int:
        """A size: a whole number from `least` to `limit`; required where there is no default."""
        value = self._get(key, default)
        if is_whole(value) and least <= value <= limit:
            return value
        self._note(key, f"must be a whole number from {least} to {limit}")
        return least

    def number(
        self, key: str, default: float | None = None, least: float = MIN_NUMBER, limit: float = MAX_NUMBER
    ) -> float:
        """A number from `least` to `limit`, by default any positive one; required where there is no default."""
        value = self._get(key, default)
        if (is_whole(value) or isinstance(value, float)) and least <= value <= limit:
            return float(value)
        self._note(key, f"must be a number from {least:g} to {limit:g}")
        return 1.0

    def choice(self, key: str, options: Collection[str]) -> str:
        """One of a few words; required."""
        value = self._get(key)
        if isinstance(value, str) and value in options:
            return value
        self._note(key, f"must be one of {', '.join(options)}")
        return next(iter(options))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key, default)
        if isinstance(value, bool):
            return value
        self._note(key, "must be true or false")
        return default

    def text(self, key: str, default: str) -> str:
        """A string."""
        value = self._get(key, default)
        if isinstance(value, str):
            return value
        self._note(key, "must be a string")
        return default

    def token_id(self, key: str, default: int | None = None) -> int | None:
        """A token id, or the default where the key is absent (an explicit null means none)."""
        value = self._get(key) if key in self._values else default
        if value is None or (is_whole(value) and value >= 0):
            return value
        self._note(key, "must be a token id")
        return None

    def token_ids(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """Token ids from one id or a list, in order and without repeats; an explicit null means none."""
        value = self._get(key) if key in self._values else list(default)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if all(is_whole(i) and i >= 0 for i in ids):
            return tuple(dict.fromkeys(ids))
        self._note(key, "must be a token id or a list of token ids")
        return ()

    def items(self, key: str) -> list[Any]:
        """A list; empty where absent."""
        value = self._get(key, [])
        if isinstance(value, list):
            return value
        self._note(key, "must be a list")
        return []

    def section(self, key: str) -> Keys:
        """The object under a key, read in the same way; an empty one where absent."""
        value = self._get(key, {})
        if not isinstance(value, Mapping):
            self._note(key, "must be an object")
            value = {}
        return Keys(value, f"{self._prefix}{key}.", self.faults)

    def only(self, key: str, allowed: object, why: str) -> None:
        """Refuse any value but the allowed one; absent is fine."""
        value = self._get(key, allowed)
        if value != allowed or isinstance(value, bool) != isinstance(allowed, bool):
            self._note(key, why)

    def need(self, key: str) -> None:
        """Note a fault where the key is absent."""
        if not self.given(key):
            self._note(key, "missing")

    def agree(self, first: str, second: str) -> None:
        """Refuse two names of one setting that are both given and differ."""
        if self.given(first) and self.given(second):
            self.require(self._values[first] == self._values[second], "must be equal", first, second)

    def require(self, holds: bool, why: str, *keys: str) -> None:
        """Note a fault of these keys together, unless one of them is already known to be wrong."""
        if not holds and not self._faulty.intersection(keys):
            pairs = [f"{self._prefix}{key}={shown(self._values[key])}" for key in keys if self.given(key)]
            self.faults.append(f"{', '.join(pairs)}: {why}")

    def refuse_unknown(self, ignored: Collection[str] = ()) -> None:
        """Note every key with a value that was neither read nor is in `ignored`."""
        for key in self._values:
            if key not in self._known and key not in ignored and self.given(key):
                self._note(key, "unknown key, so what it changes is not supported")

    def raise_faults(self, source: str) -> None:
        """Raise one error for everything noted.

        Raises:
            InputError: if there is a fault.
        """
        if self.faults:
            raise InputError(f"{source}: {'; '.join(self.faults)}")

    def _get(self, key: str, default: Any = None) -> Any:
        self._known.add(key)
        value = self._values.get(key)
        return default if value is None else value

    def _note(self, key: str, why: str) -> None:
        if key not in self._faulty:
            self._faulty.add(key)
            name = self._prefix + shown(key)[1:-1]  # an unknown key may hold anything, a line break too
            self.faults.append(f"{name}={shown(self._values[key])}: {why}" if self.given(key) else f"{name} is missing")
