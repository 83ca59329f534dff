"""The pool in numbers: what the datastore counts as it goes, so that nobody has to look at every address to know them."""

from __future__ import annotations

from dataclasses import dataclass

from ipamd.model.eni import Eni
from ipamd.model.plan import PoolCounts


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


@dataclass(frozen=True, slots=True)
class Stock:
    """All ENIs, by network card and device index; `counts` is the sum over the managed ones."""

    enis: tuple[EniStock, ...]
    counts: PoolCounts
