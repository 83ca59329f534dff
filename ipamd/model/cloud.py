"""Values from EC2 and instance metadata, shared by the pool and the cloud adapters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address

from ipamd.model.cause import Cause
from ipamd.model.family import IpAddress, IpNetwork, members
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId
from ipamd.model.record import dataclass, field

INTENT_TAG = "vpc-ipamd/intent"
"""Tag of every ENI that we create. Its value is the client token of the creation. If EC2's answer to a creation was lost, the ENI is
searched for by this tag, because Describe shows tags and no tokens. Ours; amazon-vpc-cni-k8s has no such tag."""


@dataclass(frozen=True, slots=True)
class InstanceIdentity:
    """The node's identity, from instance metadata. Only `vpc_cidrs` and `security_group_ids` can change while the instance runs.

    `vpc_cidrs`: the IPv4 CIDRs of the VPC.
    `primary_mac`, `primary_eni_id`, `primary_address`: the MAC, the ID and the primary address of the primary ENI.
    `subnet_id`, `subnet_cidr`: the subnet of the primary ENI.
    `security_group_ids`: the security groups of the primary ENI, ascending.
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
"""Idle timeouts of connection tracking that were set on an ENI: pairs of EC2's name and seconds, sorted by name. Empty: EC2's
defaults.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ConnectionTrackingConfiguration.html."""


@dataclass(frozen=True, slots=True)
class DescribedEni:
    """One ENI as EC2 described it.

    `primary_address`: the primary IPv4 address; None if the ENI has no IPv4 address (EFA-only, IPv6-only).
    `secondary_addresses`, `prefixes`: the secondary addresses and delegated prefixes of the pool's family; on an IPv6 node only the
        prefixes are used. The primary address is never among them (I6).
    `has_ipv6`: whether the ENI has an IPv6 address or prefix.
    `ipv6_addresses`: the single IPv6 addresses of the ENI.
    `attachment_id`, `attachment_status`, `instance_id`, `device_index`, `network_card`: the ENI's attachment; empty strings and device
        index -1 if it is not attached.
    `delete_on_termination`: whether EC2 deletes the ENI with the instance.
    `security_group_ids`: its security groups, ascending; empty if the answer named none.
    `operator`: the AWS service that manages the ENI (EC2's Operator.Managed); "" if none does.
    `problem`: why the description could not be read; "" if it could. With a problem only the IDs, the MAC, the type, the attachment
        and the operator were read, as far as they are readable; the other fields have their defaults.
    `is_source_checked`: whether EC2 drops packets that the ENI sends with a source address that is not its own (SourceDestCheck).
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
        """Whether the description shows which IPv4 addresses are on the ENI."""
        return not self.problem and self.primary_address is not None


@dataclass(frozen=True, slots=True)
class AddressHolder:
    """The instance that has an address, as DescribeInstances shows it.

    `state`: EC2's name of the instance's state.
    `is_primary`: whether the address is the primary address of its ENI.
    `is_source_checked`: as in `DescribedEni`, of the ENI that has the address.
    """

    instance_id: InstanceId
    state: str
    eni_id: EniId
    is_primary: bool
    is_source_checked: bool

    @property
    def is_gone(self) -> bool:
        """Whether the instance is stopped or terminated, so that nothing on it runs.

        Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_InstanceState.html; an instance that is stopping still runs.
        """
        return self.state in ("stopped", "terminated")


@dataclass(frozen=True, slots=True)
class MetadataEni:
    """One ENI as instance metadata shows it. This is only a hint (I7).

    `addresses`: the ENI's IPv4 addresses, including the primary address; with an IPv6 pool only the primary address. May be empty.
    `prefixes`: the delegated prefixes of the pool's family; may be empty.
    """

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
    """One CreateNetworkInterface call. Exactly one of `address_count`, `prefix_count` and `ipv6_address_count` is positive.

    `client_token`: makes the call idempotent. It was stored before the call, and is used again after a crash (I9).
    `address_count`, `prefix_count`: the secondary addresses, or the delegated prefixes, that the ENI is created with.
    `ipv6_address_count`: the IPv6 addresses of the ENI itself. The ENI's /80 is requested afterwards, because one call takes either a
        count of IPv6 addresses or a count of IPv6 prefixes.
    `is_urgent`: whether an ADD waits for the call. A call that is not urgent is not repeated when EC2 throttles it.
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
    """An EC2 call that has not ended, including its retries.

    `api`, `subject`: the API, and the ENI, subnet or instance that the call is about.
    `age_s`: seconds since the call began.
    `refusal_count`: how many attempts failed.
    `last_refusal`: why the last failed attempt failed; None if no attempt failed yet.
    """

    api: str
    subject: str
    age_s: float
    refusal_count: int = 0
    last_refusal: Cause | None = None
