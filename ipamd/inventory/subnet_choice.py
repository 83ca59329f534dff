"""Choose a cluster's subnets out of those of its VPC, with the tags that EKS and its CNI use. Pure.

If the order names subnets, these are chosen. Otherwise a subnet belongs to the cluster if it has one of these tags:
`kubernetes.io/cluster/NAME`, which eksctl and most templates set; `cni.networking.k8s.aws/cluster/NAME`; or
`kubernetes.io/role/cni`, unless the subnet has cluster tags of other clusters only. Nodes can run in a subnet without any of these
tags, so a choice by tags can be empty. That is an error whose text has the next step. Sources:
https://docs.aws.amazon.com/eks/latest/userguide/network-reqs.html; docs/subnet-discovery.md of amazon-vpc-cni-k8s.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import SubnetId
from ipamd.model.subnets import CLUSTER_TAG_PREFIX, ROLE_TAG, DescribedSubnet, matches_cluster

EKS_TAG_PREFIX = "kubernetes.io/cluster/"

ALL = "all"
"""The word in place of IDs that chooses every subnet of the VPC."""


def cluster_subnets(
    subnets: Iterable[DescribedSubnet], *, vpc_id: str, cluster_name: str, names: Collection[str] = ()
) -> list[DescribedSubnet]:
    """Choose the cluster's subnets, in the order of `subnets`.

    Args:
        names: IDs of subnets, or `ALL` alone. If it is empty, tags choose.
    Raises: SettingsError if a named subnet is not in the VPC, or no subnet is chosen.
    """
    listed = list(subnets)
    if names and set(names) != {ALL}:
        return _named_subnets(listed, names, vpc_id=vpc_id)
    chosen = listed
    if not names:
        chosen = [subnet for subnet in listed if _is_tagged(subnet.tags, cluster_name)]
    if not chosen:
        raise failure(SettingsError, FailureCode.INVENTORY_WITHOUT_SUBNETS, vpc=vpc_id, count=len(listed), cluster=cluster_name)
    return chosen


def _named_subnets(listed: Sequence[DescribedSubnet], names: Collection[str], *, vpc_id: str) -> list[DescribedSubnet]:
    known = {subnet.subnet_id for subnet in listed}
    missing = sorted(set(names) - known)
    if missing:
        raise failure(SettingsError, FailureCode.INVENTORY_SUBNET_UNKNOWN, subnets=", ".join(missing), vpc=vpc_id)
    return [subnet for subnet in listed if subnet.subnet_id in names]


def _is_tagged(tags: Mapping[str, str], cluster_name: str) -> bool:
    if f"{EKS_TAG_PREFIX}{cluster_name}" in tags or f"{CLUSTER_TAG_PREFIX}{cluster_name}" in tags:
        return True
    return bool(tags.get(ROLE_TAG)) and matches_cluster(tags, cluster_name)


def by_age(subnets: Iterable[DescribedSubnet], read_at_s: Mapping[SubnetId, float]) -> list[DescribedSubnet]:
    """Sort by the times in `read_at_s`, oldest first. Subnets without a time come before all others, sorted by ID."""
    return sorted(subnets, key=lambda subnet: (read_at_s.get(subnet.subnet_id, float("-inf")), subnet.subnet_id))
