"""What amazon-vpc-cni-k8s leaves on a node for its successor, and how a wired sandbox of its is identified. Pure.

Its daemon (DaemonSet aws-node) keeps every allocation in one JSON file. The file may be stale: it is written while a DEL is
under way, an entry outlives a DEL that its plugin swallowed, and a recreated pod of the same name keeps the entry of its dead
sandbox. So an entry is believed only where the kernel says the same: a host veth whose name is made of the entry's pod, and a route
of the entry's address through it. Sources: amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store.go (CheckpointData, ReadBackingStore),
pkg/networkutils/names.go (GeneratePodHostVethName).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any

from ipamd.model.attachment import POD_IFNAME, Attachment, pod_veth_name
from ipamd.model.branch import POD_ENI, STRICT_VETH_PREFIX, TABLE_BASE, Branch, BranchEni, parse_pod_eni
from ipamd.model.cniresult import others_mac
from ipamd.model.errors import BranchAnnotationError, ForeignStateError, IpamError
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, family_of
from ipamd.model.ids import AttachmentKey, EniId, IfName, MacAddress, parse_key
from ipamd.model.kernel import HostVeth, KernelSurvey, VlanLink
from ipamd.model.record import dataclass, field, replace
from ipamd.model.sandbox import Sandbox, SandboxState
from ipamd.model.words import counted

VERSION = "vpc-cni-ipam/1"
"""Source: amazon-vpc-cni-k8s pkg/ipamd/datastore/data_store.go, CheckpointFormatVersion."""

NETWORK_NAME = "aws-cni"
"""The network of its conflist, part of its key. Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, generateJSON."""

FILE_MAX_BYTES = 4 * 1024 * 1024
"""Ours: 15,000 entries of 270 bytes; the largest instance types have some 3,000 addresses."""

NAME_MAX = 253
"""Characters of a pod's name or namespace. Source: Kubernetes, "Object Names and IDs", DNS subdomain names."""

EGRESS_CHAIN_CHARACTERS = 28
"""Source: github.com/containernetworking/plugins pkg/utils/utils.go, maxChainLength."""

_NETWORK = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_MAX - 1}}}")
"""Source: github.com/containernetworking/cni pkg/utils/utils.go, ValidateNetworkName."""

_AGENT_POD = re.compile(r"kube-system/aws-node-[a-z0-9]{5}")
"""A pod of its DaemonSet; aws-node-termination-handler is another program. Source: amazon-vpc-cni-k8s config/master/aws-k8s-cni.yaml;
Kubernetes k8s.io/apimachinery pkg/util/rand, String(5)."""

ENTRIES_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Allocation:
    """One entry of its file. `address`: of the family of its node's pool. `made_at_ns`: Unix time; 0: not said.

    `other_address`: for egress, which another file says (`egress_files`); what is read has none.
    `interface_count`: how many network cards the pod has interfaces of; more than 1 is not imported.
    """

    key: AttachmentKey
    address: IpAddress
    pod_namespace: str = ""
    pod_name: str = ""
    made_at_ns: int = 0
    interface_count: int = 1
    other_address: IpAddress | None = None


@dataclass(frozen=True, slots=True)
class Sign:
    """The last that was seen of its daemon in this boot. `age_s`: how long ago; 0 while it lasts."""

    what: str
    age_s: float = 0.0


@dataclass(frozen=True, slots=True)
class GivenTwice:
    """An address that we gave to one sandbox, and its daemon to another (I1, I20)."""

    ours: Attachment
    theirs: Allocation

    def __str__(self) -> str:
        pod = f"{self.theirs.pod_namespace}/{self.theirs.pod_name}" if self.theirs.pod_name else "pod not known"
        return (
            f"{self.ours.address} was given to sandbox {self.ours.key} ({self.ours.sandbox_name or 'pod not known'}) by us, "
            f"and to {self.theirs.key} ({pod}) by amazon-vpc-cni-k8s"
        )


def given_twice(attachments: Iterable[Attachment], allocations: Iterable[Allocation]) -> tuple[GivenTwice, ...]:
    """Compare our rows with its file: the same address with another container ID. Concurrency: pure."""
    rows = {one.address: one for one in attachments}
    pairs = ((rows[one.address], one) for one in allocations if one.address in rows)
    return tuple(GivenTwice(ours, theirs) for ours, theirs in pairs if ours.key.container_id != theirs.key.container_id)


def agent_pod(sandboxes: Iterable[Sandbox]) -> str:
    """Name the pod of its daemon whose sandbox is ready: the daemon may start there at any moment; "" if there is none."""
    ready = (f"{one.pod_namespace}/{one.pod_name}" for one in sandboxes if one.state is SandboxState.READY)
    return next(filter(_AGENT_POD.fullmatch, ready), "")


def parse_checkpoint(raw: bytes) -> tuple[Allocation, ...]:
    """Read its file, all or nothing.

    Raises: ForeignStateError that names the first entry that is not what this format has.
    """
    if len(raw) > FILE_MAX_BYTES:
        raise ForeignStateError(f"it has {len(raw)} bytes", details=f"at most {FILE_MAX_BYTES} are read")
    try:
        document = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise ForeignStateError("it is not JSON", details=str(error)[:200]) from error
    version = document.get("version") if isinstance(document, dict) else None
    if version != VERSION:
        raise ForeignStateError(f"its version is {str(version)[:40]!r}", details=f"this release reads {VERSION!r}")
    entries = document.get("allocations")
    entries = [] if entries is None else entries  # Go writes an empty list that was never filled as null
    if not isinstance(entries, list) or len(entries) > ENTRIES_MAX:
        raise ForeignStateError("its allocations are not a list", details=f"of at most {ENTRIES_MAX} entries")
    found = tuple(_allocation(index, entry) for index, entry in enumerate(entries))
    seen: dict[IpAddress, AttachmentKey] = {}
    for one in found:
        if seen.setdefault(one.address, one.key) != one.key:
            raise ForeignStateError(f"it gives {one.address} to {seen[one.address]} and to {one.key}")
    return found


def render_checkpoint(allocations: Iterable[Allocation], *, network_name: str = NETWORK_NAME) -> bytes:
    """Write its file: what its daemon reads at its start. An entry without a pod's name has no metadata, and is kept unseen.

    Args:
        network_name: of its conflist: its plugin's DEL names it, and finds no entry of another network.
    """
    entries = []
    for one in allocations:
        names = {"k8sPodNamespace": one.pod_namespace, "k8sPodName": one.pod_name} if one.pod_name else {}
        entries.append(
            {
                "networkName": network_name,
                "containerID": one.key.container_id,
                "ifName": one.key.ifname,
                f"ipv{one.address.version}": str(one.address),
                "allocationTimestamp": one.made_at_ns,
                "metadata": names | {"interfacesCount": one.interface_count},
            }
        )
    return json.dumps({"version": VERSION, "allocations": entries}, separators=(",", ":")).encode() + b"\n"


EGRESS_STATE = {IPV4: "v6pd/egress-v4-ipam", IPV6: "v4pd/egress-v6-ipam"}
"""Below /run/cni, by the family of egress; below that a directory for its network, and in that a file for each address.

Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, generateJSON."""


def egress_file(key: AttachmentKey) -> bytes:
    """Write what is in the file whose name is an address for egress.

    Source: github.com/containernetworking/plugins plugins/ipam/host-local/backend/disk/backend.go, Reserve.
    """
    return f"{key.container_id}\r\n{key.ifname}".encode()


def egress_chain(network_name: str, container_id: str, *, family: Family) -> str:
    """The chain in table nat by which its plugin for egress translates what one sandbox sends in `family`.

    Source: github.com/containernetworking/plugins pkg/utils/utils.go, MustFormatChainNameWithPrefix.
    """
    digest = hashlib.sha512(f"{network_name}{container_id}".encode()).hexdigest()
    return f"CNI-E{family.any_route.version}-{digest}"[:EGRESS_CHAIN_CHARACTERS]


def network_name_of(conflist: bytes) -> str:
    """The network of its conflist, which operators may have replaced by one of their own; NETWORK_NAME if it cannot be read."""
    try:
        document = json.loads(conflist)
    except (ValueError, RecursionError):
        return NETWORK_NAME
    name = document.get("name") if isinstance(document, dict) else None
    return name if isinstance(name, str) and _NETWORK.fullmatch(name) else NETWORK_NAME


def _of_veth(veth_name: str, listed: Mapping[str, Sandbox], *, prefix: str) -> list[Sandbox]:
    """The sandboxes of the pod that a host veth is named after; those alone that are ready, if there are."""
    named = [one for one in listed.values() if pod_veth_name(one.pod_namespace, one.pod_name, prefix=prefix) == veth_name]
    return [one for one in named if one.state is SandboxState.READY] or named


def identify(
    veth_name: str,
    routed: IpAddress,
    *,
    allocations: Iterable[Allocation],
    listed: Mapping[str, Sandbox] | None,
    prefix: str,
) -> tuple[AttachmentKey, str] | str:
    """Say whose a host veth without our alias is.

    Args:
        routed: the one address that main routes through it.
        listed: the runtime's sandboxes by container ID; None while it is silent.
        prefix: of host veths' names.
    Returns: the sandbox, and who says so, for people; or one sentence that says why nobody can tell: then nobody may get the address.

    The sandbox that the runtime lists decides: the file may name a dead one of the same pod. Without a list the file does, and the
    list confirms it later. Concurrency: pure.
    """
    entry = next((one for one in allocations if one.address == routed), None)
    if entry is not None and entry.interface_count > 1:
        return f"{entry.key} has {entry.interface_count} interfaces, on several network cards"
    if entry is not None and not _may_be_named(entry, veth_name, prefix=prefix):
        entry = None  # the address went to another pod since: this one's name is not the link's
    if entry is not None and listed is None:
        return entry.key, "its file and the kernel"
    if entry is not None and listed is not None and entry.key.container_id in listed:
        return entry.key, "its file, the kernel and the runtime"
    ready = _of_veth(veth_name, listed or {}, prefix=prefix)
    if len(ready) == 1:
        return AttachmentKey(ready[0].container_id, IfName(POD_IFNAME)), "the kernel and the runtime"
    if len(ready) > 1:
        return f"{len(ready)} sandboxes of one pod are listed, and any of them may have it"
    if entry is not None:
        return entry.key, "its file and the kernel; the runtime does not list it"
    return "neither its file nor the runtime tells whose it is"


# Of its pods with security groups of their own its file says nothing: the kernel tells how each is led to its branch ENI, and the
# pod's annotation which ENI that is. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, SetupBranchENIPodNetwork.


@dataclass(frozen=True, slots=True)
class Led:
    """How a host veth of its leads to a branch ENI, by the kernel alone."""

    address: IpAddress
    link: VlanLink
    branch: Branch


def led_to_branch(veth: HostVeth, survey: KernelSurvey) -> Led | str:
    """Find the branch ENI that a host veth without our alias leads to; "" if it leads to none, a sentence if that cannot be told.

    In strict mode the sandbox's route is in the table of the VLAN alone, else main has it and a rule of its address leads there.
    """
    links = {TABLE_BASE + link.vlan: link for link in survey.vlans if not link.is_dying}
    # Not that in the table for reverse lookups, which is there as soon as sandboxes are confined.
    own = (one for one in survey.branch_routes if one.device == veth.name and one.via is None and one.table in links)
    tables = {route.destination: route.table for route in own if isinstance(route.destination, IpAddress)}
    is_strict = veth.is_branch
    if not is_strict:
        routed = [address for address, device in survey.routes.items() if device == veth.name]
        tables = {address: table for address in routed for table in survey.from_rules.get(address, ()) if table in links}
        if not tables:
            return ""
    if len(tables) != 1:
        return f"{counted(len(tables), 'address')} of VLAN links' tables lead to it, not 1"
    ((address, table),) = tables.items()
    link = links[table]
    ways = (route for route in survey.branch_routes if (route.table, route.device) == (table, link.name))
    gateway = next((route.via for route in ways if route.destination is None), None)
    if gateway is None:
        return f"table {table} has no default route through {link.name}"
    return Led(address, link, Branch(link.vlan, MacAddress(link.mac), gateway, is_strict))


def identify_branch(
    veth_name: str, led: Led, *, listed: Mapping[str, Sandbox] | None, annotation: Callable[[Sandbox], str], prefix: str
) -> tuple[AttachmentKey, EniId] | str:
    """Say whose such a host veth is, and which branch ENI it leads to; or one sentence that says why nobody can tell.

    Args:
        annotation: tells the annotation of a sandbox's pod, "" if nobody does.
        prefix: of host veths' names, as the setting has it; in strict mode it is another one.
    """
    if listed is None:
        return "the runtime is silent, and its file has no pods with branch ENIs"
    prefix = STRICT_VETH_PREFIX if led.branch.is_strict else prefix
    ready = _of_veth(veth_name, listed, prefix=prefix)
    if len(ready) != 1:
        return f"the runtime lists {counted(len(ready), 'sandbox')} of its pod, not 1"
    (sandbox,) = ready
    if not (text := annotation(sandbox)):
        return f"nobody tells the annotation {POD_ENI} of pod {sandbox.pod_namespace}/{sandbox.pod_name}"
    try:
        told = parse_pod_eni(text, family=family_of(led.address))
    except BranchAnnotationError as error:
        return str(error)
    found = BranchEni(told.eni_id, led.branch.mac, led.address, led.branch.vlan, led.branch.gateway)
    if told != found:
        return f"its pod's annotation says {_of_branch(told)}, the kernel {_of_branch(found)}"
    return AttachmentKey(sandbox.container_id, IfName(POD_IFNAME)), told.eni_id


def _of_branch(one: BranchEni) -> str:
    return f"{one.address} by VLAN {one.vlan}, {one.mac} and {one.gateway}"


def _allocation(index: int, entry: object) -> Allocation:
    where = f"allocation {index}"
    if not isinstance(entry, dict):
        raise ForeignStateError(f"{where} is not an object")
    metadata = entry.get("metadata")
    metadata = {} if metadata is None else metadata
    if not isinstance(metadata, dict):
        raise ForeignStateError(f"{where} has metadata that is not an object")
    try:
        key = parse_key(_text(entry, "containerID", where, required=True), IfName(_text(entry, "ifName", where, required=True)))
    except ForeignStateError:
        raise
    except IpamError as error:
        raise ForeignStateError(f"{where}: {error.message}", details=error.details) from error
    return Allocation(
        key=key,
        address=_address(entry, where),
        pod_namespace=_text(metadata, "k8sPodNamespace", where),
        pod_name=_text(metadata, "k8sPodName", where),
        made_at_ns=_number(entry, "allocationTimestamp", where),
        interface_count=_number(metadata, "interfacesCount", where) or 1,
    )


def _address(entry: Mapping[str, Any], where: str) -> IpAddress:
    """The address under the name of its family. Raises: ForeignStateError for none, and for one of each."""
    four, six = _text(entry, "ipv4", where), _text(entry, "ipv6", where)
    if bool(four) == bool(six):
        raise ForeignStateError(f"{where} has {'an address of each family' if four else 'no address'}")
    try:
        if "%" in six:
            raise ValueError("a zone belongs to a link, not to a pod's address")
        return IPV4.address(four) if four else IPV6.address(six)
    except ValueError as error:
        raise ForeignStateError(f"{where} has the address {four or six!r}", details=str(error)[:200]) from error


def _text(entry: Mapping[str, Any], name: str, where: str, *, required: bool = False) -> str:
    value = entry.get(name, "")
    if not isinstance(value, str) or len(value) > NAME_MAX or (required and not value):
        raise ForeignStateError(f"{where} has no {name} of at most {NAME_MAX} characters")
    return value


def _number(entry: Mapping[str, Any], name: str, where: str) -> int:
    value = entry.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 63:
        raise ForeignStateError(f"{where} has a {name} that is no number")
    return value


# What goes into the file of amazon-vpc-cni-k8s when the node goes back: every address that somebody has, by any witness. Pure.
#
# Its daemon gives again what is not in the file, and keeps what is: an entry with a pod's name for as long as there is a link of
# that name, another one until its DEL (docs/adr/0038).


def wanted_name(attachment: Attachment, *, prefix: str) -> str:
    """The host veth's name by which its daemon knows the sandbox; "" if the pod is not known or has another interface."""
    if not (attachment.pod_name and attachment.pod_namespace and attachment.key.ifname == POD_IFNAME):
        return ""
    return pod_veth_name(attachment.pod_namespace, attachment.pod_name, prefix=prefix)


def recorded(attachments: Iterable[Attachment], survey: KernelSurvey, *, prefix: str) -> dict[IpAddress, Allocation]:
    """One for each recorded sandbox that has its link, by address.

    Also for one that its own plugin has just got from us and is about to wire: if it does not, its daemon drops the entry. Pods with
    branch ENIs are not in its file: their addresses are in no pool.
    """
    live = {veth.name for veth in survey.veths if not veth.is_dying}
    found = {}
    for one in attachments:
        if one.branch is not None:
            continue
        if one.host_veth in live or others_mac(one) == "":
            is_named = one.host_veth == wanted_name(one, prefix=prefix)
            names = (one.pod_namespace, one.pod_name) if is_named else ("", "")
            made_at_ns = int(one.created_at.timestamp()) * 10**9
            found[one.address] = Allocation(one.key, one.address, *names, made_at_ns, other_address=one.other_address)
    return found


def unrecorded(
    survey: KernelSurvey,
    known: Mapping[IpAddress, Allocation],
    *,
    told: Mapping[IpAddress, Allocation],
    prefix: str,
    now: datetime,
) -> dict[IpAddress, tuple[HostVeth, Allocation]]:
    """One for each other address that a live host veth has by its alias or by a route, with the veth.

    Args:
        known: what `recorded` found.
        told: what its file says until now. Of a link of nobody that we know it knows more than we do; else that gets a placeholder.
    """
    live = {veth.name: veth for veth in survey.veths if not veth.is_dying and not led_to_branch(veth, survey)}
    carried = {veth.address: name for name, veth in live.items() if veth.address is not None}  # its route may be missing
    found = {address: live[device] for address, device in {**carried, **survey.routes}.items() if device in live}
    made_at_ns, keys = int(now.timestamp()) * 10**9, {one.key for one in known.values()}
    others = {}
    for address, veth in sorted(found.items()):
        if address in known:
            continue
        one = told.get(address)
        if veth.key is not None or one is None or one.key in keys or not _may_be_named(one, veth.name, prefix=prefix):
            one = Allocation(veth.key or parse_key(f"unknown-{veth.name}", POD_IFNAME), address, made_at_ns=made_at_ns)
        others[address] = veth, one
    return others


def _may_be_named(entry: Allocation, veth_name: str, *, prefix: str) -> bool:
    """Whether a link may be that of an entry's pod; an entry without a name says nothing about it."""
    return not entry.pod_name or pod_veth_name(entry.pod_namespace, entry.pod_name, prefix=prefix) == veth_name


@dataclass(slots=True)
class Unnamed:
    """A host veth that nobody can name: its addresses, and why."""

    veth: HostVeth
    addresses: tuple[IpAddress, ...]
    why: str


@dataclass(slots=True)
class ImportResult:
    """The host veths as they are after an import, whatever they lead to: those that were identified carry our alias now. `egress`:
    second links of them; `vlans`: links to their branch ENIs, by name.
    """

    veths: tuple[HostVeth, ...]
    unnamed: list[Unnamed] = field(default_factory=list)
    egress: list[HostVeth] = field(default_factory=list)
    vlans: dict[str, VlanLink] = field(default_factory=dict)

    def after(self, survey: KernelSurvey) -> KernelSurvey:
        """The survey from before the import as it would be now."""
        routes = {one.address: one.name for one in self.egress if one.address is not None}
        return replace(
            survey,
            veths=tuple(one for one in self.veths if not one.is_branch),
            branches=tuple(one for one in self.veths if one.is_branch),
            vlans=tuple(self.vlans.get(one.name, one) for one in survey.vlans),
            egress=(*survey.egress, *self.egress),
            routes=survey.routes | routes,
        )
