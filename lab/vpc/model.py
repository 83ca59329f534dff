"""The resources of a simulated VPC as frozen values, and the events of their changes.

Everything is immutable, so that a reader, a stale Describe and the fabric may keep one without a lock. Rejected:
live objects with methods, because eventual consistency then needs a second copy of everything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

OWNER_ID = "123456789012"  # ours, because: AWS's own documentation uses this account number


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
    """Kinds of CIDR reservations: what EC2 does not choose from them by itself; by name everything can be had.

    Source: API reference of CreateSubnetCidrReservation: `prefix` keeps the range for prefixes, `explicit` from all choosing.
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
    """One subnet; `held_count` addresses are taken by nobody in particular (a fault made by the operator), nor can a /80 be had while
    `ipv6_prefixes_held`. `ipv6_cidr`: a /64, None for a subnet without IPv6. `reservations`: in order of creation.
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
    """One instance or plain host; `running` is False once terminated. ENIs name it, it does not name them.
    `stopped`: EC2 says so, and it keeps its ENIs; what runs in the lab's node goes on, as on a host that the control plane has lost.
    `notices`: path below meta-data -> what metadata answers there, a 404 for any other announcement."""

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
    """One rule of a security group, as its API has it. `peer`: a network, or the ID of a group whose members are meant."""

    is_egress: bool
    protocol: str
    from_port: int | None
    to_port: int | None
    peer: Network | str


@dataclass(frozen=True, kw_only=True)
class SecurityGroup:
    """Who may send to the ENIs that have this group: networks, and groups whose members' addresses may; None: everybody.

    Answers to what an ENI asks for come through in any case, as groups are stateful. What an ENI sends its own groups do not judge.
    Different from EC2: a rule of ingress admits its peer on all ports, and adds nobody where everybody may send.
    """

    group_id: str
    name: str
    sources: tuple[Network | str, ...] | None = None
    rules: frozenset[GroupRule] = frozenset()


@dataclass(frozen=True, kw_only=True)
class TrunkAssociation:
    """The bond of a branch ENI to its trunk: which frames on the trunk's wire are the branch's."""

    association_id: str
    trunk_id: str
    vlan: int


@dataclass(frozen=True, kw_only=True)
class Operator:
    """The AWS service that manages an ENI. `hidden`: a Describe without IDs shows the ENI only to whoever asks for managed ones."""

    principal: str
    hidden: bool = True


@dataclass(frozen=True, kw_only=True)
class EniAttachment:
    """The bond of an ENI to an instance."""

    instance_id: str
    device_index: int
    network_card: int
    attachment_id: str
    status: AttachmentStatus
    delete_on_termination: bool
    attached_at: datetime


@dataclass(frozen=True, kw_only=True)
class Eni:
    """One network interface at one moment. `ordinal` grows with every ENI made, and orders answers and pages.
    `source_dest_check`: what EC2 says of it; the fabric checks sources in any case.

    `primary_address` is None for an EFA-only ENI, which has no IP address at all, and for an IPv6-only one ("Elastic Fabric
    Adapter" and "IPv6-only subnets", EC2 user guide; amazon-vpc-cni-k8s issues 3122 and 3681).
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
        """In use as soon as an attachment or a bond to a trunk exists, as EC2 says it."""
        is_bound = (
            self.attachment is not None or self.interface_type == "branch"
        )  # also one by other hands, whose trunk nobody knows
        return EniStatus.IN_USE if is_bound else EniStatus.AVAILABLE

    @property
    def addresses(self) -> tuple[IPv4Address, ...]:
        """All single addresses, the primary one first."""
        return (*(() if self.primary_address is None else (self.primary_address,)), *self.secondary_addresses)

    @property
    def all_addresses(self) -> tuple[Address, ...]:
        """The single addresses of both families, IPv4's first."""
        return (*self.addresses, *self.ipv6_addresses)

    @property
    def all_prefixes(self) -> tuple[Network, ...]:
        """The prefixes of both families, IPv4's first."""
        return (*self.prefixes, *self.ipv6_prefixes)

    @property
    def is_first(self) -> bool:
        """Whether it is the instance's primary interface."""
        return self.attachment is not None and (self.attachment.device_index, self.attachment.network_card) == (0, 0)

    @property
    def has_link(self) -> bool:
        """Whether the kernel gets a network interface: an EFA-only ENI is an EFA device and nothing else."""
        return self.interface_type != "efa-only"

    @property
    def is_plugged(self) -> bool:
        """Whether the interface is in the instance: attached, or detaching and not yet gone."""
        return self.attachment is not None and self.attachment.status is not AttachmentStatus.ATTACHING


@dataclass(frozen=True)
class EniAttached:
    """The interface has appeared in the instance."""

    instance_id: str
    instance_name: str
    eni: Eni


@dataclass(frozen=True)
class EniDetached:
    """The interface has gone from the instance."""

    instance_id: str
    instance_name: str
    eni_id: str


@dataclass(frozen=True)
class AddressesChanged:
    """What EC2 now says about one ENI, in full, both families; empty when the ENI is deleted.

    `instance_name` is None while the ENI is plugged into nothing. Also sent after each EniAttached and EniDetached, so
    that a listener to this event alone knows who may speak as whom.
    """

    eni_id: str
    instance_name: str | None
    addresses: tuple[Address, ...]
    prefixes: tuple[Network, ...]


@dataclass(frozen=True)
class AdmissionChanged:
    """Who may send to an ENI from now on, by its security groups; None: everybody, as before the first of these events."""

    eni_id: str
    sources: frozenset[Network] | None


VpcEvent = EniAttached | EniDetached | AddressesChanged | AdmissionChanged
