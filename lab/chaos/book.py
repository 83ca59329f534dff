"""What other hands took from whom, and until when the daemon is excused for not having noticed.

A sandbox that had its address before is excused for ever: its traffic is lost by the hand's doing, while its wiring must stay. A
sandbox that gets the address afterwards is excused only for as long as the daemon cannot know: LINK_S when the ENI's link went,
NOTICE_S when only EC2 and metadata can tell. Time in which the daemon was away does not count, nor, for NOTICE_S, time in which the
cloud failed or lied, or in which EC2 lacks most of what the node's sandboxes have, for MASS_LOSS_S at most.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

LINK_S = 5.0
"""Ours: the kernel announces a link that goes; the rest is a busy machine."""

NOTICE_S = 120.0
"""A look at metadata, up to 75 s apart, the second look at EC2 that makes it evidence, 30 s later, and a busy machine."""

TURN_S = 75.0
RECENT_S = 300.0
"""For so long what a call of the daemon's own added is not missed (docs/adr/0017-absence-at-ec2-needs-two-answers.md)."""

MASS_LOSS_S = 600.0 + RECENT_S
"""Where hands took over half of what sandboxes have: an answer of EC2 that lacks so much is believed after ten minutes at the
earliest, and only what is not recent is missed."""

ENIS_PER_TURN = 3
"""Metadata is read in turns of at most ten requests, which suffice for three ENIs (ipamd/eni/external_changes.py)."""


def notice_s(eni_count: int) -> float:
    """How long it may take until a change of one ENI of so many is noticed."""
    return NOTICE_S + TURN_S * max(-(-eni_count // ENIS_PER_TURN) - 1, 0)


def _is_in(address: str, network: str) -> bool:
    """Whether an address is in what may be a prefix's text."""
    return "/" in network and ip_address(address) in ip_network(network)


def is_most(gone: Collection[object], of: Collection[object]) -> bool:
    """Whether an answer that lacks these is not believed at once."""
    return len(gone) >= 2 and 2 * len(gone) > len(of)


@dataclass
class _Lost:
    """Seconds that do not count, of one node, since the start of the run; `doubted_s`: those of `blind_s` in which EC2 lacked most."""

    away_s: float = 0.0
    blind_s: float = 0.0
    doubted_s: float = 0.0


@dataclass(frozen=True)
class _Take:
    at_s: float
    bound_s: float
    needs_cloud: bool
    lost_s: float
    agreed_s: float


@dataclass(frozen=True)
class Takes:
    """The book at one time.

    `until_s`: (node, address or prefix) -> until when giving it away is excused; `since_s`: when it was taken; `agreed_s`: when the
    daemon has to agree with EC2 about it, in a run without faults. `detached`: ENIs that
    may stay attached to nothing: a person detached them, who decides what becomes of them. `forgotten`: a daemon was making them when
    its datastore was destroyed; the daemon deletes them some minutes after a start (I9, docs/invariants.md).
    """

    until_s: dict[tuple[str, str], float] = field(default_factory=dict)
    since_s: dict[tuple[str, str], float] = field(default_factory=dict)
    agreed_s: dict[tuple[str, str], float] = field(default_factory=dict)
    detached: frozenset[str] = frozenset()
    forgotten: frozenset[str] = frozenset()
    stepped_s: float = 0.0
    """By how much a creation time and a later look at the clock may differ, because clocks were stepped."""

    def hit(self, node: str, address: str, had_since_s: float) -> bool:
        """Whether a sandbox that got its address at `had_since_s` lost it to other hands, or got it before that could be known."""
        return any(had_since_s <= self.until_s[key] for key in self._of(node, address))

    def was_taken(self, node: str, address: str) -> bool:
        """Whether other hands ever took an address from a node."""
        return any(key in self.since_s for key in self._of(node, address))

    def _of(self, node: str, address: str) -> list[tuple[str, str]]:
        """What was taken of an address: itself, or a prefix that it is in."""
        return [key for key in self.until_s if key[0] == node and (key[1] == address or _is_in(address, key[1]))]


class HandsBook:
    """Thread-safe; its lock is a leaf. Times are seconds of the run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._takes: dict[tuple[str, str], _Take] = {}
        self._lost: dict[str, _Lost] = {}
        self._looked_at_s = 0.0
        self._foreign: dict[str, str] = {}
        self._detached: set[str] = set()
        self._forgotten: set[str] = set()
        self._stepped_s = 0.0

    def took(
        self, node: str, addresses: Iterable[str], *, at_s: float, cuts_link: bool, eni_count: int = 1, age_s: float = RECENT_S
    ) -> list[str]:
        """Note, before it is done, that addresses are taken from a node with so many ENIs, which has had them for `age_s`.

        Returns: what `gave_back` takes if it is refused.
        """
        with self._lock:
            lost = self._lost.setdefault(node, _Lost())
            agreed_s = max(RECENT_S - age_s, 0.0) + notice_s(eni_count)
            lost_s, bound_s = (lost.away_s, LINK_S) if cuts_link else (lost.away_s + lost.blind_s, agreed_s)
            noted = list(addresses)
            for address in noted:
                self._takes[node, address] = _Take(at_s, bound_s, not cuts_link, lost_s, at_s + agreed_s)
            return noted

    def gave_back(self, node: str, addresses: Iterable[str]) -> None:
        """Note that it was not done after all."""
        with self._lock:
            for address in addresses:
                self._takes.pop((node, address), None)

    def look(self, now_s: float, *, away: Collection[str], blind: bool, doubted: Collection[str] = ()) -> None:
        """Count the time since the last look for the nodes whose daemon is away, and for all others if the cloud is faulty.

        `doubted`: nodes of whose sandboxes' addresses EC2 lacks most.
        """
        with self._lock:
            passed_s, self._looked_at_s = now_s - self._looked_at_s, now_s
            for node in {*away, *self._lost}:
                lost = self._lost.setdefault(node, _Lost())
                if node in away:
                    lost.away_s += passed_s
                elif blind:
                    lost.blind_s += passed_s
                elif node in doubted and lost.doubted_s < MASS_LOSS_S:
                    lost.doubted_s += passed_s
                    lost.blind_s += passed_s

    def takes(self) -> Takes:
        """Copy the book."""
        with self._lock:
            until_s = {}
            for (node, address), take in self._takes.items():
                lost = self._lost[node]
                lost_s = lost.away_s + (lost.blind_s if take.needs_cloud else 0.0)
                until_s[node, address] = take.at_s + take.bound_s + lost_s - take.lost_s
            return Takes(
                until_s,
                {key: take.at_s for key, take in self._takes.items()},
                {key: take.agreed_s for key, take in self._takes.items()},
                frozenset(self._detached),
                frozenset(self._forgotten),
                self._stepped_s,
            )

    def detached(self, eni_id: str) -> None:
        """Note that an ENI was detached by hand: it may stay attached to nothing."""
        with self._lock:
            self._detached.add(eni_id)

    def forgotten(self, eni_id: str) -> None:
        """Note that an ENI was forgotten with a datastore: it may stay attached to nothing until the look after a start."""
        with self._lock:
            self._forgotten.add(eni_id)

    def stepped(self, offset_s: float) -> None:
        """Note that a node's clock is off by so much from now on: an ENI was made before, and is looked at after, or both."""
        with self._lock:
            self._stepped_s = max(self._stepped_s, 2 * abs(offset_s))

    def brought(self, eni_id: str, node: str) -> None:
        """Note that an ENI of somebody else hangs on a node; the daemon must let it hang."""
        with self._lock:
            self._foreign[eni_id] = node

    def foreign(self) -> dict[str, str]:
        """ENIs of somebody else, with the node of each."""
        with self._lock:
            return dict(self._foreign)
