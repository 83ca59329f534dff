"""Which address has cooled next, without looking at all of them: a node may have thousands."""

from __future__ import annotations

import heapq
from ipaddress import IPv4Address


class CoolingOrder:
    """Cooling addresses by the monotonic point at which each has cooled. Not locked: its user holds a lock."""

    def __init__(self) -> None:
        self._deadlines: dict[IPv4Address, float] = {}
        self._in_order: list[tuple[float, IPv4Address]] = []  # a heap; an entry that `_deadlines` does not confirm is stale

    def __contains__(self, address: IPv4Address) -> bool:
        return address in self._deadlines

    def put(self, address: IPv4Address, *, deadline: float) -> None:
        """Add an address, or give it another deadline."""
        self._deadlines[address] = deadline
        heapq.heappush(self._in_order, (deadline, address))

    def remove(self, address: IPv4Address, *, deadline: float) -> None:
        """Remove an address that is free; one that was given and released again since keeps its new deadline."""
        if self._deadlines.get(address) == deadline:
            del self._deadlines[address]

    def left_s(self, *, now_s: float) -> float | None:
        """Seconds until the next address has cooled; None if there is none."""
        while self._in_order and self._is_stale(*self._in_order[0]):
            heapq.heappop(self._in_order)
        return max(self._in_order[0][0] - now_s, 0.0) if self._in_order else None

    def due(self, *, now_s: float) -> dict[IPv4Address, float]:
        """What has cooled, with its deadline. It stays in order until it is removed: the disk may refuse to free it."""
        found: dict[IPv4Address, float] = {}
        while self._in_order and self._in_order[0][0] <= now_s:
            deadline, address = heapq.heappop(self._in_order)
            if not self._is_stale(deadline, address):
                found[address] = deadline
        for address, deadline in found.items():
            heapq.heappush(self._in_order, (deadline, address))
        return found

    def _is_stale(self, deadline: float, address: IPv4Address) -> bool:
        return self._deadlines.get(address) != deadline
