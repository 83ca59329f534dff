"""The refusals of an ADD whose pod asks for a pinned address. See `ipamd/model/refusals.py`."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.errors import BusyError, IpamError, PinnedAddressError
from ipamd.model.refusals import Refusal, refusal_of


class PinnedRefusalCode(StrEnum):
    """Why the ADD of a pod that asks for a pinned address is refused: the value of the key `refusal` in the request's log line."""

    NOT_ALLOWED = "pinned-not-allowed"
    VALUE_UNKNOWN = "pinned-value-unknown"
    KEPT_UNKNOWN = "pinned-kept-unknown"
    NOT_APPLICABLE = "pinned-not-applicable"
    ANNOTATIONS_UNKNOWN = "pinned-annotations-unknown"
    LISTED_OTHERWISE = "pinned-listed-otherwise"
    LISTED_FOR_OTHER = "pinned-listed-for-other"
    OUTSIDE_RANGES = "pinned-outside-ranges"
    OTHER_SUBNET = "pinned-other-subnet"
    IN_USE_HERE = "pinned-in-use-here"
    KEPT_FOR_OTHER = "pinned-kept-for-other"
    IS_PRIMARY = "pinned-is-primary"
    IN_PREFIX = "pinned-in-prefix"
    HELD = "pinned-held"
    HELD_UNATTACHED = "pinned-held-unattached"
    SOURCE_UNCHECKED = "pinned-source-unchecked"
    NO_SLOT = "pinned-no-slot"
    PENDING = "pinned-pending"
    TOO_MANY_WAITS = "pinned-too-many-waits"


_NO_ADDRESS = "{pod} gets no address: "
_ASKED = _NO_ADDRESS + "it asks for {address}, "

REFUSALS: Mapping[PinnedRefusalCode, Refusal] = {
    PinnedRefusalCode.NOT_ALLOWED: Refusal(
        PinnedAddressError,
        _NO_ADDRESS + "its annotation {annotation}={value} is not allowed in namespace {namespace}",
        "add the namespace to VPC_IPAMD_PINNED_ADDRESSES, or remove the annotation",
    ),
    PinnedRefusalCode.VALUE_UNKNOWN: Refusal(
        PinnedAddressError,
        _NO_ADDRESS + "its annotation {annotation}={value} is neither an IPv4 address nor same",
        "correct the annotation, or remove it",
    ),
    PinnedRefusalCode.KEPT_UNKNOWN: Refusal(
        PinnedAddressError,
        _NO_ADDRESS + "its annotation {annotation}={value} is not a number of seconds from {least} to {most}",
        "correct the annotation, or remove it; VPC_IPAMD_PINNED_ADDRESS_KEEP_SECONDS is the most",
    ),
    PinnedRefusalCode.NOT_APPLICABLE: Refusal(
        PinnedAddressError,
        _NO_ADDRESS + "its annotation {annotation}={value} cannot be followed",
        "{cause}; remove the annotation",
    ),
    PinnedRefusalCode.ANNOTATIONS_UNKNOWN: Refusal(
        PinnedAddressError,
        _NO_ADDRESS + "the runtime did not hand over its annotations, so {annotation} is not known",
        "containerd does from 1.5 on and CRI-O from 1.29 on, if our conflist asks for them: it does some seconds after the daemon's "
        "start; retry; or remove the namespace from VPC_IPAMD_PINNED_ADDRESSES",
    ),
    PinnedRefusalCode.LISTED_OTHERWISE: Refusal(
        PinnedAddressError,
        _ASKED + "and the operator's list has {listed} for it",
        "remove the annotation, or let it be same; or change the pod's entry under addresses in the network file",
    ),
    PinnedRefusalCode.LISTED_FOR_OTHER: Refusal(
        PinnedAddressError,
        _ASKED + "which the operator's list has for {holder_pod}",
        "name another address, or change the entry under addresses in the network file",
    ),
    PinnedRefusalCode.OUTSIDE_RANGES: Refusal(
        PinnedAddressError,
        _ASKED + "which is in no range of namespace {namespace}",
        "the ranges are: {ranges}; correct the annotation, or extend VPC_IPAMD_PINNED_ADDRESSES",
    ),
    PinnedRefusalCode.OTHER_SUBNET: Refusal(
        PinnedAddressError,
        _ASKED + "which is in no subnet of this node's ENIs ({zone}: {subnets})",
        "an address belongs to a subnet, and a subnet to a zone: let the pod run only on nodes of that zone and subnet",
    ),
    PinnedRefusalCode.IN_USE_HERE: Refusal(
        PinnedAddressError,
        _ASKED + "which sandbox {holder} of {holder_pod} on this node has",
        "retry once that sandbox is deleted; a live sandbox keeps its address (I2)",
    ),
    PinnedRefusalCode.KEPT_FOR_OTHER: Refusal(
        PinnedAddressError,
        _ASKED + "which is kept for {holder_pod} for {left_s} s more",
        "wait, or name another address; `ipamctl explain {address}` shows for whom it is kept",
    ),
    PinnedRefusalCode.IS_PRIMARY: Refusal(
        PinnedAddressError,
        _ASKED + "which is the primary address of {eni}",
        "name another address: a primary address is never given (I6) and cannot be moved",
    ),
    PinnedRefusalCode.IN_PREFIX: Refusal(
        PinnedAddressError,
        _ASKED + "which lies in a /28 that is delegated to an ENI",
        "{cause}; release that /28, and reserve the range in the subnet with type explicit, so that EC2 delegates none of it",
    ),
    PinnedRefusalCode.HELD: Refusal(
        PinnedAddressError,
        _ASKED + "which is on {eni} of instance {instance}, which is {state}",
        "retry once that node has released it, or EC2 shows the instance stopped or terminated; or list the namespace in "
        "VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES",
    ),
    PinnedRefusalCode.HELD_UNATTACHED: Refusal(
        PinnedAddressError,
        _ASKED + "which is on {eni}, attached to no instance",
        "retry: the next ADD takes it, if EC2 still shows the ENI available",
    ),
    PinnedRefusalCode.SOURCE_UNCHECKED: Refusal(
        PinnedAddressError,
        _ASKED + "which is on {eni}, whose source/destination check is off",
        "EC2 would carry what the old node goes on sending with it: turn the check on, or remove the address from that ENI by hand",
    ),
    PinnedRefusalCode.NO_SLOT: Refusal(
        PinnedAddressError,
        _ASKED + "and no ENI in its subnet has a slot for it",
        "{cause}; retry",
    ),
    PinnedRefusalCode.PENDING: Refusal(PinnedAddressError, _ASKED + "which cannot be had yet", "{cause}; retry"),
    PinnedRefusalCode.TOO_MANY_WAITS: Refusal(
        BusyError, "{limit} ADDs wait for addresses that they ask for already", "retry: other pods are served meanwhile"
    ),
}
"""By code: what failed, on which object, and what to do (I14)."""


def pinned_refusal(code: PinnedRefusalCode, **fields: object) -> IpamError:
    """Make the error of a refusal, for the caller to raise. The fields become text."""
    return refusal_of(code, REFUSALS[code], fields)
