"""Who has which address, since when, as seen by observers other than the daemon: guards I1 and shows I8 from outside.

Two ledgers are kept. The kubelet's: from the runtime's answer to RunPodSandbox to the moment StopPodSandbox is called. The
kernel's: from the route to the address until the link under it is gone, read from netlink events, so that nothing falls
between two looks. Both hold claims of both nodes together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address


@dataclass(frozen=True)
class Reuse:
    """An address given again, `after_s` seconds after its last holder had let go; `at_s` on the ledger's clock."""

    address: IPv4Address
    holder: str
    at_s: float
    after_s: float


class AddressLedger:
    """Claims on addresses by holders (any text that is unique over both nodes). Concurrency: any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # a leaf
        self._holder: dict[IPv4Address, str] = {}
        self._let_go_at: dict[IPv4Address, float] = {}
        self._conflicts: list[str] = []
        self._reuses: list[Reuse] = []
        self._given_count = 0

    def give(self, address: IPv4Address, holder: str) -> None:
        """The holder has the address from now on; a second holder is a conflict, told and kept."""
        now = self._clock()
        with self._lock:
            other = self._holder.get(address)
            if other == holder:
                return
            self._given_count += 1
            if other is not None:
                self._conflicts.append(f"{address} was given to {holder} while {other} had it")
            elif address in self._let_go_at:
                self._reuses.append(Reuse(address, holder, now, now - self._let_go_at[address]))
            self._holder[address] = holder

    def let_go(self, holder: str) -> None:
        """The holder has nothing any more."""
        now = self._clock()
        with self._lock:
            for address in [address for address, other in self._holder.items() if other == holder]:
                del self._holder[address]
                self._let_go_at[address] = now

    @property
    def held(self) -> dict[IPv4Address, str]:
        """Addresses that are held now, and by whom."""
        with self._lock:
            return dict(self._holder)

    @property
    def ever(self) -> set[IPv4Address]:
        """Addresses that were ever held."""
        with self._lock:
            return set(self._holder) | set(self._let_go_at)

    @property
    def conflicts(self) -> list[str]:
        """One sentence per address that two had at once."""
        with self._lock:
            return list(self._conflicts)

    @property
    def given_count(self) -> int:
        """How often an address was given to a new holder."""
        with self._lock:
            return self._given_count

    @property
    def reuses(self) -> list[Reuse]:
        """Addresses that were given again, in order."""
        with self._lock:
            return list(self._reuses)
