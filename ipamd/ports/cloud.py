"""The ports `Ec2` and `Metadata`: the calls to EC2, and the reading of instance metadata."""

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
    """The EC2 calls of the daemon. Each method is one API call with a bounded number of retries, unless its docstring says otherwise.

    Every method that calls EC2 may raise CloudError or a subclass.
    """

    before_release: Callable[[], None]
    """Function that is called before each attempt of `detach_eni`, `unassign` and `withdraw_address`, whose retries may take a
    minute. If it raises a CloudError, the call ends. The thread that makes these calls sets it."""

    def describe_enis(self, instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        """Return all ENIs that are attached to the instance (one paginated call), sorted by device index and network card."""

    def describe_eni(self, eni_id: EniId) -> DescribedEni:
        """Return one ENI. Raises: CloudNotFoundError if it does not exist."""

    def find_enis(self, eni_ids: Collection[EniId]) -> tuple[DescribedEni, ...]:
        """Return the ENIs with these IDs (at most 200), attached or not; without those that EC2 does not show (one paginated call)."""

    def find_by_token(self, token: str) -> tuple[DescribedEni, ...]:
        """Return the ENIs that a creation with a client token made, sorted by ID (one paginated call). Their tag INTENT_TAG has the
        token.

        An empty result proves nothing, because EC2 may not show a new ENI yet (I11).
        """

    def find_detached(self, tags: Mapping[str, str]) -> tuple[DescribedEni, ...]:
        """Return the detached ENIs (`available`) of the node's VPC that have all these tags, sorted by ID (one paginated call).

        `tags`: at least one tag; the value of one of them may be "", which stands for any value. An empty result proves nothing (I11).
        """

    def find_address(self, address: IpAddress, *, subnet_id: SubnetId | None = None) -> tuple[DescribedEni, ...]:
        """Return the ENIs of the node's VPC that have an address as a single address, sorted by ID (one paginated call).

        An empty result proves nothing (I11).
        `subnet_id`: return instead the ENIs of this subnet that have a prefix which contains the address, because EC2 cannot search
            for these by the address; None: search for the single address.
        """

    def find_holder(self, address: IpAddress) -> AddressHolder | None:
        """Return the instance in the node's VPC that has an address as a single address on one of its ENIs (one paginated call).

        Returns: None if there is no such instance. Then the address may still be on a detached ENI, or in a prefix.
        """

    def explicit_reservations(self, subnet_id: SubnetId) -> tuple[IPv4Network, ...]:
        """Return a subnet's CIDR reservations of type `explicit`. EC2 allocates their addresses only to calls that name them."""

    def describe_attached_eni(self, eni_id: EniId) -> DescribedEni:
        """Wait until EC2 shows an ENI as attached, and return its description. Raises: CloudError if this takes too long."""

    def subnet_cidr(self, subnet_id: SubnetId) -> IPv4Network:
        """Return a subnet's IPv4 CIDR. It is cached for the life of the process."""

    def describe_subnets(self, *, vpc_id: str, availability_zone: str) -> tuple[DescribedSubnet, ...]:
        """Return the subnets of a VPC in one zone, sorted by ID (one paginated call).

        EC2 may leave out subnets that another account owns. Subnets without an IPv4 CIDR are left out.
        """

    def describe_subnet(self, subnet_id: SubnetId) -> DescribedSubnet:
        """Return one subnet as it is now. Raises: CloudNotFoundError if it does not exist."""

    def subnet_free_count(self, subnet_id: SubnetId) -> int:
        """Return how many addresses of a subnet are free now, according to EC2.

        The number does not show whether a whole /28 is free.
        """

    def create_eni(self, request: EniRequest) -> DescribedEni:
        """Create an ENI with its addresses or prefixes. A repeated call with the same token returns the same ENI.

        Raises: CloudError. If its `may_have_happened` is true, an ENI may have been created nevertheless.
        """

    def attach_eni(self, eni_id: EniId, *, instance_id: InstanceId, device_index: int, network_card: int) -> str:
        """Attach an ENI. Returns: the attachment ID. Raises: EniLimitError if the instance takes no more, DeviceIndexTakenError.

        After a refusal a second call, a Describe, may find out that an earlier attempt, whose answer was lost, attached the ENI.
        """

    def set_delete_on_termination(self, eni_id: EniId, *, attachment_id: str) -> None:
        """Make EC2 delete the ENI when the instance is terminated."""

    def set_security_groups(self, eni_id: EniId, *, security_group_ids: tuple[str, ...]) -> None:
        """Replace the ENI's security groups by these, at least one. Raises: CloudNotFoundError if the ENI does not exist."""

    def detach_eni(self, attachment_id: str) -> None:
        """Detach an ENI. If the attachment does not exist any more, this is not an error."""

    def delete_eni(self, eni_id: EniId) -> None:
        """Delete an ENI. If the ENI does not exist any more, this is not an error."""

    def assign_addresses(self, eni_id: EniId, *, count: int) -> frozenset[IpAddress]:
        """Allocate `count` more secondary addresses. Returns: the new addresses. Raises: SubnetExhaustedError, EniLimitError."""

    def assign_address(self, eni_id: EniId, address: IpAddress) -> None:
        """Allocate `address` as a secondary address. Raises: CloudError if another ENI has it or EC2 refuses it; EniLimitError."""

    def withdraw_address(self, eni_id: EniId, address: IpAddress) -> None:
        """Take an address away from the ENI of another instance. Raises: CloudNotFoundError if this ENI does not have it any more."""

    def assign_prefixes(self, eni_id: EniId, *, count: int) -> frozenset[IpNetwork]:
        """Allocate `count` more prefixes. Returns: the new prefixes. Raises: SubnetExhaustedError, EniLimitError."""

    def unassign(self, eni_id: EniId, *, addresses: Iterable[IpAddress], prefixes: Iterable[IpNetwork]) -> None:
        """Release addresses and prefixes, at least one of them, by a call for each kind.

        It is not an error if the ENI does not have some of the objects any more: the ENI is described, and the other objects are
        released. Nor is it an error if the ENI does not exist any more.
        """

    def instance_limits(self, instance_type: str) -> InstanceLimits:
        """Return the limits of an instance type: from DescribeInstanceTypes, else from the built-in table, else a safe default.

        An unknown type is not an error.
        """

    def call_reports(self) -> Mapping[str, CallReport]:
        """Return the counts of the calls since the start, by API name, without APIs that were neither called nor held back."""

    def throttling(self) -> tuple[float, float] | None:
        """Return when EC2 began to throttle this process and when it last did so, on the monotonic clock.

        Returns: None if EC2 has not throttled any call for an hour.
        """

    def release_idle(self, *, is_needed_soon: bool) -> None:
        """End the process that makes the calls, if there is one and it has not been used for a long time. Called from time to time.

        `is_needed_soon`: whether calls will probably be made soon; then the process is started instead.
        """

    def calls_under_way(self) -> tuple[CallUnderWay, ...]:
        """Return the calls that are being made or retried now, oldest first, each with its last refusal."""


class Metadata(Protocol):
    """Instance metadata (IMDSv2). It is only a hint: nothing is removed because metadata does not show it (I7)."""

    def identity(self) -> InstanceIdentity:
        """Return the node's identity. Raises: CloudError if it cannot be read within a deadline."""

    def list_interfaces(self) -> frozenset[MacAddress]:
        """Return the MACs of the ENIs that metadata shows, at least one. One request, one attempt. Raises: CloudError."""

    def interface(self, mac: MacAddress, *, described: Eni | None = None) -> MetadataEni:
        """Read one ENI by at most four requests, or two if it was read before. Each is attempted once, all in one connection.

        `described`: the ENI of this MAC as EC2 has just described it, so that its ID and device index need not be read.

        If the ENI has no addresses or no prefixes (status 404), the result has empty sets. Raises: CloudError for every other failure,
        for example if the ENI is gone.
        """

    def notices(self) -> Mapping[FreezeCause, str]:
        """Return EC2's notices about the end of this instance: the cause of a freeze -> a sentence; empty if there are none.

        The call makes two requests on a spot instance, and none on any other. Until the instance's life cycle is known, it makes one
        more. Each request is attempted once. Raises: CloudError; then it is not known whether there are notices.
        """

    def ipv6_address(self) -> str:
        """Return the primary ENI's own IPv6 address; "" if it has none. One request, one attempt. Raises: CloudError."""

    def request_count(self) -> int:
        """Return how many HTTP requests were made since the start, including unanswered ones."""
