"""The resources of a simulated VPC as frozen values, and the events of their changes.

All values are immutable, so that a reader, a stale Describe and the lab's network (lab/fabric) can keep a value without a lock.
Rejected: mutable objects, because eventual consistency would need a second copy of each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

ROLE = "vpc-ipamd-lab"
"""Name of the nodes' IAM role and of its instance profile."""

OWNER_ID = "123456789012"  # ours: the account number in AWS's documentation, so that it is recognised as an example


class EniStatus(StrEnum):
    """Status of an ENI, as DescribeNetworkInterfaces spells it."""

    AVAILABLE = "available"
    IN_USE = "in-use"


class AttachmentStatus(StrEnum):
    """Status of an attachment, as DescribeNetworkInterfaces spells it."""

    ATTACHING = "attaching"
    ATTACHED = "attached"
    DETACHING = "detaching"


class ReservationKind(StrEnum):
    """Kinds of CIDR reservations. From a reserved range EC2 chooses only prefixes (PREFIX) or nothing (EXPLICIT) by itself.

    A request that names an address or prefix in the range gets it in both cases. Source: API reference of
    CreateSubnetCidrReservation.
    """

    PREFIX = "prefix"
    EXPLICIT = "explicit"


@dataclass(frozen=True, kw_only=True)
class SubnetReservation:
    """A range of a subnet that somebody reserved, as GetSubnetCidrReservations shows it."""

    reservation_id: str
    cidr: IPv4Network
    kind: ReservationKind


@dataclass(frozen=True, kw_only=True)
class Subnet:
    """One subnet.

    held_count: number of addresses that are not free although no ENI has them, by a fault (lab/vpc/crowding.py).
    ipv6_cidr: a /64; None for a subnet without IPv6.
    ipv6_prefixes_held: whether EC2 has no free /80, by a fault.
    reservations: in order of creation.
    """

    subnet_id: str
    cidr: IPv4Network
    az: str
    tags: Mapping[str, str] = field(default_factory=dict)
    held_count: int = 0
    ipv6_cidr: IPv6Network | None = None
    ipv6_prefixes_held: bool = False
    reservations: tuple[SubnetReservation, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Instance:
    """One instance: a node or a plain host. Its ENIs have its ID; it has no list of them.

    running: False after it was terminated.
    stopped: whether EC2 shows it as stopped. It keeps its ENIs, and the processes of the lab's node run on, as on a host that the
        control plane cannot reach any more.
    notices: path below meta-data -> announcement that metadata answers there. Every other announcement is a 404.
    """

    instance_id: str
    name: str
    instance_type: str
    subnet_id: str
    az: str
    launched_at: datetime
    ordinal: int
    tags: Mapping[str, str] = field(default_factory=dict)
    running: bool = True
    stopped: bool = False
    life_cycle: str = "on-demand"
    notices: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class GroupRule:
    """One rule of a security group, with the fields of EC2's API. `peer`: a network, or the ID of a group, for its members'
    addresses."""

    is_egress: bool
    protocol: str
    from_port: int | None
    to_port: int | None
    peer: Network | str


@dataclass(frozen=True, kw_only=True)
class SecurityGroup:
    """A security group.

    sources: networks and group IDs. Only they, and the peers of ingress rules, may send to the ENIs with this group. A group ID
        stands for the addresses of the group's members. None: everybody may send.

    Replies to packets of an ENI always arrive, because groups are stateful. Packets that an ENI sends are not filtered by its own
    groups. Different from EC2, an ingress rule admits its peer on all ports, and has no effect if `sources` is None.
    """

    group_id: str
    name: str
    sources: tuple[Network | str, ...] | None = None
    rules: frozenset[GroupRule] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TrunkAssociation:
    """The association of a branch ENI with its trunk. Frames with the VLAN ID `vlan` on the trunk's wire belong to the branch."""

    association_id: str
    trunk_id: str
    vlan: int


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The AWS service that manages an ENI. `hidden`: whether a Describe without IDs shows the ENI only if it asks for managed ENIs."""

    principal: str
    hidden: bool = True


@dataclass(frozen=True, kw_only=True)
class EniAttachment:
    """The attachment of an ENI to an instance."""

    instance_id: str
    device_index: int
    network_card: int
    attachment_id: str
    status: AttachmentStatus
    delete_on_termination: bool
    attached_at: datetime


@dataclass(frozen=True, kw_only=True)
class Eni:
    """One network interface at one moment.

    ordinal: a number that grows with every ENI made. Answers and pages list ENIs in this order.
    source_dest_check: the value that EC2 shows. The lab's network checks source addresses even if it is false.
    primary_address: None for an EFA-only ENI, which has no IP address, and for an IPv6-only ENI ("Elastic Fabric Adapter" and
        "IPv6-only subnets", EC2 user guide; amazon-vpc-cni-k8s issues 3122 and 3681).
    """

    eni_id: str
    mac: str
    subnet_id: str
    subnet_cidr: IPv4Network
    az: str
    primary_address: IPv4Address | None
    secondary_addresses: tuple[IPv4Address, ...] = ()
    prefixes: tuple[IPv4Network, ...] = ()
    attachment: EniAttachment | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    description: str = ""
    security_groups: tuple[str, ...] = ()
    connection_tracking: Mapping[str, int] = field(default_factory=dict)
    ordinal: int = 0
    interface_type: str = "interface"
    ipv6_addresses: tuple[IPv6Address, ...] = ()
    ipv6_prefixes: tuple[IPv6Network, ...] = ()
    association: TrunkAssociation | None = None
    operator: Operator | None = None
    source_dest_check: bool = True

    @property
    def status(self) -> EniStatus:
        """As in EC2, IN_USE for an ENI with an attachment and for a branch ENI, even without an association (lab/vpc/hands.py)."""
        is_bound = self.attachment is not None or self.interface_type == "branch"
        return EniStatus.IN_USE if is_bound else EniStatus.AVAILABLE

    @property
    def addresses(self) -> tuple[IPv4Address, ...]:
        """All single addresses, the primary one first."""
        return (*(() if self.primary_address is None else (self.primary_address,)), *self.secondary_addresses)

    @property
    def all_addresses(self) -> tuple[Address, ...]:
        """The single addresses of both families, first those of IPv4."""
        return (*self.addresses, *self.ipv6_addresses)

    @property
    def all_prefixes(self) -> tuple[Network, ...]:
        """The prefixes of both families, first those of IPv4."""
        return (*self.prefixes, *self.ipv6_prefixes)

    @property
    def is_first(self) -> bool:
        """Whether the ENI is the primary interface of its instance."""
        return self.attachment is not None and (self.attachment.device_index, self.attachment.network_card) == (0, 0)

    @property
    def has_link(self) -> bool:
        """Whether the instance's kernel gets a network interface for the ENI. An EFA-only ENI is only an EFA device."""
        return self.interface_type != "efa-only"

    @property
    def is_plugged(self) -> bool:
        """Whether the instance has the interface now: whether the ENI is attached, or still detaching."""
        return self.attachment is not None and self.attachment.status is not AttachmentStatus.ATTACHING


@dataclass(frozen=True)
class EniAttached:
    """The interface has appeared in the instance."""

    instance_id: str
    instance_name: str
    eni: Eni


@dataclass(frozen=True)
class EniDetached:
    """The interface has disappeared from the instance."""

    instance_id: str
    instance_name: str
    eni_id: str


@dataclass(frozen=True)
class AddressesChanged:
    """All addresses and prefixes that an ENI has now, of both families; none if the ENI was deleted.

    instance_name: the instance that has the interface; None if no instance has it.

    The event is also sent after each EniAttached and EniDetached, so that a listener needs only this event to know which instance may
    send with which source addresses.
    """

    eni_id: str
    instance_name: str | None
    addresses: tuple[Address, ...]
    prefixes: tuple[Network, ...]


@dataclass(frozen=True)
class AdmissionChanged:
    """The networks that may send to an ENI from now on, by its security groups. None: everybody may, as before the first such
    event."""

    eni_id: str
    sources: frozenset[Network] | None


VpcEvent = EniAttached | EniDetached | AddressesChanged | AdmissionChanged
