"""Identifiers, and the functions that check identifiers from outside. No other module makes identifiers of text from CNI requests.

The key of an attachment is `(container_id, ifname)`; container_id is CNI_CONTAINERID, which under CRI is the full sandbox ID
(docs/adr/0001). Pod names and UIDs identify nothing here: two sandboxes of one pod are two attachments.
"""

from __future__ import annotations

import re
from typing import NewType

from ipamd.model.errors import InvalidRequestError
from ipamd.model.record import dataclass

ContainerId = NewType("ContainerId", str)
IfName = NewType("IfName", str)
EniId = NewType("EniId", str)
SubnetId = NewType("SubnetId", str)
InstanceId = NewType("InstanceId", str)
MacAddress = NewType("MacAddress", str)
"""A MAC address in lower case, with colons between its bytes."""

CONTAINER_ID_MAX = 160
"""The most characters of a container ID. Ours: CRI IDs have 64. With an ID of this length the whole identity fits the kernel's ifalias
(255 bytes): the longest tag (20 bytes), interface name (15) and IPv6 address (39) leave 178."""

IFNAME_MAX = 15
"""The most bytes of an interface's name: the kernel's IFNAMSIZ less its terminator."""

_CONTAINER_ID = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.\-]*")  # CNI SPEC.md, Section 2, CNI_CONTAINERID
_IFNAME_BAD = re.compile(r"[/:%\s\x00]")
"""Characters that an interface name must not have: those that the kernel refuses, and `%`, for which the kernel would choose another
name (net/core/dev.c, dev_valid_name, dev_alloc_name)."""


@dataclass(frozen=True, slots=True, order=True)
class AttachmentKey:
    """One interface of one sandbox: the owner of an address."""

    container_id: ContainerId
    ifname: IfName

    def __str__(self) -> str:
        return f"{self.container_id}/{self.ifname}"


@dataclass(frozen=True, slots=True, order=True)
class PodName:
    """The name by which the network policy agent identifies a pod. Sandboxes are identified by `AttachmentKey`, because a recreated
    pod may have the same name.
    """

    namespace: str
    pod: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.pod}"


def parse_container_id(text: str) -> ContainerId:
    """Check a container ID by the CNI specification.

    Raises: InvalidRequestError if it is empty, too long or has other characters.
    """
    if not text or len(text) > CONTAINER_ID_MAX or not _CONTAINER_ID.fullmatch(text):
        raise InvalidRequestError(
            f"container ID {text[:80]!r} is not valid",
            details=f"1 to {CONTAINER_ID_MAX} letters, digits, '_', '.' or '-', starting with a letter or digit",
        )
    return ContainerId(text)


def parse_ifname(text: str) -> IfName:
    """Check that the kernel accepts an interface name.

    Raises: InvalidRequestError otherwise.
    """
    if not text.isprintable() or not text or len(text.encode()) > IFNAME_MAX or text in {".", ".."} or _IFNAME_BAD.search(text):
        raise InvalidRequestError(
            f"interface name {text[:80]!r} is not valid",
            details=f"1 to {IFNAME_MAX} bytes without '/', ':', '%', white space or control characters, not '.' or '..'",
        )
    return IfName(text)


def parse_key(container_id: str, ifname: str) -> AttachmentKey:
    """Build a key from text. Raises: InvalidRequestError."""
    return AttachmentKey(parse_container_id(container_id), parse_ifname(ifname))
