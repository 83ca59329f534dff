"""Rules of our nftables tables for new connections, as values: their text for nftables, and a test of which packets they select. Pure.

`ruleset` writes the tables from these values. `ipamctl path` applies the same values to a packet, so its answer agrees with the rules.
A condition has its text and its test side by side, so that a change is made to both.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from fnmatch import fnmatchcase
from typing import NamedTuple

from ipamd.model.family import Family, IpAddress, IpNetwork
from ipamd.model.packet_path import NewConnection


class PacketCondition(NamedTuple):
    """One condition of a rule.

    `text`: the condition in the syntax of nftables.
    `holds`: whether the first packet of a connection meets the condition.
    """

    text: str
    holds: Callable[[NewConnection], bool]


class TranslationRule(NamedTuple):
    """A rule of nftables that applies its action to the packets that meet all its conditions.

    `conditions`: its conditions, in the order of their text.
    `action`: its action in the syntax of nftables.
    """

    conditions: tuple[PacketCondition, ...]
    action: str

    def __str__(self) -> str:
        return " ".join([*(condition.text for condition in self.conditions), self.action])

    def selects(self, packet: NewConnection) -> bool:
        """Whether every condition holds."""
        return all(condition.holds(packet) for condition in self.conditions)


RETURN = "return"
"""The action that leaves a chain."""

NEW = PacketCondition("ct state new", lambda _: True)

NOT_FOR_NODE = PacketCondition("fib daddr type != local", lambda packet: not packet.is_for_node)


def first_selecting(rules: Iterable[TranslationRule], packet: NewConnection) -> TranslationRule | None:
    """Return the rule of a chain that decides about a packet; None if no rule does, or if a rule returns from the chain first."""
    rule = next((rule for rule in rules if rule.selects(packet)), None)
    if rule is None or rule.action == RETURN:
        return None
    return rule


def comes_by(prefix: str, former: Collection[str]) -> PacketCondition:
    """Select packets that arrive by a host veth.

    `former`: prefixes of earlier settings. They are in the test, but not in the text: `ruleset` repeats the rule's text for each of
    them.
    """
    patterns = [f"{name}*" for name in (prefix, *former)]
    return PacketCondition(f'iifname "{prefix}*"', lambda packet: _fits_any(packet.incoming, patterns))


def leaves_by(pattern: str) -> PacketCondition:
    """Select packets by the name of the link that they leave by."""
    return PacketCondition(f'oifname "{pattern}"', lambda packet: _fits_any(packet.outgoing, [pattern]))


def is_to(text: str, networks: Collection[IpNetwork]) -> PacketCondition:
    """Select packets to networks. `text`: the text of the whole condition, which may name an nftables set of these networks."""
    return PacketCondition(text, lambda packet: _is_in(packet.destination, networks))


def is_not_to(text: str, networks: Collection[IpNetwork]) -> PacketCondition:
    """Select packets to any address outside networks. `text`: as in `is_to`."""
    return PacketCondition(text, lambda packet: not _is_in(packet.destination, networks))


def is_from(family: Family, network: IpNetwork) -> PacketCondition:
    """Select packets from a network."""
    return PacketCondition(f"{family.nft} saddr {network}", lambda packet: _is_in(packet.source, [network]))


def is_from_set(name: str, addresses: Collection[IpAddress]) -> PacketCondition:
    """Select packets from the addresses in an nftables set of IPv4 addresses. `name`: of the set. `addresses`: its elements."""
    return PacketCondition(f"ip saddr @{name}", lambda packet: packet.source in addresses)


def _fits_any(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _is_in(address: IpAddress | None, networks: Iterable[IpNetwork]) -> bool:
    return address is not None and any(address in network for network in networks)
