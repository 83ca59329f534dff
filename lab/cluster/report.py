"""What a run found: verdicts in the order made, and figures; for people line by line, for programs build/cluster.json."""

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
    """One claim, whether it held, the evidence or the reason, and how long after the run's begin it was made."""

    name: str
    ok: bool
    detail: str
    at_s: float


class Report:
    """Verdicts and figures of one run. Concurrency: one thread."""

    def __init__(self) -> None:
        """The run begins now."""
        self.verdicts: list[Verdict] = []
        self.figures: dict[str, Any] = {}
        self._began = time.monotonic()

    @property
    def is_good(self) -> bool:
        """Whether something was checked, and nothing failed."""
        return bool(self.verdicts) and all(verdict.ok for verdict in self.verdicts)

    def check(self, name: str, ok: bool, detail: str) -> None:
        """Make a verdict, and print it."""
        at_s = round(time.monotonic() - self._began, 1)
        self.verdicts.append(Verdict(name, ok, detail, at_s))
        print(f"{at_s:7.1f} s  {'ok  ' if ok else 'FAIL'}  {name}: {detail}", flush=True)

    def write(self, path: Path) -> None:
        """Write `{"ok", "duration_s", "verdicts": [...], figures}`; pod start times are seconds from creation to ready."""
        duration_s = round(time.monotonic() - self._began, 1)
        verdicts = [asdict(verdict) for verdict in self.verdicts]
        document = {"ok": self.is_good, "duration_s": duration_s, "verdicts": verdicts} | self.figures
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def spread(values: Iterable[float]) -> dict[str, float]:
    """Count, median, 99th percentile and maximum; empty if there are none."""
    found = sorted(values)
    if not found:
        return {}
    p99 = found[min(len(found) - 1, round(0.99 * (len(found) - 1)))]
    return {
        "count": len(found),
        "median": round(statistics.median(found), 2),
        "p99": round(p99, 2),
        "max": round(found[-1], 2),
    }
