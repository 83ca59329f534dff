"""The leg for egress in the other IP family: a second veth pair, whose packets leave by the primary ENI with the node's address
(`local_range_ruleset`).

It is wired like every leg, except that no rule selects packets by its address: packets from it are routed by table main.
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
    """The wiring of legs for egress. It has no rules, because table main routes the packets of such a leg."""

    def rules(self, make: Callable[..., Message], leg: EgressLeg) -> list[Message]:
        del make, leg
        return []

    def packets(self, leg: EgressLeg, paths: LegPaths) -> list[LegPacket]:
        """Return two packets whose routes show whether the leg works: one arrives by the primary ENI, one leaves by it.

        There are none if the node has no route to the outside, or no link of the primary ENI. See `LegWiring.packets`.
        """
        if paths.refusal or uapi.RT_TABLE_MAIN not in paths.eni_links:
            return []
        far_off, (link, _) = family_of(leg.address).outside, paths.eni_links[uapi.RT_TABLE_MAIN]
        return [LegPacket(paths.veth, leg.address, far_off, link), LegPacket(link, far_off, leg.address, paths.veth)]
