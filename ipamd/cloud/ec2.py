"""The port `Ec2` over botocore: each method is one API call with budget, retries and a typed answer.

Guards I6 (answers.py), I9 (a create is repeated with its token; NotFound of a new object is not believed), I11 (a failed page
fails the whole Describe), I13 (budget.py). Rejected: botocore's retries, which neither keep to our budget nor distinguish calls that
must not be sent twice.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from ipaddress import IPv4Address, IPv4Network
from typing import Any, TypeVar

from ipamd.cloud import limits
from ipamd.cloud.answers import address_holder, described_eni, described_enis, described_subnet, described_subnets, incomplete
from ipamd.cloud.calls import Ec2Calls
from ipamd.cloud.child import Ec2Child
from ipamd.cloud.client import Ec2Client
from ipamd.cloud.errors import AttemptError
from ipamd.cloud.retries import (
    AT_MOST_ONCE,
    ATTACHING,
    DELETING,
    HURRIED,
    IDEMPOTENT,
    SETTLING,
    UNHURRIED,
)
from ipamd.model.call_report import CallOutcome
from ipamd.model.cloud import INTENT_TAG, AddressHolder, DescribedEni, EniRequest
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudDeniedError, CloudError, CloudNotFoundError, DeviceIndexTakenError, is_about_keys
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, Family, IpAddress, IpNetwork, family_of
from ipamd.model.ids import EniId, InstanceId, SubnetId
from ipamd.model.subnets import DescribedSubnet
from ipamd.model.words import counted
from ipamd.ports.cloud import Ec2
from ipamd.ports.process import Clock
from ipamd.settings import CloudConfig

PAGE_SIZE = 1000
"""ENIs per answer, EC2's maximum. Source: amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, describeENIPageSize."""

PAGES_MAX = 20
"""The largest number of pages that are read of one list. Ours: all ENIs of one instance are on the first page, but a page may be empty
although another one follows."""

DESCRIBE_ENIS = "DescribeNetworkInterfaces"

ATTACHED_TO = "attachment.instance-id"
"""The filter by instance. Source: as for INCLUDE_MANAGED."""

INCLUDE_MANAGED = "IncludeManagedResources"
"""Since April 2026 EC2 lists ENIs that AWS services manage only if the request has this parameter or names their IDs.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeNetworkInterfaces.html."""

UNKNOWN_PARAMETER = "UnknownParameter"
"""Code by which an endpoint refuses a parameter that it does not know. Such an endpoint is older than `INCLUDE_MANAGED`, so it hides
no ENI."""

INCLUDE_MANAGED_AGAIN_S = 3600.0
"""After this long the parameter is sent again to an endpoint that refused it. Ours: an upgraded endpoint is noticed within an hour,
and one refused call an hour costs little."""

LIMITS_RETRY_S = 300.0
"""Seconds after which the limits of an instance type are requested again if the call failed, but was not denied by IAM. Ours: this
need not be often, because EC2's answer is needed only for types that the built-in table lacks."""

OF_PREFIXES = {4: ("PrivateIpAddresses", "Ipv4Prefix"), 6: ("Ipv6Addresses", "Ipv6Prefix")}
"""By IP version: the noun in the names of the Assign and Unassign calls for prefixes, and EC2's word for a prefix.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_AssignIpv6Addresses.html."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


def first_page_of_instance(instance_id: InstanceId, *, vpc_id: str) -> tuple[str, Mapping[str, Any]]:
    """Return the API and the parameters of the first call that `describe_enis` makes."""
    filters = _filters(_in_vpc({ATTACHED_TO: instance_id}, vpc_id))
    return DESCRIBE_ENIS, {"Filters": filters, "MaxResults": PAGE_SIZE, INCLUDE_MANAGED: True}


def _in_vpc(wanted: Mapping[str, str | Sequence[str]], vpc_id: str) -> Mapping[str, str | Sequence[str]]:
    """Add the VPC to filters, if it is known."""
    if vpc_id:
        return {**wanted, "vpc-id": vpc_id}
    return wanted


def _filters(wanted: Mapping[str, str | Sequence[str]]) -> list[Mapping[str, Any]]:
    """Return filters (name -> one of the values) in EC2's form."""
    return [{"Name": name, "Values": [values] if isinstance(values, str) else list(values)} for name, values in wanted.items()]


class BotoEc2(Ec2Calls, Ec2):
    """EC2 for one node: its API calls and their typed answers. Imports no AWS library; the `client` may do so at its first call."""

    def __init__(
        self,
        config: CloudConfig,
        *,
        region: Callable[[], str],
        clock: Clock,
        sleep: Callable[[float], None] = time.sleep,
        vpc_id: Callable[[], str] = lambda: "",
        client: Ec2Client | None = None,
        family: Family = IPV4,
    ) -> None:
        """Keep the collaborators; no call is made yet.

        Args:
            vpc_id: returns the node's VPC, "" while it is not known.
            client: makes the calls; None: a process, which is started at the first call.
            family: the IP family of the pool. Prefixes of this family are assigned and described.
        """
        super().__init__(client or Ec2Child(config, region=region), clock=clock, sleep=sleep)
        self._vpc_id = vpc_id
        self._family = family
        self._noun, self._word = OF_PREFIXES[family.any_route.version]
        self._subnets: dict[SubnetId, IPv4Network] = {}
        self._limits: dict[str, tuple[InstanceLimits, float]] = {}
        self._include_managed_at_s = float("-inf")

    def describe_enis(self, instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        enis = self._search(f"instance {instance_id}", {ATTACHED_TO: instance_id})
        return tuple(sorted(enis, key=lambda eni: (eni.device_index, eni.network_card)))

    def find_enis(self, eni_ids: Collection[EniId]) -> tuple[DescribedEni, ...]:
        # By a filter: a list of IDs is refused whole if one of them does not exist.
        return self._search(counted(len(eni_ids), "ENI"), {"network-interface-id": sorted(eni_ids)})

    def find_by_token(self, token: str) -> tuple[DescribedEni, ...]:
        return self._search(f"the ENI of request {token}", {f"tag:{INTENT_TAG}": token})

    def find_detached(self, tags: Mapping[str, str]) -> tuple[DescribedEni, ...]:
        if not tags:
            raise ValueError("no tag was named")
        # EC2 takes `*` and `?` of a filter's value for wildcards (API_DescribeNetworkInterfaces.html, Filter).
        wanted = {f"tag:{key}": re.sub(r"([*?\\])", r"\\\1", value) for key, value in tags.items() if value}
        keys_of_any_value = [key for key, value in tags.items() if not value]
        if keys_of_any_value:
            (wanted["tag-key"],) = keys_of_any_value
        return self._search("no instance", {**wanted, "status": "available"})

    def find_address(self, address: IpAddress, *, subnet_id: SubnetId | None = None) -> tuple[DescribedEni, ...]:
        if subnet_id is None:
            name = "addresses.private-ip-address" if family_of(address) is IPV4 else "ipv6-addresses.ipv6-address"
            return self._search(f"address {address}", {name: str(address)})
        # EC2 has no filter for the addresses of a prefix, so all ENIs of the subnet are described.
        enis = self._search(f"address {address}", {"subnet-id": subnet_id})
        return tuple(eni for eni in enis if any(address in prefix for prefix in eni.prefixes))

    def find_holder(self, address: IpAddress) -> AddressHolder | None:
        wanted = {"network-interface.addresses.private-ip-address": str(address)}
        vpc_id = self._vpc_id()
        if vpc_id:
            wanted["vpc-id"] = vpc_id
        return address_holder(self._pages("DescribeInstances", "Reservations", f"address {address}", wanted), address)

    def explicit_reservations(self, subnet_id: SubnetId) -> tuple[IPv4Network, ...]:
        """See `Ec2.explicit_reservations`.

        Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_SubnetCidrReservation.html.
        """
        answer = self.call("GetSubnetCidrReservations", subnet_id, {"SubnetId": subnet_id}, IDEMPOTENT)
        reservations = answer.get("SubnetIpv4CidrReservations") or ()
        try:
            return tuple(IPv4Network(item["Cidr"]) for item in reservations if item["ReservationType"] == "explicit")
        except (KeyError, ValueError, TypeError) as exc:
            raise incomplete(f"the reservations of {subnet_id}", exc) from exc

    def describe_eni(self, eni_id: EniId) -> DescribedEni:
        return described_eni(self._describe_object(DESCRIBE_ENIS, "NetworkInterfaces", eni_id), self._family)

    def describe_attached_eni(self, eni_id: EniId) -> DescribedEni:
        def read_attached() -> DescribedEni:
            eni = self.describe_eni(eni_id)
            if eni.attachment_status != "attached":
                status = eni.attachment_status or "not attached"
                fields = {"eni": eni_id, "wait_s": f"{ATTACHING.total_s:.0f}", "status": status}
                error = failure(CloudError, FailureCode.EC2_NOT_ATTACHED, **fields)
                raise AttemptError(error, CallOutcome.BUSY)
            return eni

        try:
            return ATTACHING.retrying(self._clock, self._sleep)(read_attached)
        except AttemptError as failed:
            raise failed.error from failed

    def subnet_cidr(self, subnet_id: SubnetId) -> IPv4Network:
        if subnet_id not in self._subnets:
            return self.describe_subnet(subnet_id).cidr
        return self._subnets[subnet_id]

    def describe_subnets(self, *, vpc_id: str, availability_zone: str) -> tuple[DescribedSubnet, ...]:
        wanted = {"vpc-id": vpc_id, "availability-zone": availability_zone}
        subnets = described_subnets(self._pages("DescribeSubnets", "Subnets", f"the subnets of {availability_zone}", wanted))
        self._subnets |= {subnet.subnet_id: subnet.cidr for subnet in subnets}
        return tuple(sorted(subnets, key=lambda subnet: subnet.subnet_id))

    def describe_subnet(self, subnet_id: SubnetId) -> DescribedSubnet:
        subnet = described_subnet(self._describe_object("DescribeSubnets", "Subnets", subnet_id))
        self._subnets[subnet_id] = subnet.cidr
        return subnet

    def subnet_free_count(self, subnet_id: SubnetId) -> int:
        return self.describe_subnet(subnet_id).free_count

    def create_eni(self, request: EniRequest) -> DescribedEni:
        tags = [{"Key": key, "Value": value} for key, value in sorted(request.tags.items())]
        params: dict[str, Any] = {
            "SubnetId": request.subnet_id,
            "Description": request.description,
            "ClientToken": request.client_token,
        }
        optional = {
            "Groups": list(request.security_group_ids),
            "SecondaryPrivateIpAddressCount": request.address_count,
            "Ipv4PrefixCount": request.prefix_count,
            "Ipv6AddressCount": request.ipv6_address_count,
            "ConnectionTrackingSpecification": dict(request.connection_tracking),
            "TagSpecifications": [{"ResourceType": "network-interface", "Tags": tags}] if tags else [],
        }
        params |= {name: value for name, value in optional.items() if value}
        subject = f"a new ENI in {request.subnet_id}"
        try:
            policy = IDEMPOTENT if request.is_urgent else UNHURRIED
            answer = self.call("CreateNetworkInterface", subject, params, policy)
        except CloudDeniedError as error:
            # A condition on aws:TagKeys or aws:RequestTag refuses the whole call: name the keys that it has to allow.
            error.next_step += f"; the request carries the tags {', '.join(sorted(request.tags)) or '(none)'}"
            raise
        eni = described_eni(answer.get("NetworkInterface") or {}, self._family)
        self.remember(eni.eni_id)
        return eni

    def attach_eni(self, eni_id: EniId, *, instance_id: InstanceId, device_index: int, network_card: int) -> str:
        params = {
            "NetworkInterfaceId": eni_id,
            "InstanceId": instance_id,
            "DeviceIndex": device_index,
            "NetworkCardIndex": network_card,
        }
        subject = f"{eni_id} as device {device_index} of card {network_card} of {instance_id}"
        try:
            answer = self.attempts("AttachNetworkInterface", subject, params, IDEMPOTENT, about=eni_id)
            attachment_id = answer.get("AttachmentId", "")
        except AttemptError as failed:
            is_answered = isinstance(failed.error, DeviceIndexTakenError) and not failed.error.may_have_happened
            if failed.outcome not in (CallOutcome.BUSY, CallOutcome.LIMIT) or is_answered:
                # If every attempt was answered, no attempt of ours has taken the index unnoticed, so another ENI is there. An earlier
                # process has not attached this ENI either: otherwise EC2 would have refused the call with another code (BUSY: in use).
                raise failed.error from failed
            # The refusal may be due to our own first attempt, whose answer was lost. Then the ENI is already where we want it.
            eni = self.describe_eni(eni_id)
            if (eni.instance_id, eni.device_index, eni.network_card) != (instance_id, device_index, network_card):
                raise failed.error from failed
            attachment_id = eni.attachment_id
        if not attachment_id:
            raise incomplete(f"the attachment of {eni_id}", "AttachmentId")
        self.remember(attachment_id)
        return str(attachment_id)

    def set_delete_on_termination(self, eni_id: EniId, *, attachment_id: str) -> None:
        params = {
            "NetworkInterfaceId": eni_id,
            "Attachment": {"AttachmentId": attachment_id, "DeleteOnTermination": True},
        }
        self.call("ModifyNetworkInterfaceAttribute", eni_id, params, SETTLING, about=attachment_id)

    def set_security_groups(self, eni_id: EniId, *, security_group_ids: tuple[str, ...]) -> None:
        """Replace all security groups of an ENI. `security_group_ids` has at least one.

        Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ModifyNetworkInterfaceAttribute.html, SecurityGroupId:
        the groups that are sent replace the existing ones.
        """
        params = {"NetworkInterfaceId": eni_id, "Groups": list(security_group_ids)}
        self.call("ModifyNetworkInterfaceAttribute", eni_id, params, IDEMPOTENT, about=eni_id)

    def detach_eni(self, attachment_id: str) -> None:
        try:
            params = {"AttachmentId": attachment_id}
            self.call("DetachNetworkInterface", attachment_id, params, SETTLING, about=attachment_id)
        except CloudNotFoundError:
            _log.info("gone already attachment=%s", attachment_id)

    def delete_eni(self, eni_id: EniId) -> None:
        try:
            self.call("DeleteNetworkInterface", eni_id, {"NetworkInterfaceId": eni_id}, DELETING, about=eni_id)
        except CloudNotFoundError:
            _log.info("gone already eni=%s", eni_id)
        self.forget(eni_id)

    def assign_addresses(self, eni_id: EniId, *, count: int) -> frozenset[IpAddress]:
        wanted = {"SecondaryPrivateIpAddressCount": count}
        key = "AssignedPrivateIpAddresses"
        return self._assign(
            eni_id, f"{count} addresses", wanted, key=key, read=lambda item: IPv4Address(item["PrivateIpAddress"])
        )

    def assign_address(self, eni_id: EniId, address: IpAddress) -> None:
        params = {"NetworkInterfaceId": eni_id, "PrivateIpAddresses": [str(address)], "AllowReassignment": False}
        self.call("AssignPrivateIpAddresses", f"{address} on {eni_id}", params, AT_MOST_ONCE, about=eni_id)

    def withdraw_address(self, eni_id: EniId, address: IpAddress) -> None:
        params = {"NetworkInterfaceId": eni_id, "PrivateIpAddresses": [str(address)]}
        self.call("UnassignPrivateIpAddresses", f"{address} of {eni_id}", params, AT_MOST_ONCE)

    def assign_prefixes(self, eni_id: EniId, *, count: int) -> frozenset[IpNetwork]:
        def read(item: Any) -> IpNetwork:
            return self._family.prefix(item if isinstance(item, str) else item[self._word])

        wanted, key, api = {f"{self._word}Count": count}, f"Assigned{self._word}es", f"Assign{self._noun}"
        return self._assign(eni_id, counted(count, "prefix"), wanted, key=key, read=read, api=api)

    def unassign(self, eni_id: EniId, *, addresses: Iterable[IpAddress], prefixes: Iterable[IpNetwork]) -> None:
        wanted_addresses, wanted_prefixes = frozenset(addresses), frozenset(prefixes)
        if not wanted_addresses and not wanted_prefixes:
            raise ValueError("nothing to release was named")
        try:
            self._release(eni_id, wanted_addresses, wanted_prefixes)
        except CloudNotFoundError:
            # EC2 refuses a whole call if one address is missing. Addresses and prefixes are released by separate calls, and one of
            # them may have succeeded. So retry with those that the ENI still has.
            try:
                present = self.describe_eni(eni_id)
            except CloudNotFoundError:
                return
            except CloudError as error:
                error.may_have_happened = True
                raise
            try:
                self._release(eni_id, wanted_addresses & present.secondary_addresses, wanted_prefixes & present.prefixes)
            except CloudError as error:
                error.may_have_happened = True  # an earlier call may have released a part
                raise

    def instance_limits(self, instance_type: str) -> InstanceLimits:
        cached, ask_again_at = self._limits.get(instance_type, (None, 0.0))
        if cached is not None and self._clock.monotonic() < ask_again_at:
            return cached
        from_ec2, until = None, float("inf")
        try:
            answer = self.call("DescribeInstanceTypes", instance_type, {"InstanceTypes": [instance_type]}, HURRIED)
            from_ec2 = limits.from_ec2(instance_type, answer)
        except CloudError as exc:
            _log.warning("reading instance limits failed type=%s error=%s", instance_type, exc)
            if not isinstance(exc, CloudDeniedError) or is_about_keys(exc):
                until = self._clock.monotonic() + LIMITS_RETRY_S
        chosen = from_ec2 or limits.from_table(instance_type) or limits.safe_default(instance_type)
        if from_ec2 is None:
            _log.warning("using built-in instance limits type=%s source=%s limits=%s", instance_type, chosen.source, chosen)
        self._limits[instance_type] = (chosen, until)
        return chosen

    def _assign(
        self,
        eni_id: EniId,
        amount: str,
        wanted: Mapping[str, int],
        *,
        key: str,
        read: Callable[[Any], T],
        api: str = "AssignPrivateIpAddresses",
    ) -> frozenset[T]:
        """Assign addresses or prefixes, at most once: the call has no client token, so after a lost answer a Describe is needed."""
        subject = f"{amount} on {eni_id}"
        params = {"NetworkInterfaceId": eni_id, **wanted}
        answer = self.call(api, subject, params, AT_MOST_ONCE, about=eni_id)
        try:
            return frozenset(map(read, answer.get(key, ())))
        except (KeyError, ValueError, TypeError) as exc:
            raise incomplete(subject, exc) from exc

    def _describe_object(self, api: str, key: str, object_id: str) -> Mapping[str, Any]:
        """Describe one object. The name of EC2's parameter follows from `key`, the name of the list in the answer."""
        params = {f"{key.removesuffix('s')}Ids": [object_id]}
        descriptions = self.call(api, object_id, params, IDEMPOTENT, about=object_id).get(key, ())
        if not descriptions:
            raise incomplete(object_id, key)
        description: Mapping[str, Any] = descriptions[0]
        return description

    def _search(self, subject: str, wanted: Mapping[str, str | Sequence[str]]) -> tuple[DescribedEni, ...]:
        """Describe the ENIs that filters (name -> one of the values) select, sorted by ID. If one page fails, the call fails (I11).

        The VPC is a filter too. An account with many ENIs refuses a Describe that has neither a page size nor a filter by group, MAC,
        private DNS name or address, subnet or VPC, and pages without a filter cost calls (amazon-vpc-resource-controller-k8s issue
        403). Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_DescribeNetworkInterfaces.html.
        """
        entries = self._pages(DESCRIBE_ENIS, "NetworkInterfaces", subject, _in_vpc(wanted, self._vpc_id()), noun="the ENIs of ")
        return tuple(sorted(described_enis(entries, self._family), key=lambda eni: eni.eni_id))

    def _pages(
        self, api: str, key: str, subject: str, wanted: Mapping[str, str | Sequence[str]], *, noun: str = ""
    ) -> list[Mapping[str, Any]]:
        """Describe the objects that filters select, page by page. `noun`: precedes the subject in the error."""
        params: dict[str, Any] = {"Filters": _filters(wanted), "MaxResults": PAGE_SIZE}
        entries: list[Mapping[str, Any]] = []
        for _ in range(PAGES_MAX):
            page = self._enis_page(subject, params) if api == DESCRIBE_ENIS else self.call(api, subject, params, IDEMPOTENT)
            entries += page.get(key, ())
            if not page.get("NextToken"):
                return entries
            params = params | {"NextToken": page["NextToken"]}
        raise failure(CloudError, FailureCode.EC2_LIST_ENDLESS, subject=f"{noun}{subject}", pages=PAGES_MAX)

    def _enis_page(self, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Get one page of ENIs, including those that AWS services manage if the endpoint knows the parameter."""
        api = DESCRIBE_ENIS
        if self._clock.monotonic() < self._include_managed_at_s:
            return self.call(api, subject, params, IDEMPOTENT)
        try:
            return self.call(api, subject, {**params, INCLUDE_MANAGED: True}, IDEMPOTENT)
        except CloudError as error:
            if error.code != UNKNOWN_PARAMETER:
                raise
            page = self.call(api, subject, params, IDEMPOTENT)
        # The call succeeded without the parameter, so it was this parameter that was refused.
        self._include_managed_at_s = self._clock.monotonic() + INCLUDE_MANAGED_AGAIN_S
        _log.warning("endpoint refused a parameter parameter=%s again_in_s=%.0f", INCLUDE_MANAGED, INCLUDE_MANAGED_AGAIN_S)
        return page

    def _release(self, eni_id: EniId, addresses: frozenset[IpAddress], prefixes: frozenset[IpNetwork]) -> None:
        api = "UnassignPrivateIpAddresses"
        if addresses:
            params = {"NetworkInterfaceId": eni_id, "PrivateIpAddresses": [str(address) for address in sorted(addresses)]}
            self.call(api, f"{len(addresses)} addresses of {eni_id}", params, IDEMPOTENT)
        if prefixes:
            params = {"NetworkInterfaceId": eni_id, f"{self._word}es": [str(address) for address in sorted(prefixes)]}
            try:
                self.call(f"Unassign{self._noun}", f"{len(prefixes)} prefixes of {eni_id}", params, IDEMPOTENT)
            except CloudError as error:
                error.may_have_happened = error.may_have_happened or bool(addresses)  # the addresses are released already
                raise
