"""Remember for each address of the pool which pod got it last, at least until the address has cooled. In memory only."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ipamd.model.family import IpAddress
from ipamd.model.repeats import PodId

PRUNED_AT_MIN = 256
"""The least number of remembered addresses at which free addresses are removed from memory. Ours: more than a node
usually has, so that most nodes never have to search for free addresses."""


class LastPods:
    """The addresses that each pod last got. Safe from any thread: no other lock is taken while its own is held."""

    def __init__(self, is_free: Callable[[IpAddress], bool]) -> None:
        """`is_free`: returns whether an address is neither in use nor cooling. It is called without the lock."""
        self._is_free = is_free
        self._lock = threading.Lock()
        self._pods: dict[IpAddress, PodId] = {}
        self._addresses: dict[PodId, set[IpAddress]] = {}
        self._pruned_at = PRUNED_AT_MIN

    def record_taken(self, address: IpAddress, pod: PodId | None) -> None:
        """Record that an ADD of the pod got the address. `pod` is None if the runtime did not name the pod."""
        with self._lock:
            self._forget(address)
            if pod is not None:
                self._pods[address] = pod
                self._addresses.setdefault(pod, set()).add(address)
            is_full = len(self._pods) >= self._pruned_at
        if is_full:
            self._prune()

    def addresses_of(self, pod: PodId) -> tuple[IpAddress, ...]:
        """Return the addresses that this pod was the last to get. They may be in use or cooling."""
        with self._lock:
            return tuple(self._addresses.get(pod, ()))

    def of_pods_with_several(self) -> dict[PodId, tuple[IpAddress, ...]]:
        """Return the result of `addresses_of` for every pod that has more than one such address.

        The cost grows with the number of pods.
        """
        with self._lock:
            return {pod: tuple(addresses) for pod, addresses in self._addresses.items() if len(addresses) > 1}

    def _forget(self, address: IpAddress) -> None:
        pod = self._pods.pop(address, None)
        if pod is None:
            return
        addresses = self._addresses[pod]
        addresses.discard(address)
        if not addresses:
            del self._addresses[pod]

    def _prune(self) -> None:
        """Forget addresses that are free again.

        `record_taken` forgets an address only when it is assigned again, and in an IPv6 prefix (/80) that takes very long.
        """
        with self._lock:
            addresses = tuple(self._pods)
        free = [address for address in addresses if self._is_free(address)]
        with self._lock:
            for address in free:
                # An ADD may have got the address since `is_free` was called. Forgetting the address only makes a count too low.
                self._forget(address)
            self._pruned_at = max(PRUNED_AT_MIN, 2 * len(self._pods))
