"""List subnets, ENIs and reservations for one run, page by page, within a number of HTTP attempts.

Every HTTP attempt counts as a call, retries included. A list that does not end within this number raises an error, because a part of
a list proves nothing (I11); the caller reports the gap. Reservations take a call for each subnet, because EC2 lists them by subnet
only.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_GetSubnetCidrReservations.html.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from ipaddress import IPv4Network, IPv6Network
from typing import Any

from ipamd.cloud.answers import described_enis, described_subnets, incomplete
from ipamd.cloud.calls import Ec2Calls
from ipamd.cloud.ec2 import INCLUDE_MANAGED, PAGE_SIZE, UNKNOWN_PARAMETER
from ipamd.cloud.retries import IDEMPOTENT
from ipamd.inventory.capacity import CidrReservation, ReservedFor
from ipamd.inventory.findings import SeenEni
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV6
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.record import replace
from ipamd.model.subnets import DescribedSubnet
from ipamd.model.words import counted

FILTER_VALUES_MAX = 200
"""The largest number of values of one filter. Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Filtering.html, "up to
200 values"."""

_log = logging.getLogger(__name__)


class Ec2Lists:
    """Lists subnets, ENIs and reservations for one run. Not thread-safe.

    Each method raises CloudError if EC2 refuses, and CloudError with the failure INVENTORY_CALLS_SPENT if the list needs more calls
    than the run has. `keep`: calls that the list must leave for later lists.
    """

    def __init__(self, calls: Ec2Calls, *, calls_max: int) -> None:
        """`calls_max`: HTTP attempts that this object may make."""
        self._calls = calls
        self._calls_max = calls_max
        self._made_before = self._made_in_all()
        self._includes_managed = True

    @property
    def call_count(self) -> int:
        """HTTP attempts so far."""
        return self._made_in_all() - self._made_before

    @property
    def calls_left(self) -> int:
        """HTTP attempts that may follow."""
        return self._calls_max - self.call_count

    def subnets(self, vpc_id: str) -> list[DescribedSubnet]:
        """List the subnets of a VPC, by ID; those without IPv4 are left out."""
        subject = f"the subnets of {vpc_id}"
        pages = self._pages("DescribeSubnets", subject, {"Filters": _filters("vpc-id", [vpc_id])}, keep=0)
        listed = [subnet for page in pages for subnet in page.get("Subnets", ())]
        return sorted(described_subnets(listed), key=lambda subnet: subnet.subnet_id)

    def enis_of(self, subnet_ids: Collection[SubnetId], *, keep: int) -> list[SeenEni]:
        """List all ENIs of at most `FILTER_VALUES_MAX` subnets.

        ENIs that AWS services manage are included. EC2 lists them if INCLUDE_MANAGED is sent, and an endpoint that does not support
        this parameter hides no ENI.
        """
        subject = f"the ENIs of {counted(len(subnet_ids), 'subnet')}"
        return self._enis(subject, _filters("subnet-id", sorted(subnet_ids)), keep=keep)

    def enis_by_id(self, eni_ids: Collection[EniId]) -> list[SeenEni]:
        """List at most `FILTER_VALUES_MAX` ENIs by their IDs; ENIs that EC2 does not find are left out."""
        # A filter is used, because EC2 refuses a whole list of IDs if one of them does not exist.
        subject = counted(len(eni_ids), "ENI")
        return self._enis(subject, _filters("network-interface-id", sorted(eni_ids)), keep=0)

    def reservations(self, subnet_id: SubnetId, *, keep: int) -> tuple[CidrReservation, ...]:
        """List the IPv4 reservations of a subnet, ascending. Raises CloudError also if one is malformed."""
        pages = self._pages("GetSubnetCidrReservations", subnet_id, {"SubnetId": subnet_id}, keep=keep)
        listed = [reservation for page in pages for reservation in page.get("SubnetIpv4CidrReservations", ())]
        try:
            reservations = [
                CidrReservation(IPv4Network(reservation["Cidr"]), ReservedFor(reservation["ReservationType"]))
                for reservation in listed
            ]
        except (KeyError, ValueError, TypeError) as error:
            raise incomplete(f"the reservations of {subnet_id}", error) from error
        return tuple(sorted(reservations, key=lambda reservation: reservation.cidr))

    def _enis(self, subject: str, filters: Sequence[Mapping[str, Any]], *, keep: int) -> list[SeenEni]:
        """List ENIs. Each page is converted before the next is requested, because EC2's answer takes much more memory than SeenEni."""
        enis: list[SeenEni] = []
        for page in self._pages("DescribeNetworkInterfaces", subject, {"Filters": filters}, keep=keep):
            listed = page.get("NetworkInterfaces", ())
            enis += [_seen(eni_json) for eni_json in listed]
        return enis

    def _pages(self, api: str, subject: str, params: Mapping[str, Any], *, keep: int) -> Iterator[Mapping[str, Any]]:
        params = {**params, "MaxResults": PAGE_SIZE}
        while self.calls_left > keep:
            page = self._page(api, subject, params)
            yield page
            if not page.get("NextToken"):
                return
            params = {**params, "NextToken": page["NextToken"]}
        raise failure(CloudError, FailureCode.INVENTORY_CALLS_SPENT, subject=subject, calls=self._calls_max)

    def _page(self, api: str, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Get one page. A page of ENIs is requested with INCLUDE_MANAGED, and without it if the endpoint refuses the parameter."""
        if api != "DescribeNetworkInterfaces" or not self._includes_managed:
            return self._call(api, subject, params)
        try:
            return self._call(api, subject, {**params, INCLUDE_MANAGED: True})
        except CloudError as error:
            if error.code != UNKNOWN_PARAMETER or self.calls_left < 1:
                raise
        page = self._call(api, subject, params)
        # The same call succeeded without the parameter, so the endpoint does not support this parameter.
        self._includes_managed = False
        _log.warning("endpoint refused a parameter parameter=%s", INCLUDE_MANAGED)
        return page

    def _call(self, api: str, subject: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        policy = replace(IDEMPOTENT, attempts=min(IDEMPOTENT.attempts, self.calls_left))
        return self._calls.call(api, subject, params, policy)

    def _made_in_all(self) -> int:
        return sum(report.count for report in self._calls.call_reports().values())


def _seen(eni_json: Mapping[str, Any]) -> SeenEni:
    """Convert one NetworkInterface of EC2's answer. If it cannot be read, the result has a `problem`."""
    (eni,) = described_enis([eni_json])
    operator = eni_json.get("Operator")
    is_hidden = isinstance(operator, Mapping) and bool(operator.get("Managed")) and bool(operator.get("HiddenByDefault"))
    prefixes: frozenset[IPv6Network] = frozenset()
    if eni_json.get("Ipv6Prefixes"):
        (with_ipv6,) = described_enis([eni_json], IPV6)
        prefixes = frozenset(prefix for prefix in with_ipv6.prefixes if isinstance(prefix, IPv6Network))
    return SeenEni(eni, is_hidden=is_hidden, ipv6_prefixes=prefixes)


def _filters(name: str, values: Sequence[str]) -> list[dict[str, Any]]:
    return [{"Name": name, "Values": list(values)}]
