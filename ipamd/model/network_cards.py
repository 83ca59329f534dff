"""Network cards: which cards of the instance have ENIs for pods, and the name of a card's pool (docs/adr/0086). Pure.

An instance type has one or more network cards, and each ENI is attached to one of them. The ENIs of card 0 belong to the node's own
pool and to the pools of the network file. The ENIs of every further managed card are a pool of their own, with its own targets and
limits. No ENI changes its card, so the ENIs of a further card never change their pool.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.pod_pools import OWN, PodPool, PodPools
from ipamd.model.record import replace

CARD_POOL = "card:"
"""How the name of a card's pool begins; the card's number follows. A pool of the network file has no colon in its name
(`pod_pools.POOL_NAME`)."""

WARM_IP_TARGET = MINIMUM_IP_TARGET = 1
"""The targets of the pool of a card above 0; settings do not change them. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go,
datastoreTargetState."""

CARDS_MAX = 32
"""The most network cards of an instance. A higher number in EC2's answer is not believed. Ours: the types with the most
cards, such as p5.48xlarge, have 32."""


def card_pool(card: int) -> str:
    """Return the name of the pool of a card's ENIs; for card 0 the name of the node's own pool."""
    return f"{CARD_POOL}{card}" if card else OWN


def card_of_pool(pool: str) -> int:
    """Return the card on which a pool's ENIs are: 0 for the node's own pool and for the pools of the network file."""
    number = pool.removeprefix(CARD_POOL)
    if number != pool and number.isascii() and number.isdigit():
        return int(number)
    return 0


def is_card_managed(card: int, are_for_pods: Collection[bool]) -> bool:
    """Whether pods may get interfaces on a card: always on card 0, and on a further card that has no ENI, or has an ENI for pods.

    A card on which no ENI is for pods (EFA-only ENIs, or ENIs that an operator has tagged) is not managed.

    Args:
        are_for_pods: for every ENI on the card, whether its addresses are for pods (`eni_tags.is_managed`).
    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go, markUnmanagedNetworkCards.
    """
    return card == 0 or not are_for_pods or any(are_for_pods)


def managed_cards(cards: Iterable[int], enis: Iterable[Eni], *, occupied: Iterable[tuple[int, int]] = ()) -> tuple[int, ...]:
    """Return the network cards on which pods may get interfaces, ascending.

    Args:
        cards: the cards that may be managed at all (`possible_cards`).
        enis: the recorded ENIs.
        occupied: network card and device index of attached ENIs without a row, for example those that have no IPv4 address.
    """
    are_for_pods: dict[int, list[bool]] = {}
    for eni in enis:
        are_for_pods.setdefault(eni.network_card, []).append(eni.managed)
    for card, _ in occupied:
        are_for_pods.setdefault(card, []).append(False)
    return tuple(card for card in sorted({0, *cards}) if is_card_managed(card, are_for_pods.get(card, ())))


def possible_cards(limits: InstanceLimits) -> tuple[int, ...]:
    """Return the cards of an instance type that may be managed: card 0, and every further card that takes more than one ENI.

    If a card takes only one ENI, its place is left to an EFA interface, which cannot be attached to a running instance.
    """
    further = (card for card in range(1, min(limits.network_card_count, CARDS_MAX)) if limits.eni_count_of(card) > 1)
    return (0, *further)


def limits_of_card(limits: InstanceLimits, card: int) -> InstanceLimits:
    """Return the limits of the ENIs of one network card. Further cards have no trunk ENI, because the control plane attaches it to
    card 0.
    """
    if card == 0:
        return limits
    return replace(limits, eni_count=limits.eni_count_of(card), trunk_capacity=0)


def card_pools(cards: Iterable[int]) -> Mapping[str, PodPool]:
    """Return the pools of the cards above 0, by name. Their subnets and security groups are those of the node's own pool."""
    pools = {}
    for card in cards:
        if card:
            name = card_pool(card)
            pools[name] = PodPool(name, warm_ip_target=WARM_IP_TARGET, minimum_ip_target=MINIMUM_IP_TARGET, reserved_enis=0)
    return pools


def with_cards(pools: PodPools, cards: Iterable[int]) -> PodPools:
    """Return the pools of the network file together with a pool for each managed card above 0. `cards`: all managed cards."""
    return PodPools({**pools.by_name, **card_pools(cards)})


def without_cards(pools: PodPools) -> PodPools:
    """Return only the pools of the network file: the inverse of `with_cards`."""
    return PodPools({name: pool for name, pool in pools.by_name.items() if not card_of_pool(name)})


def subnet_pool(pool: str) -> str:
    """Return the pool whose subnets and security groups the ENIs of a pool have: for a card's pool it is the node's own pool."""
    return OWN if card_of_pool(pool) else pool
