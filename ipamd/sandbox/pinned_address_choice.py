"""Decide which address a new sandbox asks for, and whether the operator allows that (docs/adr/0083). Pure.

A pod asks by annotations, which its author writes, or the operator's list in the network file names its address. Annotations and list
choose only among the addresses that the settings allow to the pod's namespace. The pod's namespace and name are taken from CNI_ARGS,
because the runtime writes these and no author can change them. If an annotation or an entry of the list is not allowed, the ADD is
refused: if the pod ran with another address than it asked for, only its peers would notice.
"""

from __future__ import annotations

import re

from ipamd.model.attachment import POD_IFNAME
from ipamd.model.cni_request import AttachRequest
from ipamd.model.errors import IpamError
from ipamd.model.family import IPV4, Family, IpAddress, read_address
from ipamd.model.pinned_address import SAME, PinnedList, PinnedRange, PinnedWish, ranges_of
from ipamd.model.pinned_refusals import PinnedRefusalCode, pinned_refusal
from ipamd.model.pod_annotations import ADDRESS, ADDRESS_KEPT
from ipamd.model.record import dataclass, field

OF_IPV6 = "a pod of IPv6 gets an address of its node's /80"

OF_UPLINK = "the address of a pod with security groups of its own is that of its branch ENI"

SHOWN = 40
"""The largest number of characters of an annotation that a refusal shows. Ours: an IPv4 address has at most 15, so every correct value
is shown as a whole."""


@dataclass(frozen=True, slots=True)
class PinnedAddressChoice:
    """Decides which address a pod may have, by these settings.

    `ranges`: the ranges of addresses for which the pods of a namespace may ask. If there are none, no annotation is read.
    `takers`: namespaces whose pods may take an address from a node that is not proven gone.
    `kept_max_s`: the longest time in seconds for which an address is kept for its pod.
    `family`: the address family of the pool.
    `listed`: the operator's list, pod to address. A pod in the list gets its address with or without an annotation.
    """

    ranges: tuple[PinnedRange, ...] = ()
    takers: tuple[str, ...] = ()
    kept_max_s: int = 0
    family: Family = IPV4
    listed: PinnedList = field(default_factory=dict)

    def by_annotation(self, request: AttachRequest) -> PinnedWish | None:
        """Return the address that the pod's annotation or the operator's list asks for; None if neither does. Raises:
        PinnedAddressError.
        """
        value = self._annotation_of(request)
        if value is None:
            return None
        namespace = request.names.pod_namespace
        if not request.names.pod or not self._is_listed(namespace):
            raise _refused(PinnedRefusalCode.NOT_ALLOWED, request, value=value[:SHOWN], namespace=namespace or "(unknown)")
        if self.family is not IPV4:
            raise _refused(PinnedRefusalCode.NOT_APPLICABLE, request, value=value[:SHOWN], cause=OF_IPV6)
        address = self._address(request, value)
        return PinnedWish(
            request.names.pod,
            address,
            self._kept_s(request, is_named=address is not None),
            may_take=namespace in self.takers,
        )

    def refuse_for_uplink(self, request: AttachRequest) -> None:
        """Refuse a pod that has an ENI of its own and also asks for an address, by annotation or list. Raises: PinnedAddressError."""
        wish = self.by_annotation(request)
        if wish is not None:
            raise _refused(PinnedRefusalCode.NOT_APPLICABLE, request, value=wish.address or SAME, cause=OF_UPLINK)

    def refuse_for_pool(self, request: AttachRequest, pool: str) -> None:
        """Refuse a pod that asks for an address, by annotation or list, if its addresses come from a pool of pods.

        `pool`: the name of that pool; "" for the node's own pool, of which no pod is refused. Raises: PinnedAddressError.
        """
        wish = self.by_annotation(request)
        if pool and wish is not None:
            cause = f"its addresses are of pool {pool}, and an address that stays is of the node's own pool"
            raise _refused(PinnedRefusalCode.NOT_APPLICABLE, request, value=wish.address or SAME, cause=cause)

    def _annotation_of(self, request: AttachRequest) -> str | None:
        """Return the value of the annotation; without one, SAME if the operator's list names the pod.

        Returns: None if the pod has neither, if the request is about a further interface, if the caller wires the sandbox itself, or
            if the settings allow no address at all.
        Raises: PinnedAddressError if the runtime handed over no annotations of a pod that may ask.
        """
        if not self.ranges or request.is_wired_by_caller or request.key.ifname != POD_IFNAME:
            return None
        if request.annotations is not None:
            return request.annotations.get(ADDRESS, self._listed_value(request))
        if self._is_listed(request.names.pod_namespace):
            raise pinned_refusal(PinnedRefusalCode.ANNOTATIONS_UNKNOWN, pod=describe(request), annotation=ADDRESS)
        return None

    def _listed_value(self, request: AttachRequest) -> str | None:
        """Return SAME if the operator's list names the pod; else None.

        So a pod in the list is treated as if it had the annotation SAME, for which `_address` returns the address in the list.
        """
        return SAME if request.names.pod in self.listed else None

    def _address(self, request: AttachRequest, value: str) -> IpAddress | None:
        """Return the address that the annotation names. With SAME return the address in the operator's list; None if the list does not
        name the pod, which then asks for the address that it had last.

        Raises: PinnedAddressError if list and annotation differ, if the list names the address for another pod, or if the settings do
            not allow the address.
        """
        pod = request.names.pod
        listed = self.listed.get(pod)
        if value == SAME:
            return None if listed is None else self._named_address(request, str(listed))
        address = self._named_address(request, value)
        if listed is not None and address != listed:
            raise pinned_refusal(PinnedRefusalCode.LISTED_OTHERWISE, pod=pod, address=address, listed=listed)
        for holder_pod, listed_address in self.listed.items():
            if listed_address == address and holder_pod != pod:
                raise pinned_refusal(PinnedRefusalCode.LISTED_FOR_OTHER, pod=pod, address=address, holder_pod=holder_pod)
        return address

    def _is_listed(self, namespace: str) -> bool:
        return any(item.namespace == namespace for item in self.ranges)

    def _named_address(self, request: AttachRequest, value: str) -> IpAddress:
        """Return the address that a value names. Raises: PinnedAddressError if it is not an address, or one that is not allowed."""
        namespace = request.names.pod_namespace
        try:
            address = read_address(value)
        except ValueError:
            raise _refused(PinnedRefusalCode.VALUE_UNKNOWN, request, value=value[:SHOWN]) from None
        ranges = ranges_of(namespace, self.ranges)
        if not any(address in cidr for cidr in ranges):
            raise pinned_refusal(
                PinnedRefusalCode.OUTSIDE_RANGES,
                pod=describe(request),
                address=address,
                namespace=namespace,
                ranges=", ".join(map(str, ranges)) or "none",
            )
        return address

    def _kept_s(self, request: AttachRequest, *, is_named: bool) -> int:
        """Return for how many seconds the address is kept for its pod after the DEL.

        The annotation ADDRESS_KEPT names the time. Without it, a named address is not kept, so that the pod's next node can get it at
        once, and the address that the pod had last is kept for `kept_max_s`. Raises: PinnedAddressError.
        """
        least = 0 if is_named else 1
        value = (request.annotations or {}).get(ADDRESS_KEPT)
        if value is None:
            return 0 if is_named else self.kept_max_s
        if not re.fullmatch(r"\d{1,6}", value, re.ASCII) or not least <= int(value) <= self.kept_max_s:
            raise pinned_refusal(
                PinnedRefusalCode.KEPT_UNKNOWN,
                pod=describe(request),
                annotation=ADDRESS_KEPT,
                value=value[:SHOWN],
                least=least,
                most=self.kept_max_s,
            )
        return int(value)


def describe(request: AttachRequest) -> str:
    """Name a pod in a refusal, or its sandbox if the runtime did not name the pod."""
    return request.names.pod or f"sandbox {request.key}"


def _refused(code: PinnedRefusalCode, request: AttachRequest, **fields: object) -> IpamError:
    return pinned_refusal(code, pod=describe(request), annotation=ADDRESS, **fields)
