"""Make answers of DescribeNetworkInterfaces false: they leave out objects, show changes too late, or do not find new ENIs.

For most of these answers there is a document or report that the real EC2 gives them:

- An answer may lag or be incomplete: "Eventual consistency in the Amazon EC2 API" (EC2 developer guide) promises only that answers
  agree eventually. A Describe that was stale after Assign is reported in cilium 36428. Whether EC2 lags after Unassign, Detach or
  Delete is unknown.
- An ENI is shown as attached, and its addresses only later: amazon-vpc-cni-k8s issues 1148 and 1174.
- An address that moved is shown on both ENIs: by the same page of the developer guide; for how long is unknown.
- Calls after a Create do not find the new ID yet: by the same page; aws-sdk 301, botocore 2717.

Only answers are changed, never the world itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from random import Random
from typing import TypeVar

from lab.vpc.model import Eni
from lab.vpc.spec_reader import Reader, Share, Times
from lab.vpc.world import Change, World

Item = TypeVar("Item", IPv4Address, IPv4Network, IPv6Address, IPv6Network)

CAUSES = (
    "CreateNetworkInterface",
    "AttachNetworkInterface",
    "DetachNetworkInterface",
    "DeleteNetworkInterface",
    "AssignPrivateIpAddresses",
    "UnassignPrivateIpAddresses",
    "AssignIpv6Addresses",
    "UnassignIpv6Addresses",
    "ModifyNetworkInterfaceAttribute",
)
"""APIs whose changes Describe may show late. Each has a delay of its own."""

BY_ID = (
    "AttachNetworkInterface",
    "DetachNetworkInterface",
    "DeleteNetworkInterface",
    "AssignPrivateIpAddresses",
    "UnassignPrivateIpAddresses",
    "AssignIpv6Addresses",
    "UnassignIpv6Addresses",
    "ModifyNetworkInterfaceAttribute",
    "DescribeNetworkInterfaces",
    "CreateTags",
)
"""APIs that name an ENI or an attachment, and may fail to find a new one."""


@dataclass(frozen=True)
class Omission:
    """The objects that are left out of an answer.

    `enis`, `addresses`: the share of them that is left out, or their IDs.
    `primary`: whether the primary ENI is left out.
    `everything`: whether all ENIs are left out.
    `steady`: whether a share always consists of the same objects; otherwise it is drawn anew for each answer.
    `times`: how many answers are affected.
    """

    enis: Share = 0.0
    addresses: Share = 0.0
    primary: bool = False
    everything: bool = False
    steady: bool = False
    times: Times = field(default_factory=Times)


@dataclass(frozen=True)
class Lies:
    """All false answers of Describe.

    `omit`: the objects that are left out; None for none.
    `late_s`: seconds for which an attached ENI is shown without secondary addresses and prefixes.
    `late_primary`: whether it is then shown without its primary address too.
    `stale_s`: API -> seconds for which its changes are not shown.
    `also`: ENI -> IPv4 addresses and prefixes that are shown on it besides its own.
    """

    omit: Omission | None = None
    late_s: float = 0.0
    late_primary: bool = False
    stale_s: Mapping[str, float] = field(default_factory=dict)
    also: Mapping[str, tuple[IPv4Address | IPv4Network, ...]] = field(default_factory=dict)


def read_lies(reader: Reader) -> Lies:
    """Read the object under `describe`."""
    return Lies(
        omit=reader.nested("omit", _omission),
        late_s=reader.number("late_addresses_s"),
        late_primary=reader.flag("late_primary"),
        stale_s=reader.numbers("stale_s", known=CAUSES),
        also=reader.nested("also", _also) or {},
    )


def shorten(enis: Iterable[Eni], omission: Omission, rng: Random) -> list[Eni]:
    """Return the ENIs of an answer without the ENIs and addresses of the omission."""
    if omission.everything:
        return []
    kept = [eni for eni in enis if not (omission.primary and eni.is_first)]
    kept = [eni for eni in kept if not _is_out(eni.eni_id, omission.enis, omission, rng)]
    return [_shortened(eni, omission, rng) for eni in kept]


def stale(world: World, changes: Iterable[Change], lies: Lies, now: float) -> World:
    """Return the world as Describe shows it: without changes that are not visible yet, and with the additions of `Lies.also`.

    `changes`: in the order of time. They are undone from the newest to the oldest, because undoing one needs the state after it.
    """
    enis = dict(world.enis)
    newest_first = list(changes)[::-1]
    for change in newest_first:
        if now - change.at < lies.stale_s.get(change.api, 0.0):
            shown = _without(enis.pop(change.eni_id, None), change)
            if shown is not None:
                enis[change.eni_id] = shown
    for change in newest_first:
        eni = enis.get(change.eni_id)
        if change.api == "AttachNetworkInterface" and now - change.at < lies.late_s and eni is not None:
            primary = None if lies.late_primary else eni.primary_address
            enis[change.eni_id] = replace(eni, primary_address=primary, secondary_addresses=(), prefixes=(), ipv6_prefixes=())
    for eni_id, items in lies.also.items():
        if eni_id in enis:
            enis[eni_id] = _with(enis[eni_id], items)
    return replace(world, enis=enis)


def _with(eni: Eni, items: Iterable[IPv4Address | IPv4Network]) -> Eni:
    """Return an ENI with further addresses and prefixes."""
    addresses = tuple(item for item in items if isinstance(item, IPv4Address))
    prefixes = tuple(item for item in items if isinstance(item, IPv4Network))
    return replace(eni, secondary_addresses=eni.secondary_addresses + addresses, prefixes=eni.prefixes + prefixes)


def _without(shown: Eni | None, change: Change) -> Eni | None:
    """Undo one change in the shown state of its ENI. Returns: None if the ENI is not shown."""
    if change.before is None:
        return None  # the change is the creation, so the ENI is not shown yet
    if change.after is None or shown is None:
        return shown or (change.before if change.after is None else None)
    before, after = change.before, change.after
    bond = before.attachment if before.attachment != after.attachment else shown.attachment
    return replace(
        shown,
        secondary_addresses=_undone(shown.secondary_addresses, before.secondary_addresses, after.secondary_addresses),
        prefixes=_undone(shown.prefixes, before.prefixes, after.prefixes),
        ipv6_addresses=_undone(shown.ipv6_addresses, before.ipv6_addresses, after.ipv6_addresses),
        ipv6_prefixes=_undone(shown.ipv6_prefixes, before.ipv6_prefixes, after.ipv6_prefixes),
        attachment=bond,
        security_groups=before.security_groups if before.security_groups != after.security_groups else shown.security_groups,
    )


def _undone(shown: tuple[Item, ...], before: tuple[Item, ...], after: tuple[Item, ...]) -> tuple[Item, ...]:
    kept = [item for item in shown if item in before or item not in after]
    return tuple(kept + [item for item in before if item not in after and item not in shown])


def _shortened(eni: Eni, omission: Omission, rng: Random) -> Eni:
    if not omission.addresses:
        return eni

    def shown(every: tuple[Item, ...]) -> tuple[Item, ...]:
        return tuple(item for item in every if not _is_out(str(item), omission.addresses, omission, rng))

    return replace(
        eni,
        secondary_addresses=shown(eni.secondary_addresses),
        prefixes=shown(eni.prefixes),
        ipv6_prefixes=shown(eni.ipv6_prefixes),
    )


def _is_out(name: str, share: Share, omission: Omission, rng: Random) -> bool:
    if isinstance(share, frozenset):
        return name in share
    if omission.steady:
        return int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 0x1_0000_0000 < share
    return share > 0 and rng.random() < share


def _also(reader: Reader) -> Mapping[str, tuple[IPv4Address | IPv4Network, ...]]:
    """Read lists of addresses and prefixes by ENI."""
    also = {}
    for eni_id in reader.raw:
        texts = reader.texts(eni_id)
        try:
            also[eni_id] = tuple(IPv4Network(text) if "/" in text else IPv4Address(text) for text in texts)
        except ValueError as error:
            reader.problem(eni_id, f"must be a list of IPv4 addresses and prefixes: {error}")
    return also


def _omission(reader: Reader) -> Omission:
    return Omission(
        enis=reader.share_or_texts("enis"),
        addresses=reader.share_or_texts("addresses"),
        primary=reader.flag("primary"),
        everything=reader.flag("everything"),
        steady=reader.flag("steady"),
        times=reader.times(),
    )
