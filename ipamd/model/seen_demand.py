"""What the pool has seen of demand, as one value: the inputs of `WARM_TARGET=auto` (`ipamd/model/auto_target.py`). Pure.

`ipamd/service/pool/demand_meter.py` measures it.
"""

from __future__ import annotations

from dataclasses import dataclass

SHORT_S = 2.0
LONG_S = 10.0
"""Windows in which growth is measured: about one allocation on an ENI that is there, and about one new ENI. Ours: an allocation takes
about half a second; creating, attaching and setting up an ENI up to ten."""


@dataclass(frozen=True, slots=True)
class SeenDemand:
    """Demand as it was measured lately; counts in addresses.

    `minute_rate`, `ten_minute_rate`: ADDs per second, each weighted over its time scale. `peak_count`: most addresses that were in
    use, cooling or waited for at once. `short_growth_count`, `long_growth_count`: most by which that rose above its former peak
    within SHORT_S and LONG_S. `allocation_s`, `creation_s`: how long an allocation on an attached ENI and a new ENI took.
    `start_count`: what a node expects that was just made (`is_filling`: minutes ago), or had free when its daemon started.
    `held_count`: the highest reserve that was computed within the hold time, so that the target does not fall at once.
    """

    minute_rate: float = 0.0
    ten_minute_rate: float = 0.0
    peak_count: int = 0
    short_growth_count: int = 0
    long_growth_count: int = 0
    start_count: int = 0
    is_filling: bool = False
    allocation_s: float = 1.0
    creation_s: float = LONG_S
    held_count: int = 0
