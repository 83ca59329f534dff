"""Convert EC2's answers into values of the model. Guards I6: the primary address is never among those for sandboxes.

Nothing is guessed: an answer that lacks a field is an error, not an empty value (I11). In a list of ENIs one entry that cannot be read
stays in the list with its problem: it takes a place on the instance, and nothing is concluded about it. Pure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address
from typing import Any

from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudError
from ipamd.model.family import IPV4, Family, IpAddress
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.subnets import DescribedSubnet

log = logging.getLogger(__name__)


def described_eni(entry: Mapping[str, Any], family: Family = IPV4) -> DescribedEni:
    """Read one NetworkInterface of Create or Describe; `family`: of the pool.

    An ENI without IPv4 address (EFA-only, IPv6-only) has none and is no error; one that lists others must name its primary address.
    Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/create-efa.html; amazon-vpc-cni-k8s issues 3122 and 3681.
    Raises: CloudError if it names no ID, MAC or subnet, or an address is malformed.
    """
    try:
        primary, secondary = _addresses(entry)
        of_ipv6 = {key: entry.get(key) or () for key in ("Ipv6Addresses", "Ipv6Prefixes")}
        prefixes = of_ipv6["Ipv6Prefixes"] if family.is_sparse else entry.get("Ipv4Prefixes") or ()
        attachment, told = entry.get("Attachment") or {}, entry.get("ConnectionTrackingConfiguration") or {}
        return DescribedEni(
            eni_id=EniId(entry["NetworkInterfaceId"]),
            mac=MacAddress(entry["MacAddress"].lower()),
            subnet_id=SubnetId(entry["SubnetId"]),
            primary_address=primary,
            secondary_addresses=frozenset() if family.is_sparse else secondary,
            prefixes=frozenset(family.prefix(item["Ipv6Prefix" if family.is_sparse else "Ipv4Prefix"]) for item in prefixes),
            has_ipv6=any(of_ipv6.values()),
            ipv6_addresses=frozenset(IPv6Address(item["Ipv6Address"]) for item in of_ipv6["Ipv6Addresses"]),
            status=entry.get("Status", "available"),
            interface_type=entry.get("InterfaceType", "interface"),
            description=entry.get("Description", ""),
            tags={tag["Key"]: tag.get("Value", "") for tag in entry.get("TagSet") or ()},
            attachment_id=attachment.get("AttachmentId", ""),
            attachment_status=attachment.get("Status", ""),
            instance_id=attachment.get("InstanceId", ""),
            device_index=attachment.get("DeviceIndex", -1),
            network_card=attachment.get("NetworkCardIndex", 0),
            delete_on_termination=attachment.get("DeleteOnTermination", False),
            security_group_ids=tuple(sorted(group["GroupId"] for group in entry.get("Groups") or ())),
            connection_tracking=tuple(sorted((name, int(told[name])) for name in told)),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as exc:
        raise incomplete(f"ENI {entry.get('NetworkInterfaceId', '(no ID)')}", exc) from exc


def described_enis(entries: Iterable[Mapping[str, Any]], family: Family = IPV4) -> list[DescribedEni]:
    """Read the NetworkInterfaces of a Describe of one instance; an entry that cannot be read has a `problem`. Raises: nothing."""
    found = []
    for entry in entries:
        try:
            found.append(described_eni(entry, family))
        except CloudError as error:
            log.warning("an entry cannot be read api=DescribeNetworkInterfaces error=%s", error)
            found.append(_unreadable(entry, error))
    return found


def described_subnet(entry: Mapping[str, Any]) -> DescribedSubnet:
    """Read one Subnet of Describe. Raises: CloudError if it names no ID, CIDR, zone, VPC or count."""
    try:
        return DescribedSubnet(
            subnet_id=SubnetId(entry["SubnetId"]),
            cidr=IPv4Network(entry["CidrBlock"]),
            availability_zone=entry["AvailabilityZone"],
            vpc_id=entry["VpcId"],
            free_count=int(entry["AvailableIpAddressCount"]),
            tags={tag["Key"]: tag.get("Value", "") for tag in entry.get("Tags") or ()},
            has_ipv6=bool(entry.get("Ipv6CidrBlockAssociationSet")),
        )
    except (KeyError, ValueError, TypeError, AttributeError) as exc:
        raise incomplete(f"subnet {entry.get('SubnetId', '(no ID)')}", exc) from exc


def described_subnets(entries: Iterable[Mapping[str, Any]]) -> list[DescribedSubnet]:
    """Read the Subnets of a Describe; one that cannot be read (an IPv6-only one has no CIDR) is left out. Raises: nothing."""
    found = []
    for entry in entries:
        try:
            found.append(described_subnet(entry))
        except CloudError as error:
            log.info("an entry is left out api=DescribeSubnets error=%s", error)
    return found


def _unreadable(entry: Mapping[str, Any], error: CloudError) -> DescribedEni:
    """Keep what can be read of an entry: who it is and which place it takes."""
    attachment = entry.get("Attachment")
    place = attachment if isinstance(attachment, Mapping) else {}
    return DescribedEni(
        eni_id=EniId(str(entry.get("NetworkInterfaceId") or "")),
        mac=MacAddress(str(entry.get("MacAddress") or "").lower()),
        subnet_id=SubnetId(str(entry.get("SubnetId") or "")),
        primary_address=None,
        interface_type=str(entry.get("InterfaceType") or "interface"),
        attachment_id=str(place.get("AttachmentId") or ""),
        attachment_status=str(place.get("Status") or ""),
        instance_id=str(place.get("InstanceId") or ""),
        device_index=_index(place.get("DeviceIndex"), unknown=-1),
        network_card=_index(place.get("NetworkCardIndex"), unknown=0),
        problem=f"{error.details or error.message}",
    )


def _index(value: object, *, unknown: int) -> int:
    return value if isinstance(value, int) else unknown


def incomplete(subject: str, cause: object) -> CloudError:
    """Return the error for an answer that lacks a required field."""
    return CloudError(
        f"EC2's answer about {subject} is incomplete",
        details=f"{cause!r} is missing or malformed; nothing was concluded from it; check AWS_EC2_ENDPOINT if it is set",
    )


def _addresses(entry: Mapping[str, Any]) -> tuple[IPv4Address | None, frozenset[IpAddress]]:
    """Separate the primary address from the others, by the ENI's own field and by the flag on each address."""
    listed = entry.get("PrivateIpAddresses") or ()
    flagged = {IPv4Address(item["PrivateIpAddress"]) for item in listed if item.get("Primary")}
    named = entry.get("PrivateIpAddress")
    if not named and not flagged:
        if listed or entry.get("Ipv4Prefixes"):
            raise KeyError("PrivateIpAddress")  # any of them might be the primary one
        return None, frozenset()
    primary = IPv4Address(named) if named else min(flagged)
    every = {IPv4Address(item["PrivateIpAddress"]) for item in listed}
    return primary, frozenset(every - flagged - {primary})
