"""Replies about the pool's plan and capacity, from values of the model; `ipamctl capacity` makes its own without the daemon."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ipamd.model.capacity import Capacity
from ipamd.model.eni import InstanceLimits
from ipamd.model.growth import Action, AllocateAddresses, AllocatePrefixes
from ipamd.model.placement import eni_limit
from ipamd.model.pool_settings import PoolSettings
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.what_if import WhatIf


def plan_reply(what: WhatIf, *, changed: Iterable[str] = ()) -> pb.PlanReply:
    """Write a plan with everything it was made from."""
    snapshot, counts, limits = what.snapshot, what.snapshot.counts, what.snapshot.limits
    return pb.PlanReply(
        sentence=what.decided.sentence,
        actions=[_action(action) for action in what.decided.actions],
        deficit_count=what.decided.deficit_count,
        excess_count=what.decided.excess_count,
        obstacles=[
            pb.Obstacle(subject=subject, reason=refusal.reason, next=refusal.next_step, left_s=refusal.left_s or 0.0)
            for subject, refusal in what.obstacles
        ],
        targets=targets(what.settings),
        auto=_auto(what),
        changed=changed,
        instance_type=limits.instance_type,
        eni_limit=eni_limit(limits, what.settings),
        slots_per_eni=limits.slots_per_eni,
        eni_count=snapshot.known_eni_count + len(snapshot.refused_device_indexes),
        total_count=counts.total,
        free_count=counts.free,
        in_use_count=counts.in_use,
        cooling_count=counts.cooling,
        waiting_count=snapshot.waiting_count,
        under_way=snapshot.growth.pending,
    )


def targets(settings: PoolSettings) -> list[pb.Target]:
    """List the targets and caps; `defined`: whether it has an effect."""
    is_auto = settings.warm_target_auto
    named = {
        "WARM_ENI_TARGET": (settings.warm_eni_target, not settings.ip_targets_defined),
        "WARM_IP_TARGET": (settings.warm_ip_target, settings.warm_ip_target > 0 and not is_auto),
        "MINIMUM_IP_TARGET": (settings.minimum_ip_target, settings.minimum_ip_target > 0),
        "WARM_PREFIX_TARGET": (settings.warm_prefix_target, settings.warm_prefix_target > 0 and not is_auto),
        "MAX_ENI": (settings.max_eni, settings.max_eni > 0),
        "MAX_PODS": (settings.max_pods, settings.max_pods > 0),
    }
    return [pb.Target(name=name, value=value, defined=on) for name, (value, on) in named.items()]


def capacity_reply(limits: InstanceLimits, modes: Iterable[Capacity], *, vcpu_count: int) -> pb.CapacityReply:
    """Write what a node can hold."""
    return pb.CapacityReply(
        instance_type=limits.instance_type,
        limits_source=limits.source,
        vcpu_count=vcpu_count,
        modes=[
            pb.CapacityMode(
                mode=one.mode,
                address_count=one.address_count,
                max_pods=one.max_pods,
                recommended=one.recommended,
                formula=one.formula,
                limited_by=one.limited_by,
                in_force=one.in_force,
            )
            for one in modes
        ],
    )


def _action(action: Action) -> pb.PlannedAction:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(action).__name__).lower()
    addresses, prefixes = len(getattr(action, "addresses", ())), len(getattr(action, "prefixes", ()))
    return pb.PlannedAction(
        kind=kind,
        eni_id=getattr(action, "eni_id", ""),
        address_count=action.count if isinstance(action, AllocateAddresses) else getattr(action, "address_count", addresses),
        prefix_count=action.count if isinstance(action, AllocatePrefixes) else getattr(action, "prefix_count", prefixes),
        text=str(action),
    )


def _auto(what: WhatIf) -> pb.AutoTarget:
    auto, seen = what.auto, what.snapshot.growth.demand
    return pb.AutoTarget(
        in_force=what.settings.warm_target_auto,
        count=auto.count,
        sentence=str(auto),
        reserve_count=auto.reserve_count,
        held_count=auto.held_count,
        arriving_count=auto.arriving_count,
        growth_count=auto.growth_count,
        start_count=auto.start_count,
        peak_count=auto.peak_count,
        busy_count=auto.busy_count,
        most_count=auto.most_count,
        minute_rate=seen.minute_rate,
        ten_minute_rate=seen.ten_minute_rate,
        allocation_s=seen.allocation_s,
        creation_s=seen.creation_s,
    )
