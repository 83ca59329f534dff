"""Trunk and branch ENIs: the part of EC2 that only the cluster's control plane may call.

The lab's HTTP API does not have these calls, because EC2 refuses AssociateTrunkInterface and the like to a node's role. The stand-in
for the VPC resource controller (`lab/branches/`) calls the methods directly. Where EC2's reasons for a refusal are not public, the
docstring says so. Source: amazon-vpc-resource-controller-k8s pkg/aws/ec2/api/helper.go, pkg/aws/ec2/instance.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lab.vpc import errors
from lab.vpc.addresses import AddressRequest
from lab.vpc.ids import Ids
from lab.vpc.interfaces import Interfaces
from lab.vpc.ipv6 import Ipv6Request
from lab.vpc.limits import InstanceLimits
from lab.vpc.model import Eni, Instance, TrunkAssociation
from lab.vpc.store import Store
from lab.vpc.world import World

TRUNK, BRANCH = "trunk", "branch"
VLAN_MIN, VLAN_MAX = 1, 4094  # IEEE 802.1Q


class Trunks:
    """The control plane's calls about trunk and branch ENIs. They raise Ec2Error. They are not in the log of calls, because no node
    makes them. Thread-safe."""

    def __init__(self, store: Store, interfaces: Interfaces, *, ids: Ids, limits: Mapping[str, InstanceLimits]) -> None:
        self._store = store
        self._interfaces = interfaces
        self._ids = ids
        self._limits = limits

    def trunk_of(self, instance_id: str) -> Eni | None:
        """Return the instance's trunk ENI, also while it is attaching or detaching; None if it has none."""
        return next((eni for eni in self._store.world.attached_to(instance_id) if eni.interface_type == TRUNK), None)

    def create_trunk(self, instance_id: str, *, description: str, tags: Mapping[str, str]) -> Eni | None:
        """Create a trunk with the instance's groups and attach it at the highest unused device index of card 0.

        Returns: the trunk; None if card 0 has no index left. Raises: Ec2Error; nothing is left then.
        """
        world = self._store.world
        instance = world.instance(instance_id)
        index = self._highest_unused(world, instance)
        if index is None:
            return None
        (first, *_) = world.attached_to(instance_id)
        eni = self._interfaces.create(
            instance.subnet_id,
            AddressRequest(),
            groups=first.security_groups,
            description=description,
            tags=tags,
            ipv6=_ipv6(world, instance.subnet_id),
            interface_type=TRUNK,
        )
        try:
            bond = self._interfaces.attach(eni.eni_id, instance_id, device_index=index)
        except errors.Ec2Error:
            self._interfaces.delete(eni.eni_id)
            raise
        self._interfaces.modify(eni.eni_id, attachment_id=bond.attachment_id, delete_on_termination=True)
        return self._store.world.eni(eni.eni_id)

    def create_branch(
        self, trunk_id: str, *, groups: tuple[str, ...], description: str, tags: Mapping[str, str], subnet_id: str = ""
    ) -> Eni:
        """Create an ENI that will become a branch of the trunk. `associate` makes it one.

        `subnet_id`: by default the trunk's subnet. Raises: Ec2Error, for example if a security group does not exist.
        """
        world = self._store.world
        if unknown := [group for group in groups if group not in world.groups]:
            raise errors.group_not_found(unknown[0])
        subnet = subnet_id or world.eni(trunk_id).subnet_id
        return self._interfaces.create(
            subnet, AddressRequest(), groups=groups, description=description, tags=tags, ipv6=_ipv6(world, subnet)
        )

    def associate(self, trunk_id: str, eni_id: str, vlan: int) -> TrunkAssociation:
        """Call AssociateTrunkInterface: from now on frames with the VLAN ID `vlan` on the trunk's wire belong to the branch ENI.

        Raises: Ec2Error if the VLAN ID is out of range or another branch has it, or if the instance type may not have one more branch
            (ours: EC2's own rules are not public).
        """
        with self._store.transaction("AssociateTrunkInterface") as tx:
            trunk, eni = tx.world.eni(trunk_id), tx.world.eni(eni_id)
            if trunk.interface_type != TRUNK or trunk.attachment is None:
                raise errors.invalid_value(f"Interface {trunk_id} is not the trunk of an instance")
            if eni.attachment is not None or eni.association is not None:
                raise errors.interface_in_use(eni_id)
            bound = tx.world.branches_of(trunk_id)
            if not VLAN_MIN <= vlan <= VLAN_MAX or any(
                branch.association and branch.association.vlan == vlan for branch in bound
            ):
                raise errors.invalid_value(f"VLAN ID {vlan} is not free on trunk {trunk_id}")
            kind = tx.world.instance(trunk.attachment.instance_id).instance_type
            if len(bound) + 1 > self._limits[kind].branches:
                raise errors.attachment_limit(len(bound) + 1, kind)
            bond = TrunkAssociation(association_id=self._ids.make("trunk-assoc"), trunk_id=trunk_id, vlan=vlan)
            tx.put_eni(replace(eni, association=bond, interface_type=BRANCH))
        return bond

    def disassociate(self, association_id: str) -> None:
        """Call DisassociateTrunkInterface: the ENI is no branch any more. Raises: Ec2Error if there is no such association."""
        with self._store.transaction("DisassociateTrunkInterface") as tx:
            for eni in tx.world.enis.values():
                if eni.association is not None and eni.association.association_id == association_id:
                    tx.put_eni(replace(eni, association=None, interface_type="interface"))
                    return
            raise errors.association_not_found(association_id)

    def branches_of(self, trunk_id: str) -> list[Eni]:
        """List the branch ENIs of a trunk, by VLAN ID."""
        return self._store.world.branches_of(trunk_id)

    def delete(self, eni_id: str) -> None:
        """Call DeleteNetworkInterface."""
        self._interfaces.delete(eni_id)

    def _highest_unused(self, world: World, instance: Instance) -> int | None:
        taken = {
            eni.attachment.device_index
            for eni in world.attached_to(instance.instance_id)
            if eni.attachment is not None and eni.attachment.network_card == 0
        }
        count = self._limits[instance.instance_type].enis_per_card[0]
        return next((index for index in reversed(range(count)) if index not in taken), None)


def _ipv6(world: World, subnet_id: str) -> Ipv6Request:
    """Return the request for one IPv6 address, as of a subnet with IPv6 that assigns one to every new ENI; otherwise an empty one."""
    return Ipv6Request(address_count=1 if world.subnet(subnet_id).ipv6_cidr else 0)
