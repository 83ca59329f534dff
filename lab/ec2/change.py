"""The calls that change something: read the form, call lab/vpc, render the result."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from lab.ec2 import render
from lab.ec2.query import Params, parsed
from lab.ec2.xml import Tree
from lab.vpc import errors
from lab.vpc.addresses import AddressRequest
from lab.vpc.interfaces import ClientToken
from lab.vpc.ipv6 import Ipv6Request
from lab.vpc.state import Vpc

CONNECTION_TRACKING_S = {"TcpEstablishedTimeout": (60, 432000), "UdpStreamTimeout": (60, 180), "UdpTimeout": (30, 60)}
"""Least and most seconds. Source: API_ConnectionTrackingSpecificationRequest.html."""

_DONE: Tree = {"return": True}
_NOT_IN_FINGERPRINT = ("Action", "Version", "ClientToken")


def create_network_interface(vpc: Vpc, params: Params) -> Tree:
    """CreateNetworkInterface."""
    token = params.text("ClientToken")
    entries = params.structures("PrivateIpAddresses")
    named = {
        is_primary: [one.required("PrivateIpAddress") for one in entries if (one.flag("Primary") is True) == is_primary]
        for is_primary in (True, False)
    }
    primaries = parsed(IPv4Address, [*named[True], *filter(None, [params.text("PrivateIpAddress")])])
    if len(primaries) > 1:
        raise errors.invalid_combination("Only one primary private IP address can be specified")
    want = AddressRequest(
        primary=primaries[0] if primaries else None,
        addresses=parsed(IPv4Address, named[False]),
        address_count=params.integer("SecondaryPrivateIpAddressCount") or 0,
        prefixes=parsed(IPv4Network, (entry.required("Ipv4Prefix") for entry in params.structures("Ipv4Prefix"))),
        prefix_count=params.integer("Ipv4PrefixCount") or 0,
    )
    eni = vpc.interfaces.create(
        params.required("SubnetId"),
        want,
        groups=_groups(vpc, params) or (vpc.default_group_id,),
        description=params.text("Description") or "",
        tags=_tag_specification(params),
        client_token=ClientToken(token, _fingerprint(params)) if token else None,
        connection_tracking=_connection_tracking(params),
        ipv6=Ipv6Request(
            addresses=parsed(IPv6Address, (entry.required("Ipv6Address") for entry in params.structures("Ipv6Addresses"))),
            address_count=params.integer("Ipv6AddressCount") or 0,
            prefixes=parsed(IPv6Network, (entry.required("Ipv6Prefix") for entry in params.structures("Ipv6Prefix"))),
            prefix_count=params.integer("Ipv6PrefixCount") or 0,
        ),
    )
    return {"networkInterface": render.eni_tree(vpc, eni, status="pending"), "clientToken": token}


def attach_network_interface(vpc: Vpc, params: Params) -> Tree:
    """AttachNetworkInterface."""
    eni_id, instance_id = params.required("NetworkInterfaceId"), params.required("InstanceId")
    params.required("DeviceIndex")
    attachment = vpc.interfaces.attach(
        eni_id,
        instance_id,
        device_index=params.integer("DeviceIndex") or 0,
        network_card=params.integer("NetworkCardIndex") or 0,
    )
    return {"attachmentId": attachment.attachment_id, "networkCardIndex": attachment.network_card}


def detach_network_interface(vpc: Vpc, params: Params) -> Tree:
    """DetachNetworkInterface."""
    vpc.interfaces.detach(params.required("AttachmentId"), force=params.flag("Force") is True)
    return _DONE


def delete_network_interface(vpc: Vpc, params: Params) -> Tree:
    """DeleteNetworkInterface."""
    vpc.interfaces.delete(params.required("NetworkInterfaceId"))
    return _DONE


def modify_network_interface_attribute(vpc: Vpc, params: Params) -> Tree:
    """ModifyNetworkInterfaceAttribute: attachment, groups, source check, tracking and description; exactly one at a time."""
    attachment_id = params.text("Attachment.AttachmentId")
    terminate = params.flag("Attachment.DeleteOnTermination")
    groups = _groups(vpc, params)
    description = params.text("Description.Value")
    tracking = _connection_tracking(params)
    source_dest_check = params.flag("SourceDestCheck.Value")
    asked = [attachment_id is not None, bool(groups), description is not None, bool(tracking), source_dest_check is not None]
    if asked.count(True) != 1:
        raise errors.invalid_combination("Exactly one attribute must be specified for modification")
    vpc.interfaces.modify(
        params.required("NetworkInterfaceId"),
        description=description,
        groups=groups or None,
        attachment_id=attachment_id,
        delete_on_termination=terminate,
        connection_tracking=tracking or None,
        source_dest_check=source_dest_check,
    )
    return _DONE


def assign_private_ip_addresses(vpc: Vpc, params: Params) -> Tree:
    """AssignPrivateIpAddresses; the answer lists what this call added, unless lab/vpc/rules.py says all."""
    eni_id = params.required("NetworkInterfaceId")
    want = AddressRequest(
        addresses=parsed(IPv4Address, params.texts("PrivateIpAddress")),
        address_count=params.integer("SecondaryPrivateIpAddressCount") or 0,
        prefixes=parsed(IPv4Network, params.texts("Ipv4Prefix")),
        prefix_count=params.integer("Ipv4PrefixCount") or 0,
    )
    addresses, prefixes = vpc.interfaces.assign(eni_id, want, allow_reassignment=params.flag("AllowReassignment") is True)
    return {
        "networkInterfaceId": eni_id,
        "assignedPrivateIpAddressesSet": [{"privateIpAddress": found} for found in addresses],
        "assignedIpv4PrefixSet": [{"ipv4Prefix": found} for found in prefixes] or None,
        "return": True,
    }


def unassign_private_ip_addresses(vpc: Vpc, params: Params) -> Tree:
    """UnassignPrivateIpAddresses."""
    vpc.interfaces.unassign(
        params.required("NetworkInterfaceId"),
        addresses=parsed(IPv4Address, params.texts("PrivateIpAddress")),
        prefixes=parsed(IPv4Network, params.texts("Ipv4Prefix")),
    )
    return _DONE


def assign_ipv6_addresses(vpc: Vpc, params: Params) -> Tree:
    """AssignIpv6Addresses; the answer lists what this call added."""
    eni_id = params.required("NetworkInterfaceId")
    want = Ipv6Request(
        addresses=parsed(IPv6Address, params.texts("Ipv6Addresses")),
        address_count=params.integer("Ipv6AddressCount") or 0,
        prefixes=parsed(IPv6Network, params.texts("Ipv6Prefix")),
        prefix_count=params.integer("Ipv6PrefixCount") or 0,
    )
    addresses, prefixes = vpc.interfaces.assign_ipv6(eni_id, want)
    return {
        "networkInterfaceId": eni_id,
        "assignedIpv6Addresses": list(addresses),
        "assignedIpv6PrefixSet": list(prefixes) or None,
    }


def unassign_ipv6_addresses(vpc: Vpc, params: Params) -> Tree:
    """UnassignIpv6Addresses."""
    eni_id = params.required("NetworkInterfaceId")
    addresses = parsed(IPv6Address, params.texts("Ipv6Addresses"))
    prefixes = parsed(IPv6Network, params.texts("Ipv6Prefix"))
    vpc.interfaces.unassign_ipv6(eni_id, addresses=addresses, prefixes=prefixes)
    return {
        "networkInterfaceId": eni_id,
        "unassignedIpv6Addresses": list(addresses),
        "unassignedIpv6PrefixSet": list(prefixes) or None,
    }


def create_tags(vpc: Vpc, params: Params) -> Tree:
    """CreateTags on ENIs, instances and subnets."""
    new = params.tags("Tag")
    if not new:
        raise errors.missing_parameter("tagSet")
    for resource_id in _resources(vpc, params):
        vpc.retag(resource_id, lambda old: {**old, **new})
    return _DONE


def delete_tags(vpc: Vpc, params: Params) -> Tree:
    """DeleteTags: those named; with a value, only where it matches; without tags, all."""
    gone = {entry.required("Key"): entry.text("Value") for entry in params.structures("Tag")}

    def without(old: Mapping[str, str]) -> Mapping[str, str]:
        if not gone:
            return {}
        return {k: v for k, v in old.items() if k not in gone or gone[k] not in (None, v)}

    for resource_id in _resources(vpc, params):
        vpc.retag(resource_id, without)
    return _DONE


def _resources(vpc: Vpc, params: Params) -> tuple[str, ...]:
    """Return the resources to tag, all of which exist."""
    ids = params.texts("ResourceId")
    if not ids:
        raise errors.missing_parameter("resourceIdSet")
    world = vpc.world
    for resource_id in ids:
        if resource_id.startswith("eni-"):
            world.eni(resource_id)
        elif resource_id.startswith("i-"):
            world.instance(resource_id)
        elif resource_id.startswith("subnet-"):
            world.subnet(resource_id)
        else:
            raise errors.Ec2Error("InvalidID", f"The ID '{resource_id}' is not valid")
    return ids


def _groups(vpc: Vpc, params: Params) -> tuple[str, ...]:
    groups = params.texts("SecurityGroupId")
    for group in groups:
        if vpc.group_name(group) is None:
            raise errors.group_not_found(group)
    return groups


def _connection_tracking(params: Params) -> dict[str, int]:
    found = {}
    for name, (least, most) in CONNECTION_TRACKING_S.items():
        seconds = params.integer(f"ConnectionTrackingSpecification.{name}")
        if seconds is not None and not least <= seconds <= most:
            raise errors.invalid_value(f"{name} must be from {least} to {most} seconds")
        if seconds is not None:
            found[name] = seconds
    return found


def _tag_specification(params: Params) -> dict[str, str]:
    tags: dict[str, str] = {}
    for entry in params.structures("TagSpecification"):
        if entry.required("ResourceType") != "network-interface":
            raise errors.invalid_value(
                f"'{entry.text('ResourceType')}' is not a valid taggable resource type for this operation."
            )
        tags.update(entry.tags("Tag"))
    return tags


def _fingerprint(params: Params) -> str:
    kept = sorted(item for item in params.fields.items() if item[0] not in _NOT_IN_FINGERPRINT)
    return hashlib.sha256(repr(kept).encode()).hexdigest()
