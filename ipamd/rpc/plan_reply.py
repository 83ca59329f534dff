"""Convert the pool's plan to messages of the introspection service."""

from __future__ import annotations

import re

from ipamd.answers import answer
from ipamd.model.capacity import ADDRESSES_MAX, most_addresses
from ipamd.model.eni import InstanceLimits
from ipamd.model.growth_state import GrowthRefusal, RetryOutcome
from ipamd.model.placement import eni_limit
from ipamd.model.pool_actions import Action, Allocate
from ipamd.model.pool_settings import PoolSettings
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.what_if import WhatIf


def plan_reply(plan: WhatIf, *, changed: tuple[str, ...] = (), network: pb.NetworkPlan | None = None) -> pb.PlanReply:
    """Make the message of a plan and of its inputs.

    Args:
        changed: the changed settings, as NAME=VALUE, and the other instance type, if the request had any.
        network: the judgement of a network file, if the request had one.
    """
    snapshot, counts = plan.snapshot, plan.snapshot.counts
    in_prefix_mode = has_prefix_mode(snapshot.limits, plan.settings)
    return answer(
        pb.PlanReply,
        plan.decided,
        snapshot.limits,
        snapshot,
        actions=[_action(action) for action in plan.decided.actions],
        obstacles=[obstacle(subject, refusal) for subject, refusal in plan.obstacles],
        targets=targets(plan.settings, in_prefix_mode=in_prefix_mode),
        prefix_mode=in_prefix_mode,
        address_limit=_address_limit(plan),
        auto=_auto_target(plan),
        changed=changed,
        eni_limit=eni_limit(snapshot.limits, plan.settings),
        eni_count=snapshot.known_eni_count + len(snapshot.refused_device_indexes),
        **{f"{name}_count": getattr(counts, name) for name in ("total", "free", "in_use", "cooling")},
        in_progress=snapshot.growth.pending,
        network=network,
    )


def obstacle(subject: str, refusal: GrowthRefusal, *, outcome: str = "") -> pb.Obstacle:
    """Make the message of a refusal that blocks growth.

    `subject`: the kind of growth, or of request, that is blocked. `outcome`: a `RetryState`, if an operator let it be made again.
    """
    return answer(
        pb.Obstacle,
        refusal,
        subject=subject,
        next=refusal.next_step,
        retry_in_s=refusal.left_s,
        operations=list(dict.fromkeys(refused.operation for refused in refusal.cause.refusals)),
        outcome=outcome,
    )


def retried(outcome: RetryOutcome) -> pb.Obstacle:
    """Make the message of a request that an operator let be made again."""
    if outcome.refusal is None:
        return pb.Obstacle(subject=outcome.subject, outcome=outcome.state)
    return obstacle(outcome.subject, outcome.refusal, outcome=outcome.state)


def _auto_target(plan: WhatIf) -> pb.AutoTarget | None:
    auto, demand = plan.auto, plan.snapshot.growth.demand
    if auto is None:
        return None
    return answer(
        pb.AutoTarget,
        auto,
        demand,
        in_force=plan.settings.warm_target_auto,
        sentence=str(auto),
        held_reserve_count=auto.effective_reserve_count,
        in_use_count=auto.busy_count,
        max_count=auto.most_count,
        expected_at_start_count=auto.start_count,
        adds_per_s_1m=demand.minute_rate,
        adds_per_s_10m=demand.ten_minute_rate,
    )


def has_prefix_mode(limits: InstanceLimits, settings: PoolSettings) -> bool:
    """Whether the pool grows by /28 prefixes; False for IPv6, whose ENI has one /80."""
    return settings.prefix_delegation and limits.supports_prefixes and not settings.family.is_sparse


def _address_limit(plan: WhatIf) -> int:
    """Count the addresses that the pool could have at most; 0 for IPv6, where the count limits nothing."""
    if plan.settings.family.is_sparse:
        return 0
    return min(most_addresses(plan.snapshot, plan.settings), plan.settings.max_pods or ADDRESSES_MAX)


def targets(settings: PoolSettings, *, in_prefix_mode: bool) -> list[pb.Target]:
    """List the targets and caps of a pool. In each message the field `defined` shows whether the target or cap has an effect."""
    has_targets, is_fixed = not settings.family.is_sparse, not settings.warm_target_auto
    by_units = not settings.ip_targets_defined
    in_effect = {
        "warm_eni_target": by_units and not in_prefix_mode,
        "warm_ip_target": is_fixed and settings.warm_ip_target > 0,
        "minimum_ip_target": settings.minimum_ip_target > 0,
        "warm_prefix_target": by_units and in_prefix_mode,
        "max_eni": settings.max_eni > 0,
        "max_pods": settings.max_pods > 0,
    }
    messages = []
    for name, is_set in in_effect.items():
        variable = name.upper()
        if name == "max_pods":
            variable = "VPC_IPAMD_MAX_PODS"
        messages.append(pb.Target(name=variable, value=getattr(settings, name), defined=is_set and has_targets))
    return messages


def _action(action: Action) -> pb.PlannedAction:
    kind = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", type(action).__name__).lower()
    if isinstance(action, Allocate) and action.prefix_count:
        kind = "allocate-prefixes"
    elif isinstance(action, Allocate):
        kind = "allocate-addresses"
    addresses, prefixes = len(getattr(action, "addresses", ())), len(getattr(action, "prefixes", ()))
    return pb.PlannedAction(
        kind=kind,
        eni_id=getattr(action, "eni_id", ""),
        address_count=getattr(action, "address_count", addresses),
        prefix_count=getattr(action, "prefix_count", prefixes),
        text=str(action),
    )
