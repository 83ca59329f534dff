"""Convert EC2's answers into values of the model. Guards I6: the primary address is never among the addresses for sandboxes.

Nothing is guessed: a missing field is an error, not an empty value (I11). In a list of ENIs an interface that cannot be read stays in
the list with its problem, because it takes a place on the instance; nothing is concluded about it. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

from ipamd.model.cloud import AddressHolder, DescribedEni
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, Family, IpAddress, IpNetwork
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId
from ipamd.model.subnets import DescribedSubnet
from ipamd.model.words import printable

OPERATOR_MAX = 80
"""How many characters of an AWS service's name are kept. Ours: names such as eks.amazonaws.com have about 20."""

log = logging.getLogger(__name__)


def described_eni(interface: Mapping[str, Any], family: Family = IPV4) -> DescribedEni:
    """Read one NetworkInterface of Create or Describe; `family`: the IP family of the pool.

    An ENI without IPv4 address (EFA-only, IPv6-only) is not an error, but an ENI with secondary addresses or prefixes must name its
    primary address. Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-efa.html; amazon-vpc-cni-k8s issues 3122 and
    3681.
    Raises: CloudError if ID, MAC or subnet are missing, or an address is malformed.
    """
    try:
        primary, secondary = _addresses(interface)
        ipv6_addresses = interface.get("Ipv6Addresses") or ()
        attachment = interface.get("Attachment") or {}
        return DescribedEni(
            eni_id=EniId(interface["NetworkInterfaceId"]),
            mac=MacAddress(interface["MacAddress"].lower()),
            subnet_id=SubnetId(interface["SubnetId"]),
            primary_address=primary,
            secondary_addresses=frozenset() if family.is_sparse else secondary,
            prefixes=_prefixes(interface, family),
            has_ipv6=bool(ipv6_addresses or interface.get("Ipv6Prefixes")),
            ipv6_addresses=frozenset(IPv6Address(item["Ipv6Address"]) for item in ipv6_addresses),
            status=interface.get("Status", "available"),
            interface_type=interface.get("InterfaceType", "interface"),
            description=interface.get("Description", ""),
            tags=_tags(interface.get("TagSet")),
            attachment_id=attachment.get("AttachmentId", ""),
            attachment_status=attachment.get("Status", ""),
            instance_id=attachment.get("InstanceId", ""),
            device_index=attachment.get("DeviceIndex", -1),
            network_card=attachment.get("NetworkCardIndex", 0),
            delete_on_termination=attachment.get("DeleteOnTermination", False),
            security_group_ids=tuple(sorted(group["GroupId"] for group in interface.get("Groups") or ())),
            connection_tracking=_connection_tracking(interface),
            operator=_operator(interface),
            is_source_checked=interface.get("SourceDestCheck", True) is True,
        )
    except (KeyError, ValueError, TypeError, AttributeError) as exc:
        raise incomplete(f"ENI {interface.get('NetworkInterfaceId', '(no ID)')}", exc) from exc


def described_enis(interfaces: Iterable[Mapping[str, Any]], family: Family = IPV4) -> list[DescribedEni]:
    """Read the NetworkInterfaces of a Describe. An interface that cannot be read becomes an ENI with a `problem`. Raises: nothing."""
    enis = []
    for interface in interfaces:
        try:
            enis.append(described_eni(interface, family))
        except CloudError as error:
            log.warning("unreadable entry api=DescribeNetworkInterfaces error=%s", error)
            enis.append(_unreadable(interface, error))
    return enis


def address_holder(reservations: Iterable[Mapping[str, Any]], address: IpAddress) -> AddressHolder | None:
    """Find the instance and the ENI that have an address, in the Reservations of DescribeInstances; None if there is none.

    Raises: CloudError if the entry of the holder, or an entry before it, is malformed.
    """
    try:
        for reservation in reservations:
            for instance in reservation.get("Instances") or ():
                for interface in instance.get("NetworkInterfaces") or ():
                    primary, secondary = _addresses(interface)
                    if address != primary and address not in secondary:
                        continue
                    return AddressHolder(
                        InstanceId(instance["InstanceId"]),
                        instance["State"]["Name"],
                        EniId(interface["NetworkInterfaceId"]),
                        is_primary=address == primary,
                        is_source_checked=interface["SourceDestCheck"] is True,
                    )
    except (KeyError, ValueError, TypeError, AttributeError) as exc:
        raise incomplete(f"the instance of {address}", exc) from exc
    return None


def described_subnet(subnet: Mapping[str, Any]) -> DescribedSubnet:
    """Read one Subnet of Describe. Raises: CloudError if ID, CIDR, zone, VPC or count are missing."""
    try:
        return DescribedSubnet(
            subnet_id=SubnetId(subnet["SubnetId"]),
            cidr=IPv4Network(subnet["CidrBlock"]),
            availability_zone=subnet["AvailabilityZone"],
            vpc_id=subnet["VpcId"],
            free_count=int(subnet["AvailableIpAddressCount"]),
            tags=_tags(subnet.get("Tags")),
            has_ipv6=bool(subnet.get("Ipv6CidrBlockAssociationSet")),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as exc:
        raise incomplete(f"subnet {subnet.get('SubnetId', '(no ID)')}", exc) from exc


def described_subnets(listed: Iterable[Mapping[str, Any]]) -> list[DescribedSubnet]:
    """Read the Subnets of a Describe. A subnet that cannot be read is left out, such as an IPv6-only one, which has no CIDR. Raises:
    nothing.
    """
    subnets = []
    for subnet in listed:
        try:
            subnets.append(described_subnet(subnet))
        except CloudError as error:
            log.info("unreadable entry left out api=DescribeSubnets error=%s", error)
    return subnets


def _unreadable(interface: Mapping[str, Any], error: CloudError) -> DescribedEni:
    """Read only the identity of an interface and its place on the instance."""
    place = interface.get("Attachment")
    if not isinstance(place, Mapping):
        place = {}
    return DescribedEni(
        eni_id=EniId(str(interface.get("NetworkInterfaceId") or "")),
        mac=MacAddress(str(interface.get("MacAddress") or "").lower()),
        subnet_id=SubnetId(str(interface.get("SubnetId") or "")),
        primary_address=None,
        interface_type=str(interface.get("InterfaceType") or "interface"),
        attachment_id=str(place.get("AttachmentId") or ""),
        attachment_status=str(place.get("Status") or ""),
        instance_id=str(place.get("InstanceId") or ""),
        device_index=_index(place.get("DeviceIndex"), unknown=-1),
        network_card=_index(place.get("NetworkCardIndex"), unknown=0),
        operator=_operator(interface),
        problem=f"{error.details or error.message}",
    )


def _prefixes(interface: Mapping[str, Any], family: Family) -> frozenset[IpNetwork]:
    """Read the delegated prefixes of the pool's family."""
    if family.is_sparse:
        return frozenset(family.prefix(item["Ipv6Prefix"]) for item in interface.get("Ipv6Prefixes") or ())
    return frozenset(family.prefix(item["Ipv4Prefix"]) for item in interface.get("Ipv4Prefixes") or ())


def _tags(entries: Iterable[Mapping[str, str]] | None) -> dict[str, str]:
    return {tag["Key"]: tag.get("Value", "") for tag in entries or ()}


def _connection_tracking(interface: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    """Read the timeouts of connection tracking, in seconds by name."""
    timeouts = interface.get("ConnectionTrackingConfiguration") or {}
    return tuple(sorted((name, int(timeouts[name])) for name in timeouts))


def _operator(interface: Mapping[str, Any]) -> str:
    """Return the service that manages an ENI, "" if none does; "an AWS service" if EC2 does not name it."""
    operator = interface.get("Operator")
    if not isinstance(operator, Mapping) or not operator.get("Managed"):
        return ""
    return printable(str(operator.get("Principal") or "an AWS service"), most=OPERATOR_MAX)


def _index(value: object, *, unknown: int) -> int:
    return value if isinstance(value, int) else unknown


def incomplete(subject: str, cause: object) -> CloudError:
    """Return the error for an answer that lacks a required field."""
    return failure(CloudError, FailureCode.EC2_ANSWER_INCOMPLETE, subject=subject, part=repr(cause))


def _addresses(interface: Mapping[str, Any]) -> tuple[IPv4Address | None, frozenset[IpAddress]]:
    """Separate the primary address from all other addresses, using the ENI's own field and the flag on each address.

    Returns: the primary address, None if the ENI has no address; and the other addresses. Raises: KeyError if there are addresses or
        prefixes, and no address is marked as the primary one.
    """
    listed = interface.get("PrivateIpAddresses") or ()
    flagged = {IPv4Address(item["PrivateIpAddress"]) for item in listed if item.get("Primary")}
    named = interface.get("PrivateIpAddress")
    if not named and not flagged:
        if listed or interface.get("Ipv4Prefixes"):
            raise KeyError("PrivateIpAddress")  # any of them might be the primary one
        return None, frozenset()
    primary = IPv4Address(named) if named else min(flagged)
    addresses = {IPv4Address(item["PrivateIpAddress"]) for item in listed}
    return primary, frozenset(addresses - flagged - {primary})
