"""Who holds which address since when, as observers other than the daemon see it: checks I1 and shows I8 from outside.

There are two ledgers, each for all nodes together. The kubelets' ledger counts from the runtime's answer to RunPodSandbox to the
call of StopPodSandbox. The kernel's counts from the route to the address until its link is gone; it is read from netlink events, so
that nothing is missed between two reads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from lab.vpc.model import Address


@dataclass(frozen=True)
class Reuse:
    """An address given again, `after_s` seconds after its last holder had let go; `at_s` on the ledger's clock."""

    address: Address
    holder: str
    at_s: float
    after_s: float


class AddressLedger:
    """Claims on addresses by holders (any text that is unique over all nodes). Concurrency: any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()  # a leaf
        self._holder: dict[Address, str] = {}
        self._let_go_at: dict[Address, float] = {}
        self._conflicts: list[str] = []
        self._reuses: list[Reuse] = []
        self._given_count = 0

    def give(self, address: Address, holder: str) -> None:
        """Give the address to the holder; a second holder at the same time is recorded as a conflict."""
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
        """Take every address from the holder."""
        now = self._clock()
        with self._lock:
            for address in [address for address, other in self._holder.items() if other == holder]:
                del self._holder[address]
                self._let_go_at[address] = now

    @property
    def held(self) -> dict[Address, str]:
        """Addresses that are held now, and by whom."""
        with self._lock:
            return dict(self._holder)

    @property
    def ever(self) -> set[Address]:
        """Addresses that were ever held."""
        with self._lock:
            return set(self._holder) | set(self._let_go_at)

    @property
    def conflicts(self) -> list[str]:
        """One sentence for each address that two holders had at once."""
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
