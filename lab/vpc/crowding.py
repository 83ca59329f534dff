"""Make subnets nearly full or fragmented by holding addresses that no ENI has, and release these addresses again.

EC2 may refuse an ENI although addresses are free, for two reasons: no whole /28 is free (amazon-vpc-cni-k8s issue 2045), or the free
addresses are reserved ("Subnet CIDR reservations", VPC user guide). AvailableIpAddressCount shows neither.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address

from lab.vpc.fault_spec import SubnetFault
from lab.vpc.model import SubnetReservation
from lab.vpc.space import BLOCK_SIZE, SubnetSpace
from lab.vpc.store import Store


class Crowding:
    """The addresses that are held in each subnet. Thread-safe. Lock order: first its own lock, then the store's."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.RLock()  # guards the two fields below
        self._held: dict[str, list[IPv4Address]] = {}
        self._in_force: Mapping[str, SubnetFault] = {}

    def exhaust(self, subnet_id: str, *, leave: int = 0) -> None:
        """Hold free addresses, lowest first, until `leave` are free."""
        self._hold(subnet_id, lambda space: space.free_addresses()[: max(0, space.free_count - leave)])

    def fragment(self, subnet_id: str) -> None:
        """Hold one address in each free aligned /28, so that EC2 can choose no prefix although many addresses are free."""
        self._hold(subnet_id, lambda space: [IPv4Address(base + BLOCK_SIZE // 2) for base in space.free_blocks()])

    def hold_ipv6_prefixes(self, subnet_id: str, *, is_held: bool) -> None:
        """Let a subnet have no free /80 (`is_held`), or have free ones again."""
        with self._store.transaction() as tx:
            tx.put_subnet(replace(tx.world.subnet(subnet_id), ipv6_prefixes_held=is_held))

    def restore(self, subnet_id: str) -> None:
        """Release all held addresses of a subnet."""
        with self._lock:
            self._store.unhold(subnet_id, self._held.pop(subnet_id, []))

    def reserve(self, subnet_id: str, reservation: SubnetReservation) -> None:
        """Reserve a range of a subnet. Nothing removes the reservation."""
        with self._store.transaction() as tx:
            subnet = tx.world.subnet(subnet_id)
            tx.space(subnet_id).reserve(reservation.cidr, reservation.kind)
            tx.put_subnet(replace(subnet, reservations=(*subnet.reservations, reservation)))

    def follow(self, wanted: Mapping[str, SubnetFault]) -> None:
        """Put the faults `wanted` in force in all subnets, unless they are in force already.

        First all held addresses are released, also those that `exhaust` and `fragment` hold for another caller, because the held
        addresses of a subnet have one list only.
        """
        with self._lock:
            if wanted == self._in_force:
                return
            self._in_force = wanted
            for subnet_id in self._store.world.subnets:
                self.restore(subnet_id)
                fault = wanted.get(subnet_id, wanted.get("*"))
                self.hold_ipv6_prefixes(subnet_id, is_held=fault is not None and fault.without_ipv6_prefixes)
                if fault is not None and fault.fragmented:
                    self.fragment(subnet_id)
                if fault is not None and fault.leave is not None:
                    self.exhaust(subnet_id, leave=fault.leave)

    def _hold(self, subnet_id: str, choose: Callable[[SubnetSpace], list[IPv4Address]]) -> None:
        with self._lock:
            self._held.setdefault(subnet_id, []).extend(self._store.hold(subnet_id, choose))
