"""Text that several modules write alike: counts with their nouns (`1 address`, `2 addresses`), lists that end, and phrases."""

from __future__ import annotations

from collections.abc import Sequence

CLOUD_NOT_ASKED = "not asked yet"
"""What is known of EC2 before its first answer; `ipamctl status` shows it instead of *not reachable*."""

_PLURALS_IN_ES = ("s", "x")


def first_of(sentences: Sequence[str], most: int) -> str:
    """Join the first `most` sentences, and count the rest."""
    more = len(sentences) - most
    return "; ".join([*sentences[:most], *([f"and {more} more"] if more > 0 else [])])


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1; `noun` is the singular and may have several words."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(_PLURALS_IN_ES) else 's'}"
