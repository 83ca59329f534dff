"""Remember what our own calls changed at EC2 in the last minutes.

Describe and instance metadata may lag behind a call of ours. Whoever compares with them leaves these objects out, so that lag is not
taken for another hand's change. Kept in memory: a restart forgets what was added, and two looks apart in time still protect that. What
was given back is read again from its intents.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.cloud import all_addresses
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.ids import EniId
from ipamd.model.recorded import CloudKey
from ipamd.ports import Clock


class RecentChanges:
    """ENIs and addresses that our own calls added or removed less than `RECENT_S` ago. Safe from any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._added: dict[CloudKey, float] = {}
        self._removed: dict[CloudKey, float] = {}
        self._removed_from: dict[IPv4Address, EniId] = {}

    def note_added(
        self, *, enis: Iterable[EniId] = (), addresses: Iterable[IPv4Address] = (), prefixes: Iterable[IPv4Network] = ()
    ) -> None:
        """Remember what a call of ours is known to have added: call it before the addresses become assignable."""
        self._note(self._added, self._removed, _keys(enis, addresses, prefixes))

    def note_removed(
        self,
        *,
        enis: Iterable[EniId] = (),
        addresses: Iterable[IPv4Address] = (),
        on: EniId | None = None,
        left_s: float = RECENT_S,
    ) -> None:
        """Remember what a call of ours is known to have removed (its success is evidence of absence).

        `on`: the ENI that the addresses were on. `left_s`: seconds for which Describe may still show it.
        """
        gone = frozenset(addresses)
        self._note(self._removed, self._added, _keys(enis, gone, ()), left_s=left_s)
        with self._lock:
            self._removed_from = {address: eni_id for address, eni_id in self._removed_from.items() if address in self._removed}
            self._removed_from |= dict.fromkeys(gone, on) if on is not None else {}

    def removed_from(self, eni_id: EniId) -> frozenset[IPv4Address]:
        """Addresses that a call of ours took from an ENI, and that Describe may still show there."""
        return frozenset(address for address, on in self.given_back().items() if on == eni_id)

    def given_back(self) -> dict[IPv4Address, EniId]:
        """Addresses that calls of ours took from ENIs, and that Describe may still show there; each with its ENI."""
        removed = self.removed()
        with self._lock:
            return {address: on for address, on in self._removed_from.items() if address in removed}

    def forget_added(self, eni_id: EniId) -> float | None:
        """An ENI that was attached, and whose link was there, has lost its link: that EC2 does not show it is no lag while it is away.

        Returns: the monotonic time until which it would have been remembered, for `remember_added`; None if it was not.
        """
        with self._lock:
            return self._added.pop(eni_id, None)

    def remember_added(self, eni_id: EniId, deadline: float) -> None:
        """The link is there again: until this monotonic time Describe may lag, as before."""
        with self._lock:
            self._added[eni_id] = deadline

    def added(self) -> dict[CloudKey, float]:
        """What was added, with the seconds for which Describe may still not show it; an address is in it on its own."""
        return self._left(self._added)

    def removed(self) -> dict[CloudKey, float]:
        """What was removed, with the seconds for which Describe may still show it."""
        return self._left(self._removed)

    def _note(
        self, to: dict[CloudKey, float], other: dict[CloudKey, float], keys: set[CloudKey], *, left_s: float = RECENT_S
    ) -> None:
        deadline = self._clock.monotonic() + left_s
        with self._lock:
            for key in keys:
                to[key] = deadline
                other.pop(key, None)

    def _left(self, noted: dict[CloudKey, float]) -> dict[CloudKey, float]:
        now = self._clock.monotonic()
        with self._lock:
            for key in [key for key, deadline in noted.items() if deadline <= now]:
                del noted[key]
            return {key: deadline - now for key, deadline in noted.items()}


def _keys(enis: Iterable[EniId], addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network]) -> set[CloudKey]:
    return {*enis, *all_addresses(addresses, prefixes)}
