"""Instance metadata of one instance, as a tree of paths.

Computed anew for each request from one world, possibly an old one (metadata lag), so that one answer is never torn, but
two successive ones may differ, as with the real service. An absent path is a 404, which means "none" for prefixes and
"card 0" for the network card (amazon-vpc-cni-k8s pkg/awsutils/imds.go).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta

from lab.vpc.limits import InstanceLimits
from lab.vpc.model import OWNER_ID, ROLE, Eni, EniAttachment, Instance
from lab.vpc.state import Vpc
from lab.vpc.world import World

Leaf = str
Branch = Mapping[str, "Leaf | Branch"]

_CREDENTIALS_LIFE = timedelta(hours=6)  # as EC2: "at least five minutes before expiry" new ones appear
_STAMP = "%Y-%m-%dT%H:%M:%SZ"


def metadata(vpc: Vpc, world: World, instance: Instance) -> Branch:
    """Return everything under /latest."""
    plugged = [
        (eni, eni.attachment) for eni in world.attached_to(instance.instance_id) if eni.attachment is not None and eni.is_plugged
    ]
    primary = plugged[0][0] if plugged else None
    limits = vpc.limits[instance.instance_type]
    meta: dict[str, Leaf | Branch] = {
        "iam": {
            "info": _iam_info(vpc.wall_clock()),
            "security-credentials": {ROLE: _credentials(vpc.wall_clock())},
        },
        "instance-id": instance.instance_id,
        "instance-life-cycle": instance.life_cycle,
        "instance-type": instance.instance_type,
        "network": {
            "interfaces": {"macs": {eni.mac: _interface(vpc, eni, at, limits) for eni, at in plugged}},
        },
        "placement": {"availability-zone": instance.az, "region": vpc.region},
        "services": {"domain": "amazonaws.com", "partition": "aws"},
    }
    if primary is not None:
        meta |= {"mac": primary.mac, "local-ipv4": str(primary.primary_address)}
        if primary.ipv6_addresses:
            meta["ipv6"] = str(primary.ipv6_addresses[0])
    for path, text in instance.notices.items():
        _put(meta, path, text)
    meta = _without(meta, vpc.faults.absent())
    document = _identity(vpc, instance, primary, limits)
    return {"meta-data": meta, "dynamic": {"instance-identity": {"document": document}}}


def look_up(tree: Branch, path: str) -> str | None:
    """Return the text at a path: a leaf, or the list of a branch with a slash after each sub-branch; None for a 404."""
    node: Leaf | Branch = tree
    for part in filter(None, path.split("/")):
        if isinstance(node, str) or part not in node:
            return None
        node = node[part]
    if isinstance(node, str):
        return node
    return "\n".join(_listed(name, child) for name, child in sorted(node.items()))


def _put(branch: dict[str, Leaf | Branch], path: str, text: str) -> None:
    """Put a leaf where no other is, with the branches above it."""
    first, _, rest = path.partition("/")
    if not rest:
        branch[first] = text
        return
    inner: dict[str, Leaf | Branch] = {}
    branch[first] = inner
    _put(inner, rest, text)


def _listed(name: str, child: Leaf | Branch) -> str:
    # The list of roles names each role without a slash, and a role is a leaf here, so the rule holds everywhere.
    return name if isinstance(child, str) else f"{name}/"


def _without(branch: Branch, absent: AbstractSet[str]) -> dict[str, Leaf | Branch]:
    """Leave out the categories that are absent, at any depth: their paths are 404."""
    kept = {name: child for name, child in branch.items() if name not in absent}
    return {name: child if isinstance(child, str) else _without(child, absent) for name, child in kept.items()}


def _interface(vpc: Vpc, eni: Eni, attachment: EniAttachment, limits: InstanceLimits) -> Branch:
    leaves: dict[str, Leaf | Branch] = {
        "device-number": str(attachment.device_index),
        "interface-id": eni.eni_id,
        "mac": eni.mac,
        "owner-id": OWNER_ID,
        "security-group-ids": "\n".join(eni.security_groups),
        "security-groups": "\n".join(vpc.group_name(group) or "" for group in eni.security_groups),
        "subnet-id": eni.subnet_id,
        "subnet-ipv4-cidr-block": str(eni.subnet_cidr),
        "vpc-id": vpc.vpc_id,
        "vpc-ipv4-cidr-block": str(vpc.cidr),
        "vpc-ipv4-cidr-blocks": "\n".join(map(str, vpc.cidrs)),
    }
    if eni.addresses:
        leaves["local-ipv4s"] = "\n".join(map(str, eni.addresses))  # absent for an EFA-only or IPv6-only ENI
    if eni.ipv6_addresses:
        leaves["ipv6s"] = "\n".join(map(str, eni.ipv6_addresses))
    if eni.ipv6_prefixes:
        leaves["ipv6-prefix"] = "\n".join(map(str, eni.ipv6_prefixes))
    if vpc.ipv6_cidr is not None:
        leaves["vpc-ipv6-cidr-blocks"] = str(vpc.ipv6_cidr)
        if subnet_cidr := vpc.world.subnet(eni.subnet_id).ipv6_cidr:
            leaves["subnet-ipv6-cidr-blocks"] = str(subnet_cidr)
    if eni.prefixes:
        leaves["ipv4-prefix"] = "\n".join(map(str, eni.prefixes))
    if len(limits.enis_per_card) > 1:
        leaves["network-card"] = str(attachment.network_card)
    return leaves


def _identity(vpc: Vpc, instance: Instance, primary: Eni | None, limits: InstanceLimits) -> str:
    return json.dumps(
        {
            "accountId": OWNER_ID,
            "architecture": limits.architecture,
            "availabilityZone": instance.az,
            "instanceId": instance.instance_id,
            "instanceType": instance.instance_type,
            "pendingTime": instance.launched_at.strftime(_STAMP),
            "privateIp": str(primary.primary_address) if primary else None,
            "region": vpc.region,
            "version": "2017-09-30",
        },
        indent=2,
    )


def _credentials(now: datetime) -> str:
    return json.dumps(
        {
            "Code": "Success",
            "LastUpdated": now.strftime(_STAMP),
            "Type": "AWS-HMAC",
            "AccessKeyId": "ASIALABLABLABLABLABL",
            "SecretAccessKey": "lab-secret-that-nobody-checks",
            "Token": "lab-session-token",
            "Expiration": (now + _CREDENTIALS_LIFE).strftime(_STAMP),
        },
        indent=2,
    )


def _iam_info(now: datetime) -> str:
    profile = f"arn:aws:iam::{OWNER_ID}:instance-profile/{ROLE}"
    return json.dumps({"Code": "Success", "LastUpdated": now.strftime(_STAMP), "InstanceProfileArn": profile}, indent=2)
