"""A row of the comparison: samples of each side in blocks, their medians, and the intervals of medians and of a ratio.

The interval (95 %) is the bootstrap of blocks, because calls of one block share what disturbed them. A row whose blocks have one
sample each has an interval that is hardly narrower than its extremes, as it should be.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.samples import median, percentile

RESAMPLES = 2000
SEED = 1
"""Of the bootstrap, so that the same samples give the same interval."""

Blocks = list[list[float]]


@dataclass
class Row:
    """One figure of every side: `blocks` by side, `missing` says why a side has none."""

    name: str
    unit: str
    blocks: dict[str, Blocks] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def add(self, side: str, samples: list[float]) -> None:
        """Add a block. Raises: ValueError if it is empty."""
        if not samples:
            raise ValueError(f"{self.name}: a block without samples")
        self.blocks.setdefault(side, []).append(samples)

    def as_dict(self) -> dict[str, Any]:
        """What goes into the JSON report: of each side median, interval and all samples."""
        sides = {}
        for side, blocks in self.blocks.items():
            low, high = interval(blocks)
            sides[side] = {"median": median_of(blocks), "low": low, "high": high, "samples": blocks}
        return {"name": self.name, "unit": self.unit, "sides": sides, "missing": dict(self.missing)}


def median_of(blocks: Blocks) -> float:
    """Of all samples. Raises: ValueError without samples."""
    return median([sample for block in blocks for sample in block])


def interval(blocks: Blocks) -> tuple[float, float]:
    """The bootstrap's interval of the median."""
    chance = random.Random(SEED)
    return _bounds([median_of(chance.choices(blocks, k=len(blocks))) for _ in range(RESAMPLES)])


def ratio(left: Blocks, right: Blocks) -> tuple[float, float, float]:
    """Left / right: that of the medians, and its interval, both sides drawn anew. Raises: ZeroDivisionError if a right block is 0."""
    chance = random.Random(SEED)
    drawn = []
    for _ in range(RESAMPLES):
        drawn.append(median_of(chance.choices(left, k=len(left))) / median_of(chance.choices(right, k=len(right))))
    return (median_of(left) / median_of(right), *_bounds(drawn))


def _bounds(samples: list[float]) -> tuple[float, float]:
    return percentile(samples, 0.025), percentile(samples, 0.975)


def table(rows: Sequence[Row], sides: Sequence[str]) -> str:
    """The rows as a table in Markdown: median [interval] of each side, and the first side over each other one."""
    first, *others = sides
    lines = [_line(["", *sides, *(f"{first} / {other}" for other in others)]), "|---" * (2 * len(sides)) + "|"]
    for row in rows:
        cells = [f"{row.name}, {row.unit}", *(_cell(row, side) for side in sides)]
        lines.append(_line([*cells, *(_ratio_cell(row.blocks, first, other) for other in others)]))
    return "\n".join([*lines, *_reasons(rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(row: Row, side: str) -> str:
    blocks = row.blocks.get(side)
    if not blocks:
        return "-"
    low, high = interval(blocks)
    return f"{_number(median_of(blocks))} [{_number(low)}, {_number(high)}]"


def _ratio_cell(blocks: Mapping[str, Blocks], left: str, right: str) -> str:
    # A count may be 0 in every block or in some: then there is nothing to divide by.
    if not blocks.get(left) or any(median(block) == 0 for block in blocks.get(right, [[0.0]])):
        return "-"
    value, low, high = ratio(blocks[left], blocks[right])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _reasons(rows: Sequence[Row]) -> list[str]:
    found = [
        f"not measured, or not to the end: {row.name}, {side}: {reason}" for row in rows for side, reason in row.missing.items()
    ]
    return ["", *found] if found else []


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
