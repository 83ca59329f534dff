"""EC2 and instance metadata, as the rooms see them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from ipaddress import IPv4Network
from typing import Protocol

from ipamd.model.call_report import CallReport
from ipamd.model.cloud import AddressHolder, CallUnderWay, DescribedEni, EniRequest, InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId
from ipamd.model.subnets import DescribedSubnet


class Ec2(Protocol):
    """The EC2 calls the pool makes. Each is one API call plus bounded retries; errors are CloudError and below."""

    before_release: Callable[[], None]
    """Called before each attempt of `detach_eni` and `unassign`, whose retries may take a minute. If it raises a CloudError, the call
    ends. Set by the thread that makes these calls."""

    def describe_enis(self, instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        """All ENIs attached to the instance (one paginated call), by device index."""

    def describe_eni(self, eni_id: EniId) -> DescribedEni:
        """One ENI. CloudNotFoundError if it does not exist."""

    def find_enis(self, eni_ids: Collection[EniId]) -> tuple[DescribedEni, ...]:
        """The ENIs with these IDs (at most 200), attached or not, without those that EC2 does not show (one paginated call)."""

    def find_by_token(self, token: str) -> tuple[DescribedEni, ...]:
        """ENIs whose tag `vpc-ipamd/intent` is `token`, by ID: what a creation with this token made (one paginated call).

        Empty is not evidence by itself: a new ENI may not be shown yet (I11).
        """

    def find_detached(self, tags: Mapping[str, str]) -> tuple[DescribedEni, ...]:
        """ENIs of the node's VPC that are attached to nothing (`available`) and carry all these tags, by ID (one paginated call).

        `tags`: at least one; the value "" stands for any. Empty is not evidence by itself (I11).
        """

    def find_address(self, address: IpAddress, *, subnet_id: SubnetId | None = None) -> tuple[DescribedEni, ...]:
        """ENIs of the node's VPC that have an address, by ID (one paginated call). Empty is not evidence by itself (I11).

        `subnet_id`: also find ENIs of this subnet that have the address's prefix.
        """

    def find_holder(self, address: IpAddress) -> AddressHolder | None:
        """The instance in the node's VPC on one of whose ENIs an address is, itself and not as part of a prefix (one paginated call).

        None: no instance has it; it may be on an ENI that is attached to none, or in a prefix.
        """

    def explicit_reservations(self, subnet_id: SubnetId) -> tuple[IPv4Network, ...]:
        """The CIDR reservations of a subnet of type `explicit`, from which EC2 assigns only addresses that are named."""

    def describe_attached_eni(self, eni_id: EniId) -> DescribedEni:
        """Wait until EC2 shows an ENI as attached, and return its description. CloudError if it does not within a bound."""

    def subnet_cidr(self, subnet_id: SubnetId) -> IPv4Network:
        """A subnet's IPv4 block; cached for the life of the process."""

    def describe_subnets(self, *, vpc_id: str, availability_zone: str) -> tuple[DescribedSubnet, ...]:
        """The subnets of a VPC in one zone, by ID (one paginated call); those that other accounts own are not among them."""

    def describe_subnet(self, subnet_id: SubnetId) -> DescribedSubnet:
        """One subnet, now. CloudNotFoundError if it does not exist."""

    def subnet_free_count(self, subnet_id: SubnetId) -> int:
        """How many addresses of a subnet EC2 says are free, now. Says nothing about whole /28s."""

    def create_eni(self, request: EniRequest) -> DescribedEni:
        """Create an ENI with its addresses or prefixes; the same token gives the same ENI.

        Raises: CloudError; its `may_have_happened` says whether an ENI may have been created nevertheless.
        """

    def attach_eni(self, eni_id: EniId, *, instance_id: InstanceId, device_index: int, network_card: int) -> str:
        """Attach an ENI. Returns: the attachment ID. Raises: EniLimitError if the instance takes no more, DeviceIndexTakenError."""

    def set_delete_on_termination(self, eni_id: EniId, *, attachment_id: str) -> None:
        """Have EC2 delete the ENI together with the instance."""

    def set_security_groups(self, eni_id: EniId, *, security_group_ids: tuple[str, ...]) -> None:
        """Replace the ENI's security groups, at least one. CloudNotFoundError if the ENI does not exist."""

    def detach_eni(self, attachment_id: str) -> None:
        """Detach; an attachment that is gone is fine."""

    def delete_eni(self, eni_id: EniId) -> None:
        """Delete; an ENI that is gone is fine."""

    def assign_addresses(self, eni_id: EniId, *, count: int) -> frozenset[IpAddress]:
        """Allocate `count` more secondary addresses. SubnetExhaustedError, EniLimitError."""

    def assign_address(self, eni_id: EniId, address: IpAddress) -> None:
        """Allocate this secondary address. CloudError if another ENI has it or EC2 refuses it otherwise; EniLimitError."""

    def withdraw_address(self, eni_id: EniId, address: IpAddress) -> None:
        """Take an address from the ENI of another instance. CloudNotFoundError if it is not there any more (compare and set)."""

    def assign_prefixes(self, eni_id: EniId, *, count: int) -> frozenset[IpNetwork]:
        """Allocate `count` more /28 prefixes. SubnetExhaustedError, EniLimitError."""

    def unassign(self, eni_id: EniId, *, addresses: Iterable[IpAddress], prefixes: Iterable[IpNetwork]) -> None:
        """Release addresses and prefixes (at least one). Objects that EC2 no longer has are no error."""

    def instance_limits(self, instance_type: str) -> InstanceLimits:
        """DescribeInstanceTypes, then the built-in table, then a safe default. Never raises for an unknown type."""

    def call_reports(self) -> Mapping[str, CallReport]:
        """The results of the calls since start, by API name; without APIs that were never called."""

    def throttling(self) -> tuple[float, float] | None:
        """When EC2 began to throttle this process and when it last did, on the monotonic clock; None: not for minutes."""

    def release_idle(self, *, is_needed_soon: bool) -> None:
        """Called from time to time: free resources that were not used for long, or have them ready if they are needed soon."""

    def calls_under_way(self) -> tuple[CallUnderWay, ...]:
        """The calls that are being made or retried now, oldest first, each with its last refusal."""


class Metadata(Protocol):
    """Instance metadata (IMDSv2): a hint, never a reason to remove (I7)."""

    def identity(self) -> InstanceIdentity:
        """Who this node is. CloudError if it cannot be read within its deadline."""

    def list_interfaces(self) -> frozenset[MacAddress]:
        """MACs of the ENIs that metadata shows, at least one. One request, one attempt. CloudError if it is not answered."""

    def interface(self, mac: MacAddress, *, described: Eni | None = None) -> MetadataEni:
        """Read one ENI: at most four requests, two when it was read before; one attempt each, in one connection.

        `described`: the ENI of this MAC as EC2 has just described it, so that its ID and device index need not be read.

        No addresses or no prefixes (404) are empty sets. Raises: CloudError for everything else, also if the ENI is gone.
        """

    def notices(self) -> Mapping[FreezeCause, str]:
        """Notices of EC2 about the end of this instance, as sentences; empty if there are none. One attempt each.

        Two requests on a spot instance, none on others, and one more until its life cycle is known. Raises: CloudError; then it is
        not known whether there are notices.
        """

    def ipv6_address(self) -> str:
        """The primary ENI's own IPv6 address; "" if it has none. One request, one attempt. Raises: CloudError."""

    def request_count(self) -> int:
        """How many HTTP requests were made since the start, including unanswered ones."""
