"""The measured demand as one value: the inputs of `VPC_IPAMD_WARM_TARGET_MODE=auto` (`ipamd/model/auto_target.py`). Pure.

`ipamd/pool/demand_window.py` measures it.
"""

from __future__ import annotations

from ipamd.model.record import dataclass
from ipamd.model.repeats import NO_REPEATS, Repeats

SHORT_S = 2.0

LONG_S = 10.0
"""Windows in which growth is measured: about one allocation on an attached ENI, and about one new ENI. Ours: an allocation takes
about half a second; creating, attaching and setting up an ENI up to ten."""


@dataclass(frozen=True, slots=True)
class SeenDemand:
    """Demand as it was measured lately; counts in addresses.

    `minute_rate`, `ten_minute_rate`: ADDs per second, each weighted over its time scale.
    `peak_count`: the most addresses that were in use, cooling or waited for at the same time.
    `short_growth_count`, `long_growth_count`: the most by which that rose above its former peak within SHORT_S and LONG_S.
    `allocation_s`, `creation_s`: how long an allocation on an attached ENI and a new ENI took.
    `start_count`: addresses that a new node is expected to need, or that a node had free when its daemon started.
    `is_filling`: the node was created minutes ago.
    `lasting_count`: addresses that ADDs will take in the next seconds if they go on as before.
    `lately_count`: addresses that ADDs took in the last seconds.
    `is_settling`: an ADD took an address a moment ago.
    `repeats`: addresses of earlier sandboxes of pods, which become free by themselves.
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
    lasting_count: int = 0
    lately_count: int = 0
    is_settling: bool = False
    repeats: Repeats = NO_REPEATS
