"""The leg with an address of the pool.

It differs from other legs in two ways: the rule from its address may be in a bucket of rules (`ipamd/model/source_rules.py`), and if
its sandbox has an SNAT choice, its address is in a set of nftables.
"""

from __future__ import annotations

from ipamd.kernel import wiring_messages
from ipamd.kernel.legs.leg import LegWiring
from ipamd.kernel.netlink import Message
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.model.family import IpAddress
from ipamd.model.legs import PoolLeg


class PoolWiring(LegWiring[PoolLeg]):
    """The wiring of legs with addresses of the pool."""

    def __init__(self, pod_snat: PodSnatSets | None) -> None:
        """`pod_snat`: keeps the SNAT choices of single sandboxes; None: no sandbox has a choice."""
        self._pod_snat = pod_snat

    def rule_removals(self, leg: PoolLeg) -> list[Message]:
        """See `LegWiring.rule_removals`."""
        return wiring_messages.sandbox_rule_removals(leg.address, leg.route_table)

    def enter_sets(self, leg: PoolLeg) -> None:
        """See `LegWiring.enter_sets`. The set of the sandbox's SNAT choice must contain the address."""
        if self._pod_snat:
            self._pod_snat.enter(leg.address, leg.sandbox.snat)

    def leave_sets(self, address: IpAddress) -> None:
        """See `LegWiring.leave_sets`."""
        if self._pod_snat:
            self._pod_snat.leave(address)
