"""Decide which subnets may have new ENIs, in which order, and which attached ENIs give no address to new sandboxes. Pure.

With *custom networking* (docs/adr/0030) the network file names, for each availability zone, the subnet and the security groups of the
secondary ENIs (`CustomNetwork`), as the ENIConfig objects of amazon-vpc-cni-k8s do:

    {"zones": {"us-west-2a": {"subnet": "subnet-0a1b", "securityGroups": ["sg-0c2d"]}}, "primaryEniCarriesPods": false}

The zone `default` stands for every zone that is not named, like the ENIConfig of this name in amazon-vpc-cni-k8s
(pkg/eniconfig/eniconfig.go, GetNodeSpecificENIConfigName). An empty list of groups means the groups of the primary ENI.

Without custom networking the tags of subnets decide (`why_unusable` about new ENIs, `exclusion` about attached ones). The tags
and their meaning are those of amazon-vpc-cni-k8s (pkg/awsutils/awsutils.go, validTag, validateSubnetTagsMatchingClusterName,
IsSubnetExcluded; docs/subnet-discovery.md there), so that subnets tagged for it need no change. New and attached ENIs are treated
differently on purpose, as in amazon-vpc-cni-k8s: a subnet without tags gets no new ENI, but an ENI that is already in such a subnet
goes on giving addresses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Network
from typing import Any

from ipamd.model.eni import OPERATOR, Eni
from ipamd.model.ids import SubnetId
from ipamd.model.json_form import checked_fields, shown
from ipamd.model.record import dataclass, field
from ipamd.model.words import counted, printable

DEFAULT_ZONE = "default"
ZONE_FORM = {"subnet": str, "securityGroups": list}

ZONE = re.compile(r"[a-z][a-z0-9-]{0,63}")
"""The form of a zone's name: any word, because AWS documents no form. There are us-west-2a, eusc-de-east-1a, the local zone
us-west-2-lax-1a and the Wavelength zone us-east-1-wl1-bos-wlz-1. An entry with a name that no zone has is never used, and a node whose
zone has no entry reports this. The bound of 64 characters is ours.
Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-regions-availability-zones.html."""

USUAL_ZONE = re.compile(r"[a-z]+(-[a-z]+)+-[0-9]+([a-z]|(-[a-z0-9]+)+)")
"""The usual form of a zone's name: a region with a suffix. `ipamctl convert-eniconfig` reports ENIConfig objects whose name has
another form, because such a name is probably not that of a zone. Ours, from the names of all zones at the source of ZONE."""

GROUPS_MAX = 16
"""The most security groups that one ENI can have, with the highest quota.
Source: https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html, Security groups."""

ROLE_TAG = "kubernetes.io/role/cni"
CLUSTER_TAG_PREFIX = "cni.networking.k8s.aws/cluster/"
"""Tags of subnets. ROLE_TAG says whether a subnet may have ENIs for pods. A tag that begins with CLUSTER_TAG_PREFIX names a cluster
that may use the subnet."""

EXCLUDED = "0"
"""Value of ROLE_TAG that excludes a subnet. Every other value allows it, except the empty one, which counts as no tag."""

RESERVED_COUNT = 5
"""How many addresses of each subnet AWS reserves.
Source: https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html, Subnet CIDR blocks for IPv4."""

CUSTOM = "custom networking: "
PRIMARY_WITHOUT_PODS = f"{CUSTOM}the primary ENI carries no pods"
OTHER_SUBNET = f"{CUSTOM}its subnet is not the one that the file names"
OTHER_GROUPS = f"{CUSTOM}its security groups are not those that the file names"
"""Reasons why custom networking excludes an ENI; they are recorded, so that they can be recognised later."""


@dataclass(frozen=True, slots=True)
class ZoneNetwork:
    """The subnet and the security groups of new ENIs in one zone. `security_group_ids`: ascending; if empty, the ENIs get the security
    groups of the primary ENI.
    """

    subnet_id: SubnetId
    security_group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CustomNetwork:
    """Custom networking by the network file. `primary_carries_pods`: whether sandboxes may have addresses of the primary ENI."""

    zones: Mapping[str, ZoneNetwork]
    primary_carries_pods: bool = False

    def of_zone(self, zone: str) -> ZoneNetwork | None:
        """Return the entry of the zone, else the entry `default`; None if there is neither."""
        return self.zones.get(zone, self.zones.get(DEFAULT_ZONE))


def zones_of(fields: Mapping[str, Any], problems: list[str]) -> CustomNetwork:
    """Read custom networking from the fields of the file's top level (`network_file.py`), and add every fault to `problems`."""
    zones: dict[str, ZoneNetwork] = {}
    for name, zone_entry in fields.get("zones", {}).items():
        zone = _zone(name, zone_entry, problems=problems)
        if zone is not None:
            zones[name] = zone
    if "zones" in fields and not fields["zones"]:
        problems.append("zones: must name at least one availability zone")
    return CustomNetwork(zones, primary_carries_pods=fields.get("primaryEniCarriesPods", False))


def zone_problem(name: str) -> str:
    """Return why a name cannot be that of a zone; "" if it can."""
    if ZONE.fullmatch(name):
        return ""
    return _not_a_zone(name)


def unusual_zone_problem(name: str) -> str:
    """Return why a name is probably not that of a zone; "" if it has the usual form."""
    if USUAL_ZONE.fullmatch(name) or name == DEFAULT_ZONE:
        return ""
    return _not_a_zone(name)


def _not_a_zone(name: str) -> str:
    return f"{printable(repr(name))[:80]} is no availability zone (us-west-2a) and not {DEFAULT_ZONE!r}"


def render(network: CustomNetwork) -> str:
    """Return custom networking as the text of a network file, zones ascending. `network_file.parse` reads it."""
    zones = {
        name: {"subnet": zone.subnet_id, "securityGroups": list(zone.security_group_ids)}
        for name, zone in sorted(network.zones.items())
    }
    return json.dumps({"zones": zones, "primaryEniCarriesPods": network.primary_carries_pods}, indent=2)


def zone_of(subnet: object, groups: object, *, location: str, problems: list[str]) -> ZoneNetwork | None:
    """Read the subnet and the security groups of one zone, and add every fault to `problems`. Returns: None if there is a fault."""
    before = len(problems)
    subnet_ids = checked_subnets([subnet], location=location, problems=problems)
    group_ids = checked_groups(groups, location=location, problems=problems)
    if len(problems) > before:
        return None
    return ZoneNetwork(subnet_ids[0], group_ids)


def checked_subnets(subnets: list[object], *, location: str, problems: list[str]) -> tuple[SubnetId, ...]:
    """Return the subnet IDs of a list, in its order, each once; add every other entry to `problems`."""
    subnet_ids = []
    for subnet in subnets:
        if isinstance(subnet, str) and re.fullmatch(r"subnet-[0-9a-f]{1,32}", subnet):
            subnet_ids.append(SubnetId(subnet))
        else:
            problems.append(f"{location}: {shown(subnet)} is no subnet ID (subnet-0123456789abcdef0)")
    return tuple(dict.fromkeys(subnet_ids))


def checked_groups(groups: object, *, location: str, problems: list[str]) -> tuple[str, ...]:
    """Return the security group IDs of a list, ascending; add every other entry, and too many groups, to `problems`."""
    ids = groups if isinstance(groups, list) else []
    group_ids = set()
    for group_id in ids:
        if isinstance(group_id, str) and re.fullmatch(r"sg-[0-9a-f]{1,32}", group_id):
            group_ids.add(group_id)
        else:
            problems.append(f"{location}: {shown(group_id)} is no security group ID (sg-0123456789abcdef0)")
    if len(ids) > GROUPS_MAX:
        problems.append(f"{location}: {counted(len(ids), 'security group')}, and an ENI takes {GROUPS_MAX} at most")
    return tuple(sorted(group_ids))


def _zone(name: str, zone_entry: object, *, problems: list[str]) -> ZoneNetwork | None:
    location = f"zones.{printable(name)[:80]}"
    problem = zone_problem(name)
    if problem:
        problems.append(f"zones: {problem}")
    before = len(problems)
    fields = checked_fields(zone_entry, ZONE_FORM, location=location, needed=("subnet",), problems=problems)
    if len(problems) > before:
        return None
    return zone_of(fields["subnet"], fields.get("securityGroups", []), location=location, problems=problems)


@dataclass(frozen=True, slots=True)
class DescribedSubnet:
    """One subnet as EC2 described it.

    `cidr`: its IPv4 CIDR.
    `free_count`: the number of free IPv4 addresses. It does not show whether a whole /28 is free.
    `has_ipv6`: whether the subnet has an IPv6 CIDR.
    """

    subnet_id: SubnetId
    cidr: IPv4Network
    availability_zone: str
    vpc_id: str
    free_count: int
    tags: Mapping[str, str] = field(default_factory=dict)
    has_ipv6: bool = True


@dataclass(frozen=True, slots=True)
class SubnetPolicy:
    """Where new ENIs of the node's own pool may be created.

    is_discovering: without custom networking, whether the subnets of the zone are discovered by their tags; otherwise only the node's
        own subnet is used.
    cluster_name: the cluster that the subnets' cluster tags must allow; "" if it is not known.
    custom: the zones of custom networking; None if custom networking is off.
    needs_ipv6: whether pods get IPv6 addresses, so that a subnet must have an IPv6 CIDR.
    """

    is_discovering: bool = True
    cluster_name: str = ""
    custom: CustomNetwork | None = None
    needs_ipv6: bool = False


@dataclass(frozen=True, slots=True)
class SubnetView:
    """One subnet according to EC2's last answer, for people and metrics.

    `free_count`: the free addresses in EC2's answer, less the addresses that this node has allocated since; -1: not known.
    `why_not`: why no new ENI is created in the subnet now; "" if one may be.
    `used_count`: the addresses that are not free, without those that AWS reserves; -1: not known.
    `has_no_prefix`: whether EC2 refused a /28 of the subnet so lately that no /28 is requested now.
    `is_candidate`: whether its tags and the settings allow new ENIs in the subnet, whether or not it has room.
    `answer_age_s`: seconds since EC2's answer.
    """

    subnet_id: SubnetId
    free_count: int = -1
    why_not: str = ""
    availability_zone: str = ""
    used_count: int = -1
    has_no_prefix: bool = False
    is_candidate: bool = True
    answer_age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class SubnetCheck:
    """Whether ENIs could be created in the subnet that the network file names for this node's zone.

    `problem`: why no ENI could be created; "" if one could be, or if this is not known.
    `unchecked_reason`: why EC2 did not answer; "" if it answered or was not called.
    `free_count`: the number of free IPv4 addresses in EC2's answer; -1: not known.
    """

    problem: str = ""
    unchecked_reason: str = ""
    free_count: int = -1


def matches_cluster(tags: Mapping[str, str], cluster_name: str) -> bool:
    """Whether a subnet's cluster tags allow this cluster: there is no cluster tag, or one names the cluster.

    `cluster_name`: "" if it is not known; then the result is True.
    """
    clusters = {key.removeprefix(CLUSTER_TAG_PREFIX) for key in tags if key.startswith(CLUSTER_TAG_PREFIX)}
    return not cluster_name or not clusters or cluster_name in clusters


def why_unusable(tags: Mapping[str, str], *, is_primary: bool, cluster_name: str) -> str:
    """Return why a subnet gets no new ENI; "" if a new ENI may be created in it.

    `is_primary`: whether it is the node's own subnet, which needs no tag.
    """
    role = tags.get(ROLE_TAG)
    if role == EXCLUDED:
        return f"excluded by the tag {ROLE_TAG}={EXCLUDED}"
    if not role:
        if is_primary:
            return ""
        return f"not the node's own, and without the tag {ROLE_TAG}=1"
    if matches_cluster(tags, cluster_name):
        return ""
    return f"tagged for other clusters, not for {cluster_name}"


def by_room(subnets: Iterable[DescribedSubnet]) -> list[DescribedSubnet]:
    """Sort subnets by their free addresses, most first; subnets with the same count stay in their order."""
    return sorted(subnets, key=lambda subnet: -subnet.free_count)


def exclusion(
    eni: Eni,
    policy: SubnetPolicy,
    subnets: Mapping[SubnetId, DescribedSubnet] | None,
    *,
    zone: str = "",
    security_group_ids: Collection[str] = (),
) -> str:
    """Return why no new sandbox gets an attached ENI's addresses; "" if new sandboxes may get them.

    An ENI whose subnet is missing in EC2's answer is not excluded: the subnet may be another account's (amazon-vpc-cni-k8s issue
    3753). Before the first answer an ENI keeps its recorded exclusion, except one by custom networking that is off now. An ENI that an
    AWS service manages stays excluded, because Describe decides about that (`EniService.eni_of`).

    Args:
        subnets: EC2's last answer; None before the first.
        zone: the availability zone of the node; "" if it is not known.
        security_group_ids: the security groups of the ENI; empty if they are not known.
    """
    if eni.excluded.startswith(OPERATOR):
        return eni.excluded
    if policy.custom is not None:
        return _custom_exclusion(eni, policy.custom, zone=zone, security_group_ids=security_group_ids)
    if subnets is None:
        if eni.excluded.startswith(CUSTOM):
            return ""
        return eni.excluded
    subnet = subnets.get(eni.subnet_id)
    # `is_primary=True` for any subnet: as with the node's own subnet, an ENI that is attached already stays usable without ROLE_TAG.
    reason = "" if subnet is None else why_unusable(subnet.tags, is_primary=True, cluster_name=policy.cluster_name)
    if reason:
        return f"its subnet {eni.subnet_id} is {reason}"
    return ""


def _custom_exclusion(eni: Eni, custom: CustomNetwork, *, zone: str, security_group_ids: Collection[str]) -> str:
    """Return why custom networking excludes an ENI; "" if it does not.

    A pod gets the subnet and the security groups of its ENI. So an ENI with another subnet or other security groups than the file's
    entry gets no new pod. While the ENI's security groups are not known, only its subnet is compared, and a recorded exclusion because
    of its groups stays. If the file has no entry for the zone, no ENI is newly excluded; that the entry is missing is reported when an
    ENI is to be created. While the zone is not known, an ENI in a subnet that no entry names is excluded.
    """
    if eni.is_primary:
        if custom.primary_carries_pods:
            return ""
        return PRIMARY_WITHOUT_PODS
    zone_network = custom.of_zone(zone) if zone else None
    if zone_network is None:
        return _exclusion_without_entry(eni, custom, zone=zone)
    if eni.subnet_id != zone_network.subnet_id:
        return OTHER_SUBNET
    if not security_group_ids:
        return _kept_group_exclusion(eni)
    has_other_groups = zone_network.security_group_ids and set(zone_network.security_group_ids) != set(security_group_ids)
    if has_other_groups:
        return OTHER_GROUPS
    return ""


def _exclusion_without_entry(eni: Eni, custom: CustomNetwork, *, zone: str) -> str:
    """Return why an ENI is excluded while the zone is not known, or the file has no entry for it."""
    subnet_ids = {zone_network.subnet_id for zone_network in custom.zones.values()}
    if eni.subnet_id in subnet_ids:
        return _kept_group_exclusion(eni)
    if zone:
        return eni.excluded
    return OTHER_SUBNET


def _kept_group_exclusion(eni: Eni) -> str:
    """Return OTHER_GROUPS if this is the recorded reason of the ENI's exclusion; otherwise "".

    The ENI's security groups cannot be compared with those of the file now, so the result of the last comparison stays.
    """
    if eni.excluded == OTHER_GROUPS:
        return eni.excluded
    return ""
