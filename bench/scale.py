"""How many samples a run takes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """The full run: p99 of 200 requests is their third-worst, and all of it but `rolls` and the idle minutes takes some three minutes
    on two cores. `idle_s`: the audit and each sandbox's turn come in it."""

    exec_rounds: int = 200
    whole_rounds: int = 60
    daemon_rounds: int = 200
    burst_rounds: int = 7
    cold_rounds: int = 3
    restart_rounds: int = 5
    idle_s: float = 240.0
    roll_count: int = 20


FULL = Scale()
QUICK = Scale(
    exec_rounds=40, whole_rounds=12, daemon_rounds=60, burst_rounds=3, cold_rounds=1, restart_rounds=2, idle_s=3.0, roll_count=3
)
"""To see that everything works; the percentiles mean little."""
