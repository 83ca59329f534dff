"""Read and write the files of amazon-vpc-cni-k8s, and identify the sandboxes that it wired. Pure.

The daemon of amazon-vpc-cni-k8s (DaemonSet aws-node) keeps every allocation in one JSON file. The file may be stale: it is written
while a DEL is running, an entry outlives a DEL that the plugin dropped, and a recreated pod of the same name keeps the entry of its
former sandbox. So an entry is used only if the kernel confirms it: a host veth is named after the entry's pod, and the entry's address
is routed through this veth. Sources: amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store.go (CheckpointData, ReadBackingStore),
pkg/networkutils/names.go (GeneratePodHostVethName).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ipamd.model.attachment import POD_IFNAME, Attachment, pod_veth_name
from ipamd.model.errors import ForeignStateError, IpamError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, IPV6, IpAddress
from ipamd.model.ids import AttachmentKey, IfName, parse_key
from ipamd.model.kernel import HostVeth, KernelSurvey, VlanLink
from ipamd.model.record import dataclass, field, replace
from ipamd.model.sandbox import Sandbox, SandboxState

VERSION = "vpc-cni-ipam/1"
"""Version of the file's format. Source: amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store.go, CheckpointFormatVersion."""

NETWORK_NAME = "aws-cni"
"""The network name in the conflist of amazon-vpc-cni-k8s. Each entry of its file of allocations has this name, and its plugin searches
for entries with this name.
Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, generateJSON."""

FILE_MAX_BYTES = 4 * 1024 * 1024
"""The largest file that is read. Ours: every real file fits, because this is 15,000 entries of 270 bytes, and no node runs so many
pods."""

NAME_MAX = 253
"""The most characters of a pod's name or namespace. Source: Kubernetes, "Object Names and IDs", DNS subdomain names."""

_NETWORK = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_MAX - 1}}}")
"""The form of a network name. Source: github.com/containernetworking/cni pkg/utils/utils.go, ValidateNetworkName."""

_AGENT_POD = re.compile(r"kube-system/aws-node-[a-z0-9]{5}")
"""`namespace/name` of a pod of the DaemonSet aws-node; a pod of aws-node-termination-handler, another program, does not match.
Source: amazon-vpc-cni-k8s config/master/aws-k8s-cni.yaml; Kubernetes k8s.io/apimachinery pkg/util/rand, String(5)."""

ENTRIES_MAX = 20_000
"""A file with more entries is not read. Ours: a file of FILE_MAX_BYTES has fewer entries of the usual length."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """One entry of the file of amazon-vpc-cni-k8s.

    `key`: the sandbox that has the address.
    `address`: the pod's address, in the family of the node's pool.
    `made_at_ns`: when amazon-vpc-cni-k8s or we assigned the address, in Unix nanoseconds; 0: not known.
    `interface_count`: the number of network cards on which the pod has interfaces. An entry with more than one is not imported.
    `other_address`: the address of an extra leg; None in an entry that was read from the file, because another file has these
        addresses.
    """

    key: AttachmentKey
    address: IpAddress
    pod_namespace: str = ""
    pod_name: str = ""
    made_at_ns: int = 0
    interface_count: int = 1
    other_address: IpAddress | None = None


@dataclass(frozen=True, slots=True)
class DaemonSign:
    """The latest sign that the daemon of amazon-vpc-cni-k8s ran in this boot: it listens, its pod runs, or it wrote its file.

    `text`: the sign in words.
    `age_s`: seconds since the sign ended; 0 while it lasts.
    """

    text: str
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GivenTwice:
    """An address that we assigned to one sandbox, and amazon-vpc-cni-k8s to another sandbox (I1, I20)."""

    ours: Attachment
    theirs: Allocation

    def __str__(self) -> str:
        pod = f"{self.theirs.pod_namespace}/{self.theirs.pod_name}" if self.theirs.pod_name else "pod not known"
        return (
            f"{self.ours.address} was given to sandbox {self.ours.key} ({self.ours.sandbox_name or 'pod not known'}) by us, "
            f"and to {self.theirs.key} ({pod}) by amazon-vpc-cni-k8s"
        )


def given_twice(attachments: Iterable[Attachment], allocations: Iterable[Allocation]) -> tuple[GivenTwice, ...]:
    """Find the addresses that our rows and the file of amazon-vpc-cni-k8s assign to different container IDs. Concurrency: pure."""
    ours = {attachment.address: attachment for attachment in attachments}
    conflicts = []
    for allocation in allocations:
        attachment = ours.get(allocation.address)
        if attachment is not None and attachment.key.container_id != allocation.key.container_id:
            conflicts.append(GivenTwice(attachment, allocation))
    return tuple(conflicts)


def agent_pod(sandboxes: Iterable[Sandbox]) -> str:
    """Return `namespace/name` of the pod of the DaemonSet aws-node if its sandbox is ready; else "".

    In a ready sandbox the daemon of amazon-vpc-cni-k8s may start at any moment.
    """
    for sandbox in sandboxes:
        pod = f"{sandbox.pod_namespace}/{sandbox.pod_name}"
        if sandbox.state is SandboxState.READY and _AGENT_POD.fullmatch(pod):
            return pod
    return ""


def parse_checkpoint(raw: bytes) -> tuple[Allocation, ...]:
    """Read the file of amazon-vpc-cni-k8s: all entries, or none if any entry is malformed.

    Raises: ForeignStateError that names the first malformed entry, or says why the whole file is unusable: it is too large, is not
        JSON, has another version, has no list of entries or one that is too long, or gives one address to two sandboxes.
    """
    if len(raw) > FILE_MAX_BYTES:
        raise failure(ForeignStateError, FailureCode.NODE_FILE_TOO_LARGE, size=len(raw), limit=FILE_MAX_BYTES)
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise failure(ForeignStateError, FailureCode.NODE_FILE_NO_JSON, cause=str(error)[:200]) from error
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise failure(ForeignStateError, FailureCode.NODE_FILE_VERSION, version=str(version)[:40], known=VERSION)
    entries = document.get("allocations")
    entries = [] if entries is None else entries  # Go writes an empty list that was never filled as null
    if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
        raise failure(ForeignStateError, FailureCode.NODE_FILE_NO_LIST, limit=ENTRIES_MAX)
    allocations = tuple(_allocation(index, allocation_entry) for index, allocation_entry in enumerate(entries))
    _require_unique_owners(allocations)
    return allocations


def render_checkpoint(allocations: Iterable[Allocation], *, network_name: str = NETWORK_NAME) -> bytes:
    """Return the content of the file that amazon-vpc-cni-k8s reads at its start.

    An entry whose pod is not known has no pod's name, and amazon-vpc-cni-k8s accepts such an entry too.

    Args:
        network_name: the network name in the conflist of amazon-vpc-cni-k8s. A DEL of its plugin finds only entries of this network.
    """
    entries = []
    for allocation in allocations:
        pod = {"k8sPodNamespace": allocation.pod_namespace, "k8sPodName": allocation.pod_name} if allocation.pod_name else {}
        entries.append(
            {
                "networkName": network_name,
                "containerID": allocation.key.container_id,
                "ifName": allocation.key.ifname,
                f"ipv{allocation.address.version}": str(allocation.address),
                "allocationTimestamp": allocation.made_at_ns,
                "metadata": pod | {"interfacesCount": allocation.interface_count},
            }
        )
    return json.dumps({"version": VERSION, "allocations": entries}, separators=(",", ":")).encode() + b"\n"


def network_name_of(conflist: bytes) -> str:
    """Return the network name in the conflist of amazon-vpc-cni-k8s, which operators may have changed.

    Returns: NETWORK_NAME if the conflist has no readable name.
    """
    try:
        document = json.loads(conflist)
    except (ValueError, RecursionError):
        return NETWORK_NAME
    name = document.get("name") if isinstance(document, dict) else None
    if isinstance(name, str) and _NETWORK.fullmatch(name):
        return name
    return NETWORK_NAME


def identify(
    veth_name: str,
    routed: IpAddress,
    *,
    allocations: Iterable[Allocation],
    listed: Mapping[str, Sandbox] | None,
    prefix: str,
) -> tuple[AttachmentKey, str] | str:
    """Find the sandbox of a host veth without our alias.

    Args:
        veth_name: the name of the host veth.
        routed: the one address that the main table routes through the host veth.
        allocations: the entries of the file of amazon-vpc-cni-k8s.
        listed: the runtime's sandboxes by container ID; None while the runtime does not answer.
        prefix: how the names of host veths begin.
    Returns: the sandbox, and the sources that name it, for reports; or a sentence that says why the sandbox is unknown. The address
        of an unknown sandbox must not be assigned.

    The runtime's list takes precedence over the file, which may name a dead sandbox of the same pod. Without a list the file decides,
    and the list confirms the result later. Concurrency: pure.
    """
    allocation = _entry_of(routed, allocations)
    if allocation is not None and allocation.interface_count > 1:
        return f"{allocation.key} has {allocation.interface_count} interfaces, on several network cards"
    if allocation is not None and not _may_be_named(allocation, veth_name, prefix=prefix):
        allocation = None  # the link is named after another pod, so the entry is a former pod's
    if allocation is not None:
        if listed is None:
            return allocation.key, "its file and the kernel"
        if allocation.key.container_id in listed:
            return allocation.key, "its file, the kernel and the runtime"
    return _identify_by_name(_of_veth(veth_name, listed or {}, prefix=prefix), allocation)


@dataclass(slots=True)
class UnidentifiedVeth:
    """A host veth whose sandbox is unknown: its addresses, and the reason."""

    veth: HostVeth
    addresses: tuple[IpAddress, ...]
    reason: str


@dataclass(slots=True)
class ImportResult:
    """The links of the sandboxes of amazon-vpc-cni-k8s after an import.

    `veths`: the first host veths of the identified sandboxes; the import gave them our alias.
    `unnamed`: the host veths whose sandbox is unknown.
    `extra`: the host veths of the identified sandboxes' extra legs.
    `uplinks`: the VLAN links of the identified sandboxes, by name.
    """

    veths: tuple[HostVeth, ...]
    unnamed: list[UnidentifiedVeth] = field(default_factory=list)
    extra: list[HostVeth] = field(default_factory=list)
    uplinks: dict[str, VlanLink] = field(default_factory=dict)

    def after(self, survey: KernelSurvey) -> KernelSurvey:
        """Return the survey from before the import, updated by the result of the import."""
        routes = {veth.address: veth.name for veth in self.extra if veth.address is not None}
        return replace(
            survey,
            veths=tuple(veth for veth in self.veths if veth.is_of_pool),
            uplinked=tuple(veth for veth in self.veths if not veth.is_of_pool),
            vlans=tuple(self.uplinks.get(link.name, link) for link in survey.vlans),
            extra=(*survey.extra, *self.extra),
            routes=survey.routes | routes,
        )


def _require_unique_owners(allocations: Iterable[Allocation]) -> None:
    owners: dict[IpAddress, AttachmentKey] = {}
    for allocation in allocations:
        owner = owners.setdefault(allocation.address, allocation.key)
        if owner != allocation.key:
            raise failure(
                ForeignStateError,
                FailureCode.ADDRESS_GIVEN_TWICE,
                address=allocation.address,
                owner=owner,
                sandbox=allocation.key,
            )


def _of_veth(veth_name: str, listed: Mapping[str, Sandbox], *, prefix: str) -> list[Sandbox]:
    """Return the sandboxes of the pod that a host veth is named after: only the ready ones, if there are any."""
    sandboxes = []
    for sandbox in listed.values():
        if pod_veth_name(sandbox.pod_namespace, sandbox.pod_name, prefix=prefix) == veth_name:
            sandboxes.append(sandbox)
    return [sandbox for sandbox in sandboxes if sandbox.state is SandboxState.READY] or sandboxes


def _entry_of(address: IpAddress, allocations: Iterable[Allocation]) -> Allocation | None:
    for allocation in allocations:
        if allocation.address == address:
            return allocation
    return None


def _identify_by_name(sandboxes: Sequence[Sandbox], allocation: Allocation | None) -> tuple[AttachmentKey, str] | str:
    """Find the sandbox of a host veth by the name of the sandbox's pod. Returns: as `identify`.

    Args:
        sandboxes: the pod's sandboxes that the runtime lists.
        allocation: the entry for the veth's address, which names a sandbox that the runtime does not list. The entry decides only
            if `sandboxes` is empty. None if there is no such entry.
    """
    if len(sandboxes) == 1:
        return AttachmentKey(sandboxes[0].container_id, IfName(POD_IFNAME)), "the kernel and the runtime"
    if len(sandboxes) > 1:
        return f"{len(sandboxes)} sandboxes of one pod are listed, and any of them may have it"
    if allocation is not None:
        return allocation.key, "its file and the kernel; the runtime does not list it"
    return "neither its file nor the runtime names its sandbox"


def _allocation(index: int, document: object) -> Allocation:
    location = f"allocation {index}"
    if not isinstance(document, dict):
        raise failure(ForeignStateError, FailureCode.ENTRY_NO_OBJECT, entry=location)
    metadata = document.get("metadata")
    if metadata is None:
        metadata = {}
    if not isinstance(metadata, dict):
        raise failure(ForeignStateError, FailureCode.ENTRY_METADATA, entry=location)
    try:
        key = parse_key(
            _text(document, "containerID", location, required=True), IfName(_text(document, "ifName", location, required=True))
        )
    except ForeignStateError:
        raise
    except IpamError as error:
        fields = {"entry": location, "problem": error.message, "cause": error.details}
        raise failure(ForeignStateError, FailureCode.ENTRY_KEY, **fields) from error
    return Allocation(
        key=key,
        address=_address(document, location),
        pod_namespace=_text(metadata, "k8sPodNamespace", location),
        pod_name=_text(metadata, "k8sPodName", location),
        made_at_ns=_number(document, "allocationTimestamp", location),
        interface_count=_number(metadata, "interfacesCount", location) or 1,
    )


def _address(document: Mapping[str, Any], location: str) -> IpAddress:
    """Read the address, of either family. Raises: ForeignStateError if there is no address, or an address of each family."""
    four, six = _text(document, "ipv4", location), _text(document, "ipv6", location)
    if bool(four) == bool(six):
        raise failure(
            ForeignStateError,
            FailureCode.ENTRY_ADDRESSES,
            entry=location,
            addresses="an address of each family" if four else "no address",
        )
    try:
        if "%" in six:
            raise ValueError("a zone belongs to a link, not to a pod's address")
        if four:
            return IPV4.address(four)
        return IPV6.address(six)
    except ValueError as error:
        raise failure(
            ForeignStateError, FailureCode.ENTRY_ADDRESS, entry=location, address=four or six, cause=str(error)[:200]
        ) from error


def _text(document: Mapping[str, Any], name: str, location: str, *, required: bool = False) -> str:
    value = document.get(name, "")
    if not isinstance(value, str) or len(value) > NAME_MAX or (required and not value):
        raise failure(ForeignStateError, FailureCode.ENTRY_NAME, entry=location, name=name, limit=NAME_MAX)
    return value


def _number(document: Mapping[str, Any], name: str, location: str) -> int:
    value = document.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise failure(ForeignStateError, FailureCode.ENTRY_NUMBER, entry=location, name=name)
    return value


def _may_be_named(allocation: Allocation, veth_name: str, *, prefix: str) -> bool:
    """Whether a host veth may, according to its name, belong to the pod of an entry. An entry without a pod's name fits every veth."""
    return not allocation.pod_name or pod_veth_name(allocation.pod_namespace, allocation.pod_name, prefix=prefix) == veth_name
