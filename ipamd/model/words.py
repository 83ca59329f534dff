"""Counts in sentences: `1 address`, `2 addresses`, never `1 addresses`."""

from __future__ import annotations

_PLURALS_IN_ES = ("s", "x")


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1; `noun` is the singular and may have several words."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(_PLURALS_IN_ES) else 's'}"
