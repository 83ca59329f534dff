"""Values from EC2 and instance metadata, shared by the pool and the cloud adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from ipamd.model.cause import Cause
from ipamd.model.family import IpAddress, IpNetwork, members
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId
from ipamd.model.record import dataclass, field

INTENT_TAG = "vpc-ipamd/intent"
"""Tag of every ENI that we create. Its value is the client token of the creation: when an answer was lost, the tag finds the outcome,
because Describe shows tags and not tokens. Ours; amazon-vpc-cni-k8s has no such tag."""


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    """The node's identity, from instance metadata.

    Only `vpc_cidrs` and `security_group_ids` change while the instance runs; the latter, ascending, are those of the primary ENI.
    """

    instance_id: InstanceId
    instance_type: str
    region: str
    availability_zone: str
    vpc_id: str
    vpc_cidrs: tuple[IPv4Network, ...]
    primary_mac: MacAddress
    primary_eni_id: EniId
    primary_address: IPv4Address
    subnet_id: SubnetId
    subnet_cidr: IPv4Network
    security_group_ids: tuple[str, ...]


ConnectionTracking = tuple[tuple[str, int], ...]
"""Idle timeouts of connection tracking that were set on an ENI: EC2's own names and seconds, by name. Empty: EC2's defaults.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ConnectionTrackingConfiguration.html."""


@dataclass(frozen=True, slots=True)
class DescribedEni:
    """One ENI as EC2 described it. Addresses never include the primary one (I6); empty IDs mean "not attached".

    `secondary_addresses`, `prefixes`: of the pool's family; with IPv6 only prefixes serve.
    `has_ipv6`: it has an IPv6 address or prefix.
    `ipv6_addresses`: its single IPv6 addresses.
    `primary_address`: None if it has no IPv4 address (EFA-only, IPv6-only).
    `problem`: why the description could not be read, "" if it could; with a problem the other fields have the readable parts.
    `security_group_ids`: ascending; empty if the answer named none.
    `is_source_checked`: EC2 drops what it sends with an address that is not its own (SourceDestCheck).
    `operator`: the AWS service that manages the ENI (EC2's Operator.Managed), "" if none does.
    """

    eni_id: EniId
    mac: MacAddress
    subnet_id: SubnetId
    primary_address: IPv4Address | None
    secondary_addresses: frozenset[IpAddress] = frozenset()
    prefixes: frozenset[IpNetwork] = frozenset()
    has_ipv6: bool = False
    ipv6_addresses: frozenset[IPv6Address] = frozenset()
    status: str = "available"
    interface_type: str = "interface"
    description: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)
    attachment_id: str = ""
    attachment_status: str = ""
    instance_id: str = ""
    device_index: int = -1
    network_card: int = 0
    delete_on_termination: bool = False
    security_group_ids: tuple[str, ...] = ()
    connection_tracking: ConnectionTracking = ()
    operator: str = ""
    problem: str = ""
    is_source_checked: bool = True

    @property
    def is_readable(self) -> bool:
        """Whether the entry shows which IPv4 addresses are on the ENI."""
        return not self.problem and self.primary_address is not None


@dataclass(frozen=True, slots=True)
class AddressHolder:
    """The instance that has an address, as DescribeInstances shows it.

    `state`: EC2's name of the instance's state.
    `is_primary`: the address is the primary one of its ENI.
    `is_source_checked`: as in `DescribedEni`, of its ENI.
    """

    instance_id: InstanceId
    state: str
    eni_id: EniId
    is_primary: bool
    is_source_checked: bool

    @property
    def is_gone(self) -> bool:
        """Whether nothing on the instance can run now.

        Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceState.html; an instance that is stopping still runs.
        """
        return self.state in ("stopped", "terminated")


@dataclass(frozen=True, slots=True)
class MetadataEni:
    """One ENI as instance metadata shows it: a hint (I7). `addresses` includes the primary one; both sets may be empty."""

    mac: MacAddress
    eni_id: EniId
    device_index: int
    addresses: frozenset[IpAddress] = frozenset()
    prefixes: frozenset[IpNetwork] = frozenset()


def all_addresses(singles: Iterable[IpAddress], prefixes: Iterable[IpNetwork]) -> frozenset[IpAddress]:
    """Return single addresses together with the `members` of prefixes."""
    return frozenset(singles).union(*map(members, prefixes))


@dataclass(frozen=True, slots=True)
class EniRequest:
    """One CreateNetworkInterface call: addresses or prefixes, tags and our token in a single request.

    Exactly one of `address_count`, `prefix_count` and `ipv6_address_count` is positive. The last is for the ENI's own address, and its
    /80 is requested afterwards, because EC2 does not take both counts in one call. `client_token` was stored before the call and is
    used again after a crash (I9). `is_urgent`: an ADD waits for the call; without one, the call is not repeated when EC2 throttles it.
    """

    subnet_id: SubnetId
    security_group_ids: tuple[str, ...]
    description: str
    tags: Mapping[str, str]
    client_token: str
    address_count: int = 0
    prefix_count: int = 0
    ipv6_address_count: int = 0
    is_urgent: bool = True
    connection_tracking: ConnectionTracking = ()


@dataclass(frozen=True, slots=True)
class CallUnderWay:
    """An EC2 call that has not ended, including its retries. `last_refusal`: why the last attempt failed; None before one failed."""

    api: str
    subject: str
    age_s: float
    refusal_count: int = 0
    last_refusal: Cause | None = None
