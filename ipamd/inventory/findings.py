"""Find problems of a subnet's ENIs: leaked ENIs, addresses that two ENIs or two nodes claim, and hidden ENIs. Pure.

Two ENIs claim an address if EC2 shows it on both, alone or within a prefix. Two nodes claim the addresses of an ENI that is
attached to one instance and whose tag names another: the daemon on the instance in the tag created the ENI, and pods of that instance
may have its addresses. An ENI counts as leaked if it meets the rule with which nodes and the sweeper delete ENIs
(`ipamd/model/leaked_eni.py`).
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
    """The kind of a problem, which is also a label value of `ipamd_inventory_findings`.

    LEAKED: a detached ENI that nobody uses.
    TWO_ENIS: an address or prefix that EC2 shows on two ENIs.
    TWO_NODES: an ENI that is attached to one instance and has the tag of another.
    HIDDEN: an ENI that an AWS service manages and that EC2 lists only on request.
    """

    LEAKED = "leaked-eni"
    TWO_ENIS = "address-on-two-enis"
    TWO_NODES = "eni-of-two-nodes"
    HIDDEN = "hidden-eni"


@dataclass(frozen=True, slots=True)
class SeenEni:
    """One ENI of a list, with facts that `DescribedEni` does not have.

    `is_hidden`: EC2 lists it only if the request includes managed resources.
    `ipv6_prefixes`: the /80s of the ENI.
    """

    eni: DescribedEni
    is_hidden: bool = False
    ipv6_prefixes: frozenset[IPv6Network] = frozenset()


@dataclass(frozen=True, slots=True)
class EniFinding:
    """One problem.

    `subject`: the address, the prefix or the ENI that has the problem.
    `eni_ids`: the ENIs that the problem concerns, ascending.
    `instance_ids`: the instances that the problem concerns, ascending, as far as they are known.
    `detail`: a sentence about EC2's answer.
    `is_confirmed`: a second list, some time later, showed the problem too. This is always true of a hidden ENI, because no race can
        make an ENI look hidden.
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
        """The identity of the problem. A problem is confirmed if the second look of a run finds one with the same key."""
        return self.problem, self.subject, self.eni_ids


@dataclass(frozen=True, slots=True)
class LeakRule:
    """The rule for leaked ENIs (`why_kept`): detached, with the tag of the cluster, and at least `min_age` old."""

    cluster_name: str
    min_age: timedelta


def find(enis: Sequence[SeenEni], *, rule: LeakRule, now: datetime) -> list[EniFinding]:
    """Return the problems of the ENIs, sorted by kind and subject. `now`: aware UTC."""
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
    """Return the /28 or /80 that contains an address; EC2 may have delegated it as a prefix."""
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
