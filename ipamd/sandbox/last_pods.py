"""Remember which pod took which address of the pool last, for as long as the address may still cool. In memory only."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ipamd.model.family import IpAddress
from ipamd.model.repeats import PodId

PRUNED_AT_MIN = 256
"""Addresses from which on the forgotten ones are looked for. Ours: more than a node usually has."""


class LastPods:
    """Addresses by pod, each with one pod at most. Safe from any thread; its lock is a leaf."""

    def __init__(self, is_free: Callable[[IpAddress], bool]) -> None:
        """`is_free`: whether nothing holds an address any more, not even its cooldown; asked without the lock."""
        self._is_free = is_free
        self._lock = threading.Lock()
        self._pods: dict[IpAddress, PodId] = {}
        self._addresses: dict[PodId, set[IpAddress]] = {}
        self._pruned_at = PRUNED_AT_MIN

    def took(self, address: IpAddress, pod: PodId | None) -> None:
        """An ADD of the pod took the address; `pod` is None if the runtime named none."""
        with self._lock:
            self._forget(address)
            if pod is not None:
                self._pods[address] = pod
                self._addresses.setdefault(pod, set()).add(address)
            is_full = len(self._pods) >= self._pruned_at
        if is_full:
            self._prune()

    def addresses_of(self, pod: PodId) -> tuple[IpAddress, ...]:
        """The addresses that this pod took last, those in use among them."""
        with self._lock:
            return tuple(self._addresses.get(pod, ()))

    def of_several(self) -> dict[PodId, tuple[IpAddress, ...]]:
        """The same of every pod that took more than one. Cost: the number of pods."""
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
        """Forget addresses that are free again: a /80 has so many that none is ever taken twice."""
        with self._lock:
            addresses = tuple(self._pods)
        free = [address for address in addresses if self._is_free(address)]
        with self._lock:
            for address in free:
                self._forget(address)  # of an ADD that took it just now, it is forgotten: only a figure suffers
            self._pruned_at = max(PRUNED_AT_MIN, 2 * len(self._pods))
