"""Read the node's ENIs from the tree `network/interfaces/macs` of instance metadata.

A 404 means "none" for addresses and prefixes (an IPv6-only or EFA-only interface has no local-ipv4s); for the rest it means that
metadata has not caught up, and is an error, never an empty value (I11).
Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instancedata-data-categories.html; amazon-vpc-cni-k8s issue 3122 (an
interface without local-ipv4s), pkg/awsutils/imds.go (a 404 for ipv4-prefix).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.cloud import MetadataEni
from ipamd.model.errors import CloudError
from ipamd.model.ids import EniId, MacAddress

Read = Callable[[str], str | None]
"""Path below `macs` -> text, None for a 404."""

ID, INDEX, ADDRESSES, PREFIXES = "interface-id", "device-number", "local-ipv4s", "ipv4-prefix"

WORD = re.compile(r"[!-;=?-~]{1,1024}")
"""Printable ASCII without spaces and without the angle brackets of HTML. Ours: AWS promises the format of no ID; tokens are base64."""

MAC = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")

SETTLED = (ID, INDEX)
"""Leaves that do not change while an ENI is attached."""


def read_macs(read: Read) -> frozenset[MacAddress]:
    """Read the list of interfaces: one request. Raises: CloudError, also for an empty list: every instance has one."""
    text = read("") or ""
    try:
        macs = frozenset(parse_mac(line.rstrip("/")) for line in text.split())
    except ValueError as exc:
        raise _unusable("", f"{exc}; metadata is not EC2's, or something answers in its place") from exc
    if not macs:
        raise _unusable("", "it names no interface, and every instance has one; metadata has not caught up, or is not EC2's")
    return macs


def read_eni(mac: MacAddress, read: Read, settled: dict[str, str]) -> MetadataEni:
    """Read one interface: two requests, and one for each of SETTLED that is not in `settled`, which gets them.

    Raises: CloudError if a leaf that every interface has is missing, or a value is malformed.
    """
    for leaf in SETTLED:
        if leaf not in settled:
            text = read(f"{mac}/{leaf}")
            if text is None:
                raise _unusable(f"{mac}/{leaf}", "404: the ENI is gone, or metadata has not caught up; it is looked at again")
            settled[leaf] = text.strip()
    if not is_word(settled[ID]):
        raise _unusable(f"{mac}/{ID}", f"{settled.pop(ID)[:40]!r} is no ID; it is looked at again")
    addresses, prefixes = read(f"{mac}/{ADDRESSES}") or "", read(f"{mac}/{PREFIXES}") or ""
    try:
        return MetadataEni(
            mac=mac,
            eni_id=EniId(settled[ID]),
            device_index=int(settled[INDEX]),
            addresses=frozenset(map(IPv4Address, addresses.split())),
            prefixes=frozenset(map(IPv4Network, prefixes.split())),
        )
    except ValueError as exc:
        settled.clear()
        raise _unusable(mac, f"the value is malformed ({str(exc)[:200]}); it is looked at again") from exc


def is_word(text: str) -> bool:
    """Whether a text may be an ID, a name or a token of AWS: no HTML page is."""
    return WORD.fullmatch(text) is not None


def parse_mac(text: str) -> MacAddress:
    """Read a MAC, as metadata writes it. Raises: ValueError."""
    mac = text.strip().lower()
    if not MAC.fullmatch(mac):
        raise ValueError(f"{text[:40]!r} is no MAC address")
    return MacAddress(mac)


def _unusable(path: str, details: str) -> CloudError:
    return CloudError(f"instance metadata of the interfaces ({path or 'list'}) could not be used", details=details)
