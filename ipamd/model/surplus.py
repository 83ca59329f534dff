"""The surplus over time, and the addresses that a release may name: the planner's input. Pure values.

A surplus at one moment proves nothing, because the next ADD may need it. So only addresses that were surplus during a whole window are
released, and a load that repeats within the window causes no EC2 call. There are two exceptions: whole ENIs after a burst that has
ended (`release.ENI_HOLD_S`), and the surplus of a pool on a node where an ADD of another pool finds no place for an ENI.
`ipamd/pool/demand_window.py` measures the surplus (docs/pool.md, Release).
"""

from __future__ import annotations

from collections.abc import Mapping

from ipamd.model.growth_state import GrowthRefusal
from ipamd.model.ids import EniId
from ipamd.model.pool_actions import ReleaseAddresses
from ipamd.model.record import dataclass, field


@dataclass(frozen=True, slots=True)
class Hold:
    """The surplus over the hold window, in addresses.

    stable_surplus: how many addresses were surplus for long enough, so that they may be released; None before a whole window has
        passed, unless one of the exceptions above applies.
    ages: for the ENIs that we created lately, the seconds since their creation.
    releasable: the addresses that may be released, by ENI. To save time they are not listed, and this is empty, if the plan cannot
        release any.
    refusal: a refusal of EC2, or an unfinished release, because of which nothing further is released; None if there is neither.
    """

    stable_surplus: int | None = None
    ages: Mapping[EniId, float] = field(default_factory=dict)
    releasable: Mapping[EniId, ReleaseAddresses] = field(default_factory=dict)
    refusal: GrowthRefusal | None = None
