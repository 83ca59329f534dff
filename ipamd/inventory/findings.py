"""Find what is wrong with the ENIs of a subnet: leaked ENIs, addresses that two claim, and ENIs that a list hides. Pure.

Two ENIs claim an address if EC2 shows it on both, alone or within a prefix. Two nodes claim the addresses of an ENI that is
attached to one instance and carries the tag of another one: the daemon of that other node made it, and its pods may have those
addresses. What is leaked is decided by the rule by which nodes and the sweeper delete (`ipamd/model/leaked_eni.py`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from ipaddress import IPv6Network

from ipamd.model.cloud import DescribedEni
from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.eni_tags import CREATED_AT_TAG, INSTANCE_TAG
from ipamd.model.family import IPV4, IpAddress, IpNetwork, family_of
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.leaked_eni import why_kept
from ipamd.model.record import dataclass


class EniProblem(StrEnum):
    """What is wrong; the label of the metric."""

    LEAKED = "leaked-eni"
    TWO_ENIS = "address-on-two-enis"
    TWO_NODES = "eni-of-two-nodes"
    HIDDEN = "hidden-eni"


@dataclass(frozen=True, slots=True)
class SeenEni:
    """One ENI of a list, and what the daemon's record of an ENI lacks.

    `is_hidden`: EC2 shows it in a list only to whoever asks for managed resources.
    `ipv6_prefixes`: its /80s.
    """

    eni: DescribedEni
    is_hidden: bool = False
    ipv6_prefixes: frozenset[IPv6Network] = frozenset()


@dataclass(frozen=True, slots=True)
class EniFinding:
    """One problem.

    `subject`: an address, a prefix or an ENI.
    `eni_ids`, `instance_ids`: whom it concerns, ascending; the instances are the two that claim, as far as they are known.
    `detail`: what EC2 shows.
    `is_confirmed`: a second look, at EC2's answer some time later, showed it too. This is always true of a hidden ENI, which is a
        state and no race.
    """

    problem: EniProblem
    subject: str
    subnet_id: SubnetId
    eni_ids: tuple[EniId, ...]
    instance_ids: tuple[str, ...]
    detail: str
    is_confirmed: bool = False

    @property
    def key(self) -> tuple[str, str, tuple[EniId, ...]]:
        """What identifies the problem: it is confirmed if the second look of a run finds a problem with the same key."""
        return self.problem, self.subject, self.eni_ids


@dataclass(frozen=True, slots=True)
class LeakRule:
    """Which detached ENIs count as leaked (`why_kept`): those with the tag of the cluster that are at least `min_age` old."""

    cluster_name: str
    min_age: timedelta


def find(enis: Sequence[SeenEni], *, rule: LeakRule, now: datetime) -> list[EniFinding]:
    """Return the problems of a subnet's ENIs, sorted by kind and subject. `now`: aware UTC."""
    problems = [*_leaked(enis, rule=rule, now=now), *_of_two_enis(enis), *_of_two_nodes(enis), *_hidden(enis)]
    return sorted(problems, key=lambda finding: finding.key)


def _leaked(enis: Iterable[SeenEni], *, rule: LeakRule, now: datetime) -> Iterator[EniFinding]:
    for seen in enis:
        eni = seen.eni
        if why_kept(eni, now=now, min_age=rule.min_age, cluster_name=rule.cluster_name):
            continue
        instance_id = eni.tags[INSTANCE_TAG]
        detail = f"made by {instance_id} at {eni.tags[CREATED_AT_TAG]}, attached to nothing"
        yield EniFinding(EniProblem.LEAKED, eni.eni_id, eni.subnet_id, (eni.eni_id,), (instance_id,), detail)


def _of_two_enis(enis: Iterable[SeenEni]) -> Iterator[EniFinding]:
    owners: defaultdict[IpAddress | IpNetwork, dict[EniId, DescribedEni]] = defaultdict(dict)
    for seen in enis:
        for item in claims_of(seen):
            owners[item][seen.eni.eni_id] = seen.eni
    prefixes = {item for item in owners if isinstance(item, IpNetwork)}
    for item, claimants in owners.items():
        if not isinstance(item, IpNetwork) and _prefix_of(item) in prefixes:
            claimants = {**claimants, **owners[_prefix_of(item)]}
        if len(claimants) > 1:
            yield _double(str(item), sorted(claimants.values(), key=lambda eni: eni.eni_id))


def _double(subject: str, enis: Sequence[DescribedEni]) -> EniFinding:
    """Return the finding for an address or prefix on several ENIs, which are sorted by ID."""
    eni_ids = tuple(eni.eni_id for eni in enis)
    instance_ids = tuple(sorted({eni.instance_id for eni in enis if eni.instance_id}))
    places = ", ".join(f"{eni.eni_id} ({eni.instance_id or 'attached to nothing'})" for eni in enis)
    return EniFinding(EniProblem.TWO_ENIS, subject, enis[0].subnet_id, eni_ids, instance_ids, f"EC2 shows it on {places}")


def claims_of(seen: SeenEni) -> Iterator[IpAddress | IpNetwork]:
    """Yield each address and prefix that EC2 shows on an ENI."""
    eni = seen.eni
    if eni.primary_address is not None:
        yield eni.primary_address
    yield from eni.secondary_addresses
    yield from eni.ipv6_addresses
    yield from eni.prefixes
    yield from seen.ipv6_prefixes


def _prefix_of(address: IpAddress) -> IpNetwork:
    """Return the prefix that would contain an address if EC2 delegated it."""
    family = family_of(address)
    host_bits = (32 if family is IPV4 else 128) - family.prefix_length
    return family.network((int(address) >> host_bits << host_bits, family.prefix_length))


def _of_two_nodes(enis: Iterable[SeenEni]) -> Iterator[EniFinding]:
    for seen in enis:
        eni = seen.eni
        maker = eni.tags.get(INSTANCE_TAG, "")
        if not maker or not eni.instance_id or maker == eni.instance_id:
            continue
        count = len(eni.secondary_addresses) + ADDRESSES_PER_PREFIX * len(eni.prefixes)
        detail = f"its tag names {maker}, and it is attached to {eni.instance_id}; it has {count} addresses for pods"
        pair = tuple(sorted((maker, eni.instance_id)))
        yield EniFinding(EniProblem.TWO_NODES, eni.eni_id, eni.subnet_id, (eni.eni_id,), pair, detail)


def _hidden(enis: Iterable[SeenEni]) -> Iterator[EniFinding]:
    for seen in enis:
        if seen.is_hidden:
            eni = seen.eni
            detail = f"{eni.operator} manages it, and a list without IncludeManagedResources lacks it"
            instance_ids = tuple(filter(None, [eni.instance_id]))
            yield EniFinding(EniProblem.HIDDEN, eni.eni_id, eni.subnet_id, (eni.eni_id,), instance_ids, detail, is_confirmed=True)
