"""Parse the answers of instance metadata: identity, MAC addresses and ENIs. A value of an unexpected form is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network

from ipamd.cloud.errors import AttemptError
from ipamd.model.cloud import InstanceIdentity, MetadataEni
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, Family
from ipamd.model.ids import EniId, InstanceId, MacAddress, SubnetId

DOCUMENT = "dynamic/instance-identity/document"

MAC = "meta-data/mac"

MACS = "meta-data/network/interfaces/macs"

Read = Callable[[str], str | None]
"""Path -> text, None for a 404. Raises: CloudError or AttemptError."""

ID, INDEX = "interface-id", "device-number"

WORD = re.compile(r"[!-;=?-~]{1,1024}")
"""Printable ASCII without spaces and without the angle brackets of HTML. Ours: AWS promises no format of IDs, and tokens are base64,
so nothing more can be required."""

MAC_FORM = re.compile(r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}")


def _malformed(path: str, value: object) -> CloudError:
    return failure(CloudError, FailureCode.METADATA_MALFORMED, path=path, value=str(value)[:200])


def _identity(text: Callable[[str], str]) -> InstanceIdentity:
    """Build the node's identity from the texts of several paths.

    `text`: returns the text of a path. Raises: AttemptError if a text does not have the expected form; and what `text` raises.
    """
    path = DOCUMENT

    def word(value: object) -> str:
        if not isinstance(value, str) or not is_word(value.strip()):
            raise ValueError(f"{str(value)[:40]!r} is no name")
        return value.strip()

    try:
        document = json.loads(text(path))
        instance_id, instance_type = word(document["instanceId"]), word(document["instanceType"])
        region, zone = word(document["region"]), word(document["availabilityZone"])
        primary = IPv4Address(word(document["privateIp"])) if document.get("privateIp") else None
        path = MAC
        mac = parse_mac(text(path))
        path = f"{MACS}/{mac}"
        return InstanceIdentity(
            instance_id=InstanceId(instance_id),
            instance_type=instance_type,
            region=region,
            availability_zone=zone,
            vpc_id=word(text(f"{path}/vpc-id")),
            vpc_cidrs=tuple(IPv4Network(cidr) for cidr in text(f"{path}/vpc-ipv4-cidr-blocks").split()),
            primary_mac=mac,
            primary_eni_id=EniId(word(text(f"{path}/interface-id"))),
            primary_address=primary or IPv4Address(text(f"{path}/local-ipv4s").split()[0]),
            subnet_id=SubnetId(word(text(f"{path}/subnet-id"))),
            subnet_cidr=IPv4Network(text(f"{path}/subnet-ipv4-cidr-block").strip()),
            security_group_ids=tuple(sorted(map(word, text(f"{path}/security-group-ids").split()))),
        )
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as exc:
        raise AttemptError(_malformed(path, repr(str(exc)[:200]))) from exc


def read_macs(read: Read) -> frozenset[MacAddress]:
    """Read the MACs of all interfaces: one request.

    Raises: CloudError if a MAC is malformed, or if the list is empty, because every instance has an interface; and what `read` raises.
    """
    try:
        macs = frozenset(parse_mac(line.rstrip("/")) for line in (read(f"{MACS}/") or "").split())
    except ValueError as exc:
        raise _malformed(MACS, exc) from exc
    if not macs:
        raise failure(CloudError, FailureCode.METADATA_INCOMPLETE, path=MACS)
    return macs


def read_eni(mac: MacAddress, read: Read, settled: tuple[EniId, int] | None, family: Family = IPV4) -> MetadataEni:
    """Read one interface: two requests, and two more for its ID and device index unless `settled` has them.

    For a pool of IPv6, which has no single addresses, only the primary address is returned besides the prefixes.
    Raises: CloudError if a path that every interface has is missing, or a value is malformed.
    """
    path = f"{MACS}/{mac}"
    try:
        eni_id, device_index = _read_place(path, read) if settled is None else settled
        addresses = (read(f"{path}/{IPV4.addresses_leaf}") or "").split()
        return MetadataEni(
            mac=mac,
            eni_id=eni_id,
            device_index=device_index,
            addresses=frozenset(map(IPV4.address, addresses[:1] if family.is_sparse else addresses)),
            prefixes=frozenset(map(family.prefix, (read(f"{path}/{family.prefixes_leaf}") or "").split())),
        )
    except ValueError as exc:
        raise _malformed(path, exc) from exc


def _read_place(path: str, read: Read) -> tuple[EniId, int]:
    """Read the ID and the device index of an interface: two requests. Raises: CloudError, ValueError."""
    eni_id, index = read(f"{path}/{ID}"), read(f"{path}/{INDEX}")
    if eni_id is None or index is None:
        missing = f"{path}/{ID if eni_id is None else INDEX}"
        raise failure(CloudError, FailureCode.METADATA_LAGS, path=missing)
    if not is_word(eni_id.strip()):
        raise ValueError(f"{eni_id[:40]!r} is no ID")
    return EniId(eni_id.strip()), int(index)


def is_word(text: str) -> bool:
    """Whether a text may be an ID, a name or a token of AWS, and not an HTML page."""
    return WORD.fullmatch(text) is not None


def parse_mac(text: str) -> MacAddress:
    """Read a MAC, as metadata writes it. Raises: ValueError."""
    mac = text.strip().lower()
    if not MAC_FORM.fullmatch(mac):
        raise ValueError(f"{text[:40]!r} is no MAC address")
    return MacAddress(mac)
