"""External changes to a node's ENIs while a daemon runs: by people at the console, other tools, or an account's clean-up.

Each method makes one or two ordinary API calls in the name of somebody else. These calls take the same time as a node's calls,
Describe shows their effects with the same lag, and EC2 refuses them for the same reasons (Ec2Error). They are not in the log of calls,
because no node made them. Foreign ENIs have the kinds
that nodes of EKS have: EFA and EFA-only (an EFA-only ENI never has IP addresses; "Elastic Fabric Adapter", EC2 user guide), trunk
(amazon-vpc-resource-controller-k8s), IPv6-only (amazon-vpc-cni-k8s issues 3122 and 3681), and plain ENIs with or without tags. A
branch ENI is not attached like others: its trunk uses it, and Describe shows it without an attachment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from lab.errors import LabError
from lab.vpc.addresses import AddressRequest
from lab.vpc.interfaces import Interfaces
from lab.vpc.ipv6 import Ipv6Request
from lab.vpc.model import Eni, Operator
from lab.vpc.store import Store

INTERRUPTION, REBALANCE = "spot/instance-action", "events/recommendations/rebalance"
"""Paths at which metadata announces the end of a spot instance ("Spot Instance interruption notices", "Rebalance recommendations", EC2
user guide)."""

INTERFACE_TYPES = ("interface", "efa", "efa-only", "trunk", "branch", "ipv6-only")
NO_MANAGE = {"node.k8s.amazonaws.com/no_manage": "true"}
"""The tag of ENIs that amazon-vpc-cni-k8s does not manage (its README, "Unmanaged ENIs")."""

_WITHOUT_IPV4 = ("efa-only", "ipv6-only")
_IPV6_BASE = int(IPv6Address("2600:1f14:abc::"))  # ours: looks like an address of AWS in us-west-2, the lab's region


class Hands:
    """Makes the external changes. Thread-safe.

    `detach`, `delete`, `unassign` and `unassign_ipv6` return the ENI as it was before the change. The other methods that return an ENI
    return it as it is after the change.
    """

    def __init__(self, store: Store, interfaces: Interfaces, *, group_id: str, retag: Callable[..., bool]) -> None:
        self._store = store
        self._interfaces = interfaces
        self._group_id = group_id
        self._retag = retag

    def detach(self, eni_id: str, *, force: bool = False) -> Eni:
        """Detach an ENI without deleting it."""
        eni = self._store.world.eni(eni_id)
        if eni.attachment is None:
            raise LabError(f"{eni_id} is attached to nothing")
        self._interfaces.detach(eni.attachment.attachment_id, force=force)
        return eni

    def delete(self, eni_id: str) -> Eni:
        """Delete an ENI. If it is attached, it is detached by force first."""
        eni = self._store.world.eni(eni_id)
        if eni.attachment is not None:
            self._interfaces.detach(eni.attachment.attachment_id, force=True)
        self._interfaces.delete(eni_id)
        return eni

    def announce(self, instance_id: str, *, interruption_at: str = "", rebalance_at: str = "") -> None:
        """Make an instance a spot instance, and replace the announcements in its metadata. "" stands for no announcement."""
        notices = {}
        if interruption_at:
            notices[INTERRUPTION] = json.dumps({"action": "terminate", "time": interruption_at})
        if rebalance_at:
            notices[REBALANCE] = json.dumps({"noticeTime": rebalance_at})
        with self._store.transaction() as tx:
            tx.put_instance(replace(tx.world.instance(instance_id), life_cycle="spot", notices=notices))

    def unassign(self, what: IPv4Address | IPv4Network) -> Eni:
        """Unassign an address or a prefix from the ENI that has it. For an address within a prefix, the prefix is unassigned."""
        address = what if isinstance(what, IPv4Address) else what.network_address
        eni = self._store.world.eni(self._store.owner_of(address) or f"(the owner of {what})")
        prefixes = tuple(prefix for prefix in eni.prefixes if address in prefix)
        self._interfaces.unassign(eni.eni_id, addresses=() if prefixes else (address,), prefixes=prefixes)
        return eni

    def assign(self, eni_id: str, *, address: IPv4Address | None = None, prefix_count: int = 0) -> Eni:
        """Assign one address or `prefix_count` prefixes to an ENI. `address`: the address; by default EC2 chooses it. If another ENI
        has the named address, it moves."""
        want = AddressRequest(
            addresses=(address,) if address else (),
            address_count=0 if address or prefix_count else 1,
            prefix_count=prefix_count,
        )
        self._interfaces.assign(eni_id, want, allow_reassignment=True)
        return self._store.world.eni(eni_id)

    def assign_ipv6(self, eni_id: str, *, prefix_count: int = 0) -> Eni:
        """Assign one IPv6 address, or `prefix_count` /80 prefixes, to an ENI. EC2 chooses them."""
        self._interfaces.assign_ipv6(eni_id, Ipv6Request(address_count=0 if prefix_count else 1, prefix_count=prefix_count))
        return self._store.world.eni(eni_id)

    def unassign_ipv6(self, eni_id: str, prefix: IPv6Network) -> Eni:
        """Unassign a /80 from an ENI."""
        eni = self._store.world.eni(eni_id)
        self._interfaces.unassign_ipv6(eni_id, addresses=(), prefixes=(prefix,))
        return eni

    def attach(
        self,
        instance_id: str,
        *,
        kind: str = "interface",
        tags: Mapping[str, str] | None = None,
        address_count: int = 0,
        prefix_count: int = 0,
        subnet_id: str = "",
    ) -> Eni:
        """Create an ENI and attach it at the lowest free device index, with the attach delay.

        Args:
            kind: one of INTERFACE_TYPES. A branch is created, but not attached.
            address_count, prefix_count: number of secondary addresses or prefixes, for kinds with IPv4.
            subnet_id: subnet of the ENI; by default the instance's.
        """
        if kind not in INTERFACE_TYPES:
            raise LabError(f"{kind} is not one of {', '.join(INTERFACE_TYPES)}")
        instance = self._store.world.instance(instance_id)
        with self._store.transaction("CreateNetworkInterface") as tx:
            want = (
                AddressRequest()
                if kind in _WITHOUT_IPV4
                else AddressRequest(address_count=address_count, prefix_count=prefix_count)
            )
            created = self._interfaces.create_in(
                tx, subnet_id or instance.subnet_id, want, groups=(self._group_id,), description="made by other hands", tags=tags
            )
            eni = replace(created, interface_type="interface" if kind == "ipv6-only" else kind)
            if kind in _WITHOUT_IPV4:
                eni = replace(eni, primary_address=None)
            if kind == "ipv6-only":
                eni = replace(eni, ipv6_addresses=(IPv6Address(_IPV6_BASE + created.ordinal),))
            tx.put_eni(eni)
        if kind != "branch":
            self._attach(eni.eni_id, instance_id)
        return self._store.world.eni(eni.eni_id)

    def attach_existing(self, eni_id: str, instance_id: str) -> Eni:
        """Attach an existing ENI at the lowest free device index, for example to undo a detachment."""
        self._attach(eni_id, instance_id)
        return self._store.world.eni(eni_id)

    def change_groups(self, eni_id: str, groups: tuple[str, ...]) -> Eni:
        """Change an ENI's security groups."""
        self._interfaces.modify(eni_id, groups=groups)
        return self._store.world.eni(eni_id)

    def check_source(self, eni_id: str, *, is_on: bool) -> Eni:
        """Turn an ENI's source/destination check on or off."""
        self._interfaces.modify(eni_id, source_dest_check=is_on)
        return self._store.world.eni(eni_id)

    def tag(self, eni_id: str, tags: Mapping[str, str]) -> Eni:
        """Add tags to an ENI, or replace their values."""
        self._retag(eni_id, lambda old: {**old, **tags})
        return self._store.world.eni(eni_id)

    def manage(self, eni_id: str, principal: str, *, hidden: bool = True) -> Eni:
        """Let an AWS service manage an ENI from now on. `principal`: the service; "" for none. `hidden`: whether lists hide it."""
        with self._store.transaction() as tx:
            operator = Operator(principal=principal, hidden=hidden) if principal else None
            tx.put_eni(replace(tx.world.eni(eni_id), operator=operator))
        return self._store.world.eni(eni_id)

    def _attach(self, eni_id: str, instance_id: str) -> None:
        bound = [eni.attachment for eni in self._store.world.attached_to(instance_id) if eni.attachment is not None]
        taken = {bond.device_index for bond in bound if bond.network_card == 0}
        index = next(number for number in range(1, len(taken) + 2) if number not in taken)
        self._interfaces.attach(eni_id, instance_id, device_index=index)
