"""The results of a run: verdicts and figures. Verdicts are printed line by line for people; build/cluster.json has all for
programs."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Verdict:
    """The result of one check.

    name: the claim. ok: whether it is true. detail: the evidence, or the reason why it is not true. at_s: seconds since the run's
        begin.
    """

    name: str
    ok: bool
    detail: str
    at_s: float


class Report:
    """Verdicts and figures of one run. Concurrency: one thread."""

    def __init__(self) -> None:
        """Start the run's clock."""
        self.verdicts: list[Verdict] = []
        self.figures: dict[str, Any] = {}
        self._began = time.monotonic()

    @property
    def is_good(self) -> bool:
        """Whether something was checked, and nothing failed."""
        return bool(self.verdicts) and all(verdict.ok for verdict in self.verdicts)

    def check(self, name: str, ok: bool, detail: str) -> None:
        """Record a verdict and print it. The arguments are those of `Verdict`."""
        at_s = round(time.monotonic() - self._began, 1)
        self.verdicts.append(Verdict(name, ok, detail, at_s))
        print(f"{at_s:7.1f} s  {'ok  ' if ok else 'FAIL'}  {name}: {detail}", flush=True)

    def write(self, path: Path) -> None:
        """Write `{"ok", "duration_s", "verdicts": [...]}` and the figures as further keys. A pod's start time is the seconds from its
        creation until it is ready."""
        duration_s = round(time.monotonic() - self._began, 1)
        verdicts = [asdict(verdict) for verdict in self.verdicts]
        document = {"ok": self.is_good, "duration_s": duration_s, "verdicts": verdicts} | self.figures
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def spread(values: Iterable[float]) -> dict[str, float]:
    """Return count, median, 99th percentile and maximum of the values; an empty dict if there are none."""
    ordered = sorted(values)
    if not ordered:
        return {}
    p99 = ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]
    return {
        "count": len(ordered),
        "median": round(statistics.median(ordered), 2),
        "p99": round(p99, 2),
        "max": round(ordered[-1], 2),
    }
