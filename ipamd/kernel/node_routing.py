"""Compare the node's own link and rules with what they should be, and list the repairs. Pure.

The link is the primary ENI's, of which only the MTU is compared. The rules lead to table main (marked packets, and packets to
AWS_EXTERNAL_SERVICE_CIDRS) or serve strict mode. Settings of the link and routes are compared in `sysctls` and `static_default_route`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv4Network
from typing import NamedTuple, Self

from ipamd.kernel import answers, messages, ruleset, uapi
from ipamd.kernel.repair import Repair, rule_repair
from ipamd.model import kernel_numbers
from ipamd.model.attachment import VETH_HASH_LENGTH
from ipamd.model.family import IPV4, IPV6, IPV6_GATEWAY, Family
from ipamd.model.kernel_numbers import STRICT_MARK
from ipamd.model.repairs import RepairCode, RepairKind
from ipamd.settings import NetworkConfig


def node_repairs(link: answers.Link, rules: Collection[answers.PolicyRule], config: NetworkConfig) -> Iterator[Repair]:
    """Yield the repairs of the MTU of the primary ENI's link, and of the node's rules to table main."""
    if link.mtu != config.eni_mtu:
        change = messages.change_link(link.index, step=f"set MTU of {link.name}", mtu=config.eni_mtu)
        target = f"MTU of {link.name} (primary)"
        yield Repair(RepairKind.LINK, RepairCode.VALUE_SET, target, change, before=str(link.mtu), after=str(config.eni_mtu))
    if config.family is not IPV4:  # IPv6 needs no mark, and AWS_EXTERNAL_SERVICE_CIDRS are of IPv4
        return
    main = uapi.RT_TABLE_MAIN
    mark = config.connmark
    priority = kernel_numbers.MARK_PRIORITY
    has_mark = any((rule.priority, rule.mark, rule.mask, rule.table) == (priority, mark, mark, main) for rule in rules)
    if ruleset.needs_mark(config) and not has_mark:
        yield rule_repair(priority, table=main, mark=mark, is_wanted=True)
    # Only rules for AWS_EXTERNAL_SERVICE_CIDRS have this priority, so a rule for any other CIDR is of an earlier setting.
    priority = kernel_numbers.EXTERNAL_SERVICE_PRIORITY
    wanted = set(config.external_service_cidrs)
    present = set[IPv4Network]()
    for rule in rules:
        if (rule.priority, rule.table, rule.source) == (priority, main, None) and rule.destination is not None:
            present.add(IPv4Network((rule.destination, rule.destination_length)))
    for cidr in (*sorted(wanted - present), *sorted(present - wanted)):
        yield rule_repair(priority, table=main, destination=cidr, is_wanted=cidr in wanted)


def strict_repairs(rules: Collection[answers.PolicyRule], config: NetworkConfig, is_strict: bool) -> Iterator[Repair]:
    """Yield the repairs of two rules that strict mode needs: the rule to table local, and the rule for reverse lookups, which are the
    lookups by which nftables checks the source of a packet.

    In strict mode the rule to table local must come after the rules of uplinks. Without strict mode it must have its usual priority,
    and there must be no rule for reverse lookups.

    The rule to table local is added at its new priority before it is removed at the old one, so that every packet finds it. With IPv6
    a further rule to table local, for packets of the VPC's router, stays ahead of all other rules. Without it the node would send the
    router's neighbour discovery back. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, SetupHostNetwork.

    `is_strict`: whether any sandbox of the node is in strict mode.
    """
    present = _StrictRules.among(rules)
    usual, moved = kernel_numbers.LOCAL_PRIORITY, kernel_numbers.MOVED_LOCAL_PRIORITY
    if is_strict:
        if not present.has_reverse:
            yield _reverse_repair(config.family, is_wanted=True)
        yield from _move_local_rule(present, config.family, old=usual, new=moved, is_needed=True)
        # `_move_local_rule` removes the router's rule together with the old rule to table local.
        if config.family is IPV6 and (not present.has_router or usual in present.local_priorities):
            yield _router_repair(config.family, is_wanted=True)
    else:
        yield from _move_local_rule(present, config.family, old=moved, new=usual, is_needed=False)
        if present.has_reverse:
            yield _reverse_repair(config.family, is_wanted=False)


class _StrictRules(NamedTuple):
    """The rules of the node that `strict_repairs` compares.

    `local_priorities`: priorities of the rules that lead every packet to table local.
    `has_router`: whether the rule to table local for packets of the VPC's IPv6 router exists.
    `has_reverse`: whether the rule for reverse lookups exists.
    """

    local_priorities: frozenset[int]
    has_router: bool
    has_reverse: bool

    @classmethod
    def among(cls, rules: Collection[answers.PolicyRule]) -> Self:
        """Pick the rules that `strict_repairs` compares from all rules of the node."""
        to_local = [rule for rule in rules if rule.table == uapi.RT_TABLE_LOCAL]
        router = (kernel_numbers.LOCAL_PRIORITY, IPV6_GATEWAY, uapi.IPPROTO_ICMPV6)
        reverse = (kernel_numbers.STRICT_PRIORITY, kernel_numbers.STRICT_TABLE, STRICT_MARK, STRICT_MARK, "lo")
        return cls(
            frozenset(rule.priority for rule in to_local if not _has_selector(rule)),
            any((rule.priority, rule.source, rule.protocol) == router for rule in to_local),
            any((rule.priority, rule.table, rule.mark, rule.mask, rule.incoming) == reverse for rule in rules),
        )


def _has_selector(rule: answers.PolicyRule) -> bool:
    return bool(rule.source or rule.destination or rule.mask or rule.incoming or rule.protocol)


def _move_local_rule(present: _StrictRules, family: Family, *, old: int, new: int, is_needed: bool) -> Iterator[Repair]:
    """Yield the repairs that move the rule to table local from the priority `old` to `new`.

    `is_needed`: add the rule at `new` even if there is none at `old`.
    """
    has_old = old in present.local_priorities
    if new not in present.local_priorities and (is_needed or has_old):
        yield rule_repair(new, table=uapi.RT_TABLE_LOCAL, family=family, is_wanted=True)
    if not has_old:
        return
    # When strict mode begins, the router's rule has the priority `old` too, and the kernel would remove it instead of the old rule.
    # So it is removed first, and `strict_repairs` adds it again. When strict mode ends, the router's rule is not needed any more.
    if present.has_router:
        yield _router_repair(family, is_wanted=False)
    yield rule_repair(old, table=uapi.RT_TABLE_LOCAL, family=family, is_wanted=False)


def _router_repair(family: Family, *, is_wanted: bool) -> Repair:
    return rule_repair(
        kernel_numbers.LOCAL_PRIORITY,
        table=uapi.RT_TABLE_LOCAL,
        source=IPV6_GATEWAY,
        protocol=uapi.IPPROTO_ICMPV6,
        family=family,
        is_wanted=is_wanted,
    )


def _reverse_repair(family: Family, *, is_wanted: bool) -> Repair:
    return rule_repair(
        kernel_numbers.STRICT_PRIORITY,
        table=kernel_numbers.STRICT_TABLE,
        mark=STRICT_MARK,
        incoming="lo",
        family=family,
        is_wanted=is_wanted,
    )


def mark_removals(marks: Iterable[int]) -> Iterator[Repair]:
    """Yield the repairs that remove the rules of former marks. `marks`: the former marks that no connection has any more."""
    for mark in marks:
        priority = kernel_numbers.MARK_PRIORITY
        change = messages.delete_rule(priority, table=uapi.RT_TABLE_MAIN, mark=mark)
        yield Repair(RepairKind.RULE, RepairCode.REMOVED, f"rule {priority} fwmark {mark:#x} of a former setting", change)


def former_settings(
    rules: Collection[answers.PolicyRule], veth_names: Iterable[str], config: NetworkConfig
) -> ruleset.FormerSettings:
    """Return the earlier settings that living sandboxes and open connections may still need.

    A former mark is every mark, other than the present one, that still has a rule (MARK_PRIORITY). `KernelHostNetwork` removes the
    rule once no open connection carries the mark, perhaps after days: without the rule such a connection would leave by the wrong ENI.

    `veth_names`: names of host veths whose prefix is not the configured one.
    """
    current = set()
    if ruleset.needs_mark(config):
        current = {config.connmark}
    marks = set[int]()
    for rule in rules:
        is_mark_rule = (rule.priority, rule.table) == (kernel_numbers.MARK_PRIORITY, uapi.RT_TABLE_MAIN)
        if is_mark_rule and rule.mark and rule.mark == rule.mask:
            marks.add(rule.mark)
    prefixes = {name[:-VETH_HASH_LENGTH] for name in veth_names if len(name) > VETH_HASH_LENGTH}
    return ruleset.FormerSettings(tuple(sorted(prefixes - {config.veth_prefix})), tuple(sorted(marks - current)))
