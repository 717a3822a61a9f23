"""Names and things that several tasks talk about."""

from __future__ import annotations


def table(text: str) -> tuple[str, ...]:
    """The words of a text, as a tuple."""
    return tuple(text.split())


_WOMEN = table("Mia Ana Ella Nora Zoe Lena Ruth Ivy Sara Tess Olga Maya Jane Rosa Lily Emma Kira Noor Aiko Dora")
_MEN = table("Tom Ben Leo Max Sam Omar Paul Ivan Luis Nick Hugo Adam Carl Dan Eli Finn Gus Ian Raj Kofi")

PEOPLE = (*((name, "she") for name in _WOMEN), *((name, "he") for name in _MEN))
"""Names with their pronouns."""

THINGS = table("""
    apples pears plums books pens coins stamps cards shells stones beads marbles stickers buttons ribbons candles
    cookies muffins lemons eggs nuts cups plates keys bolts nails bricks roses tulips seeds toys balls kites masks
    badges socks hats maps jars tickets
""")
"""Plural nouns for what is counted, bought and made."""

WORDS = table("""
    amber bread cabin delta eagle flint grape honey ivory jelly kite lemon mango north olive pearl quiet river solar
    tiger umbra violet wagon yeast zebra apple birch cedar daisy ember fern garden harbor iris jacket kettle lantern
    meadow nickel orange pepper rabbit silver tunnel valley willow anchor basket candle desert engine forest ginger
    hammer island jungle
""")
"""Plain lower-case words of four to seven letters."""
