"""The plan as it is, under other settings or on another instance type, and the node's capacity. It reads, and changes nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import InvalidRequestError, NotServingError
from ipamd.model.family import Family
from ipamd.model.placement import Capacity, NodeBounds, capacities, trunk_places
from ipamd.model.plan import AutoTarget, Plan, auto_target, plan, resolved
from ipamd.model.pool import PoolSettings, PoolSnapshot, Refusal
from ipamd.model.record import dataclass, replace
from ipamd.report.sources import Sources
from ipamd.settings import PoolConfig, Settings, contradictions
from ipamd.settings.loading import wrong
from ipamd.settings.parsers import parsed

PLANNED = {item.name for item in dataclasses.fields(PoolSettings)} | {"warm_target"}
"""Fields of PoolConfig that the planner knows; the other settings of the pool change no plan."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A plan with what it was made from.

    `settings`: with the target that auto computed. `auto`: what WARM_TARGET=auto keeps, or would; None where no target
    counts. `obstacles`: what each is in the way of, and the refusal.
    """

    decided: Plan
    snapshot: PoolSnapshot
    settings: PoolSettings
    auto: AutoTarget | None
    obstacles: tuple[tuple[str, Refusal], ...]


def what_if(sources: Sources, changes: Sequence[str] = (), *, instance_type: str = "") -> WhatIf:
    """Plan as the pool would now, from one consistent snapshot.

    Args:
        changes: settings as `NAME=VALUE`; an empty value is the default.
        instance_type: plan with the limits of this type; empty: the node's own.
    Raises: InvalidRequestError for settings and types that are not known or wrong; NotServingError before the first cycle.
    """
    changed, snapshot, settings = changed_settings(sources.settings.now, changes), _snapshot(sources), sources.pool.settings
    is_other_type = instance_type not in ("", snapshot.limits.instance_type)
    if is_other_type:
        limits = sources.limits_of(instance_type)
        if limits is None:
            raise InvalidRequestError(
                f"instance type {instance_type!r} is not in the built-in table", details="check its spelling, as in m5.large"
            )
        snapshot = replace(snapshot, limits=limits)
    if is_other_type or changes:
        limits = snapshot.limits
        max_pods = limits.max_pods if sources.primary_carries_pods else limits.max_pods_without_primary
        settings = changed.pool_settings(max_pods=max_pods, supports_prefixes=limits.supports_prefixes)
    decided = plan(snapshot, settings=settings)
    auto = None if settings.family.is_sparse else auto_target(snapshot, replace(settings, warm_target_auto=True))
    return WhatIf(decided, snapshot, resolved(snapshot, settings), auto, _obstacles(snapshot, decided, settings.family))


def capacity(sources: Sources) -> tuple[InstanceLimits, NodeBounds, tuple[Capacity, ...]]:
    """Count how many pods this node can hold in each mode. EC2 is not asked: the subnet counts only if EC2 has told its room.

    Raises: NotServingError before the first cycle.
    """
    snapshot, settings, network = _snapshot(sources), sources.pool.settings, sources.settings.now.network
    bounds = NodeBounds(
        max_eni=settings.max_eni,
        max_pods=sources.settings.now.pool.max_pods,
        unmanaged_eni_count=snapshot.unmanaged_eni_count,
        trunk_places=trunk_places(snapshot, settings),
        held_count=snapshot.counts.total,
        subnet_free_count=snapshot.growth.room,
        vcpu_count=os.cpu_count() or 0,
        egress=network.egress.egress if network.egress else None,
    )
    modes = capacities(
        snapshot.limits,
        bounds,
        prefixes=settings.prefix_delegation,
        primary_carries_pods=sources.primary_carries_pods,
        family=network.family,
    )
    return snapshot.limits, bounds, modes


def _snapshot(sources: Sources) -> PoolSnapshot:
    snapshot = sources.pool.outlook()
    if snapshot is None:
        raise NotServingError("the pool has not been planned yet", details="the instance's limits are not known yet")
    return snapshot


def changed_settings(settings: Settings, changes: Sequence[str]) -> Settings:
    """Change settings of the pool, each given as `NAME=VALUE` and validated as at start.

    Raises: InvalidRequestError that names every problem at once, an unknown name with the nearest that is known.
    """
    known = {item.metadata["env"]: item for item in dataclasses.fields(PoolConfig) if item.name in PLANNED}
    values: dict[str, Any] = {}
    problems = []
    for change in changes:
        name, is_set, text = change.partition("=")
        item = known.get(name)
        if item is None or not is_set:
            near = get_close_matches(name.upper(), known, n=1, cutoff=0.0)
            unknown = f"{name!r} is no setting of the plan; did you mean {near[0]}?"
            problems.append(unknown if item is None else f"{name}: give it as {name}=VALUE")
            continue
        try:
            values[item.name] = parsed(text, item.metadata["parse"]) if text else item.default
        except ValueError as error:
            problems.append(wrong(name, text, error))
    changed = replace(settings, pool=replace(settings.pool, **values))
    problems += [] if problems else contradictions(changed)
    if problems:
        raise InvalidRequestError(f"{len(problems)} setting(s) are wrong", details="; ".join(problems))
    return changed


def _obstacles(snapshot: PoolSnapshot, decided: Plan, family: Family) -> tuple[tuple[str, Refusal], ...]:
    """Everything that stands in the way of growth, whether or not the plan needs it."""
    known = snapshot.growth
    paused = None if snapshot.fault is None else Refusal(snapshot.fault.reason)
    found = [
        ("all growth", paused),
        ("new ENIs", Refusal(snapshot.frozen) if snapshot.frozen else known.creation),
        ("more on attached ENIs", known.allocation),
        (f"/{family.prefix_length} prefixes", known.prefixes),
        ("more ENIs", known.cap),
        ("host routing", known.host),
    ]
    named = [(what, refusal) for what, refusal in found if refusal is not None]
    if decided.blocked is not None and decided.blocked.reason not in {refusal.reason for _, refusal in named}:
        named.insert(0, ("growth", decided.blocked))
    return tuple(named)
