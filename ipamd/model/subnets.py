"""Which subnets may have new ENIs, in which order, and which ENIs get nothing new. Pure.

The tags and their meaning are those of amazon-vpc-cni-k8s (pkg/awsutils/awsutils.go, validTag, validateSubnetTagsMatchingClusterName,
IsSubnetExcluded; docs/subnet-discovery.md there), so that subnets tagged for it need no change. The two rules differ on purpose, as
there: a subnet without tags gets no new ENI, but an ENI that is in one already goes on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Network
from typing import Any

from ipamd.model.eni import Eni
from ipamd.model.errors import SettingsError
from ipamd.model.ids import SubnetId
from ipamd.model.record import dataclass, field
from ipamd.model.words import counted, printable

# Custom networking: which subnet and security groups the secondary ENIs of a node get, by availability zone. Pure.
#
# A mounted JSON file instead of ENIConfig objects (docs/adr/0030): the daemon needs no Kubernetes API, and no YAML parser (I12).
#
#     {"zones": {"us-west-2a": {"subnet": "subnet-0a1b", "securityGroups": ["sg-0c2d"]}}, "primaryEniCarriesPods": false}
#
# The zone `default` stands for every zone that is not named, as the ENIConfig of this name does in amazon-vpc-cni-k8s
# (pkg/eniconfig/eniconfig.go, GetNodeSpecificENIConfigName). An empty list of groups means the primary ENI's.


DEFAULT_ZONE = "default"
FORM = {"zones": dict, "primaryEniCarriesPods": bool}
ZONE_FORM = {"subnet": str, "securityGroups": list}
WORDS = {dict: "an object", bool: "true or false", str: "a string", list: "a list"}

ZONE = re.compile(r"[a-z]{2}(-[a-z]+)+-\d+(-[a-z]+-\d+)?[a-z]")
"""An availability zone, local zones (us-west-2-lax-1a) among them.
Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/using-regions-availability-zones.html."""

GROUPS_MAX = 16
"""Security groups of one ENI, the highest quota.
Source: https://docs.aws.amazon.com/vpc/latest/userguide/amazon-vpc-limits.html, Security groups."""


@dataclass(frozen=True, slots=True)
class ZoneNetwork:
    """Where new ENIs of one zone go. `security_group_ids`: ascending; empty: those of the primary ENI."""

    subnet_id: SubnetId
    security_group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CustomNetwork:
    """The whole file. `primary_carries_pods`: whether sandboxes may have addresses of the primary ENI."""

    zones: Mapping[str, ZoneNetwork]
    primary_carries_pods: bool = False

    def of_zone(self, zone: str) -> ZoneNetwork | None:
        """The zone's own entry, else that of `default`; None if there is neither."""
        return self.zones.get(zone, self.zones.get(DEFAULT_ZONE))


def parse(text: str, *, source: str) -> CustomNetwork:
    """Read the file's text. `source`: its path, for people. Raises: SettingsError whose details name every problem at once."""
    problems: list[str] = []
    try:
        document = json.loads(text, object_pairs_hook=lambda pairs: _object(pairs, problems))
    except (ValueError, RecursionError) as error:
        raise _wrong(source, [f"it is no JSON: {error}"]) from error
    fields = _fields(document, FORM, where="the file", needed=("zones",), problems=problems)
    zones = {
        name: zone
        for name, entry in fields.get("zones", {}).items()
        if (zone := _zone(name, entry, problems=problems)) is not None
    }
    if "zones" in fields and not fields["zones"]:
        problems.append("zones: must name at least one availability zone")
    if problems:
        raise _wrong(source, problems)
    return CustomNetwork(zones, primary_carries_pods=fields.get("primaryEniCarriesPods", False))


def zone_problem(name: str) -> str:
    """Say why a name is no zone's, "" if it is one."""
    if ZONE.fullmatch(name) or name == DEFAULT_ZONE:
        return ""
    return f"{printable(repr(name))[:80]} is no availability zone (us-west-2a) and not {DEFAULT_ZONE!r}"


def render(network: CustomNetwork) -> str:
    """Write the file's text, zones ascending; `parse` reads it back."""
    zones = {
        name: {"subnet": zone.subnet_id, "securityGroups": list(zone.security_group_ids)}
        for name, zone in sorted(network.zones.items())
    }
    return json.dumps({"zones": zones, "primaryEniCarriesPods": network.primary_carries_pods}, indent=2)


def zone_of(subnet: object, groups: object, *, where: str, problems: list[str]) -> ZoneNetwork | None:
    """Check one entry; what is wrong goes into `problems`. Returns: None if something is."""
    before = len(problems)
    if not isinstance(subnet, str) or not re.fullmatch(r"subnet-[0-9a-f]{1,32}", subnet):
        problems.append(f"{where}: {_shown(subnet)} is no subnet ID (subnet-0123456789abcdef0)")
    ids = groups if isinstance(groups, list) else []
    problems += [
        f"{where}: {_shown(one)} is no security group ID (sg-0123456789abcdef0)"
        for one in ids
        if not isinstance(one, str) or not re.fullmatch(r"sg-[0-9a-f]{1,32}", one)
    ]
    if len(ids) > GROUPS_MAX:
        problems.append(f"{where}: {counted(len(ids), 'security group')}, and an ENI takes {GROUPS_MAX} at most")
    if len(problems) > before:
        return None
    return ZoneNetwork(SubnetId(str(subnet)), tuple(sorted(set(ids))))


def _zone(name: str, entry: object, *, problems: list[str]) -> ZoneNetwork | None:
    where = f"zones.{printable(name)[:80]}"
    if problem := zone_problem(name):
        problems.append(f"zones: {problem}")
    before = len(problems)
    fields = _fields(entry, ZONE_FORM, where=where, needed=("subnet",), problems=problems)
    if len(problems) > before:
        return None
    return zone_of(fields["subnet"], fields.get("securityGroups", []), where=where, problems=problems)


def _fields(
    value: object, form: Mapping[str, type], *, where: str, needed: tuple[str, ...], problems: list[str]
) -> dict[str, Any]:
    """The fields of an object that have their type; everything else is a problem."""
    if not isinstance(value, dict):
        problems.append(f"{where}: must be an object, not {_shown(value)}")
        return {}
    problems += [f"{where}: {_shown(key)} is not known (known: {', '.join(form)})" for key in value if key not in form]
    problems += [f"{where}: {key} is missing" for key in needed if key not in value]
    for key, kind in form.items():
        if key in value and not isinstance(value[key], kind):
            problems.append(f"{where}: {key} must be {WORDS[kind]}, not {_shown(value[key])}")
    return {key: value[key] for key, kind in form.items() if isinstance(value.get(key), kind)}


def _object(pairs: list[tuple[str, Any]], problems: list[str]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    problems += [f"{_shown(name)} is there twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    return dict(pairs)


def _shown(value: object) -> str:
    return printable(json.dumps(value))[:80]


def _wrong(source: str, problems: list[str]) -> SettingsError:
    return SettingsError(f"{source} has {counted(len(problems), 'problem')}", details="; ".join(problems))


ROLE_TAG = "kubernetes.io/role/cni"
CLUSTER_TAG_PREFIX = "cni.networking.k8s.aws/cluster/"
EXCLUDED = "0"
"""Value of ROLE_TAG that keeps pods out of a subnet; every other value but the empty one lets them in."""

CUSTOM = "custom networking: "
PRIMARY_WITHOUT_PODS = f"{CUSTOM}the primary ENI carries no pods"
OTHER_SUBNET = f"{CUSTOM}its subnet is not the one that the file names"
OTHER_GROUPS = f"{CUSTOM}its security groups are not those that the file names"


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
    """Where new ENIs may go. `custom`: custom networking's map, None without it; then subnets are discovered if `is_discovering`, else
    the node's own is used. `needs_ipv6`: for pods of IPv6."""

    is_discovering: bool = True
    cluster_name: str = ""
    custom: CustomNetwork | None = None
    needs_ipv6: bool = False


@dataclass(frozen=True, slots=True)
class SubnetView:
    """One subnet for people. `free_count`: -1 if not known. `why_not`: why no new ENI goes there now, "" if one may."""

    subnet_id: SubnetId
    free_count: int = -1
    why_not: str = ""


def matches_cluster(tags: Mapping[str, str], cluster_name: str) -> bool:
    """Whether the cluster tags let this cluster in: none of them does, or one names it. Without a name every cluster is let in."""
    clusters = {key.removeprefix(CLUSTER_TAG_PREFIX) for key in tags if key.startswith(CLUSTER_TAG_PREFIX)}
    return not cluster_name or not clusters or cluster_name in clusters


def why_unusable(tags: Mapping[str, str], *, is_primary: bool, cluster_name: str) -> str:
    """Say why a subnet gets no new ENI, "" if it may. `is_primary`: it is the node's own, which needs no tag."""
    role = tags.get(ROLE_TAG)
    if role == EXCLUDED:
        return f"excluded by the tag {ROLE_TAG}={EXCLUDED}"
    if not role:
        return "" if is_primary else f"not the node's own, and without the tag {ROLE_TAG}=1"
    return "" if matches_cluster(tags, cluster_name) else f"tagged for other clusters, not for {cluster_name}"


def by_room(subnets: Iterable[DescribedSubnet]) -> list[DescribedSubnet]:
    """Most free addresses first; those with the same count stay in their order."""
    return sorted(subnets, key=lambda subnet: -subnet.free_count)


def exclusion(
    eni: Eni,
    policy: SubnetPolicy,
    subnets: Mapping[SubnetId, DescribedSubnet] | None,
    *,
    zone: str = "",
    security_group_ids: Collection[str] = (),
) -> str:
    """Say why an attached ENI's addresses are for no new sandbox; "" if they are.

    `subnets`: EC2's last answer, None before the first. A subnet that it lacks excludes nothing: it may be another account's
    (amazon-vpc-cni-k8s issue 3753). Before the first answer an ENI keeps what is recorded of it. `zone`: the node's, "" if it is not
    known; `security_group_ids`: the ENI's, empty if they are not known.
    """
    if policy.custom is not None:
        return _custom_exclusion(eni, policy.custom, zone=zone, security_group_ids=security_group_ids)
    if subnets is None:
        return "" if eni.excluded.startswith(CUSTOM) else eni.excluded
    subnet = subnets.get(eni.subnet_id)
    # As for the node's own: a missing ROLE_TAG excludes no ENI that is there.
    why = "" if subnet is None else why_unusable(subnet.tags, is_primary=True, cluster_name=policy.cluster_name)
    return f"its subnet {eni.subnet_id} is {why}" if why else ""


def _custom_exclusion(eni: Eni, custom: CustomNetwork, *, zone: str, security_group_ids: Collection[str]) -> str:
    """A pod gets the subnet and the groups of its ENI, so one that was made before the file said so, or by another one, gets no new
    pod. What is not known excludes nothing new: the zone, the ENI's groups, an entry for the zone (growth names that)."""
    if eni.is_primary:
        return "" if custom.primary_carries_pods else PRIMARY_WITHOUT_PODS
    named = custom.of_zone(zone) if zone else None
    if eni.subnet_id not in ({named.subnet_id} if named is not None else {one.subnet_id for one in custom.zones.values()}):
        return eni.excluded if zone and named is None else OTHER_SUBNET
    if named is None or not security_group_ids:
        return eni.excluded if eni.excluded == OTHER_GROUPS else ""
    is_other = named.security_group_ids and {*named.security_group_ids} != {*security_group_ids}
    return OTHER_GROUPS if is_other else ""
