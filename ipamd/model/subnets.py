"""Which subnets may have new ENIs, in which order, and which ENIs get nothing new. Pure.

The tags and their meaning are those of amazon-vpc-cni-k8s (pkg/awsutils/awsutils.go, validTag, validateSubnetTagsMatchingClusterName,
IsSubnetExcluded; docs/subnet-discovery.md there), so that subnets tagged for it need no change. The two rules differ on purpose, as
there: a subnet without tags gets no new ENI, but an ENI that is in one already goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network

from ipamd.model.custom_network import CustomNetwork
from ipamd.model.eni import Eni
from ipamd.model.ids import SubnetId

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
    """One subnet as EC2 described it. `free_count`: addresses that EC2 says are free; it says nothing about whole /28s."""

    subnet_id: SubnetId
    cidr: IPv4Network
    availability_zone: str
    vpc_id: str
    free_count: int
    tags: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SubnetPolicy:
    """Where new ENIs may go. `custom`: custom networking's map, None without it; then subnets are discovered if `is_discovering`, else
    the node's own is used."""

    is_discovering: bool = True
    cluster_name: str = ""
    custom: CustomNetwork | None = None


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


def why_excluded(tags: Mapping[str, str], *, cluster_name: str) -> str:
    """Say why an ENI that is in a subnet already gets nothing new, "" if it does. A missing ROLE_TAG excludes nothing."""
    return why_unusable(tags, is_primary=True, cluster_name=cluster_name)


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
    why = "" if subnet is None else why_excluded(subnet.tags, cluster_name=policy.cluster_name)
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
