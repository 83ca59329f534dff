"""Lay out tables for people: plain text with columns as wide as their content, or as the screen allows.

Cells that would make a column too wide are shortened; the other formats of `ipamctl` have the full text.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from textwrap import wrap
from typing import Any

from ipamd.ipamctl.layout import WHOLE, Colour, Layout
from ipamd.ipamctl.verb import Answer
from ipamd.model.words import fitting, printable

STATES = ("assigned", "reserved", "cooling", "quarantined", "free")
"""Address states, in the order of PoolCounts.__str__."""

CELL_MAX = 72
"""The largest number of characters of a name in a cell; a longer name is cut. Ours: a container ID and its interface have 69, and few
pods have a longer namespace and name."""

WORDS_MAX = 240
"""The largest number of characters of a sentence in a cell. Ours: a difference in an audit has 150."""

LINE_MAX = 800
"""The largest number of characters of a sentence outside a table, and of the last cell of a row. Ours: our longest sentences, with
cause, counts and next step, have less. An encoded denial of EC2 has 10,000, and is cut."""

GAP = "  "
COLUMN_MIN = 8
"""Least width, in characters, to which a column is narrowed. Ours: room for two words of a sentence, or a time of day."""

Columns = Mapping[str, str | Callable[[Answer], object]]
"""Head of a column -> the source of its cells: a format with fields of the row, or a function of the row."""


def table(
    rows: Iterable[Answer],
    columns: Columns,
    layout: Layout = WHOLE,
    *,
    empty: str = "",
    wide_only: Collection[str] = (),
    is_shortened: bool = True,
    colour_of: Callable[[Answer], Colour | None] = lambda _: None,
) -> str:
    """Lay out rows under a header. Cells that are wider than their column on the screen are broken into several lines.

    Args:
        empty: what an empty cell shows.
        wide_only: heads of columns that only a wide screen has.
        is_shortened: whether long cells are shortened in their middle.
        colour_of: returns the colour of a row.
    """
    columns_on_screen = {head: cell for head, cell in columns.items() if layout.is_wide or head not in wide_only}
    lines = [list(columns_on_screen)]
    colours: list[Colour | None] = [None]
    for row in rows:
        cells = [_cell(column, row) or empty for column in columns_on_screen.values()]
        if is_shortened:
            cells = _shortened(cells)
        lines.append(cells)
        colours.append(colour_of(row))
    widths = _fitted(list(zip(*lines, strict=True)), layout.width)
    return "\n".join(layout.paint(_row(line, widths), colour) for line, colour in zip(lines, colours, strict=True))


def _shortened(cells: list[str]) -> list[str]:
    """Shorten long cells. The last cell of a row may be a sentence, so only LINE_MAX limits it."""
    shortened = []
    for cell in cells[:-1]:
        cell_max = CELL_MAX
        if " " in cell:
            cell_max = WORDS_MAX
        shortened.append(fitting(cell, cell_max))
    return [*shortened, fitting(cells[-1], LINE_MAX)]


def _fitted(columns: Sequence[Sequence[str]], screen_width: int) -> list[int]:
    """Choose the widths of columns by their cells, so that a row fits on the screen. With a screen width of 0 no column is narrowed.

    The widest column that can be broken at spaces is narrowed first, and words are broken only if that is not enough.
    """
    widths = [max(map(len, column)) for column in columns]
    if not screen_width:
        return widths
    row_width = screen_width - len(GAP) * (len(columns) - 1)
    _narrow(widths, [_longest_word(column) for column in columns], row_width)
    _narrow(widths, [0] * len(columns), row_width)
    return widths


def _longest_word(column: Iterable[str]) -> int:
    """The length of the longest word in the cells of a column."""
    longest = 0
    for cell in column:
        longest = max([longest, *map(len, cell.split())])
    return longest


def _narrow(widths: list[int], least_widths: Sequence[int], row_width: int) -> None:
    """Narrow the widest columns, in place, until they fit into a row, or until none exceeds both its least width and COLUMN_MIN."""
    while sum(widths) > row_width:
        pairs = enumerate(zip(widths, least_widths, strict=True))
        narrowable = [number for number, (width, least) in pairs if width > max(least, COLUMN_MIN)]
        if not narrowable:
            return
        widest = max(narrowable, key=lambda number: widths[number])
        widths[widest] -= 1


def _row(cells: list[str], widths: list[int]) -> str:
    """Lay out a row, in as many lines as the cell with the most lines has."""
    wrapped = [_wrapped(cell, width) for cell, width in zip(cells, widths, strict=True)]
    lines = []
    for number in range(max(map(len, wrapped))):
        parts = [cell[number] if number < len(cell) else "" for cell in wrapped]
        lines.append(GAP.join(map(str.ljust, parts, widths)).rstrip())
    return "\n".join(lines)


def _wrapped(text: str, width: int) -> list[str]:
    """Break a text into lines of at most `width` characters, at spaces if possible."""
    if len(text) <= width:
        return [text]
    return wrap(text, max(width, 1), break_on_hyphens=False) or [""]


def filled(line: str, layout: Layout, *, indent: int = 0) -> str:
    """Break a line at the width of the screen; the lines after the first are indented."""
    if not layout.width or len(line) <= layout.width:
        return line
    return "\n".join(wrap(line, layout.width, subsequent_indent=" " * indent, break_on_hyphens=False, drop_whitespace=True))


def _cell(column: str | Callable[[Answer], object], row: Answer) -> str:
    if isinstance(column, str):
        return column.format_map(row)
    return str(column(row))


def safe(value: Any) -> Any:
    """Make every text of an answer printable, because some come from outside: names of pods, sentences of EC2 and the runtime."""
    if isinstance(value, dict):
        return {key: safe(member) for key, member in value.items()}
    if isinstance(value, list):
        return [safe(member) for member in value]
    if isinstance(value, str):
        return printable(value)
    return value
