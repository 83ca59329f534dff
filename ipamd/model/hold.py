"""What the planner knows of the surplus over time, and which addresses may be named in a release. Pure values.

The surplus of one moment proves nothing: the next ADD may need it. What was surplus during a whole window was needed by nobody in it,
so a load that repeats within the window makes no call (`ipamd/pool/demand_window.py` measures; docs/adr/0028).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState
from ipamd.model.growth import Refusal
from ipamd.model.ids import EniId
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.snapshot import Snapshot

ENI_HOLD_S = 60.0
"""Window of what is more than one whole ENI in excess, where whole ENIs are the unit (WARM_ENI_TARGET); one is held as long as single
addresses are. Ours, from the traces of docs/fleet.md: the least age of an ENI, so that what a burst needed goes soon after it."""

ENI_MIN_AGE_S = 60.0
"""A younger ENI is not given back: EC2 may not show all of it yet. Source: amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store.go."""


@dataclass(frozen=True, slots=True)
class Releasable:
    """Addresses of one ENI that may be given back now: free, given to nobody, not held. Longest free first.

    `prefixes`: whole /28s of which every address is so, ascending.
    """

    addresses: tuple[IPv4Address, ...] = ()
    prefixes: tuple[IPv4Network, ...] = ()


@dataclass(frozen=True, slots=True)
class Hold:
    """The surplus over the hold window, in addresses.

    `settled_count`: was surplus during the whole window, and may go. `is_over`: the window has been seen in full. `ages`: seconds for
    which each ENI is known. `releasable`: what may be named, by ENI; nothing unless something may go. `refusal`: why EC2 or an
    unfinished release stands in the way.
    """

    settled_count: int = 0
    is_over: bool = False
    ages: Mapping[EniId, float] = field(default_factory=dict)
    releasable: Mapping[EniId, Releasable] = field(default_factory=dict)
    refusal: Refusal | None = None


def eni_min_age_s(settings: PoolSettings) -> float:
    """Seconds for which an ENI must have been known before it is given back; an operator's shorter hold shortens it too."""
    return min(ENI_MIN_AGE_S, settings.release_hold_s)


def releasable(snapshot: Snapshot, *, held: frozenset[IPv4Address]) -> dict[EniId, Releasable]:
    """Name what may be given back on each ENI in the pool.

    Args:
        snapshot: one consistent read of the datastore.
        held: addresses that are given to nobody for now.
    Returns: only ENIs that have something to name. Cost: the number of addresses, so ask only when something may go.
    """
    singles: dict[EniId, list[tuple[float, int, IPv4Address]]] = {}
    blocks: dict[tuple[EniId, IPv4Network], int] = {}
    for row in snapshot.addresses.values():
        eni = snapshot.enis.get(row.eni_id)
        if eni is None or not eni.managed or eni.state is not EniState.ATTACHED or not row.is_free or row.address in held:
            continue
        if row.prefix is None:
            singles.setdefault(row.eni_id, []).append((row.since.timestamp(), int(row.address), row.address))
        else:
            blocks[row.eni_id, row.prefix] = blocks.get((row.eni_id, row.prefix), 0) + 1
    whole: dict[EniId, list[IPv4Network]] = {}
    for (eni_id, prefix), count in blocks.items():
        if count == ADDRESSES_PER_PREFIX:
            whole.setdefault(eni_id, []).append(prefix)
    return {
        eni_id: Releasable(
            tuple(address for _, _, address in sorted(singles.get(eni_id, ()))), tuple(sorted(whole.get(eni_id, ())))
        )
        for eni_id in sorted(singles.keys() | whole.keys())
    }
