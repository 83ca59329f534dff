"""Compute the pool's plan, with the present or with other settings, for this or for another instance type, and the node's capacity.

Nothing is changed.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from ipamd.model.auto_target import AutoTarget, auto_target, resolved
from ipamd.model.capacity import Capacity, NodeBounds, SubnetRoom, capacities
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import InvalidRequestError, NotServingError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import Family
from ipamd.model.growth_state import GrowthRefusal, growth_refusal
from ipamd.model.placement import trunk_places
from ipamd.model.plan import Plan, plan
from ipamd.model.pod_pools import OWN, OWN_WORD, pool_word
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.record import dataclass, replace
from ipamd.model.words import printable
from ipamd.report.sources import Sources
from ipamd.settings import PoolConfig, Settings, contradictions
from ipamd.settings.loading import wrong
from ipamd.settings.parsers import parsed

NAME_SHOWN = 40
"""The largest number of characters of an unknown pool's name that a refusal shows. Ours: the name of a pool has 32 at most."""

PLANNED = {setting.name for setting in dataclasses.fields(PoolSettings)} | {"warm_target"}
"""The names of the fields of PoolConfig that the planner reads. The other settings of the pool change no plan."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A plan and its inputs.

    `decided`: the plan.
    `snapshot`: the state of the pool from which the plan was made.
    `settings`: the settings of the plan. In the mode `auto` they have the target that this mode computed.
    `auto`: the target that the mode `auto` would compute, also if another mode is set; None for IPv6, where targets have no effect,
        and for a pool of pods.
    `obstacles`: for each kind of growth that is blocked, its name and the refusal that blocks it.
    """

    decided: Plan
    snapshot: PoolSnapshot
    settings: PoolSettings
    auto: AutoTarget | None
    obstacles: tuple[tuple[str, GrowthRefusal], ...]


def what_if(sources: Sources, changes: Sequence[str] = (), *, instance_type: str = "", pool: str = OWN) -> WhatIf:
    """Compute the plan that the pool would make now, from one consistent snapshot.

    Args:
        changes: settings to change, as `NAME=VALUE`; an empty value stands for the default.
        instance_type: the instance type whose limits are used; "" for the node's own type.
        pool: the name of a pool of pods in the network file; "" or `default` for the node's own pool.
    Raises: InvalidRequestError if a setting, the type or the pool is not known, or a value is wrong; NotServingError before the first
        cycle.
    """
    pool = _known_pool(sources, pool)
    changed, snapshot, settings = changed_settings(sources.settings.now, changes), _snapshot(sources, pool), sources.pool.settings
    is_other_type = instance_type not in ("", snapshot.limits.instance_type)
    if is_other_type:
        limits = sources.limits_of(instance_type)
        if limits is None:
            raise failure(InvalidRequestError, FailureCode.INSTANCE_TYPE_UNKNOWN, instance_type=instance_type)
        snapshot = replace(snapshot, limits=limits)
    if is_other_type or changes:
        limits = snapshot.limits
        max_pods = limits.max_pods_without_primary
        if sources.primary_carries_pods:
            max_pods = limits.max_pods
        settings = changed.pool_settings(max_pods=max_pods, supports_prefixes=limits.supports_prefixes)
    settings = sources.pool.targets_of(pool, settings)
    decided = plan(snapshot, settings=settings)
    auto = None
    if not settings.family.is_sparse and not pool:
        auto = auto_target(snapshot, replace(settings, warm_target_auto=True))
    return WhatIf(decided, snapshot, resolved(snapshot, settings), auto, _obstacles(snapshot, decided, settings.family))


def capacity(sources: Sources) -> tuple[InstanceLimits, NodeBounds, tuple[Capacity, ...]]:
    """Compute how many pods this node can hold in each mode.

    EC2 is not asked, so the free addresses of the subnets count only if an earlier answer showed their number.
    Returns: the limits of the instance type, the other bounds of this node, and the capacity in each mode.
    Raises: NotServingError before the first cycle.
    """
    snapshot, settings, network = _snapshot(sources), sources.pool.settings, sources.settings.now.network
    local_range = None
    if network.extra_family:
        local_range = network.extra_family.local_range
    bounds = NodeBounds(
        max_eni=settings.max_eni,
        max_pods=sources.settings.now.pool.max_pods,
        unmanaged_eni_count=snapshot.unmanaged_eni_count - snapshot.other_pool_eni_count,
        trunk_places=trunk_places(snapshot, settings),
        own_address_count=snapshot.counts.total,
        subnet_room=_subnet_room(sources, snapshot),
        vcpu_count=os.cpu_count() or 0,
        local_range=local_range,
    )
    modes = capacities(
        snapshot.limits,
        bounds,
        prefixes=settings.prefix_delegation,
        primary_carries_pods=sources.primary_carries_pods,
        family=network.family,
    )
    return snapshot.limits, bounds, modes


def _subnet_room(sources: Sources, snapshot: PoolSnapshot) -> SubnetRoom | None:
    """Return the free addresses of the subnets in which ENIs of the node's own pool may be created; None if they are not known.

    Without an answer of EC2 about the subnets, new ENIs are created in the default subnet only, and the number of its free addresses
    is known only after EC2 has refused a request for want of addresses.
    """
    candidates = [subnet for subnet in sources.subnets() if subnet.is_candidate]
    if not candidates:
        if snapshot.growth.room is None:
            return None
        return SubnetRoom(snapshot.growth.room)
    if any(subnet.free_count < 0 for subnet in candidates):
        return None
    free_count = sum(subnet.free_count for subnet in candidates)
    return SubnetRoom(free_count, len(candidates), max(subnet.answer_age_s for subnet in candidates))


def _known_pool(sources: Sources, name: str) -> str:
    """Return the planner's name for a pool, which is "" for the node's own. Raises: InvalidRequestError if there is no such pool."""
    if name in (OWN, OWN_WORD):
        return OWN
    names = sources.pool.pools.names
    if name not in names:
        known = ", ".join(map(pool_word, names))
        raise failure(InvalidRequestError, FailureCode.POOL_UNKNOWN, pool=printable(name)[:NAME_SHOWN], known=known)
    return name


def _snapshot(sources: Sources, pool: str = OWN) -> PoolSnapshot:
    snapshot = sources.pool.preview(pool)
    if snapshot is None:
        raise failure(NotServingError, FailureCode.POOL_NOT_PLANNED)
    return snapshot


def changed_settings(settings: Settings, changes: Sequence[str]) -> Settings:
    """Change settings of the pool, each given as `NAME=VALUE`. They are validated in the same way as at the start.

    Raises: InvalidRequestError that lists every problem. For an unknown name it suggests the most similar known name.
    """
    fields = {field.metadata["env"]: field for field in dataclasses.fields(PoolConfig) if field.name in PLANNED}
    values: dict[str, Any] = {}
    problems = []
    for change in changes:
        name, has_value, text = change.partition("=")
        setting = fields.get(name)
        if setting is None:
            problems.append(f"{name!r} is no setting of the plan; did you mean {_nearest(name, fields)}?")
            continue
        if not has_value:
            problems.append(f"{name}: give it as {name}=VALUE")
            continue
        try:
            values[setting.name] = setting.default
            if text:
                values[setting.name] = parsed(text, setting.metadata["parse"])
        except ValueError as error:
            problems.append(wrong(name, text, error))
    changed = replace(settings, pool=replace(settings.pool, **values))
    if not problems:
        problems = contradictions(changed)
    if problems:
        raise failure(InvalidRequestError, FailureCode.SETTINGS_WRONG, count=len(problems), problems="; ".join(problems))
    return changed


def _nearest(name: str, names: Iterable[str]) -> str:
    """Return the known name that is spelt most like `name`."""
    return get_close_matches(name.upper(), names, n=1, cutoff=0.0)[0]


def _obstacles(snapshot: PoolSnapshot, decided: Plan, family: Family) -> tuple[tuple[str, GrowthRefusal], ...]:
    """Return everything that blocks growth: refusals also while the plan needs no growth, a full node only if it does.

    Returns: for each kind of growth that is blocked, its name and the refusal that blocks it.
    """
    growth = snapshot.growth
    fault, creation = None, growth.creation
    if snapshot.fault is not None:
        fault = GrowthRefusal(snapshot.fault.cause)
    if snapshot.frozen:
        creation = growth_refusal(snapshot.frozen)
    refusals = [
        ("all growth", fault),
        ("new ENIs", creation),
        ("more on attached ENIs", growth.allocation),
        (f"/{family.prefix_length} prefixes", growth.prefixes),
        ("more ENIs", growth.eni_cap_refusal),
        ("host routing", growth.host),
    ]
    obstacles = [(blocked, refusal) for blocked, refusal in refusals if refusal is not None]
    if decided.blocked is None or not decided.deficit_count:
        return tuple(obstacles)
    # The plan's cause may combine the causes of these refusals. If it has a part that none of them has, it is an obstacle of its own.
    named = {part for _, refusal in obstacles for part in refusal.cause.parts}
    if not named.issuperset(decided.blocked.cause.parts):
        obstacles.insert(0, ("growth", decided.blocked))
    return tuple(obstacles)
