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

EMPTY = "-"
"""An empty cell."""

LAST_MIN = 16
"""Least width, in characters, to which the last column is narrowed. Ours: two words; with less room it goes below the row."""

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
        return EMPTY
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or EMPTY
    text = printable(str(value))
    if len(text) > CELL_MAX:
        return f"{text[: CELL_MAX - 3]}..."
    return text


def _aligned(lines: Sequence[Sequence[str]]) -> Iterable[str]:
    """Align cells below each other.

    On a terminal the last cell goes on in further lines of its column. Columns that do not fit are below their row instead, each cell
    with its heading, because a row that is cut off would lose the reason, which is in the last column.
    """
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    screen_width = _screen_width()
    if not screen_width or _width(widths[:-1]) + len(GAP) + min(widths[-1], LAST_MIN) <= screen_width:
        for line in lines:
            yield from _row_lines(line, widths, screen_width)
        return
    fitting = max([1, *(count for count in range(1, len(widths)) if _width(widths[:count]) <= screen_width)])
    headings = lines[0][fitting:]
    for number, line in enumerate(lines):
        yield _cut(GAP.join(map(str.ljust, line[:fitting], widths)).rstrip(), screen_width)
        if number:
            yield from _cells_below(headings, line[fitting:], screen_width)


def _width(widths: Sequence[int]) -> int:
    """Return the width of columns side by side."""
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _row_lines(line: Sequence[str], widths: Sequence[int], screen_width: int) -> Iterable[str]:
    start = GAP.join([*map(str.ljust, line[:-1], widths), ""])
    parts = [line[-1]]
    if screen_width:
        parts = textwrap.wrap(line[-1], screen_width - len(start), break_on_hyphens=False) or [""]
    for number, part in enumerate(parts):
        yield f"{' ' * len(start) if number else start}{part}".rstrip()


def _cells_below(headings: Iterable[str], cells: Iterable[str], screen_width: int) -> Iterable[str]:
    """Return lines with the cells that have no column of their own; empty cells are left out."""
    texts = [f"{heading}: {cell}" for heading, cell in zip(headings, cells, strict=True) if cell != EMPTY]
    return textwrap.wrap("; ".join(texts), screen_width, initial_indent=GAP, subsequent_indent=2 * GAP, break_on_hyphens=False)


def _cut(text: str, width: int) -> str:
    if len(text) > width:
        return f"{text[: width - 3]}..."
    return text


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
