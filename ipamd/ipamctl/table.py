"""Tables for people: plain text, columns as wide as their content, nothing cut off."""

from __future__ import annotations

from collections.abc import Sequence

STATE_COLUMNS = ("assigned", "reserved", "cooling", "quarantined", "free")
"""Address states in the order of PoolCounts.__str__: one order everywhere."""


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Lay out rows under a header; every row as long as the header."""
    cells = [[str(cell) for cell in row] for row in (header, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells)
