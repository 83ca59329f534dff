"""A row of the comparison: samples of each side in blocks, their medians, and the intervals of medians and of ratios.

The 95 % interval is found by a bootstrap that draws blocks and not single samples, because a disturbance of the machine affects all
calls of a block. If each block has one sample, the interval is hardly narrower than the range of the samples.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.samples import median, percentile

RESAMPLES = 2000
SEED = 1
"""Seed of the bootstrap. It is fixed, so that the same samples give the same interval."""

Blocks = list[list[float]]


@dataclass
class Row:
    """One figure of every side. `blocks`: side -> its blocks of samples. `missing`: side -> why it was not measured, or not to the
    end."""

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
        """Return the row's entry in the JSON report, with median, interval and all samples of each side."""
        sides = {}
        for side, blocks in self.blocks.items():
            low, high = interval(blocks)
            sides[side] = {"median": median_of(blocks), "low": low, "high": high, "samples": blocks}
        return {"name": self.name, "unit": self.unit, "sides": sides, "missing": dict(self.missing)}


def median_of(blocks: Blocks) -> float:
    """Return the median of all samples. Raises: ValueError without samples."""
    return median([sample for block in blocks for sample in block])


def interval(blocks: Blocks) -> tuple[float, float]:
    """Return the bootstrap interval of the median."""
    chance = random.Random(SEED)
    return _bounds([median_of(chance.choices(blocks, k=len(blocks))) for _ in range(RESAMPLES)])


def ratio(left: Blocks, right: Blocks) -> tuple[float, float, float]:
    """Return the median of `left` divided by that of `right`, and the interval of this ratio, for which both sides are drawn.

    Raises: ZeroDivisionError if a drawn median of `right` is 0.
    """
    chance = random.Random(SEED)
    drawn = []
    for _ in range(RESAMPLES):
        drawn.append(median_of(chance.choices(left, k=len(left))) / median_of(chance.choices(right, k=len(right))))
    return (median_of(left) / median_of(right), *_bounds(drawn))


def _bounds(samples: list[float]) -> tuple[float, float]:
    return percentile(samples, 0.025), percentile(samples, 0.975)


def table(rows: Sequence[Row], sides: Sequence[str]) -> str:
    """Return a Markdown table: median [interval] of each side, and the ratios of the first side to each other side."""
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
    # A count may be 0 in some blocks. Then there is no ratio.
    if not blocks.get(left) or any(median(block) == 0 for block in blocks.get(right, [[0.0]])):
        return "-"
    value, low, high = ratio(blocks[left], blocks[right])
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


def _reasons(rows: Sequence[Row]) -> list[str]:
    lines = [
        f"not measured, or not to the end: {row.name}, {side}: {reason}" for row in rows for side, reason in row.missing.items()
    ]
    return ["", *lines] if lines else []


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
