"""The source of chance of all tasks."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")


class Draws(Random):
    """`random.Random` with a faster `choice` and `randint`, on which nearly all the time of the tasks goes.

    They floor `random()`, as `choices` of the base does: fair enough for tables of less than a thousand entries.
    """

    def choice(self, seq: SupportsLenAndGetItem[T]) -> T:
        """One item."""
        return seq[int(self.random() * len(seq))]

    def randint(self, a: int, b: int) -> int:
        """A number from `a` to `b`, both included."""
        return a + int(self.random() * (b - a + 1))
