"""Compare and write the `goto` rules that lead packets to the buckets of rules from single addresses.

A bucket is one of 64 priorities over which these rules are spread, so that the kernel tests a packet against few of them. A `goto`
rule leads to a bucket, or to a `nop` rule, which only marks a place (`ipamd/model/source_rules.py` describes the whole tree).

A `goto` rule skips only rules that do not select its packets, so packets go the same way without it, and it may be missing at any
time. In two cases a `goto` rule could skip a rule that does select its packets, and must be removed. First, a rule of other software
may have a priority among ours. Second, an old `goto` rule may divide the subnet of a new ENI in another way; it must be removed before
the ENI's first sandbox is wired.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network
from typing import NamedTuple

from ipamd.kernel import answers, messages, survey
from ipamd.kernel.netlink import Message
from ipamd.kernel.repair import Repair
from ipamd.model import source_rules
from ipamd.model.repairs import RepairCode, RepairKind
from ipamd.model.source_rules import Jump


class TreeChanges(NamedTuple):
    """Additions and removals of `goto` and `nop` rules that have not been made yet.

    `silent`: changes that follow from a decision of the daemon, and are not reported.
    `repairs`: changes that other software made necessary, and that are reported.
    `subnets`: subnets that have their `goto` rules after the changes.
    """

    silent: list[Repair]
    repairs: list[Repair]
    subnets: frozenset[IPv4Network]

    def add(self, repair: Repair, *, is_silent: bool) -> None:
        """Append a change to one of the lists."""
        if is_silent:
            self.silent.append(repair)
        else:
            self.repairs.append(repair)


class SourceTree:
    """Remembers whether the node's rules from single addresses are in buckets, and for which subnets the `goto` rules were written.

    Concurrency: `is_chosen` from any thread; the rest under the lock of `KernelHostNetwork`.
    """

    def __init__(self) -> None:
        self.is_chosen: bool | None = None
        """Whether new rules go into buckets; None until the limits of the instance are known."""
        self._written: frozenset[IPv4Network] = frozenset()

    def changes(self, rules: Collection[answers.PolicyRule], subnets: Iterable[IPv4Network]) -> TreeChanges:
        """Compare the rules of a node with those that the subnets of all its secondary ENIs need.

        While a bucket has a rule, the `goto` rules stay. So after a setting has turned buckets off, the `goto` rules are removed only
        when the last sandbox with a rule in a bucket is gone. While it is not known whether the node uses buckets, there are no
        changes.
        """
        wanted_subnets = frozenset(subnets)
        is_needed = self._is_needed(rules, wanted_subnets)
        if is_needed is None:
            return TreeChanges([], [], frozenset())
        wanted = set[Jump]()
        if is_needed and not _has_stranger(rules):
            wanted = set(source_rules.jumps(wanted_subnets))
        present = _jumps(rules)
        known = set(source_rules.jumps(self._written))
        changes = TreeChanges([], [], wanted_subnets if wanted else frozenset())
        # Removals come before additions, because the kernel treats rules that differ only in the target as the same rule.
        for jump in sorted(present - wanted):
            is_expected = not is_needed or jump in known
            changes.add(_jump_repair(jump, is_wanted=False), is_silent=is_expected)
        for jump in sorted(wanted - present):
            changes.add(_jump_repair(jump, is_wanted=True), is_silent=jump not in known)
        for repair in _nop_repairs(rules, is_wanted=is_needed):
            changes.add(repair, is_silent=not (is_needed and known))
        return changes

    def _is_needed(self, rules: Iterable[answers.PolicyRule], subnets: Collection[IPv4Network]) -> bool | None:
        """Whether the node needs `goto` rules; None if that is not known yet."""
        has_bucket_rules = any(_is_in_bucket(rule) for rule in rules)
        if self.is_chosen is None and not has_bucket_rules:
            return None
        return bool(subnets) and bool(self.is_chosen or has_bucket_rules)

    def record_made(self, changes: TreeChanges) -> None:
        """Remember that changes were made. If one of their rules is missing later, adding it again is a repair."""
        self._written = changes.subnets

    def preparations(self, rules: Collection[answers.PolicyRule], subnet: IPv4Network) -> list[Message]:
        """Return the messages that add the `goto` rules for an ENI that is being set up; none if the node uses no buckets.

        If old `goto` rules divide the ENI's subnet in another way, the messages only remove these. If other software has a rule among
        ours, there are no messages. In these two cases the next reconciliation, which compares all ENIs, decides about the addition.
        """
        wanted = source_rules.jumps([subnet])
        present = _jumps(rules)
        stale = [jump for jump in present.difference(wanted) if jump.source.overlaps(subnet)]
        if stale:
            return [messages.delete_skip(jump.priority, source=jump.source, target=jump.target) for jump in stale]
        if not self.is_chosen or _has_stranger(rules):
            return []
        self._written |= {subnet}
        targets = [repair.change for repair in _nop_repairs(rules, is_wanted=True) if repair.change is not None]
        return targets + _additions(wanted, present)


def _additions(wanted: Iterable[Jump], present: Container[Jump]) -> list[Message]:
    """Return the messages that add the `goto` rules that are wanted and not present."""
    return [messages.add_skip(jump.priority, source=jump.source, target=jump.target) for jump in wanted if jump not in present]


def jump_removals(rules: Iterable[answers.PolicyRule], subnet: IPv4Network) -> list[Message]:
    """Return the messages that remove the `goto` rules for a subnet."""
    return [
        messages.delete_skip(jump.priority, source=jump.source, target=jump.target)
        for jump in sorted(_jumps(rules))
        if jump.source.subnet_of(subnet)
    ]


def skip_removals(rules: Collection[answers.PolicyRule]) -> list[Message]:
    """Return the messages that remove all `goto` rules and their targets."""
    batch = [messages.delete_skip(jump.priority, source=jump.source, target=jump.target) for jump in sorted(_jumps(rules))]
    return batch + [repair.change for repair in _nop_repairs(rules, is_wanted=False) if repair.change is not None]


def all_removals(rules: Collection[answers.PolicyRule]) -> list[Message]:
    """Return the messages that empty the buckets, and remove all `goto` rules and their targets."""
    batch = skip_removals(rules)
    for rule in bucket_rules(rules):
        batch.append(messages.delete_rule(rule.priority, table=rule.table, source=rule.source))
    return batch


def bucket_rules(rules: Iterable[answers.PolicyRule]) -> list[answers.PolicyRule]:
    """Return the rules in buckets. Each selects the packets from a single address."""
    return [rule for rule in rules if _is_in_bucket(rule)]


def _is_in_bucket(rule: answers.PolicyRule) -> bool:
    return rule.priority in source_rules.BUCKET_PRIORITIES and survey.is_from_sandbox(rule)


def _jumps(rules: Iterable[answers.PolicyRule]) -> set[Jump]:
    """Return the `goto` rules that select by source and whose priority is among ours."""
    jumps = set[Jump]()
    for rule in rules:
        if _is_among_ours(rule) and _is_jump(rule):
            source = IPv4Network((str(rule.source), rule.source_length))
            jumps.add(Jump(rule.priority, source, rule.target))
    return jumps


def _is_jump(rule: answers.PolicyRule) -> bool:
    """Whether a rule is a `goto` rule that selects only by an IPv4 source."""
    is_by_more = rule.destination or rule.mask or rule.incoming or rule.protocol or rule.ports or rule.has_other_selectors
    return bool(rule.target) and isinstance(rule.source, IPv4Address) and not is_by_more


def _has_stranger(rules: Iterable[answers.PolicyRule]) -> bool:
    """Whether a rule of other software has a priority that a `goto` rule of ours may skip."""
    among_ours = [rule for rule in rules if _is_among_ours(rule)]
    return any(not (rule.is_nop or _is_in_bucket(rule) or _is_jump(rule)) for rule in among_ours)


def _is_among_ours(rule: answers.PolicyRule) -> bool:
    """Whether the priority of a rule is in the range of our `goto` rules and buckets."""
    return source_rules.JUMP_PRIORITY <= rule.priority < source_rules.END_PRIORITY


def _nop_repairs(rules: Iterable[answers.PolicyRule], *, is_wanted: bool) -> Iterator[Repair]:
    """Yield the additions of the missing `nop` rules if they are wanted, or else the removals of the present ones."""
    present = {rule.priority for rule in rules if rule.is_nop}
    for priority in source_rules.NOP_PRIORITIES:
        if (priority in present) != is_wanted:
            change = messages.add_skip(priority) if is_wanted else messages.delete_skip(priority)
            yield _repair(change, is_wanted=is_wanted)


def _jump_repair(jump: Jump, *, is_wanted: bool) -> Repair:
    make = messages.add_skip if is_wanted else messages.delete_skip
    return _repair(make(jump.priority, source=jump.source, target=jump.target), is_wanted=is_wanted)


def _repair(change: Message, *, is_wanted: bool) -> Repair:
    _, rule = change.step.split(" ", 1)  # without the verb
    return Repair(RepairKind.RULE, RepairCode.ADDED if is_wanted else RepairCode.REMOVED, rule, change)
