"""Sums written out in steps small enough for a model of a few million parameters.

A carry, a borrow and a two-digit product are split: "47 + 38" becomes "47 + 30 = 77, 77 + 8 = 85".
"""

from __future__ import annotations

from random import Random

_JOINTS = (", ", ", then ", " and ", "; ")


def addition(rng: Random, left: int, right: int) -> str:
    """`left + right`, both at least 0, as written steps; the last number is the sum."""
    tens, ones = right - right % 10, right % 10
    if not tens or not ones or not _carries(left, right):
        return f"{left} + {right} = {left + right}"
    return f"{left} + {tens} = {left + tens}{rng.choice(_JOINTS)}{left + tens} + {ones} = {left + right}"


def subtraction(rng: Random, left: int, right: int) -> str:
    """`left - right`, with `left >= right >= 0`, as written steps; the last number is the difference."""
    tens, ones = right - right % 10, right % 10
    if not tens or not ones or not _carries(left - right, right):
        return f"{left} - {right} = {left - right}"
    return f"{left} - {tens} = {left - tens}{rng.choice(_JOINTS)}{left - tens} - {ones} = {left - right}"


def multiplication(rng: Random, digit: int, number: int) -> str:
    """`digit * number`, of one digit and at most two, as written steps; the last number is the product."""
    tens, ones = number - number % 10, number % 10
    if not tens or not ones:
        return f"{digit} * {number} = {digit * number}"
    joint = rng.choice(_JOINTS)
    total = addition(rng, digit * tens, digit * ones)
    return f"{digit} * {tens} = {digit * tens}{joint}{digit} * {ones} = {digit * ones}{joint}{total}"


def _carries(left: int, right: int) -> bool:
    """Whether the sum carries into a digit that is there already."""
    return left % 10 + right % 10 > 9 or (left >= 100 and left % 100 + right % 100 > 99)
