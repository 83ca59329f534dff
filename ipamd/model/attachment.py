"""Attachments: one interface of one sandbox with its address, and its names in the kernel.

`veth_name` derives the name of a host veth from the attachment's key. `pod_veth_name` derives it from the pod's namespace and name, as
amazon-vpc-cni-k8s does (pkg/networkutils/names.go, GeneratePodHostVethName); the host veths of two successive sandboxes of a pod then
have the same name. A host veth's ifalias has the whole identity of its sandbox: `ip link` shows it to an operator, and a lost
datastore is rebuilt from it (docs/adr/0001, docs/adr/0010).

A *leg* is one veth pair of a sandbox; an *extra leg* gives the sandbox an address of the other family for egress (`legs/`). An
*uplink* is a link by which the packets of one sandbox alone leave the node (`uplink.py`).
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from enum import StrEnum
from functools import lru_cache
from ipaddress import IPv4Network

from ipamd.model.cni_request import NetnsIdentity, SandboxNames
from ipamd.model.errors import IpamError
from ipamd.model.family import IpAddress, IpNetwork, read_address
from ipamd.model.ids import AttachmentKey, ContainerId, EniId, IfName, MacAddress, parse_key
from ipamd.model.pod_snat import PodSnat
from ipamd.model.record import dataclass, field
from ipamd.model.uplink import Uplink

VETH_HASH_LENGTH = 11
"""The number of hexadecimal digits of a hash in the name of a host veth. With a prefix of at most 4 characters the name has at most 15
characters, the kernel's limit (IFNAMSIZ less its terminator).

Source: amazon-vpc-cni-k8s pkg/networkutils/names.go, GeneratePodHostVethNameSuffix.
"""

ALIAS_TAG = "vpc-ipamd/1"
"""First word of the ifalias of a host veth that we made for a sandbox with a pool address."""

IMPORTED_TAG = "vpc-ipamd/1-imported"
"""First word of the ifalias of a host veth that amazon-vpc-cni-k8s made. The MACs of such a veth pair are not derived from the
sandbox's key (docs/adr/0037)."""

POD_IFNAME = "eth0"
"""Name of the pod's first interface, as the runtime gives it. The host veths of this interface, and of the pod's interfaces of further
network cards, may be named after the pod. All other host veths are named after their key."""

UNCONFIRMED = "EC2 has not confirmed it"
"""Beginning of `Attachment.contradiction` in standard mode, as long as EC2 has not confirmed the ENI that the pod's annotation names
(docs/adr/0049). If EC2 has contradicted the annotation, the contradiction follows."""


class Origin(StrEnum):
    """Why an attachment is in the datastore.

    ADD: an ADD made it.
    ADOPT: the daemon found a wired sandbox without a row, and recorded it.
    """

    ADD = "add"
    ADOPT = "adopt"


@dataclass(frozen=True, slots=True)
class Attachment:
    """One interface of a sandbox with its address, and the answer to its CNI ADD.

    address: the pod's address: one of a pool, or the address of an ENI that belongs to this pod alone (a branch ENI).
    eni_id: the ENI that has the address.
    route_table: the number of the route table for packets from the address.
    host_veth: the name of the first leg's host veth.
    netns: the path of the sandbox's network namespace; "" for an adopted sandbox, whose path is not known.
    netns_identity: device and inode of the file at `netns` at the time of the ADD.
    other_address: the address of an extra leg, in the other family; None without an extra leg.
    uplink: how the sandbox is connected to the pod's own ENI; None if the address is one of a pool.
    since_monotonic_s: when the attachment was recorded, on the monotonic clock; None without an uplink, because the row of a pool
        address has this time.
    contradiction: with an uplink, how EC2's answer contradicts the claim that the ENI is the pod's own; "" if it does not, None before
        EC2 was called. The text begins with `UNCONFIRMED` while the sandbox waits, without routes, for a confirmation by EC2.
    fingerprint: identifies the request (netns identity, ifname, configuration): the same request gets the same answer. "" for an
        adopted sandbox.
    snat: how connections to outside the VPC are translated, if the pod chose this; None: they are translated as the node's settings
        say.
    kept_s: for how many seconds after the DEL the address is kept for the pod; None: it is not kept.
    result: the CNI result as canonical JSON of spec 1.1.0, converted for each request to the version that it asks for.
    pod_namespace, pod_name, pod_uid: as the runtime gave them. They are never evidence against a live sandbox (docs/adr/0001).
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
    uplink: Uplink | None = None
    since_monotonic_s: float | None = field(default=None, compare=False)
    contradiction: str | None = None
    snat: PodSnat | None = None
    kept_s: int | None = None

    @property
    def is_of_pool(self) -> bool:
        """Whether the address is one of a pool. Otherwise it is the address of an ENI that belongs to this pod alone."""
        return self.uplink is None

    @property
    def wiring(self) -> WiringSpec:
        """The wiring by which the sandbox's links are recognised and removed. The MTU is missing, and so are the MACs of links that
        amazon-vpc-cni-k8s made: only `result` has these, and `recorded_spec` adds them.
        """
        return WiringSpec(
            key=self.key,
            address=self.address,
            route_table=self.route_table,
            host_veth=self.host_veth,
            netns=self.netns,
            mtu=0,
            other_address=self.other_address,
            uplink=self.uplink,
            eni_id=self.eni_id,
            snat=self.snat,
            kept_s=self.kept_s,
        )

    @property
    def must_be_cut_off(self) -> bool:
        """Whether the sandbox must have no network.

        In strict mode it must have none while EC2 contradicts the claim that the ENI is the pod's own. In standard mode it must have
        none until EC2 has confirmed the claim.
        """
        return bool(self.contradiction and self.uplink and (self.uplink.is_strict or self.is_unconfirmed))

    @property
    def is_unconfirmed(self) -> bool:
        """Whether EC2 has not confirmed the pod's own ENI yet. Until then the sandbox has no routes."""
        return (self.contradiction or "").startswith(UNCONFIRMED)

    @property
    def objection(self) -> str:
        """How EC2's answer contradicts the claim that the ENI is the pod's own; "" if it does not, or if EC2 has not answered yet."""
        return (self.contradiction or "").removeprefix(UNCONFIRMED).removeprefix(": ")

    @property
    def sandbox_name(self) -> str:
        """`namespace/name` of the pod as the runtime gave it, or an empty string."""
        if self.pod_name:
            return f"{self.pod_namespace}/{self.pod_name}"
        return ""


@dataclass(frozen=True, slots=True)
class WiringSpec:
    """Everything that the kernel adapter needs to wire one sandbox. `ipamd/model/legs/` determines the links.

    address: the pod's address.
    route_table: the table of the ENI that has the address; the main table (254) needs no rule for packets from the address.
    host_veth: the name of the first leg's host veth.
    netns: the path of the sandbox's network namespace; "" if it is not known.
    mtu: the MTU of the links, in bytes; 0: unknown.
    others_mac: the host veth's MAC if amazon-vpc-cni-k8s wired the sandbox, "" if the MAC is not known; None if we wired the sandbox.
    prefix: the delegated prefix of the address, if one rule `from PREFIX` selects the packets of all its sandboxes; None: the
        address has a rule of its own, or needs none.
    subnet: the subnet of the address's ENI, if the rules of single addresses are in buckets by their place in the subnet
        (`source_rules.py`); None: the rule has the priority of amazon-vpc-cni-k8s, or its bucket is not known.
    other_address: the address of the extra leg, or None.
    uplink: how the sandbox is connected to the pod's own ENI; None if the address is one of a pool.
    eni_id: the ENI that has the address.
    trunk_mac: with an uplink, the MAC of the trunk ENI, on whose link a missing uplink is made; "" if it is not known or not needed.
    is_kept_down: the links stay down and get no routes until EC2 has confirmed the ENI; then a repair completes the wiring.
    snat: as in `Attachment`.
    kept_s: as in `Attachment`; the kernel adapter does not read it.
    """

    key: AttachmentKey
    address: IpAddress
    route_table: int
    host_veth: str
    netns: str
    mtu: int
    others_mac: MacAddress | None = None
    prefix: IpNetwork | None = None
    subnet: IPv4Network | None = None
    other_address: IpAddress | None = None
    uplink: Uplink | None = None
    eni_id: EniId = EniId("")
    trunk_mac: MacAddress = MacAddress("")
    is_kept_down: bool = False
    snat: PodSnat | None = None
    kept_s: int | None = None

    @property
    def is_imported(self) -> bool:
        """Whether amazon-vpc-cni-k8s wired the sandbox."""
        return self.others_mac is not None

    @property
    def is_of_pool(self) -> bool:
        """Whether the address is one of a pool. Otherwise it is the address of an ENI that belongs to this pod alone."""
        return self.uplink is None

    @property
    def is_further(self) -> bool:
        """Whether this is a further interface, such as Multus's `net1`, in a sandbox that we wired, not the pod's first one
        (`ipamd/kernel/further_interfaces.py`).
        """
        return self.key.ifname != POD_IFNAME and not self.is_imported


def record_of(
    spec: WiringSpec,
    *,
    netns_identity: NetnsIdentity,
    fingerprint: str,
    result: bytes,
    created_at: datetime,
    names: SandboxNames,
    origin: Origin = Origin.ADD,
    network_name: str = "",
) -> Attachment:
    """Return the record of a wired sandbox."""
    return Attachment(
        key=spec.key,
        address=spec.address,
        eni_id=spec.eni_id,
        route_table=spec.route_table,
        host_veth=spec.host_veth,
        netns=spec.netns,
        netns_identity=netns_identity,
        fingerprint=fingerprint,
        result=result,
        created_at=created_at,
        origin=origin,
        network_name=network_name,
        pod_namespace=names.pod_namespace,
        pod_name=names.pod_name,
        pod_uid=names.pod_uid,
        other_address=spec.other_address,
        uplink=spec.uplink,
        contradiction=UNCONFIRMED if spec.is_kept_down else None,
        snat=spec.snat,
        kept_s=spec.kept_s,
    )


@dataclass(frozen=True, slots=True)
class Wired:
    """The result of wiring a sandbox by a `WiringSpec`.

    `host_mac`, `sandbox_mac`: the MACs of the two ends of the first leg.
    `netns_identity`: the identity of the network namespace that the adapter opened.
    `is_default_route`: whether the sandbox's default route leads through the interface. It leads through a further interface only if
    the sandbox had no default route before.
    """

    host_mac: MacAddress
    sandbox_mac: MacAddress
    netns_identity: NetnsIdentity
    is_default_route: bool = True


def veth_name(key: AttachmentKey, *, prefix: str) -> str:
    """Return the name of an attachment's host veth; the same key always gives the same name.

    Args:
        prefix: 1 to 4 characters (AWS_VPC_K8S_CNI_VETHPREFIX).
    Returns: at most 15 characters.
    """
    digest = hashlib.sha1(f"{key.container_id}/{key.ifname}".encode(), usedforsecurity=False).hexdigest()
    return prefix + digest[:VETH_HASH_LENGTH]


def name_key(host_veth: str) -> AttachmentKey:
    """Return the key by which `KeyLocks` locks a name that two sandboxes may claim: the name of a host veth, or the VLAN link, the
    address or the ID of a branch ENI.
    """
    return AttachmentKey(ContainerId(host_veth), IfName(POD_IFNAME))


def pod_veth_name(pod_namespace: str, pod_name: str, *, prefix: str, number: int = 0) -> str:
    """Return the name that amazon-vpc-cni-k8s gives to a pod's host veth. Policy agents compute it too (docs/adr/0024).

    `number`: the number of the pod's interface (`card_interfaces.py`), 0 for the first one.
    Source: amazon-vpc-cni-k8s pkg/networkutils/names.go, GeneratePodHostVethName.
    """
    interface = f"{pod_namespace}.{pod_name}.{number}" if number else f"{pod_namespace}.{pod_name}"
    digest = hashlib.sha1(interface.encode(), usedforsecurity=False).hexdigest()
    return prefix + digest[:VETH_HASH_LENGTH]


@lru_cache(maxsize=4096)  # each pass over the sandboxes needs the MACs of all of them
def sandbox_mac(key: AttachmentKey, *, side: str) -> MacAddress:
    """Derive a locally administered unicast MAC from the key, so that no unused MAC must be searched for.

    Args:
        side: "host" or "sandbox"; for an extra leg the leg's name precedes this word, so that all ends have different MACs.
    """
    digest = hashlib.sha1(f"{side}:{key.container_id}/{key.ifname}".encode(), usedforsecurity=False).digest()
    octets = bytes([(digest[0] & 0xFC) | 0x02]) + digest[1:6]
    return MacAddress(octets.hex(":"))


def encode_alias(key: AttachmentKey, address: IpAddress, *, tag: str = ALIAS_TAG) -> str:
    """Encode container ID, interface name and address for a host veth's ifalias.

    Returns: at most 255 bytes, the kernel's limit, because `CONTAINER_ID_MAX` bounds the ID.
    """
    return f"{tag} {key.container_id} {key.ifname} {address}"


def is_imported_alias(alias: str) -> bool:
    """Whether an ifalias of ours marks a sandbox that amazon-vpc-cni-k8s wired."""
    return alias.startswith(f"{IMPORTED_TAG} ")


def decode_alias(alias: str, *tags: str) -> tuple[AttachmentKey, IpAddress] | None:
    """Decode key and address from an ifalias; None if the alias is not ours or is damaged.

    Args:
        tags: the accepted first words; by default those of host veths with a pool address.
    """
    parts = alias.split(" ")
    if len(parts) != 4 or parts[0] not in (tags or (ALIAS_TAG, IMPORTED_TAG)) or "%" in parts[3]:
        return None
    try:
        return parse_key(parts[1], IfName(parts[2])), read_address(parts[3])
    except (IpamError, ValueError):
        return None
