"""How many addresses can be given now: a pure count, the same for readiness, `ipamctl status` and the metrics."""

from __future__ import annotations

from ipamd.model.stock import Stock


def assignable_count(stock: Stock) -> int:
    """Count the free addresses that an ADD could have: on attached, managed ENIs with host routing, and not held back (I7)."""
    return sum(each.counts.free - each.counts.held for each in stock.enis if each.eni.gives_addresses)
