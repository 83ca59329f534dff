"""Decide on which managed network cards a new sandbox gets an interface (docs/adr/0086).

Pure, except that a callable returns the cards that are managed at present. A pod asks by an annotation, which its author writes: for
an interface on each card, or on the cards that it names. The settings allow that by namespace, which is taken from CNI_ARGS, because
the runtime writes these and no author can change them. If the annotation is not allowed or cannot be followed, the ADD is refused,
because a pod that gets fewer interfaces than it asked for would fail much later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ipamd.model.attachment import POD_IFNAME
from ipamd.model.cni_request import AttachRequest
from ipamd.model.errors import IpamError
from ipamd.model.network_cards import CARDS_MAX, card_pool
from ipamd.model.pod_annotations import CARDS, MULTI_NIC, NIC_CONFIG
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.model.words import printable

AskedCards = tuple[int, ...]
"""The network cards that a pod names, or ALL_CARDS."""

ALL_CARDS: AskedCards = ()
"""A pod with this value asks for an interface of each managed card."""


class MultiNicChoice:
    """Decides which pods get interfaces of further network cards, according to the settings."""

    def __init__(
        self,
        *,
        is_on: bool = False,
        namespaces: Collection[str] = (),
        cards: Callable[[], tuple[int, ...] | None] = lambda: (0,),
    ) -> None:
        """Keep the settings.

        Args:
            is_on: whether further network cards are managed. If they are not, no annotation is read.
            namespaces: the namespaces whose pods may ask.
            cards: returns the indexes of the cards that are managed at present, ascending; None before they are known.
        """
        self._is_on = is_on
        self._namespaces = frozenset(namespaces)
        self._cards = cards

    def further_pools(self, request: AttachRequest, asked: AskedCards) -> tuple[str, ...] | None:
        """Return the pools from which a pod gets one further interface each, with an address, in the order of their cards.

        Args:
            asked: the cards for which the pod asks (`asked_cards`). Card 0 is not a further card, and its interface is always made.
        Returns: None before the node's cards are known. Raises: MultiNicError if the pod names a card that is not managed.
        """
        cards = self._cards()
        if cards is None:
            return None
        unmanaged = [card for card in asked if card not in cards]
        if unmanaged:
            raise refusal(
                RefusalCode.MULTI_NIC_CARD_NOT_MANAGED, pod=pod_of(request), cards=_listed(unmanaged), managed=_listed(cards)
            )
        return tuple(card_pool(card) for card in cards if card and (asked == ALL_CARDS or card in asked))

    def asked_cards(self, request: AttachRequest) -> AskedCards | None:
        """Return the cards on which a pod asks for an interface; None if it asks for none. If it has both annotations, the one that
        names cards counts.

        Raises: MultiNicError if the pod may not ask, if the annotation names no cards, or if the runtime handed over no annotations of
            a pod that may ask.
        """
        if not self._may_concern(request):
            return None
        is_listed = bool(request.names.pod) and request.names.pod_namespace in self._namespaces
        if request.annotations is None:
            if is_listed:
                annotation = f"{NIC_CONFIG} or {CARDS}"
                raise refusal(RefusalCode.MULTI_NIC_ANNOTATION_UNKNOWN, pod=pod_of(request), annotation=annotation)
            return None
        named = request.annotations.get(CARDS)
        if named is None and request.annotations.get(NIC_CONFIG) != MULTI_NIC:
            return None
        if not is_listed:
            raise _not_allowed(named, request)
        if named is None:
            return ALL_CARDS
        return _named_cards(named, request)

    def _may_concern(self, request: AttachRequest) -> bool:
        """Whether further cards are managed, the interface of the request is the pod's first one, and we wire it ourselves."""
        return self._is_on and not request.is_wired_by_caller and request.key.ifname == POD_IFNAME

    def refuse_for_uplink(self, request: AttachRequest) -> None:
        """Refuse a pod that has an ENI of its own and names network cards in its annotation. Raises: MultiNicError.

        The annotation of amazon-vpc-cni-k8s, which asks for all cards, is ignored on such a pod, as amazon-vpc-cni-k8s ignores it.
        """
        if self.asked_cards(request):  # neither None nor ALL_CARDS
            raise refusal(RefusalCode.MULTI_NIC_NOT_APPLICABLE, pod=pod_of(request), annotation=CARDS)


def _named_cards(text: str, request: AttachRequest) -> AskedCards:
    """Read the annotation that names cards. Raises: MultiNicError."""
    cards = []
    for part in text.split(","):
        number = part.strip()
        is_index = number.isascii() and number.isdigit() and len(number) <= len(str(CARDS_MAX)) and int(number) < CARDS_MAX
        if not is_index or int(number) in cards:
            raise _value_unknown(text, request)
        cards.append(int(number))
    return tuple(sorted(cards))


def _not_allowed(named: str | None, request: AttachRequest) -> IpamError:
    """Refuse a pod whose namespace may not ask. `named`: the annotation that names cards; None if the pod asks for all."""
    annotation = f"{NIC_CONFIG}={MULTI_NIC}"
    if named is not None:
        annotation = f"{CARDS}={printable(named, most=40)}"
    namespace = request.names.pod_namespace or "(unknown)"
    return refusal(RefusalCode.MULTI_NIC_NOT_ALLOWED, pod=pod_of(request), annotation=annotation, namespace=namespace)


def _value_unknown(text: str, request: AttachRequest) -> IpamError:
    value = printable(repr(text), most=40)
    return refusal(RefusalCode.MULTI_NIC_VALUE_UNKNOWN, pod=pod_of(request), annotation=CARDS, value=value, most=CARDS_MAX - 1)


def _listed(cards: Collection[int]) -> str:
    return ", ".join(map(str, cards))


def pod_of(request: AttachRequest) -> str:
    """Name a pod in a refusal, or its sandbox if the runtime did not name the pod."""
    return request.names.pod or f"sandbox {request.key}"
