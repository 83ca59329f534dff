"""The plan as it is, under other settings or on another instance type, and the node's capacity. It reads, and changes nothing."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, Protocol

from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import InvalidRequestError, NotServingError
from ipamd.model.placement import Capacity, NodeBounds, capacities
from ipamd.model.plan import AutoTarget, Plan, auto_target, plan, resolved
from ipamd.model.pool import PoolSettings, PoolSnapshot, Refusal
from ipamd.ports import Clock
from ipamd.settings import PoolConfig, Settings, contradictions
from ipamd.settings.loading import wrong
from ipamd.settings.parsers import parsed

PLANNED = {item.name for item in dataclasses.fields(PoolSettings)} | {"warm_target"}
"""Fields of PoolConfig that the planner knows; the other settings of the pool change no plan."""


class PoolOutlook(Protocol):
    """The pool, to be read from any thread."""

    @property
    def settings(self) -> PoolSettings:
        """The targets in force."""
        ...

    def outlook(self) -> PoolSnapshot | None:
        """The planner's input now; None before the pool's first cycle."""
        ...


@dataclass(frozen=True, slots=True)
class WhatIf:
    """A plan with what it was made from.

    `settings`: with the target that auto computed. `auto`: what WARM_TARGET=auto keeps, or would. `obstacles`: what each is in the way
    of, and the refusal.
    """

    decided: Plan
    snapshot: PoolSnapshot
    settings: PoolSettings
    auto: AutoTarget
    obstacles: tuple[tuple[str, Refusal], ...]


class WhatIfService:
    """Plans from one consistent snapshot, in any thread."""

    def __init__(
        self,
        pool: PoolOutlook,
        *,
        settings: Callable[[], Settings],
        limits_of: Callable[[str], InstanceLimits | None],
        clock: Clock,
        primary_carries_pods: bool = True,
    ) -> None:
        """`limits_of` looks a type up in the built-in table; with custom networking the primary ENI may carry no pods."""
        self._primary_carries_pods = primary_carries_pods
        self._pool = pool
        self._settings = settings
        self._limits_of = limits_of
        self._clock = clock

    def plan(self, changes: Sequence[str] = (), *, instance_type: str = "") -> WhatIf:
        """Plan as the pool would now.

        Args:
            changes: settings as `NAME=VALUE`; an empty value is the default.
            instance_type: plan with the limits of this type; empty: the node's own.
        Raises: InvalidRequestError for settings and types that are not known or wrong; NotServingError before the first cycle.
        """
        changed, snapshot = changed_settings(self._settings(), changes), self._snapshot()
        if instance_type and instance_type != snapshot.limits.instance_type:
            snapshot = replace(snapshot, limits=self._limits(instance_type))
        elif not changes:
            return _what_if(snapshot, self._pool.settings, self._clock)
        limits = snapshot.limits
        max_pods = limits.max_pods if self._primary_carries_pods else limits.max_pods_without_primary
        settings = changed.pool_settings(max_pods=max_pods, supports_prefixes=limits.supports_prefixes)
        return _what_if(snapshot, settings, self._clock)

    def capacity(self) -> tuple[InstanceLimits, NodeBounds, tuple[Capacity, ...]]:
        """Count how many pods this node can hold in each mode. EC2 is not asked: the subnet counts only if EC2 has told its room.

        Raises: NotServingError before the first cycle.
        """
        snapshot, settings = self._snapshot(), self._pool.settings
        bounds = NodeBounds(
            max_eni=settings.max_eni,
            max_pods=self._settings().pool.max_pods,
            unmanaged_eni_count=snapshot.unmanaged_eni_count,
            held_count=snapshot.counts.total,
            subnet_free_count=snapshot.growth.room,
            vcpu_count=os.cpu_count() or 0,
        )
        modes = capacities(
            snapshot.limits, bounds, prefixes=settings.prefix_delegation, primary_carries_pods=self._primary_carries_pods
        )
        return snapshot.limits, bounds, modes

    def _snapshot(self) -> PoolSnapshot:
        snapshot = self._pool.outlook()
        if snapshot is None:
            raise NotServingError("the pool has not been planned yet", details="the instance's limits are not known yet")
        return snapshot

    def _limits(self, instance_type: str) -> InstanceLimits:
        limits = self._limits_of(instance_type)
        if limits is None:
            raise InvalidRequestError(
                f"instance type {instance_type!r} is not in the built-in table", details="check its spelling, as in m5.large"
            )
        return limits


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
            problems.append(_refusal(name, known) if item is None else f"{name}: give it as {name}=VALUE")
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


def _refusal(name: str, known: dict[str, Any]) -> str:
    near = get_close_matches(name.upper(), known, n=1, cutoff=0.0)
    return f"{name!r} is no setting of the plan; did you mean {near[0]}?"


def _what_if(snapshot: PoolSnapshot, settings: PoolSettings, clock: Clock) -> WhatIf:
    decided = plan(snapshot, settings=settings, now=clock.now())
    auto = auto_target(snapshot, replace(settings, warm_target_auto=True))
    return WhatIf(decided, snapshot, resolved(snapshot, settings), auto, _obstacles(snapshot, decided))


def _obstacles(snapshot: PoolSnapshot, decided: Plan) -> tuple[tuple[str, Refusal], ...]:
    """Everything that stands in the way of growth, whether or not the plan needs it."""
    known = snapshot.growth
    paused = Refusal(snapshot.blocked_reason) if snapshot.retry_at is not None else None
    found = [
        ("all growth", paused),
        ("new ENIs", Refusal(snapshot.frozen) if snapshot.frozen else known.creation),
        ("more on attached ENIs", known.allocation),
        ("/28 prefixes", known.prefixes),
        ("more ENIs", known.cap),
        ("host routing", known.host),
    ]
    named = [(what, refusal) for what, refusal in found if refusal is not None]
    if decided.blocked is not None and decided.blocked.reason not in {refusal.reason for _, refusal in named}:
        named.insert(0, ("growth", decided.blocked))
    return tuple(named)
