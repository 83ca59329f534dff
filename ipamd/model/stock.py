"""The pool in numbers: what the datastore counts as it goes, so that nobody has to look at every address to know them."""

from __future__ import annotations

from dataclasses import dataclass

from ipamd.model.eni import Eni, EniState
from ipamd.model.words import counted


@dataclass(frozen=True, slots=True)
class PoolCounts:
    """Addresses by state, over all managed ENIs.

    `lost` ones, which EC2 does not show any more, are in no other count; `lost_in_use` of them belong to a sandbox. `held` of the
    free ones are given to nobody for now.
    """

    free: int = 0
    reserved: int = 0
    assigned: int = 0
    cooling: int = 0
    quarantined: int = 0
    lost: int = 0
    lost_in_use: int = 0
    held: int = 0

    @property
    def total(self) -> int:
        """All addresses, in any state."""
        return self.free + self.reserved + self.assigned + self.cooling + self.quarantined + self.lost

    @property
    def in_use(self) -> int:
        """Assigned, or about to be."""
        return self.assigned + self.reserved + self.lost_in_use

    def __str__(self) -> str:
        held = f" (of which {self.held} held back)" if self.held else ""
        lost = f", {self.lost} lost" if self.lost else ""
        return (
            f"{counted(self.total, 'address')}: {self.assigned} assigned, {self.reserved} reserved, {self.cooling} cooling, "
            f"{self.quarantined} quarantined, {self.free} free{held}{lost}"
        )


@dataclass(frozen=True, slots=True)
class EniStock:
    """One ENI and what is on it.

    `used_slot_count`: addresses outside any prefix, and prefixes; what EC2 does not show any more (lost) uses no slot.
    `prefix_count`: prefixes with at least one address that is not lost; `free_prefix_count`: those with free ones only, none of
    them held back.
    """

    eni: Eni
    counts: PoolCounts
    used_slot_count: int
    prefix_count: int
    free_prefix_count: int

    @property
    def has_left(self) -> bool:
        """Whether it was found absent: then every address that is left of it is lost. One that is being detached still has others."""
        return self.eni.state is EniState.DETACHING and 0 < self.counts.total == self.counts.lost


@dataclass(frozen=True, slots=True)
class Stock:
    """All ENIs, by network card and device index; `counts` is the sum over the managed ones."""

    enis: tuple[EniStock, ...]
    counts: PoolCounts


# How many addresses can be given now: a pure count, the same for readiness, `ipamctl status` and the metrics.


def assignable_count(stock: Stock) -> int:
    """Count the free addresses that an ADD could have: on attached, managed ENIs with host routing, and not held back (I7)."""
    return sum(each.counts.free - each.counts.held for each in stock.enis if each.eni.gives_addresses)
