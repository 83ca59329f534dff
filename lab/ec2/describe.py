"""The Describe calls. They read one world, which may be an old one, and change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from lab.ec2 import gates, render
from lab.ec2.query import Params
from lab.ec2.select import Fields, ordinal_key, page, select
from lab.ec2.xml import Tree
from lab.vpc import errors
from lab.vpc.account import LargeAccount
from lab.vpc.lies import shorten
from lab.vpc.model import OWNER_ID, Eni, EniAttachment, Instance, Subnet, SubnetReservation
from lab.vpc.rules import ManagedResources
from lab.vpc.state import Vpc
from lab.vpc.world import World


@dataclass(frozen=True)
class View:
    """What a Describe sees: the VPC for its constants, and a world."""

    vpc: Vpc
    world: World


@dataclass(frozen=True)
class _Tag:
    resource_id: str
    resource_type: str
    key: str
    value: str


def _attached(pick: Callable[[EniAttachment], object]) -> Callable[[Eni], Iterable[object]]:
    return lambda eni: [pick(eni.attachment)] if eni.attachment is not None else []


_ENI_FIELDS: Fields[Eni] = {
    "network-interface-id": lambda eni: [eni.eni_id],
    "status": lambda eni: [eni.status],
    "subnet-id": lambda eni: [eni.subnet_id],
    "availability-zone": lambda eni: [eni.az],
    "description": lambda eni: [eni.description],
    "mac-address": lambda eni: [eni.mac],
    "group-id": lambda eni: eni.security_groups,
    "private-ip-address": lambda eni: eni.addresses[:1] if eni.primary_address else [],
    "addresses.private-ip-address": lambda eni: eni.addresses,
    "ipv6-addresses.ipv6-address": lambda eni: eni.ipv6_addresses,
    "addresses.primary": lambda eni: [address == eni.primary_address for address in eni.addresses],
    "interface-type": lambda eni: [eni.interface_type],
    "owner-id": lambda _: [OWNER_ID],
    "attachment.instance-id": _attached(lambda attachment: attachment.instance_id),
    "attachment.attachment-id": _attached(lambda attachment: attachment.attachment_id),
    "attachment.status": _attached(lambda attachment: attachment.status),
    "attachment.device-index": _attached(lambda attachment: attachment.device_index),
    "attachment.network-card-index": _attached(lambda attachment: attachment.network_card),
    "attachment.delete-on-termination": _attached(lambda attachment: attachment.delete_on_termination),
}
_INSTANCE_FIELDS: Fields[Instance] = {
    "instance-id": lambda instance: [instance.instance_id],
    "instance-state-name": lambda instance: [render.state_of(instance)],
    "instance-type": lambda instance: [instance.instance_type],
    "subnet-id": lambda instance: [instance.subnet_id],
    "availability-zone": lambda instance: [instance.az],
}
_SUBNET_FIELDS: Fields[Subnet] = {
    "subnet-id": lambda subnet: [subnet.subnet_id],
    "availability-zone": lambda subnet: [subnet.az],
    "cidr-block": lambda subnet: [subnet.cidr],
    "cidr": lambda subnet: [subnet.cidr],
    "state": lambda _: ["available"],
    "owner-id": lambda _: [OWNER_ID],
}
_ZONE_FIELDS: Fields[str] = {
    "zone-name": lambda zone: [zone],
    "zone-id": lambda zone: [render.zone_id(zone)],
    "state": lambda _: ["available"],
}
_RESERVATION_FIELDS: Fields[SubnetReservation] = {
    "reservationType": lambda reservation: [reservation.kind],
}
_TAG_FIELDS: Fields[_Tag] = {
    "resource-id": lambda tag: [tag.resource_id],
    "resource-type": lambda tag: [tag.resource_type],
    "key": lambda tag: [tag.key],
    "value": lambda tag: [tag.value],
}


def network_interfaces(view: View, params: Params) -> Tree:
    """DescribeNetworkInterfaces."""
    ids = params.texts("NetworkInterfaceId")
    if ids and params.text("MaxResults"):
        raise errors.invalid_combination("The parameter NetworkInterfaceIds cannot be used with the parameter MaxResults")
    gates.check_large_account(view.vpc.faults.conditions.large_account, params)
    if missing := [eni_id for eni_id in ids if eni_id not in view.world.enis]:
        raise errors.interface_not_found(missing)
    enis = [eni for eni in view.world.enis.values() if eni.eni_id in ids] if ids else _listed(view, params)
    fields: Fields[Eni] = {**_ENI_FIELDS, "vpc-id": lambda _: [view.vpc.vpc_id]}
    account = view.vpc.faults.conditions.large_account or LargeAccount()

    def chosen(some: list[Eni]) -> list[Eni]:
        return select(some, params.filters(), fields, lambda eni: eni.tags)

    shown = page(
        enis if account.sparse else chosen(enis),
        params,
        key=lambda eni: ordinal_key(eni.ordinal),
        largest=0 if ids else account.page_size,
    )
    kept = chosen(shown.items) if account.sparse else shown.items
    if (omission := view.vpc.faults.take_omission()) is not None:
        kept = shorten(kept, *omission)
    return {
        "networkInterfaceSet": [render.eni_tree(view.vpc, eni) for eni in kept],
        "nextToken": shown.next_token,
    }


def _listed(view: View, params: Params) -> list[Eni]:
    """The ENIs of a list without IDs: managed ones that are hidden by default only where the endpoint knows them and is asked."""
    is_older = view.vpc.faults.rules.managed_resources is ManagedResources.UNKNOWN_PARAMETER
    if is_older and params.text("IncludeManagedResources") is not None:
        raise errors.unknown_parameter("IncludeManagedResources")
    shows_all = is_older or params.flag("IncludeManagedResources")
    return [eni for eni in view.world.enis.values() if shows_all or eni.operator is None or not eni.operator.hidden]


def instances(view: View, params: Params) -> Tree:
    """DescribeInstances; each instance is a reservation of its own."""
    ids = params.texts("InstanceId")
    found = [view.world.instance(instance_id) for instance_id in ids] if ids else view.world.instances.values()
    fields: Fields[Instance] = {
        **_INSTANCE_FIELDS,
        "vpc-id": lambda _: [view.vpc.vpc_id],
        "private-ip-address": lambda instance: [eni.primary_address for eni in view.world.attached_to(instance.instance_id)[:1]],
        "network-interface.network-interface-id": lambda instance: [
            eni.eni_id for eni in view.world.attached_to(instance.instance_id)
        ],
        "network-interface.addresses.private-ip-address": lambda instance: [
            address for eni in view.world.attached_to(instance.instance_id) for address in eni.addresses
        ],
    }
    chosen = select(found, params.filters(), fields, lambda instance: instance.tags)
    shown = page(chosen, params, key=lambda instance: ordinal_key(instance.ordinal))
    return {
        "reservationSet": [
            {
                "reservationId": instance.instance_id.replace("i-", "r-", 1),
                "ownerId": OWNER_ID,
                "groupSet": [],
                "instancesSet": [render.instance_tree(view.vpc, view.world, instance)],
            }
            for instance in shown.items
        ],
        "nextToken": shown.next_token,
    }


def instance_types(view: View, params: Params) -> Tree:
    """DescribeInstanceTypes, from the lab's table."""
    names = params.texts("InstanceType")
    if unknown := [name for name in names if name not in view.vpc.limits]:
        raise errors.Ec2Error(
            "InvalidInstanceType", f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
        )
    fields: Fields[str] = {"instance-type": lambda name: [name]}
    chosen = select(names or view.vpc.limits, params.filters(), fields)
    shown = page(chosen, params, key=str, highest=100)
    return {
        "instanceTypeSet": [render.instance_type_tree(name, view.vpc.limits[name]) for name in shown.items],
        "nextToken": shown.next_token,
    }


def subnets(view: View, params: Params) -> Tree:
    """DescribeSubnets."""
    ids = params.texts("SubnetId")
    found = [view.world.subnet(subnet_id) for subnet_id in ids] if ids else view.world.subnets.values()
    fields: Fields[Subnet] = {**_SUBNET_FIELDS, "vpc-id": lambda _: [view.vpc.vpc_id]}
    chosen = select(found, params.filters(), fields, lambda subnet: subnet.tags)
    shown = page(chosen, params, key=lambda subnet: subnet.subnet_id)
    return {
        "subnetSet": [render.subnet_tree(view.vpc, view.world, subnet) for subnet in shown.items],
        "nextToken": shown.next_token,
    }


def availability_zones(view: View, params: Params) -> Tree:
    """DescribeAvailabilityZones: the zones that have a subnet, and no others."""
    zones = sorted({subnet.az for subnet in view.world.subnets.values()})
    if unknown := [name for name in params.texts("ZoneName") if name not in zones]:
        raise errors.invalid_value(f"Invalid availability zone: [{', '.join(unknown)}]")
    named = [*params.texts("ZoneName")] or zones
    return {"availabilityZoneInfo": [render.zone_tree(view.vpc, zone) for zone in select(named, params.filters(), _ZONE_FIELDS)]}


def subnet_cidr_reservations(view: View, params: Params) -> Tree:
    """GetSubnetCidrReservations, of one subnet; the lab has no IPv6 ones."""
    subnet = view.world.subnet(params.required("SubnetId"))
    order = {reservation.reservation_id: number for number, reservation in enumerate(subnet.reservations)}
    chosen = select(subnet.reservations, params.filters(), _RESERVATION_FIELDS)
    shown = page(chosen, params, key=lambda reservation: ordinal_key(order[reservation.reservation_id]))
    return {
        "subnetIpv4CidrReservationSet": [render.reservation_tree(subnet, reservation) for reservation in shown.items],
        "subnetIpv6CidrReservationSet": [],
        "nextToken": shown.next_token,
    }


def vpcs(view: View, params: Params) -> Tree:
    """DescribeVpcs; there is one."""
    ids = params.texts("VpcId")
    if missing := [vpc_id for vpc_id in ids if vpc_id != view.vpc.vpc_id]:
        raise errors.vpc_not_found(missing[0])
    fields: Fields[Vpc] = {"vpc-id": lambda vpc: [vpc.vpc_id], "cidr": lambda vpc: [vpc.cidr]}
    associations: list[Tree] = [
        {
            "cidrBlock": cidr,
            "associationId": view.vpc.vpc_id.replace("vpc-", f"vpc-cidr-assoc-{number or ''}", 1),
            "cidrBlockState": {"state": "associated"},
        }
        for number, cidr in enumerate(view.vpc.cidrs)
    ]
    return {
        "vpcSet": [
            {
                "vpcId": vpc.vpc_id,
                "ownerId": OWNER_ID,
                "state": "available",
                "cidrBlock": vpc.cidr,
                "cidrBlockAssociationSet": associations,
                "instanceTenancy": "default",
                "isDefault": False,
                "tagSet": [],
            }
            for vpc in select([view.vpc], params.filters(), fields)
        ]
    }


def tags(view: View, params: Params) -> Tree:
    """DescribeTags."""
    world = view.world
    tagged = [(eni.eni_id, "network-interface", eni.tags) for eni in world.enis.values()]
    tagged += [(instance.instance_id, "instance", instance.tags) for instance in world.instances.values()]
    tagged += [(subnet.subnet_id, "subnet", subnet.tags) for subnet in world.subnets.values()]
    every = [_Tag(owner, kind, key, value) for owner, kind, held in tagged for key, value in held.items()]
    fields: Fields[_Tag] = {**_TAG_FIELDS}
    chosen = select(every, params.filters(), fields, lambda tag: {tag.key: tag.value})
    shown = page(chosen, params, key=lambda tag: f"{tag.resource_id} {tag.key}")
    return {
        "tagSet": [
            {"resourceId": tag.resource_id, "resourceType": tag.resource_type, "key": tag.key, "value": tag.value}
            for tag in shown.items
        ],
        "nextToken": shown.next_token,
    }
