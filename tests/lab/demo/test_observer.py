"""The observers of I1: the address ledgers and the reading of netlink events."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

import pytest

from lab.demo.ledger import AddressLedger, Reuse
from lab.demo.observer import LinkGone, RouteMade, parse

ADDRESS, OTHER = IPv4Address("10.0.0.5"), IPv4Address("10.0.0.6")
SIX = IPv6Address("2600:1f14:abc:de00:9::5")


class Clock:
    """A clock that is set by hand."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_two_holders_at_once_are_a_conflict() -> None:
    """Also over nodes; the sentence names the address and both (I1)."""
    ledger = AddressLedger()
    ledger.give(ADDRESS, "node-a/one")
    ledger.give(OTHER, "node-a/two")
    ledger.give(ADDRESS, "node-b/three")
    assert ledger.conflicts == ["10.0.0.5 was given to node-b/three while node-a/one had it"]


def test_one_holder_told_twice_is_none() -> None:
    """A route that is written again, or an answer that is repeated, gives nothing new."""
    ledger = AddressLedger()
    ledger.give(ADDRESS, "node-a/one")
    ledger.give(ADDRESS, "node-a/one")
    assert ledger.conflicts == []
    assert ledger.given_count == 1


def test_reuse_after_letting_go_is_measured() -> None:
    """From the last holder's end to the next one's beginning (I8 seen from outside)."""
    clock = Clock()
    ledger = AddressLedger(clock=clock)
    ledger.give(ADDRESS, "node-a/one")
    clock.now_s = 10.0
    ledger.let_go("node-a/one")
    clock.now_s = 42.0
    ledger.give(ADDRESS, "node-a/two")
    assert ledger.conflicts == []
    assert ledger.reuses == [Reuse(ADDRESS, "node-a/two", 42.0, 32.0)]
    assert ledger.held == {ADDRESS: "node-a/two"}
    assert ledger.ever == {ADDRESS}


@pytest.mark.parametrize(
    ("line", "event"),
    [
        ("10.0.0.5 dev eni4fbb71e4937 scope link ", RouteMade(ADDRESS, "eni4fbb71e4937")),
        ("10.0.0.5 dev eni4fbb71e4937 proto static scope link ", RouteMade(ADDRESS, "eni4fbb71e4937")),
        ("2600:1f14:abc:de00:9::5 dev eni4fbb71e4937 metric 1024 pref medium", RouteMade(SIX, "eni4fbb71e4937")),
        ("2600:1f14:abc:de00:9::5 dev eni4fbb71e4937 table 5 metric 1024 pref medium", None),
        ("fe80::/64 dev eni4fbb71e4937 proto kernel metric 256 pref medium", None),
        ("multicast ff00::/8 dev eni4fbb71e4937 table local proto kernel metric 256 pref medium", None),
        ("10.0.0.5 dev eni4fbb71e4937 table 5 scope link ", None),
        ("10.0.0.5 dev eth0 scope link ", None),
        ("10.0.0.0/22 dev eni4fbb71e4937 proto kernel scope link src 10.0.0.9 ", None),
        ("local 10.0.0.5 dev eni4fbb71e4937 table local proto kernel scope host ", None),
        ("Deleted 10.0.0.5 dev eni4fbb71e4937 scope link ", None),
        ("Deleted 7: eni4fbb71e4937@NONE: <BROADCAST,MULTICAST> mtu 9001 qdisc noop state DOWN", LinkGone("eni4fbb71e4937")),
        ("Deleted 7: eth1@if5: <BROADCAST,MULTICAST> mtu 9001 qdisc noop state DOWN", None),
        ("7: eni4fbb71e4937@if2: <BROADCAST,MULTICAST,UP> mtu 9001 qdisc noqueue state UP", None),
    ],
)
def test_netlink_lines_are_read(line: str, event: RouteMade | LinkGone | None) -> None:
    """A claim begins with the route in the main table and ends when the link is gone; a deleted route alone ends nothing (I4)."""
    assert parse(line) == event
