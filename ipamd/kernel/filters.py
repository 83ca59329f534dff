"""Follow a forwarded packet through the filter chains of other software, as far as interfaces decide. Pure.

A verdict of drop is final in every base chain, so an accept in a table of ours does not help (nft(8), "verdict statement"); what
can be done is to say who drops. The question is only whether *all* new connections of sandboxes are dropped, so in doubt a filter is
not blamed: a rule that accepts some of their traffic by address counts as one that accepts; a rule that takes only a part of all
traffic (ports, states, marks, sets) neither accepts nor drops here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_CHAINS = 64
"""Chains that one packet is followed through. Ours: Docker, firewalld and kube-proxy need fewer than 20."""


class Scope(StrEnum):
    """Which of the packets that fit a rule's interfaces the rule takes."""

    ALL = "all"
    BY_ADDRESS = "by address"
    PART = "part"


class Verdict(StrEnum):
    """What a rule does with a packet."""

    NONE = "none"
    ACCEPT = "accept"
    DROP = "drop"
    RETURN = "return"
    JUMP = "jump"
    GOTO = "goto"


@dataclass(frozen=True, slots=True)
class Interface:
    """A condition on an interface: its name, or the beginning of it when the text ends in `*`."""

    pattern: str
    is_negated: bool = False

    def takes(self, name: str) -> bool:
        """Whether a name fits."""
        fits = name.startswith(self.pattern[:-1]) if self.pattern.endswith("*") else name == self.pattern
        return fits != self.is_negated


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. Every condition must hold; `target` is the chain of a jump or goto."""

    verdict: Verdict
    incoming: tuple[Interface, ...] = ()
    outgoing: tuple[Interface, ...] = ()
    scope: Scope = Scope.ALL
    target: str = ""


@dataclass(frozen=True, slots=True)
class Packet:
    """A new connection between two interfaces."""

    incoming: str
    outgoing: str


def is_dropped(rules: Callable[[str], Sequence[Rule]], chain: str, packet: Packet, *, policy_drops: bool) -> bool:
    """Whether a base chain drops every such packet for certain.

    Args:
        rules: the rules of a chain of the same table, by its name; called once per chain on the way, at most MAX_CHAINS times.
    """
    budget = [MAX_CHAINS]
    verdict = _follow(rules, chain, packet, budget)
    if budget[0] < 0:
        return False  # too long a way: not known
    return verdict is Verdict.DROP or (verdict is Verdict.NONE and policy_drops)


def _follow(rules: Callable[[str], Sequence[Rule]], chain: str, packet: Packet, budget: list[int]) -> Verdict:
    """NONE: the end of the chain was reached, or a return."""
    budget[0] -= 1
    if budget[0] < 0:
        return Verdict.ACCEPT
    for rule in rules(chain):
        if not _takes(rule, packet) or rule.scope is Scope.PART:
            continue
        if rule.verdict in (Verdict.JUMP, Verdict.GOTO):
            inner = _follow(rules, rule.target, packet, budget)
            if inner is Verdict.ACCEPT or (inner is Verdict.DROP and rule.scope is Scope.ALL):
                return inner
            if rule.verdict is Verdict.GOTO and rule.scope is Scope.ALL:
                return Verdict.NONE
        elif rule.verdict is Verdict.ACCEPT:
            return Verdict.ACCEPT
        elif rule.scope is Scope.ALL and rule.verdict is Verdict.DROP:
            return Verdict.DROP
        elif rule.scope is Scope.ALL and rule.verdict is Verdict.RETURN:
            return Verdict.NONE
    return Verdict.NONE


def _takes(rule: Rule, packet: Packet) -> bool:
    return all(one.takes(packet.incoming) for one in rule.incoming) and all(one.takes(packet.outgoing) for one in rule.outgoing)
