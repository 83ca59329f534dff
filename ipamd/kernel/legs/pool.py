"""The leg with an address of the pool. It is wired like every leg; besides, nftables sets hold its sandbox's SNAT choice."""

from __future__ import annotations

from ipamd.kernel.legs.leg import LegWiring
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.model.family import IpAddress
from ipamd.model.legs import PoolLeg


class PoolWiring(LegWiring[PoolLeg]):
    """The wiring of legs with addresses of the pool."""

    def __init__(self, pod_snat: PodSnatSets) -> None:
        self._pod_snat = pod_snat

    def enter_sets(self, leg: PoolLeg) -> None:
        """See `LegWiring.enter_sets`: a set must contain the address if SNAT was chosen for its sandbox."""
        self._pod_snat.enter(leg.address, leg.sandbox.snat)

    def leave_sets(self, address: IpAddress) -> None:
        """See `LegWiring.leave_sets`."""
        self._pod_snat.leave(address)
