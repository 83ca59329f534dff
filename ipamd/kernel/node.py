"""The node's own links and rules: the primary ENI's MTU, and the rule that sends marked packets through table main. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from ipaddress import IPv4Network

from ipamd.kernel import changes, records, ruleset, uapi
from ipamd.kernel.enis import Repair
from ipamd.model import dataplane
from ipamd.model.attachment import VETH_HASH_LENGTH
from ipamd.settings import NetworkConfig


def node_repairs(link: records.Link, rules: Collection[records.Rule], config: NetworkConfig) -> Iterator[Repair]:
    """Compare the primary ENI's link and the node's rules with what they must be."""
    if link.mtu != config.eni_mtu:
        change = changes.set_mtu(link.index, config.eni_mtu, who=link.name)
        yield Repair(change, f"{link.name} (primary) had MTU {link.mtu}", f"set to {config.eni_mtu}")
    main, mark, priority = uapi.RT_TABLE_MAIN, config.connmark, dataplane.MARK_PRIORITY
    has_mark = any(rule.priority == priority and (rule.mark, rule.mask, rule.table) == (mark, mark, main) for rule in rules)
    words = f"rule {priority} fwmark {mark:#x}"
    if ruleset.needs_mark(config) and not has_mark:
        yield Repair(changes.add_rule(priority, table=main, mark=mark), f"{words} was missing", "added")
    yield from _external_service_repairs(rules, config)


def former_settings(rules: Collection[records.Rule], veth_names: Iterable[str], config: NetworkConfig) -> ruleset.FormerSettings:
    """What living sandboxes and open connections need from before a change of settings.

    A rule 1024 is never removed: connections that carry its mark would leave by the wrong ENI, and conntrack keeps them for days.
    """
    current = {config.connmark} if ruleset.needs_mark(config) else set()
    marks = {
        rule.mark
        for rule in rules
        if (rule.priority, rule.table) == (dataplane.MARK_PRIORITY, uapi.RT_TABLE_MAIN) and rule.mark and rule.mark == rule.mask
    }
    prefixes = {name[:-VETH_HASH_LENGTH] for name in veth_names if len(name) > VETH_HASH_LENGTH}
    return ruleset.FormerSettings(tuple(sorted(prefixes - {config.veth_prefix})), tuple(sorted(marks - current)))


def _external_service_repairs(rules: Collection[records.Rule], config: NetworkConfig) -> Iterator[Repair]:
    """Compare the rules of AWS_EXTERNAL_SERVICE_CIDRS; the priority is theirs alone, so others of it are left from before."""
    main, priority = uapi.RT_TABLE_MAIN, dataplane.EXTERNAL_SERVICE_PRIORITY
    wanted = set(config.external_service_cidrs)
    present = {
        IPv4Network((rule.destination, rule.destination_length))
        for rule in rules
        if (rule.priority, rule.table, rule.source) == (priority, main, None) and rule.destination is not None
    }
    for cidr in sorted(wanted - present):
        yield Repair(changes.add_rule(priority, table=main, destination=cidr), f"rule {priority} to {cidr} was missing", "added")
    for cidr in sorted(present - wanted):
        change = changes.delete_rule(priority, table=main, destination=cidr)
        yield Repair(change, f"rule {priority} to {cidr} is not needed", "removed")
