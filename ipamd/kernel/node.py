"""The node's own links and rules: the primary ENI's MTU, and the rule that sends marked packets through table main. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ipamd.config import NetworkConfig
from ipamd.kernel import changes, records, ruleset, uapi
from ipamd.kernel.enis import Repair
from ipamd.model import dataplane


def node_repairs(link: records.Link, rules: Iterable[records.Rule], config: NetworkConfig) -> Iterator[Repair]:
    """Compare the primary ENI's link and the node's rules with what they must be."""
    if link.mtu != config.eni_mtu:
        change = changes.set_mtu(link.index, config.eni_mtu, who=link.name)
        yield Repair(change, f"{link.name} (primary) had MTU {link.mtu}", f"set to {config.eni_mtu}")
    main, mark, priority = uapi.RT_TABLE_MAIN, config.connmark, dataplane.MARK_PRIORITY
    has_mark = any(rule.priority == priority and (rule.mark, rule.mask, rule.table) == (mark, mark, main) for rule in rules)
    words = f"rule {priority} fwmark {mark:#x}"
    if ruleset.needs_mark(config) and not has_mark:
        yield Repair(changes.add_rule(priority, table=main, mark=mark), f"{words} was missing", "added")
    if not ruleset.needs_mark(config) and has_mark:
        yield Repair(changes.delete_rule(priority, table=main, mark=mark), f"{words} is not needed", "removed")
