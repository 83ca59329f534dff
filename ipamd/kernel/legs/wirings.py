"""The wiring of each kind of leg, by the class of the leg. This is the one place that lists the kinds for the kernel adapter."""

from __future__ import annotations

from typing import Any

from ipamd.kernel.host_state import HostStateReader
from ipamd.kernel.legs.branch import BranchWiring
from ipamd.kernel.legs.egress import EgressWiring
from ipamd.kernel.legs.leg import LegWiring
from ipamd.kernel.legs.pool import PoolWiring
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.model.family import IpAddress
from ipamd.model.legs import EgressLeg, Leg, PoolLeg
from ipamd.model.legs.branch import BranchLeg
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.uplink import Uplink
from ipamd.ports.kernel import VlanLinks


class LegWirings:
    """Finds the wiring of a leg. Concurrency: as `KernelWiring`."""

    def __init__(
        self, *, state_reader: HostStateReader, vlan_links: VlanLinks | None, pod_snat: PodSnatSets | None = None
    ) -> None:
        """Make the wiring of each kind.

        Args:
            state_reader: finds links of ENIs by MAC.
            vlan_links: makes VLAN links if the kernel cannot.
            pod_snat: keeps the SNAT choices of single sandboxes; None: no sandbox has a choice.
        """
        branch = BranchWiring(state_reader=state_reader, links=vlan_links)
        self._by_leg: dict[type[Leg], LegWiring[Any]] = {
            PoolLeg: PoolWiring(pod_snat),
            EgressLeg: EgressWiring(),
            BranchLeg: branch,
        }
        self._by_uplink: dict[type[Any], LegWiring[Any]] = {Branch: branch}

    def of(self, leg: Leg) -> LegWiring[Any]:
        """Return the wiring of a leg's kind."""
        return self._by_leg[type(leg)]

    def leave_sets(self, address: IpAddress) -> None:
        """Take an address out of the sets of our nftables tables, whichever kind of leg had it."""
        for wiring in self._by_leg.values():
            wiring.leave_sets(address)

    def of_uplink(self, uplink: Uplink) -> LegWiring[Any]:
        """Return the wiring of the kind of leg that has such an uplink."""
        return self._by_uplink[type(uplink)]
