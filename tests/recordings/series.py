"""A recording as a file: what was done, and every series in promtool's notation, gzipped; read, extended in time, and written."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

SERIES = Path(__file__).with_name("series")

Value = float | None
"""None: no sample at that scrape."""

_TERM = re.compile(r"(?P<first>-?[\d.e+]+?|_)(?:(?P<delta>[+-][\d.e]+(?:[+-]\d+)?)?x(?P<count>\d+))?")


@dataclass(frozen=True)
class Recording:
    """One node from its first scrape to its last.

    Args:
        name: of its file.
        what: one sentence: the trouble or the load, and how it was made.
        interval_s: between two scrapes.
        steady: so many scrapes at the end are a steady state, which may be repeated; 0: not.
        speed: how fast the daemon's clock ran; 1 unless it is an accelerated recording.
        up: 1 for each scrape that was answered, else 0.
        pods: the number of the daemon's pod at each scrape: a DaemonSet's roll makes a new one, which has series of its own.
        series: name with labels -> one value for each scrape.
    """

    name: str
    what: str
    interval_s: int
    steady: int
    speed: int
    up: list[int]
    pods: list[int]
    series: dict[str, list[Value]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """Scrapes."""
        return len(self.up)


def write(recording: Recording, folder: Path = SERIES) -> Path:
    """Write a recording's file, the same bytes for the same values. Returns: its path."""
    document = asdict(recording) | {"series": {name: encode(values) for name, values in sorted(recording.series.items())}}
    path = folder / f"{recording.name}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(document, indent=0).encode(), mtime=0))
    return path


def read(path: Path) -> Recording:
    """Read a recording's file."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    return Recording(**document | {"series": {name: decode(text) for name, text in document["series"].items()}})


def every(folder: Path = SERIES) -> list[Path]:
    """The files, by name."""
    return sorted(folder.glob("*.json.gz"))


def encode(values: Sequence[Value]) -> str:
    """Write values in promtool's notation: `a+bxn` are n+1 values, `_xn` are n missing ones."""
    terms, at = [], 0
    while at < len(values):
        first, end = values[at], at + 1
        if first is None:
            while end < len(values) and values[end] is None:
                end += 1
            terms.append(f"_x{end - at}")
        else:
            delta = _delta(values, at)
            while end < len(values) and delta is not None and _delta(values, end - 1) == delta:
                end += 1
            if delta is None or end - at < 3:
                terms.append(_number(first))
                end = at + 1
            else:
                terms.append(f"{_number(first)}{'+' if delta >= 0 else '-'}{_number(abs(delta))}x{end - at - 1}")
        at = end
    return " ".join(terms)


def decode(text: str) -> list[Value]:
    """Read what `encode` wrote. Raises: ValueError."""
    values: list[Value] = []
    for term in text.split():
        found = _TERM.fullmatch(term)
        if found is None:
            raise ValueError(f"{term} is no term of a series")
        count = int(found["count"] or 0)
        if found["first"] == "_":
            values += [None] * max(count, 1)
        else:
            first, delta = float(found["first"]), float(found["delta"] or 0)
            values += [first + delta * number for number in range(count + 1)]
    return values


def extended(recording: Recording, *, until_s: int) -> Recording:
    """Repeat the steady state until a time: gauges as they were, counters and ages with the same steps."""
    period, more = recording.steady, max(until_s // recording.interval_s - recording.count, 0)
    if not period or not more:
        return recording
    grown = {
        name: values + _repeated(values, period, more, _grows(name) or _is_stuck(name, values[-period:]))
        for name, values in recording.series.items()
    }
    up, pods = recording.up, recording.pods
    return Recording(
        **{
            **vars(recording),
            "up": up + [up[number % period - period] for number in range(more)],
            "pods": pods + [pods[-1]] * more,
            "series": grown,
        }
    )


def _grows(name: str) -> bool:
    """Whether a series counts, or is an age without end: its steps are repeated, not its values."""
    family = name.partition("{")[0]
    return bool(
        re.search(
            r"_(total|count|sum|bucket)$|^ipamd_metadata_difference_age_seconds$|^awscni_(no_available|aws_api_|force_|ec2api_|reconcile)",
            family,
        )
    )


def _is_stuck(name: str, steady: list[Value]) -> bool:
    """Whether an age is of the same operation, pod or list of metadata all the time: it goes on, else it comes again."""
    known = [value for value in steady if value is not None]
    if name.startswith("ipamd_longest_refusal_seconds"):  # as old as the last refusal: it stands still between two
        return bool(known) and known == sorted(known) and known[-1] > known[0]
    return name.startswith(("ipamd_oldest_operation_age_seconds", "ipamd_metadata_list_age_seconds")) and all(
        after > before for before, after in pairwise(known)
    )


def _repeated(values: list[Value], period: int, more: int, grows: bool) -> list[Value]:
    last = values[-period:]
    if not grows or None in last:
        return [last[number % period] for number in range(more)]
    known = [value for value in values[-period - 1 :] if value is not None]
    steps = [after - before for before, after in pairwise(known)]
    found, value = list[Value](), known[-1]
    for number in range(more):
        step = steps[number % len(steps)]
        value = max(value + step, 0.0)
        found.append(value)
    return found


def _delta(values: Sequence[Value], at: int) -> float | None:
    if at + 1 >= len(values):
        return None
    here, there = values[at], values[at + 1]
    return None if here is None or there is None else round(there - here, 9)


def _number(value: float) -> str:  # microseconds and millionths: an alert asks for no more
    return f"{value:.6f}".rstrip("0").rstrip(".")
