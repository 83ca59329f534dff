"""Which subnets may have new ENIs, in which order, and which ENIs give no address to new sandboxes. Pure.

With *custom networking* (docs/adr/0030) the network file names, for each availability zone, the subnet and the security groups of the
secondary ENIs (`CustomNetwork`), as the ENIConfig objects of amazon-vpc-cni-k8s do:

    {"zones": {"us-west-2a": {"subnet": "subnet-0a1b", "securityGroups": ["sg-0c2d"]}}, "primaryEniCarriesPods": false}

The zone `default` stands for every zone that is not named, as the ENIConfig of this name does there (pkg/eniconfig/eniconfig.go,
GetNodeSpecificENIConfigName). An empty list of groups means the primary ENI's.

Without custom networking the tags of subnets decide (`why_unusable` about new ENIs, `exclusion` about attached ones). The tags
and their meaning are those of amazon-vpc-cni-k8s (pkg/awsutils/awsutils.go, validTag, validateSubnetTagsMatchingClusterName,
IsSubnetExcluded; docs/subnet-discovery.md there), so that subnets tagged for it need no change. As there, the two rules differ on
purpose: a subnet without tags gets no new ENI, but an ENI that is already in one goes on giving addresses.
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
"""A zone's name is any word, because AWS documents no form: there are us-west-2a, eusc-de-east-1a, the local zone us-west-2-lax-1a and
the Wavelength zone us-east-1-wl1-bos-wlz-1. A name that is no zone's never matches, and a node without an entry reports that. The
bound is ours.
Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-regions-availability-zones.html."""

USUAL_ZONE = re.compile(r"[a-z]+(-[a-z]+)+-[0-9]+([a-z]|(-[a-z0-9]+)+)")
"""A region with a suffix, as all zones are named so far. It is used to doubt a name that may mean something else. Ours, from that
source."""

GROUPS_MAX = 16
"""Security groups of one ENI, the highest quota.
Source: https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html, Security groups."""

ROLE_TAG = "kubernetes.io/role/cni"
CLUSTER_TAG_PREFIX = "cni.networking.k8s.aws/cluster/"
"""Tags of subnets: ROLE_TAG says whether pods may be there, a tag with the prefix names a cluster that may use the subnet."""

EXCLUDED = "0"
"""Value of ROLE_TAG that keeps pods out of a subnet; every other value but the empty one lets them in."""

RESERVED_COUNT = 5
"""Addresses of each subnet that AWS keeps.
Source: https://docs.aws.amazon.com/vpc/latest/userguide/subnet-sizing.html, Subnet CIDR blocks for IPv4."""

CUSTOM = "custom networking: "
PRIMARY_WITHOUT_PODS = f"{CUSTOM}the primary ENI carries no pods"
OTHER_SUBNET = f"{CUSTOM}its subnet is not the one that the file names"
OTHER_GROUPS = f"{CUSTOM}its security groups are not those that the file names"
"""Reasons why custom networking excludes an ENI; they are recorded, so that they can be recognised later."""


@dataclass(frozen=True, slots=True)
class ZoneNetwork:
    """Where new ENIs of one zone go. `security_group_ids`: ascending; empty: those of the primary ENI."""

    subnet_id: SubnetId
    security_group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CustomNetwork:
    """The zones of the file. `primary_carries_pods`: whether sandboxes may have addresses of the primary ENI."""

    zones: Mapping[str, ZoneNetwork]
    primary_carries_pods: bool = False

    def of_zone(self, zone: str) -> ZoneNetwork | None:
        """The zone's own entry, else that of `default`; None if there is neither."""
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
    """Return why a name cannot be a zone's, "" if it can."""
    if ZONE.fullmatch(name):
        return ""
    return _not_a_zone(name)


def unusual_zone_problem(name: str) -> str:
    """Return why a name that may mean something else is probably no zone's, "" if it looks like one."""
    if USUAL_ZONE.fullmatch(name) or name == DEFAULT_ZONE:
        return ""
    return _not_a_zone(name)


def _not_a_zone(name: str) -> str:
    return f"{printable(repr(name))[:80]} is no availability zone (us-west-2a) and not {DEFAULT_ZONE!r}"


def render(network: CustomNetwork) -> str:
    """Write the file's text, zones ascending; `parse` reads it back."""
    zones = {
        name: {"subnet": zone.subnet_id, "securityGroups": list(zone.security_group_ids)}
        for name, zone in sorted(network.zones.items())
    }
    return json.dumps({"zones": zones, "primaryEniCarriesPods": network.primary_carries_pods}, indent=2)


def zone_of(subnet: object, groups: object, *, location: str, problems: list[str]) -> ZoneNetwork | None:
    """Read the subnet and the security groups of one zone, and add their faults to `problems`. Returns: None if there are any."""
    before = len(problems)
    subnet_ids = checked_subnets([subnet], location=location, problems=problems)
    group_ids = checked_groups(groups, location=location, problems=problems)
    if len(problems) > before:
        return None
    return ZoneNetwork(subnet_ids[0], group_ids)


def checked_subnets(subnets: list[object], *, location: str, problems: list[str]) -> tuple[SubnetId, ...]:
    """Return the subnet IDs of a list, in its order; everything else is a problem."""
    subnet_ids = []
    for subnet in subnets:
        if isinstance(subnet, str) and re.fullmatch(r"subnet-[0-9a-f]{1,32}", subnet):
            subnet_ids.append(SubnetId(subnet))
        else:
            problems.append(f"{location}: {shown(subnet)} is no subnet ID (subnet-0123456789abcdef0)")
    return tuple(dict.fromkeys(subnet_ids))


def checked_groups(groups: object, *, location: str, problems: list[str]) -> tuple[str, ...]:
    """Return the security group IDs of a list, ascending; everything else is a problem."""
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
    """One subnet as EC2 described it. `free_count`: IPv4 addresses that EC2 says are free; it says nothing about whole /28s."""

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

    custom: the zones of custom networking; None without it.
    is_discovering: without custom networking, whether the subnets of the zone are discovered by their tags, else only the node's own
        subnet is used.
    cluster_name: the cluster that cluster tags must let in; "" if it is not known.
    needs_ipv6: whether pods get IPv6 addresses, so that the subnet must have some.
    """

    is_discovering: bool = True
    cluster_name: str = ""
    custom: CustomNetwork | None = None
    needs_ipv6: bool = False


@dataclass(frozen=True, slots=True)
class SubnetView:
    """One subnet by EC2's last answer, for people and metrics.

    `free_count`: less what this node took since; -1 if not known.
    `used_count`: addresses that are not free, without those that AWS reserves; -1 if not known.
    `has_no_prefix`: EC2 refused a /28 there, and is not asked again yet.
    `why_not`: why no new ENI goes there now, "" if one may.
    `is_candidate`: its tags and the settings let a new ENI go there, whether or not it has room.
    `answer_age_s`: seconds since EC2 answered.
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

    `problem`: why none could, "" if one could or it is not known.
    `unchecked_reason`: why EC2 was not heard, "" if it answered or was not asked.
    `free_count`: IPv4 addresses that EC2 says are free; -1 if it is not known.
    """

    problem: str = ""
    unchecked_reason: str = ""
    free_count: int = -1


def matches_cluster(tags: Mapping[str, str], cluster_name: str) -> bool:
    """Whether the cluster tags let this cluster in: none of them does, or one names it. Without a name every cluster is let in."""
    clusters = {key.removeprefix(CLUSTER_TAG_PREFIX) for key in tags if key.startswith(CLUSTER_TAG_PREFIX)}
    return not cluster_name or not clusters or cluster_name in clusters


def why_unusable(tags: Mapping[str, str], *, is_primary: bool, cluster_name: str) -> str:
    """Return why a subnet gets no new ENI, "" if it may. `is_primary`: it is the node's own, which needs no tag."""
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
    """Sort by free addresses, most first; subnets with the same count stay in their order."""
    return sorted(subnets, key=lambda subnet: -subnet.free_count)


def exclusion(
    eni: Eni,
    policy: SubnetPolicy,
    subnets: Mapping[SubnetId, DescribedSubnet] | None,
    *,
    zone: str = "",
    security_group_ids: Collection[str] = (),
) -> str:
    """Return why no new sandbox gets an attached ENI's addresses; "" if sandboxes may have them.

    A subnet that EC2's answer lacks excludes nothing: it may be another account's (amazon-vpc-cni-k8s issue 3753). Before the first
    answer an ENI keeps its recorded exclusion. An ENI that an AWS service manages stays excluded: Describe decides that
    (`EniService.eni_of`).

    Args:
        subnets: EC2's last answer, None before the first.
        zone: the node's, "" if it is not known.
        security_group_ids: the ENI's, empty if they are not known.
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
    # `is_primary=True` for any subnet: as with the node's own subnet, a missing ROLE_TAG excludes no ENI that is attached already.
    reason = "" if subnet is None else why_unusable(subnet.tags, is_primary=True, cluster_name=policy.cluster_name)
    if reason:
        return f"its subnet {eni.subnet_id} is {reason}"
    return ""


def _custom_exclusion(eni: Eni, custom: CustomNetwork, *, zone: str, security_group_ids: Collection[str]) -> str:
    """Return why custom networking excludes an ENI; "" if it does not.

    A pod gets the subnet and the security groups of its ENI. So an ENI that was made for other ones, before the file named these,
    gets no new pod. Unknown facts exclude nothing new: the zone, the ENI's groups, an entry for the zone (growth reports that one).
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
    """Return why an ENI is excluded while no entry of the file is known to be this node's."""
    subnet_ids = {zone_network.subnet_id for zone_network in custom.zones.values()}
    if eni.subnet_id in subnet_ids:
        return _kept_group_exclusion(eni)
    if zone:
        return eni.excluded
    return OTHER_SUBNET


def _kept_group_exclusion(eni: Eni) -> str:
    """Keep the recorded exclusion for other groups while the ENI's groups cannot be compared."""
    if eni.excluded == OTHER_GROUPS:
        return eni.excluded
    return ""
