"""Pools for certain pods, in addition to the node's own pool, each with its own subnets, security groups and targets (docs/adr/0084).
Pure.

The network file names them:

    "pools": {
      "cards": {"subnets": ["subnet-0a1b"], "securityGroups": ["sg-0c2d"], "warmIpTarget": 2, "reservedEnis": 1, "maxEnis": 2},
      "batch": {"subnetTags": {"team": "batch"}}
    }

The node's own pool has no entry and the empty name.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ipamd.model.eni import OPERATOR, Eni
from ipamd.model.ids import SubnetId
from ipamd.model.json_form import checked_fields, shown
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.record import dataclass, field, replace
from ipamd.model.subnets import DescribedSubnet, checked_groups, checked_subnets
from ipamd.model.words import printable

OWN = ""
"""The name of the node's own pool, for pods that choose no other pool."""

OWN_WORD = "default"
"""The name by which people see the node's own pool. No pool of the file may have this name."""

POOL_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")
"""The form of a pool's name, which is also a label of metrics and a tag of ENIs. Ours: the form of a namespace's name, but shorter."""

POOLS_MAX = 8
"""The most pools of the file. Ours: more pools would fit on few nodes, because each needs an ENI of its own, and most instance types
have 4 to 15 ENIs."""

SUBNETS_MAX = 32
"""The most subnets of one pool. Ours: this is several for each zone of a region."""

COUNT_MAX = 1000
"""The highest value of a target or a number of ENIs. Ours: a higher value is probably a mistake. Only the largest instance types have
more single addresses (1,512 on 24 ENIs), and a pool of pods has only a part of them."""

POOL_FORM = {
    "subnets": list,
    "subnetTags": dict,
    "securityGroups": list,
    "warmIpTarget": int,
    "minimumIpTarget": int,
    "reservedEnis": int,
    "maxEnis": int,
}

POOL = "pools by pod: "
NOT_IN_FILE = f"{POOL}the network file has no pool "
OTHER_SUBNET = f"{POOL}its subnet is none of those of pool "
OTHER_GROUPS = f"{POOL}its security groups are not those of pool "
"""Beginnings of reasons why an ENI of a pool gets no new pods."""


@dataclass(frozen=True, slots=True)
class PodPool:
    """One pool of the file.

    `subnet_ids`, `subnet_tags`: the subnets for its ENIs, either by ID or by tags. Only subnets in the node's zone are used.
    `security_group_ids`: the security groups of its ENIs, ascending; empty: the present security groups of the primary ENI.
    `warm_ip_target`, `minimum_ip_target`: as WARM_IP_TARGET and MINIMUM_IP_TARGET; if both are 0, its first ENI is created for the
        first pod.
    `reserved_enis`: the number of ENIs that other pools must leave to it.
    `max_enis`: the most ENIs that it may have; 0: no cap.
    """

    name: str
    subnet_ids: tuple[SubnetId, ...] = ()
    subnet_tags: Mapping[str, str] = field(default_factory=dict)
    security_group_ids: tuple[str, ...] = ()
    warm_ip_target: int = 0
    minimum_ip_target: int = 0
    reserved_enis: int = 1
    max_enis: int = 0

    def settings(self, own: PoolSettings, *, max_pods: int) -> PoolSettings:
        """Return the pool's settings for the planner: targets of its own, and everything else as in the node's own pool.

        Args:
            own: the settings of the node's own pool.
            max_pods: the most addresses of the pool; 0: no cap.
        """
        return replace(
            own,
            warm_eni_target=0,
            warm_prefix_target=0,
            warm_ip_target=self.warm_ip_target,
            minimum_ip_target=self.minimum_ip_target,
            warm_target_auto=False,
            keeps_one_free=False,
            max_pods=max_pods,
        )

    def has(self, subnet: DescribedSubnet) -> bool:
        """Whether the pool's ENIs may be in a subnet."""
        if self.subnet_ids:
            return subnet.subnet_id in self.subnet_ids
        return all(subnet.tags.get(key) == value for key, value in self.subnet_tags.items())


@dataclass(frozen=True, slots=True)
class PodPools:
    """The pools of the file, in its order."""

    by_name: Mapping[str, PodPool] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.by_name)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all pools, the node's own pool first."""
        return (OWN, *self.by_name)


NO_POOLS = PodPools()


def pool_word(name: str) -> str:
    """Return a pool's name for people and for labels of metrics."""
    return name or OWN_WORD


def pools_of(value: Mapping[str, Any], problems: list[str]) -> PodPools:
    """Read the entry `pools` of the network file, and add every fault to `problems`."""
    pools = {}
    if len(value) > POOLS_MAX:
        problems.append(f"pools: {len(value)}, and a node plans {POOLS_MAX} at most")
        return NO_POOLS
    for name, entry in value.items():
        if name == OWN_WORD or not POOL_NAME.fullmatch(name):
            text = f"lower-case letters, digits and hyphens, 32 at most, not {OWN_WORD!r}"
            problems.append(f"pools: {printable(repr(name))[:80]} is no name of a pool: {text}")
            continue
        pool = _pool(name, entry, problems)
        if pool is not None:
            pools[name] = pool
    return PodPools(pools)


def pool_exclusion(
    eni: Eni, pools: PodPools, subnets: Mapping[SubnetId, DescribedSubnet] | None, *, security_group_ids: Collection[str]
) -> str:
    """Return why no new pod gets an address of an ENI that belongs to a pool of the file; "" if new pods may get its addresses.

    A pod gets the subnet and the security groups of its ENI. So an ENI that does not fit the file's entry of its pool gets no new
    pods. While the subnet's tags or the ENI's security groups are not known, an exclusion that was recorded because of them stays, and
    no new one is made. An ENI that an AWS service manages stays excluded.

    Args:
        subnets: EC2's last answer; None before the first.
        security_group_ids: the security groups of the ENI; empty if they are not known.
    """
    if eni.excluded.startswith(OPERATOR):
        return eni.excluded
    pool = pools.by_name.get(eni.pool)
    if pool is None:
        return f"{NOT_IN_FILE}{eni.pool}"
    if pool.subnet_ids:
        if eni.subnet_id not in pool.subnet_ids:
            return f"{OTHER_SUBNET}{pool.name}"
    elif subnets is None:
        if eni.excluded.startswith(OTHER_SUBNET):
            return eni.excluded
    elif eni.subnet_id in subnets and not pool.has(subnets[eni.subnet_id]):
        return f"{OTHER_SUBNET}{pool.name}"
    return _group_exclusion(eni, pool, security_group_ids)


def _group_exclusion(eni: Eni, pool: PodPool, security_group_ids: Collection[str]) -> str:
    """Return why the security groups of an ENI exclude it from the pool; "" if they do not. While the groups are not known, the ENI's
    recorded reason is returned, if that is a reason about its groups.
    """
    other_groups = f"{OTHER_GROUPS}{pool.name}"
    if not pool.security_group_ids:
        return ""
    if not security_group_ids:
        return other_groups if eni.excluded == other_groups else ""
    return other_groups if set(security_group_ids) != set(pool.security_group_ids) else ""


def _pool(name: str, entry: object, problems: list[str]) -> PodPool | None:
    """Read the entry of one pool, and add every fault to `problems`. Returns: None if it has a fault."""
    location, before = f"pools.{name}", len(problems)
    fields = checked_fields(entry, POOL_FORM, location=location, needed=(), problems=problems)
    subnet_ids = checked_subnets(fields.get("subnets", []), location=location, problems=problems)
    group_ids = checked_groups(fields.get("securityGroups", []), location=location, problems=problems)
    tags = _checked_tags(fields.get("subnetTags", {}), location, problems)
    if isinstance(entry, dict) and bool(fields.get("subnets")) == bool(fields.get("subnetTags")):
        problems.append(f"{location}: needs either subnets or subnetTags")
    if len(subnet_ids) > SUBNETS_MAX:
        problems.append(f"{location}: {len(subnet_ids)} subnets, {SUBNETS_MAX} at most")
    counts = {}
    for key in ("warmIpTarget", "minimumIpTarget", "reservedEnis", "maxEnis"):
        counts[key] = fields.get(key, 1 if key == "reservedEnis" else 0)
        if not 0 <= counts[key] <= COUNT_MAX:
            problems.append(f"{location}: {key} must be from 0 to {COUNT_MAX}, not {shown(counts[key])}")
    if 0 < counts["maxEnis"] < counts["reservedEnis"]:
        problems.append(f"{location}: maxEnis ({counts['maxEnis']}) is below reservedEnis ({counts['reservedEnis']})")
    if len(problems) > before:
        return None
    return PodPool(name, subnet_ids, tags, group_ids, *counts.values())


def _checked_tags(tags: Mapping[str, Any], location: str, problems: list[str]) -> dict[str, str]:
    """Return the tags whose value is a string, and add every other tag to `problems`."""
    checked = {}
    for key, value in tags.items():
        if key and isinstance(value, str):
            checked[key] = value
        else:
            problems.append(f"{location}: subnetTags must map names to strings, not {shown(key)} to {shown(value)}")
    return checked
