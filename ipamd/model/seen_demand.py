"""The measured demand as one value: the inputs of `VPC_IPAMD_WARM_TARGET_MODE=auto` (`ipamd/model/auto_target.py`). Pure.

`ipamd/pool/demand_window.py` measures it.
"""

from __future__ import annotations

from ipamd.model.record import dataclass
from ipamd.model.repeats import NO_REPEATS, Repeats

SHORT_S = 2.0

LONG_S = 10.0
"""Two time windows, in seconds, in which the growth of demand is measured. The short one is for growth by an allocation on an attached
ENI, and the long one for growth by a new ENI.
Ours: an allocation takes about half a second; creating, attaching and setting up an ENI takes up to ten seconds."""


@dataclass(frozen=True, slots=True)
class SeenDemand:
    """The demand as it was measured lately. Counts are in addresses. An address is *busy* if it is in use, cooling or waited for, and
    not one of `repeats`.

    `minute_rate`, `ten_minute_rate`: ADDs per second, as averages over the last minute and the last ten minutes.
    `peak_count`: the most addresses that were busy at the same time in the last `PoolSettings.release_hold_s` seconds.
    `short_growth_count`, `long_growth_count`: the greatest rise of this peak within SHORT_S, and within LONG_S, in the last
        `release_hold_s` seconds. Rises while the node is being filled (`is_filling`) do not count.
    `allocation_s`, `creation_s`: how many seconds an allocation on an attached ENI took lately, and a new ENI until it was usable.
    `start_count`: the addresses that a new node is expected to need, or that a node had free when its daemon started; 0 once the start
        is more than `release_hold_s` seconds ago.
    `is_filling`: whether the node was created only minutes ago, so that it may still be getting its first pods.
    `lasting_count`: the addresses that ADDs will take in the next 5 s if they go on as before.
    `lately_count`: the addresses that ADDs took in the last 5 s (`demand_window.WINDOW_S`).
    `is_settling`: whether an ADD took an address in the last 5 s.
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
