"""The result of a run, for people and for `build/chaos.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lab.chaos.expected_state import Violation
from lab.chaos.plan import Plan

INJECTED = {"kill": "kills", "fault": "faults"}


@dataclass(frozen=True)
class Report:
    """One run. Counts are by kind; `facts` are the figures of the last audit, by node.

    `busiest_minute`: the most EC2 calls of a node in a minute. `doubled`: addresses that other hands took from a living sandbox and
    EC2 gave to the other node, one sentence each: no violation of ours.
    """

    seed: int
    minutes: float
    elapsed_s: float
    operations: Mapping[str, int]
    kills: Mapping[str, int]
    faults: Mapping[str, int]
    violations: Sequence[str]
    lab_error_count: int
    orphan_count: int
    round_count: int
    longest_round_s: float
    busiest_minute: int
    doubled: Sequence[str]
    facts: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        plan: Plan,
        *,
        counts: Mapping[str, int],
        violations: Sequence[Violation],
        orphan_count: int,
        round_count: int,
        longest_round_s: float,
        busiest_minute: int,
        doubled: Sequence[str],
        elapsed_s: float,
        facts: Mapping[str, Any],
    ) -> Report:
        """Sort a history's counts into operations, kills and faults."""
        sorted_counts: dict[str, dict[str, int]] = {"operations": {}, "kills": {}, "faults": {}}
        for name, count in sorted(counts.items()):
            first, _, rest = name.partition(" ")
            if name in ("violation", "lab error"):
                continue
            if first in INJECTED:
                sorted_counts[INJECTED[first]][rest] = count
            else:
                sorted_counts["operations"][name] = count
        return cls(
            seed=plan.seed,
            minutes=plan.duration_s / 60,
            elapsed_s=round(elapsed_s, 1),
            operations=sorted_counts["operations"],
            kills=sorted_counts["kills"],
            faults=sorted_counts["faults"],
            violations=[str(violation) for violation in violations],
            lab_error_count=counts.get("lab error", 0),
            orphan_count=orphan_count,
            round_count=round_count,
            longest_round_s=round(longest_round_s, 2),
            busiest_minute=busiest_minute,
            doubled=list(doubled),
            facts=facts,
        )

    @property
    def is_good(self) -> bool:
        """Whether nothing was violated and the lab itself did not fail."""
        return not self.violations and not self.lab_error_count

    def to_json(self) -> str:
        """For build/chaos.json."""
        return json.dumps(asdict(self), indent=1) + "\n"

    def __str__(self) -> str:
        parts = [
            f"seed {self.seed}, {self.minutes:g} min ({self.elapsed_s:.0f} s with the last audit)",
            f"{sum(self.operations.values())} operations",
            f"{sum(self.kills.values())} kills",
            f"{sum(self.faults.values())} faults",
            f"{self.round_count} looks",
            f"{self.orphan_count} orphans",
            f"at most {self.busiest_minute} EC2 calls a minute",
            *([f"{len(self.doubled)} addresses doubled by other hands"] if self.doubled else []),
            f"{len(self.violations)} violations",
        ]
        return ", ".join(parts) + (f", {self.lab_error_count} errors of the lab itself" if self.lab_error_count else "")
