"""Make text from outside safe to print, and lay out tables."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

CELL_MAX = 240
"""Most characters of a cell in a table. Ours: an error of the API server may have thousands, and would bury the table; 240 say the
cause. `-o json` has the whole text."""

GAP = "  "

LAST_MIN = 16
"""Least width, in characters, to which the last column is narrowed. Ours: two words; a row that leaves less room is cut off."""

_UNPRINTABLE = re.compile(r"[^ -~]")


def printable(text: str) -> str:
    """Escape the characters that control a terminal: control and format characters, line breaks. Letters of all scripts stay."""
    if text.isprintable():
        return text
    return _UNPRINTABLE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    character = match[0]
    if character.isprintable():
        return character
    return character.encode("unicode_escape").decode()


def table(rows: Iterable[Mapping[str, Any]], columns: Mapping[str, str]) -> str:
    """Lay out rows under a header. An empty cell shows "-".

    Args:
        columns: heading of a column -> the key of its cells in `rows`.
    """
    lines = [list(columns)]
    for row in rows:
        lines.append([_cell(row[key]) for key in columns.values()])
    return "\n".join(_aligned(lines))


def _cell(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "-"
    text = printable(str(value))
    if len(text) > CELL_MAX:
        return f"{text[: CELL_MAX - 3]}..."
    return text


def _aligned(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Align cells below each other. On a terminal the last cell goes on in further lines of its column."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    screen_width = _screen_width()
    last_width = screen_width - sum(widths[:-1]) - len(GAP) * (len(widths) - 1)
    for line in lines:
        parts = [line[-1]]
        if screen_width and last_width >= LAST_MIN:
            parts = textwrap.wrap(line[-1], last_width, break_on_hyphens=False) or [""]
        start = GAP.join([*map(str.ljust, line[:-1], widths), ""])
        for number, part in enumerate(parts):
            text = f"{' ' * len(start) if number else start}{part}".rstrip()
            if screen_width and len(text) > screen_width:
                text = f"{text[: screen_width - 3]}..."
            yield text


def _screen_width() -> int:
    """Return the width of the terminal; 0 if standard output is no terminal, so that no row is cut off in a pipe."""
    if not sys.stdout.isatty():
        return 0
    return os.get_terminal_size(sys.stdout.fileno()).columns


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 node`, `2 nodes`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count} {noun}s"
