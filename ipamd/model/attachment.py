"""Attachments: one interface of one sandbox with its address, and its names in the kernel.

The host veth's name is derived from the key, so a second sandbox of a pod with the same name never gets the same link.
amazon-vpc-cni-k8s derives it from the pod's name (pkg/networkutils/names.go, GeneratePodHostVethName). The ifalias has the whole
identity: `ip link` shows it to an operator, and a lost datastore is rebuilt from it (docs/adr/0001, docs/adr/0010).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from typing import Any

from ipamd.model.branch import Branch
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.errors import IpamError
from ipamd.model.family import IpAddress, IpNetwork, family_of, read_address
from ipamd.model.ids import AttachmentKey, ContainerId, EniId, IfName, MacAddress, parse_key
from ipamd.model.record import dataclass, field

VETH_HASH_LENGTH = 11
"""Hexadecimal digits: prefix (at most 4) + 11 = 15, the kernel's limit (IFNAMSIZ less its terminator).

Source: amazon-vpc-cni-k8s pkg/networkutils/names.go, GeneratePodHostVethNameSuffix.
"""

ALIAS_TAG = "vpc-ipamd/1"
IMPORTED_TAG = "vpc-ipamd/1-imported"
"""Of a sandbox that amazon-vpc-cni-k8s wired: its MACs are not derived from its key (docs/adr/0037)."""
EGRESS_TAG = "vpc-ipamd-egress/1"
"""Of a sandbox's second link, with its address for egress. Earlier releases take it for no identity, so they leave the link alone."""

BRANCH_TAG = "vpc-ipamd-branch/1"
"""Of a sandbox with a branch ENI, whose address is not of the pool; the VLAN link's alias says the rest (`branch.py`). Earlier
releases take it for no identity."""


class Origin(StrEnum):
    """How the datastore learned of an attachment."""

    ADD = "add"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class NetnsIdentity:
    """The network namespace at a path: device and inode of its nsfs file. Zero: unknown (adopted)."""

    device: int
    inode: int


@dataclass(frozen=True, slots=True)
class Attachment:
    """The owner of one pool address, with the answer to its CNI ADD.

    `address` alone is of the pool; `other_address`: of the other family, from its range for egress, or None. `branch`: of a sandbox
    whose address is that of a branch ENI (`eni_id`), which the pool does not know; None of all others. Of such a one, whose address
    has no row that tells it, `since_monotonic_s`: when it was recorded, on the monotonic clock; `contradiction`: what EC2 says
    against it, "" for nothing, None while EC2 has not been asked.
    `fingerprint` identifies the request (netns identity, ifname, configuration): the same request gets the same answer.
    `result` is the CNI result as canonical JSON of spec 1.1.0, converted per request. Pod names are for display only.
    """

    key: AttachmentKey
    address: IpAddress
    eni_id: EniId
    route_table: int
    host_veth: str
    netns: str
    netns_identity: NetnsIdentity
    fingerprint: str
    result: bytes
    created_at: datetime
    origin: Origin = Origin.ADD
    network_name: str = ""
    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""
    other_address: IpAddress | None = None
    branch: Branch | None = None
    since_monotonic_s: float | None = field(default=None, compare=False)
    contradiction: str | None = None

    @property
    def links(self) -> frozenset[str]:
        """Names of its first link on the host, and of the one to its branch ENI."""
        return frozenset({self.host_veth, self.branch.link} if self.branch else {self.host_veth})

    @property
    def is_cut_off(self) -> bool:
        """Whether it may have no network: EC2 contradicts its branch ENI, and it is in strict mode."""
        return bool(self.contradiction and self.branch and self.branch.is_strict)

    @property
    def sandbox_name(self) -> str:
        """`namespace/name` of the pod as the runtime gave it, or an empty string."""
        return f"{self.pod_namespace}/{self.pod_name}" if self.pod_name else ""


@dataclass(frozen=True, slots=True)
class WiringSpec:
    """Everything that the kernel adapter needs to wire one sandbox.

    `route_table` is the table of the ENI that holds the address; the main table (254) needs no from-rule. `mtu` in bytes, 0: unknown.
    `others_mac`: of a sandbox that amazon-vpc-cni-k8s wired, the host veth's MAC, "" where it is not known; else None.
    `prefix`: the delegated prefix of the address, whose from-rule serves all its sandboxes; None: it has a rule of its own.
    `other_address`: what it has for egress, by a second link, or None. That link has a spec of its own (`is_egress`), so that what
    wires and compares links does so for both. `branch`: of a sandbox that is led to a branch ENI, `eni_id`, by a VLAN link on the
    link of the trunk ENI, whose MAC is `trunk_mac` ("" where it need not be made any more).
    """

    key: AttachmentKey
    address: IpAddress
    route_table: int
    host_veth: str
    netns: str
    mtu: int
    others_mac: MacAddress | None = None
    prefix: IpNetwork | None = None
    other_address: IpAddress | None = None
    is_egress: bool = False
    branch: Branch | None = None
    eni_id: EniId = EniId("")
    trunk_mac: MacAddress = MacAddress("")

    @property
    def links(self) -> tuple[WiringSpec, ...]:
        """Its own link, and the second one if it has it."""
        return (self,) if (second := self.second) is None else (self, second)

    @property
    def second(self) -> WiringSpec | None:
        """The link for egress."""
        if self.other_address is None:
            return None
        return WiringSpec(
            key=self.key,
            address=self.other_address,
            route_table=MAIN_TABLE,
            host_veth=host_veths(self)[-1],
            netns=self.netns,
            mtu=self.mtu,
            others_mac=None if self.others_mac is None else MacAddress(""),
            is_egress=True,
        )

    @property
    def ifname(self) -> str:
        """The link's name inside the sandbox."""
        return family_of(self.address).egress.ifname if self.is_egress else self.key.ifname

    @property
    def gateway(self) -> IpAddress:
        """The next hop inside the sandbox."""
        family = family_of(self.address)
        return family.egress.gateway if self.is_egress else family.gateway

    @property
    def alias(self) -> str:
        """The host veth's ifalias."""
        if self.is_egress:
            return encode_alias(self.key, self.address, tag=EGRESS_TAG)
        if self.branch:
            return encode_alias(self.key, self.address, tag=BRANCH_TAG)
        return encode_alias(self.key, self.address, tag=IMPORTED_TAG if self.is_imported else ALIAS_TAG)

    @property
    def is_imported(self) -> bool:
        """Whether amazon-vpc-cni-k8s wired it."""
        return self.others_mac is not None

    @property
    def is_mtu_known(self) -> bool:
        """Whether `mtu` is what the sandbox was wired with: a caller that wires it itself does not say."""
        return bool(self.mtu) and self.others_mac != ""

    def mac(self, side: str) -> MacAddress:
        """The MAC of the "host" or the "sandbox" side; "" where it is not known and any will do."""
        if self.others_mac is None:
            return sandbox_mac(self.key, side=f"egress {side}" if self.is_egress else side)
        return self.others_mac if side == "host" else MacAddress("")


@dataclass(frozen=True, slots=True)
class Wired:
    """Outcome of wiring a WiringSpec. MACs in lower case; `netns_identity` is that of the namespace that was opened."""

    host_mac: MacAddress
    sandbox_mac: MacAddress
    netns_identity: NetnsIdentity


def veth_name(key: AttachmentKey, *, prefix: str) -> str:
    """Return the name of an attachment's host veth; the same key always gives the same name.

    Args:
        prefix: 1 to 4 characters (AWS_VPC_K8S_CNI_VETHPREFIX).
    Returns: at most 15 characters.
    """
    digest = hashlib.sha1(f"{key.container_id}/{key.ifname}".encode(), usedforsecurity=False).hexdigest()
    return prefix + digest[:VETH_HASH_LENGTH]


def egress_veth_name(key: AttachmentKey, *, prefix: str) -> str:
    """Return the name of the host's end of a sandbox's second link, as `veth_name` does of the first."""
    digest = hashlib.sha1(f"egress:{key.container_id}/{key.ifname}".encode(), usedforsecurity=False).hexdigest()
    return prefix + digest[:VETH_HASH_LENGTH]


def host_veths(one: Attachment | WiringSpec) -> tuple[str, ...]:
    """The names of a sandbox's links on the host, the second one's last."""
    if one.other_address is None:
        return (one.host_veth,)
    return one.host_veth, egress_veth_name(one.key, prefix=one.host_veth[:-VETH_HASH_LENGTH])


POD_IFNAME = "eth0"
"""The interface whose host veth carries the pod's name: what kubelet calls the pod's own. Others are named by their key."""


def name_key(host_veth: str) -> AttachmentKey:
    """What is held while a pod's host veth name goes from one of its sandboxes to the next (`ipamd/core/deadline.py`)."""
    return AttachmentKey(ContainerId(host_veth), IfName(POD_IFNAME))


def pod_veth_name(pod_namespace: str, pod_name: str, *, prefix: str) -> str:
    """Return the host veth's name that amazon-vpc-cni-k8s gives to a pod, which policy agents compute (docs/adr/0024).

    Source: amazon-vpc-cni-k8s pkg/networkutils/names.go, GeneratePodHostVethName.
    """
    digest = hashlib.sha1(f"{pod_namespace}.{pod_name}".encode(), usedforsecurity=False).hexdigest()
    return prefix + digest[:VETH_HASH_LENGTH]


@lru_cache(maxsize=4096)  # each pass over the sandboxes asks for all
def sandbox_mac(key: AttachmentKey, *, side: str) -> MacAddress:
    """Derive a locally administered unicast MAC from the key, so that no search for an unused one is needed.

    Args:
        side: "host" or "sandbox", of the second link with "egress " ahead; all ends differ.
    """
    digest = hashlib.sha1(f"{side}:{key.container_id}/{key.ifname}".encode(), usedforsecurity=False).digest()
    octets = bytes([(digest[0] & 0xFC) | 0x02]) + digest[1:6]
    return MacAddress(octets.hex(":"))


def encode_alias(key: AttachmentKey, address: IpAddress, *, tag: str = ALIAS_TAG) -> str:
    """Encode the identity for a host veth's ifalias: at most 255 bytes for the longest accepted container ID."""
    return f"{tag} {key.container_id} {key.ifname} {address}"


def is_imported_alias(alias: str) -> bool:
    """Whether an ifalias of ours is that of a sandbox which amazon-vpc-cni-k8s wired."""
    return alias.startswith(f"{IMPORTED_TAG} ")


def decode_alias(alias: str, *tags: str) -> tuple[AttachmentKey, IpAddress] | None:
    """Decode an identity; None if the alias is not ours or is damaged. Without `tags`: of a link with a pool address."""
    parts = alias.split(" ")
    if len(parts) != 4 or parts[0] not in (tags or (ALIAS_TAG, IMPORTED_TAG)) or "%" in parts[3]:
        return None
    try:
        return parse_key(parts[1], IfName(parts[2])), read_address(parts[3])
    except (IpamError, ValueError):
        return None


# Decoded CNI requests: values, no wire format.


JsonObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SandboxNames:
    """Pod names from the runtime, for display only; no decision uses them (docs/adr/0001)."""

    pod_namespace: str = ""
    pod_name: str = ""
    pod_uid: str = ""

    @property
    def pod(self) -> str:
        """`namespace/name`, or an empty string."""
        return f"{self.pod_namespace}/{self.pod_name}" if self.pod_name else ""


@dataclass(frozen=True, slots=True)
class AttachRequest:
    """One ADD (or CHECK). `config_digest` identifies the network configuration, byte for byte.

    `is_wired_by_caller`: by the plugin of amazon-vpc-cni-k8s, which wires the sandbox after the reply.
    `annotations`: the pod's, as they were when this sandbox was begun, if the runtime hands them over; else None.
    """

    key: AttachmentKey
    netns: str
    network_name: str
    cni_version: str
    config_digest: str
    names: SandboxNames = field(default_factory=SandboxNames)
    prev_result: JsonObject | None = None
    is_wired_by_caller: bool = False
    annotations: Mapping[str, str] | None = None


def fingerprint(request: AttachRequest, identity: NetnsIdentity) -> str:
    """Identify a request: the same sandbox namespace, interface and configuration give the same text.

    A repeated ADD is recognised by it (docs/life.md, The life of an ADD).
    """
    material = f"{identity.device}:{identity.inode}\n{request.key.ifname}\n{request.config_digest}"
    return hashlib.sha256(material.encode()).hexdigest()
