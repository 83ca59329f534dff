"""The leg for egress: a second veth pair whose packets leave by the primary ENI and are translated by the node (`ruleset`).

It is wired like every leg, except that no rule selects packets by its address: the main table has the routes to it and from it.
"""

from __future__ import annotations

from collections.abc import Callable

from ipamd.kernel import uapi
from ipamd.kernel.legs.leg import LegWiring
from ipamd.kernel.netlink import Message
from ipamd.kernel.packets import LegPacket, LegPaths
from ipamd.model.family import family_of
from ipamd.model.legs.egress import EgressLeg


class EgressWiring(LegWiring[EgressLeg]):
    """The wiring of legs for egress, which needs no rule of its own: the main table decides."""

    def rules(self, make: Callable[..., Message], leg: EgressLeg) -> list[Message]:
        del make, leg
        return []

    def packets(self, leg: EgressLeg, paths: LegPaths) -> list[LegPacket]:
        """Return two packets whose routes show whether the leg works: out through the primary ENI, and back (`LegWiring.packets`)."""
        if paths.refusal or uapi.RT_TABLE_MAIN not in paths.eni_links:
            return []
        far_off, (link, _) = family_of(leg.address).outside, paths.eni_links[uapi.RT_TABLE_MAIN]
        return [LegPacket(paths.veth, leg.address, far_off, link), LegPacket(link, far_off, leg.address, paths.veth)]
