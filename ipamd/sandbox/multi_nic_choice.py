"""Decide whether a new sandbox gets an interface of each managed network card (docs/adr/0086).

Pure, except that a callable returns the cards that are managed at present. A pod asks by an annotation, which its author writes. The
settings allow that by namespace, which is taken from CNI_ARGS, because the runtime writes these and no author can change them. If the
settings do not allow the annotation, the ADD is refused, because a pod that gets fewer interfaces than it asked for would fail much
later.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from ipamd.model.attachment import POD_IFNAME
from ipamd.model.cni_request import AttachRequest
from ipamd.model.network_cards import card_pool
from ipamd.model.pod_annotations import MULTI_NIC, NIC_CONFIG
from ipamd.model.refusals import RefusalCode, refusal


class MultiNicChoice:
    """Decides which pods get an interface of each network card, by the settings."""

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

    def further_pools(self) -> tuple[str, ...] | None:
        """Return the pool of each managed network card above 0, ascending; None before the node's cards are known.

        A pod that asks (`asks`) gets one further interface, with an address, from each of these pools.
        """
        cards = self._cards()
        if cards is None:
            return None
        return tuple(card_pool(card) for card in cards if card)

    def asks(self, request: AttachRequest) -> bool:
        """Whether a pod asks for an interface of each card, and may have them.

        False if further cards are not managed, for a further interface, and if the caller wires the sandbox itself.
        Raises: MultiNicError if the pod asks and may not have them, or if the runtime handed over no annotations of a pod that may
            ask.
        """
        if not self._is_on or request.is_wired_by_caller or request.key.ifname != POD_IFNAME:
            return False
        is_listed = bool(request.names.pod) and request.names.pod_namespace in self._namespaces
        if request.annotations is None:
            if is_listed:
                raise refusal(RefusalCode.MULTI_NIC_ANNOTATION_UNKNOWN, pod=pod_of(request), annotation=NIC_CONFIG)
            return False
        if request.annotations.get(NIC_CONFIG) != MULTI_NIC:
            return False
        if not is_listed:
            raise refusal(
                RefusalCode.MULTI_NIC_NOT_ALLOWED,
                pod=pod_of(request),
                annotation=f"{NIC_CONFIG}={MULTI_NIC}",
                namespace=request.names.pod_namespace or "(unknown)",
            )
        return True


def pod_of(request: AttachRequest) -> str:
    """Name a pod in a refusal, or its sandbox if the runtime did not name the pod."""
    return request.names.pod or f"sandbox {request.key}"
