"""Renders ENIs, instances, subnets and instance types as in EC2's answers. Pure: a world and a resource in, a tree out."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Address

from lab.ec2.xml import Tree
from lab.vpc.limits import InstanceLimits
from lab.vpc.model import OWNER_ID, ROLE, Eni, EniAttachment, Instance, Operator, Subnet, SubnetReservation
from lab.vpc.state import Vpc
from lab.vpc.world import World

_IMAGE_ID = "ami-0123456789abcdef0"  # ours, because: AWS's own documentation uses an ID of this form


_STATE_CODES = {"running": 16, "terminated": 48, "stopped": 80}


def state_of(instance: Instance) -> str:
    """Name the state of an instance."""
    if not instance.running:
        return "terminated"
    return "stopped" if instance.stopped else "running"


def eni_tree(vpc: Vpc, eni: Eni, *, status: str | None = None) -> Tree:
    """Show an ENI as DescribeNetworkInterfaces does; CreateNetworkInterface answers with status `pending`."""
    return {
        "networkInterfaceId": eni.eni_id,
        "subnetId": eni.subnet_id,
        "vpcId": vpc.vpc_id,
        "availabilityZone": eni.az,
        "description": eni.description,
        "ownerId": OWNER_ID,
        "requesterManaged": False,
        "status": status or eni.status,
        "macAddress": eni.mac,
        "privateIpAddress": eni.primary_address,
        "privateDnsName": dns_name(vpc, eni.primary_address) if eni.primary_address else None,
        "sourceDestCheck": eni.source_dest_check,
        "groupSet": _groups(vpc, eni),
        "attachment": _attachment(eni.attachment) if eni.attachment else None,
        "tagSet": tag_set(eni.tags),
        "privateIpAddressesSet": _addresses(vpc, eni),
        "ipv4PrefixSet": [{"ipv4Prefix": prefix} for prefix in eni.prefixes] or None,
        "ipv6AddressesSet": [{"ipv6Address": address} for address in eni.ipv6_addresses],
        "ipv6PrefixSet": [{"ipv6Prefix": prefix} for prefix in eni.ipv6_prefixes] or None,
        "interfaceType": eni.interface_type,
        "operator": _operator(eni.operator),
        "connectionTrackingConfiguration": {name[0].lower() + name[1:]: s for name, s in eni.connection_tracking.items()} or None,
    }


def instance_tree(vpc: Vpc, world: World, instance: Instance) -> Tree:
    """Show an instance as DescribeInstances does, within its reservation."""
    enis = world.attached_to(instance.instance_id)
    primary = enis[0].primary_address if enis else None
    limits = vpc.limits[instance.instance_type]
    return {
        "instanceId": instance.instance_id,
        "imageId": _IMAGE_ID,
        "instanceState": {"code": _STATE_CODES[state_of(instance)], "name": state_of(instance)},
        "privateDnsName": dns_name(vpc, primary) if primary else "",
        "amiLaunchIndex": 0,
        "instanceType": instance.instance_type,
        "launchTime": instance.launched_at,
        "placement": {"availabilityZone": instance.az, "groupName": "", "tenancy": "default"},
        "subnetId": instance.subnet_id if instance.running else None,
        "vpcId": vpc.vpc_id if instance.running else None,
        "privateIpAddress": primary,
        "ipv6Address": next(iter(enis[0].ipv6_addresses), None) if enis else None,
        "sourceDestCheck": True,
        "iamInstanceProfile": {"arn": f"arn:aws:iam::{OWNER_ID}:instance-profile/{ROLE}", "id": "AIPALAB"},
        "architecture": limits.architecture,
        "hypervisor": "xen",  # DescribeInstances says xen for Nitro too; DescribeInstanceTypes tells them apart
        "tagSet": tag_set(instance.tags),
        "groupSet": _groups(vpc, enis[0]) if enis else [],
        "networkInterfaceSet": [_instance_eni(vpc, eni) for eni in enis],
    }


def subnet_tree(vpc: Vpc, world: World, subnet: Subnet) -> Tree:
    """Show a subnet as DescribeSubnets does."""
    return {
        "subnetId": subnet.subnet_id,
        "subnetArn": f"arn:aws:ec2:{vpc.region}:{OWNER_ID}:subnet/{subnet.subnet_id}",
        "state": "available",
        "vpcId": vpc.vpc_id,
        "ownerId": OWNER_ID,
        "cidrBlock": subnet.cidr,
        "availableIpAddressCount": world.free_count(subnet),
        "availabilityZone": subnet.az,
        "defaultForAz": False,
        "mapPublicIpOnLaunch": False,
        "assignIpv6AddressOnCreation": subnet.ipv6_cidr is not None,
        "ipv6CidrBlockAssociationSet": [
            {
                "associationId": subnet.subnet_id.replace("subnet-", "subnet-cidr-assoc-", 1),
                "ipv6CidrBlock": subnet.ipv6_cidr,
                "ipv6CidrBlockState": {"state": "associated"},
            }
        ]
        if subnet.ipv6_cidr is not None
        else [],
        "tagSet": tag_set(subnet.tags),
    }


def zone_tree(vpc: Vpc, zone: str) -> Tree:
    """Show a zone as DescribeAvailabilityZones does."""
    return {
        "zoneName": zone,
        "zoneId": zone_id(zone),
        "zoneState": "available",
        "zoneType": "availability-zone",
        "regionName": vpc.region,
        "groupName": vpc.region,
        "networkBorderGroup": vpc.region,
        "optInStatus": "opt-in-not-required",
        "messageSet": [],
    }


def zone_id(zone: str) -> str:
    """Name a zone as all accounts do, as usw2-az1 for us-west-2a: the letter's number is the account's, and here the alphabet's."""
    country, direction, number_and_letter = zone.split("-")
    number, letter = number_and_letter[:-1], number_and_letter[-1]
    return f"{country}{direction[0]}{number}-az{ord(letter) - ord('a') + 1}"


def reservation_tree(subnet: Subnet, reservation: SubnetReservation) -> Tree:
    """Show a reservation as GetSubnetCidrReservations does."""
    return {
        "subnetCidrReservationId": reservation.reservation_id,
        "subnetId": subnet.subnet_id,
        "cidr": reservation.cidr,
        "reservationType": reservation.kind,
        "ownerId": OWNER_ID,
        "tagSet": [],
    }


def instance_type_tree(name: str, limits: InstanceLimits) -> Tree:
    """Show an instance type as DescribeInstanceTypes does, the network part and little else."""
    cards = [
        {"networkCardIndex": index, "networkPerformance": "Up to 10 Gigabit", "maximumNetworkInterfaces": count}
        for index, count in enumerate(limits.enis_per_card)
    ]
    return {
        "instanceType": name,
        "currentGeneration": True,
        "bareMetal": limits.is_bare_metal,
        "hypervisor": limits.hypervisor or None,
        "processorInfo": {"supportedArchitectures": [limits.architecture]},
        "vCpuInfo": {"defaultVCpus": limits.vcpus},
        "memoryInfo": {"sizeInMiB": limits.memory_mib},
        "ebsInfo": {
            "ebsOptimizedSupport": "default",
            "attachmentLimitType": "dedicated" if limits.shared_slots is None else "shared",
        },
        "networkInfo": {
            "networkPerformance": "Up to 10 Gigabit",
            "maximumNetworkInterfaces": limits.total_enis,
            "maximumNetworkCards": len(cards),
            "defaultNetworkCardIndex": 0,
            "networkCards": cards,
            "ipv4AddressesPerInterface": limits.addresses_per_eni,
            "ipv6AddressesPerInterface": limits.addresses_per_eni,
            "ipv6Supported": True,
            "connectionTrackingConfiguration": {
                "defaultTcpEstablishedTimeout": limits.tcp_timeout_s,
                "defaultUdpTimeout": 30,
                "defaultUdpStreamTimeout": 180,
            },
        },
    }


def dns_name(vpc: Vpc, address: IPv4Address) -> str:
    """Name an address as EC2's private DNS does, and so the node whose primary address it is."""
    domain = "ec2.internal" if vpc.region == "us-east-1" else f"{vpc.region}.compute.internal"
    return f"ip-{str(address).replace('.', '-')}.{domain}"


def tag_set(tags: Mapping[str, str]) -> list[Tree]:
    """Show tags, sorted by key."""
    return [{"key": key, "value": value} for key, value in sorted(tags.items())]


def _instance_eni(vpc: Vpc, eni: Eni) -> Tree:
    attachment = dict(_attachment(eni.attachment)) if eni.attachment else {}
    for absent in ("instanceId", "instanceOwnerId"):
        attachment.pop(absent, None)
    shown = dict(eni_tree(vpc, eni))
    for absent in ("availabilityZone", "requesterManaged", "tagSet"):
        del shown[absent]
    return {**shown, "attachment": attachment}


def _attachment(attachment: EniAttachment) -> Tree:
    return {
        "attachmentId": attachment.attachment_id,
        "instanceId": attachment.instance_id,
        "instanceOwnerId": OWNER_ID,
        "deviceIndex": attachment.device_index,
        "networkCardIndex": attachment.network_card,
        "status": attachment.status,
        "attachTime": attachment.attached_at,
        "deleteOnTermination": attachment.delete_on_termination,
    }


def _operator(operator: Operator | None) -> Tree:
    if operator is None:
        return {"managed": False}
    return {"managed": True, "principal": operator.principal, "hiddenByDefault": operator.hidden}


def _addresses(vpc: Vpc, eni: Eni) -> list[Tree]:
    return [
        {
            "privateIpAddress": address,
            "privateDnsName": dns_name(vpc, address),
            "primary": address == eni.primary_address,
        }
        for address in eni.addresses
    ]


def _groups(vpc: Vpc, eni: Eni) -> list[Tree]:
    return [{"groupId": group, "groupName": vpc.group_name(group) or ""} for group in eni.security_groups]
