"""The numbers of samples of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Numbers of samples; the defaults are those of a full run.

    Ours: the p99 of 200 requests is the third-worst, so it is no single outlier; and all of the run, except `rolls` and `idle`, takes
    about three minutes on two cores. `idle_s` is long enough for a comparison of the host, and for a check of each sandbox.
    """

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
"""A run to see that everything works. Its percentiles are of too few samples to be used."""
