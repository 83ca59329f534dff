"""Convert EC2's answers into values of the model. Guards I6: the primary address is never among those for sandboxes.

Nothing is guessed: an answer that lacks a field is an error, not an empty value (I11). Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network
from typing import Any

from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudError
from ipamd.model.ids import EniId, MacAddress, SubnetId


def described_eni(entry: Mapping[str, Any]) -> DescribedEni:
    """Read one NetworkInterface of Create or Describe.

    Raises: CloudError if it names no ID, MAC, subnet or primary address, or an address is malformed.
    """
    try:
        primary, secondary = _addresses(entry)
        attachment = entry.get("Attachment") or {}
        return DescribedEni(
            eni_id=EniId(entry["NetworkInterfaceId"]),
            mac=MacAddress(entry["MacAddress"].lower()),
            subnet_id=SubnetId(entry["SubnetId"]),
            primary_address=primary,
            secondary_addresses=secondary,
            prefixes=frozenset(IPv4Network(item["Ipv4Prefix"]) for item in entry.get("Ipv4Prefixes") or ()),
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
        )
    except (KeyError, ValueError) as exc:
        raise incomplete(f"ENI {entry.get('NetworkInterfaceId', '(no ID)')}", exc) from exc


def incomplete(subject: str, cause: object) -> CloudError:
    """Return the error for an answer that lacks a required field."""
    return CloudError(
        f"EC2's answer about {subject} is incomplete",
        details=f"{cause!r} is missing or malformed; nothing was concluded from it; check AWS_EC2_ENDPOINT if it is set",
    )


def _addresses(entry: Mapping[str, Any]) -> tuple[IPv4Address, frozenset[IPv4Address]]:
    """Separate the primary address from the others, by the ENI's own field and by the flag on each address."""
    listed = entry.get("PrivateIpAddresses") or ()
    flagged = {IPv4Address(item["PrivateIpAddress"]) for item in listed if item.get("Primary")}
    named = entry.get("PrivateIpAddress")
    if not named and not flagged:
        raise KeyError("PrivateIpAddress")
    primary = IPv4Address(named) if named else min(flagged)
    every = {IPv4Address(item["PrivateIpAddress"]) for item in listed}
    return primary, frozenset(every - flagged - {primary})
