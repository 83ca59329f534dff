"""Remember which addresses may have a rule in two places, so that only the DELs of these remove a second one.

A pass that moves a rule adds the new one first. Each removal walks all rules of the node, so a DEL sends no more than it must.
"""

from __future__ import annotations

from ipamd.model.family import IpAddress
from ipamd.model.kernel import KernelSurvey


class DoubledRules:
    """The addresses with rules in two places. Concurrency: from any thread, because the set only has single operations."""

    def __init__(self) -> None:
        self._is_known = False
        self._addresses = set[IpAddress]()

    def observe(self, seen: KernelSurvey) -> None:
        """Note what a survey shows. Before the first one any address may have two."""
        for address, places in seen.rule_places.items():
            if len(places) > 1:
                self._addresses.add(address)
        self._is_known = True

    def begin(self, address: IpAddress) -> None:
        """Note that a rule of an address will be added beside another."""
        self._addresses.add(address)

    def end(self, address: IpAddress) -> None:
        """Note that an address has one rule at most."""
        self._addresses.discard(address)

    def may_include(self, address: IpAddress) -> bool:
        """Whether an address may have rules in two places."""
        return not self._is_known or address in self._addresses
