"""Find the links of ENIs that are up and have no carrier: no packet passes, although routes and rules look right.

A carrier may be missing for a moment, for example while a driver resets its device. So a link is reported only if the carrier is still
missing some time later.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ipamd.kernel import answers
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.ids import EniId
from ipamd.model.routing_difference import RoutingDifference, routing_difference

GRACE_S = 1.0
"""How long a carrier must be missing before it is reported. Ours: a driver's reset is over by then, because it takes a fraction of a
second."""


class CarrierMonitor:
    """Remembers since when each link has been seen without a carrier.

    Concurrency: one call at a time; the owner's lock ensures that.
    """

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._missed_s: dict[int, float] = {}

    def links_without_carrier(self, links: Mapping[EniId, answers.Link]) -> list[RoutingDifference]:
        """Report the links that have had no carrier for GRACE_S. `links`: the link of each ENI whose link exists."""
        now_s = self._monotonic()
        missed_s: dict[int, float] = {}
        for link in links.values():
            if link.is_up and not link.has_carrier:
                missed_s[link.index] = self._missed_s.get(link.index, now_s)
        self._missed_s = missed_s
        differences: list[RoutingDifference] = []
        for eni_id, link in links.items():
            if link.index in missed_s and now_s - missed_s[link.index] >= GRACE_S:
                differences.append(routing_difference(DifferenceCode.NO_CARRIER, eni_id, link=link.name, eni=eni_id))
        return differences
