"""Text helpers: counts with nouns (`1 address`, `2 addresses`), shortened lists and texts, and foreign text made safe to print."""

from __future__ import annotations

import re
from collections.abc import Sequence

CLOUD_NOT_ASKED = "not asked yet"
"""State of EC2 before its first answer. `ipamctl status` shows this text instead of *not reachable*."""

_PLURALS_IN_ES = ("s", "x")

TEXT_MAX = 4096
"""The most characters of a text that is stored or shown. Ours: our longest messages, with counts, causes and advice, have 1,000."""

_SUSPECT = re.compile(r"[^ -~]")


def printable(text: str, *, most: int = TEXT_MAX) -> str:
    r"""Return a text from outside as one line that is safe to print, log and encode.

    Control and format characters (ESC, line breaks, the C1 range, bidirectional overrides) and lone surrogates are escaped as in
    Python's literals (`\x1b`, `\u202e`), because terminals execute them and UTF-8 cannot encode surrogates; letters of all scripts
    stay. A text of more than `most` characters is cut, and its length is appended. Source: Unicode TR 36, 3.5; ECMA-48.
    """
    length = len(text)
    if length > most:
        text = text[:most]
    if not text.isprintable():
        text = _SUSPECT.sub(_escaped, text)
    if length <= most:
        return text
    return f"{text}... ({length} characters)"


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def first_of(sentences: Sequence[str], most: int) -> str:
    """Join the first `most` sentences, and append the number of the others."""
    more = len(sentences) - most
    return "; ".join([*sentences[:most], *([f"and {more} more"] if more > 0 else [])])


def fitting(text: str, most: int) -> str:
    """Shorten a text to at most `most` characters: keep the beginning, and the end, which contains the advice."""
    if len(text) <= most:
        return text
    head = (most - 3) * 2 // 3
    return f"{text[:head].rstrip()}...{text[len(text) - (most - 3 - head) :].lstrip()}"


def of_limit(count: int, limit: int, noun: str) -> str:
    """Describe a count and its limit; the count may be above the limit, because a limit may be lowered."""
    if count <= limit:
        return f"{count} of {counted(limit, noun)}"
    return f"{counted(count, noun)} ({count - limit} above the limit of {limit})"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1; `noun` is the singular and may have several words."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}{'es' if noun.endswith(_PLURALS_IN_ES) else 's'}"


MANY = 1_000_000
"""The count that stands for all the addresses without a row in a /80. People see a phrase instead of this number. Ours: far more than
the sandboxes of any node, and every sum of counts stays within 32 bits."""


def usable(count: int) -> str:
    """Return a number of free addresses as text; for a /80, which no node can use up, a phrase."""
    if count < MANY:
        return str(count)
    return "more than can be used"


def pool_size(count: int) -> str:
    """Return how many addresses a pool has, with their noun."""
    if count < MANY:
        return counted(count, "address")
    return "a /80"
