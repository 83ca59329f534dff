"""Branch ENIs: what the control plane tells of the one that a pod gets, and what follows from it. Pure.

A pod with security groups of its own does not get an address of the pool, but a branch ENI: amazon-vpc-resource-controller-k8s makes
it on the node's trunk ENI and writes into the pod's annotation which one it is. The webhook that guards the annotation fails open
(failurePolicy Ignore), so it is a stranger's text: a closed set of fields is read, each within its bounds. What the pool and other
sandboxes have is compared where the datastore is at hand (`ipamd/branch/`). Source: amazon-vpc-cni-k8s pkg/ipamd/rpc_handler.go,
AddNetwork; amazon-vpc-resource-controller-k8s pkg/provider/branch/trunk/trunk.go, ENIDetails.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ipamd.model.errors import BranchAnnotationError
from ipamd.model.family import IPV4, Family, IpAddress, read_address, read_network
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.record import dataclass
from ipamd.model.words import printable

if TYPE_CHECKING:
    from ipamd.model.attachment import Attachment
    from ipamd.model.cloud import DescribedEni

POD_ENI = "vpc.amazonaws.com/pod-eni"
"""The annotation, and the resource that a container of such a pod limits. Source: amazon-vpc-resource-controller-k8s
pkg/config/type.go."""

MARK = "vpc-ipamd/pod-eni"
"""The annotation by which our admission policy says whether a pod wants a branch ENI (manifests/pod-eni/)."""

REQUIRED, NONE = "required", "none"
"""The mark's values: every pod that was made under the policy has one of both."""

CONFIG_SOURCE, FROM_API = "kubernetes.io/config.source", "api"
"""Where kubelet has a pod from; a static pod's is a file or a URL, and no admission policy sees it. Source: kubernetes
pkg/kubelet/types/pod_update.go."""

ANNOTATIONS_READ = (POD_ENI, MARK, CONFIG_SOURCE)

POD_ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
"""Capability under which containerd (from 1.5) and CRI-O (from 1.29) hand over a pod's annotations, those of its first moment.
Source: containerd internal/cri/server/sandbox_run.go, cniNamespaceOpts; github.com/cri-o/cri-o pull request 7342."""

TABLE_BASE = 100
"""Route table of a branch: this and its VLAN ID. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go."""

KERNELS_TABLES = range(253, 256)
"""default, main and local. Source: linux/rtnetlink.h."""

VLAN_MIN, VLAN_MAX = 1, 4094
"""IEEE 802.1Q: 0 and 4095 are reserved. The controller gives 1 to 120 (trunk.go, MaxAllocatableVlanIds)."""

LINK_PREFIX = "vlan.eth."
"""Of a VLAN link's name. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go, buildVlanLink."""

STRICT_VETH_PREFIX = "vlan"
"""Of a host veth in strict mode. Source: amazon-vpc-cni-k8s pkg/sgpp/utils.go, BuildHostVethNamePrefix."""

STRICT_MARK = 0x1000
"""Of a packet while the source of a sandbox in strict mode is checked (`STRICT_PRIORITY` in `kernel.py`). Ours: nobody's bit, nor in
strict mode AWS_VPC_K8S_CNI_CONNMARK's."""

IPV6_GATEWAY = read_address("fe80:ec2::1")
"""Of every subnet. Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, GetIPv6Gateway."""

AWS_LOCAL = read_network("fd00:ec2::/32")
"""Resolver, clock, metadata and Pod Identity in IPv6; no VPC has it. Source: EC2 and VPC user guides; EKS, pod-id-agent-config."""

LINK_TAG = "vpc-ipamd-vlan/1"
"""Of a VLAN link's alias."""

TRUNK_LABEL = "vpc.amazonaws.com/has-trunk-attached"
"""Of a node: with any value it asks the control plane for a trunk ENI. Source: amazon-vpc-resource-controller-k8s
pkg/node/manager/manager.go, canAttachTrunk."""

ASK_FOR_TRUNK = f"label the node {TRUNK_LABEL}=true, by nodeadm's kubelet flag --node-labels; see docs/security-groups.md"
"""What to do where there is none."""

ANNOTATION_MAX = 16 * 1024
"""Characters of the annotation. Ours: the controller's has 300."""

_ENI_ID = re.compile(r"eni-[0-9a-f]{4,17}")
_UNICAST_MAC = re.compile(r"(?!00(:00){5})[0-9a-f][02468ace](:[0-9a-f]{2}){5}")


class EnforcingMode(StrEnum):
    """POD_SECURITY_GROUP_ENFORCING_MODE. Source: amazon-vpc-cni-k8s pkg/sgpp/constants.go."""

    STRICT = "strict"
    STANDARD = "standard"


@dataclass(frozen=True, slots=True)
class Branch:
    """How a sandbox is led to its branch ENI, beside its address, its ENI and its route table.

    `vlan`: the ID by which the trunk knows it. `mac`: the ENI's. `gateway`: of its subnet, resolved by ARP or neighbour discovery.
    `is_strict`: all its packets pass the branch ENI, those of its own node too; it stays as it was when the sandbox was wired.
    """

    vlan: int
    mac: MacAddress
    gateway: IpAddress
    is_strict: bool

    @property
    def link(self) -> str:
        """Name of the VLAN link on the trunk's link."""
        return f"{LINK_PREFIX}{self.vlan}"

    @property
    def route_table(self) -> int:
        """Table that leads to the branch ENI; in strict mode to the sandbox too."""
        return TABLE_BASE + self.vlan


@dataclass(frozen=True, slots=True)
class BranchEni:
    """What the annotation says of a pod's branch ENI: `address` is the pod's, in the family of the node's pool."""

    eni_id: EniId
    mac: MacAddress
    address: IpAddress
    vlan: int
    gateway: IpAddress

    @classmethod
    def of(cls, attachment: Attachment) -> BranchEni:
        """That of a recorded sandbox. Raises: ValueError if it has none."""
        branch = attachment.branch
        if branch is None:
            raise ValueError(f"sandbox {attachment.key} has no branch ENI")
        return cls(attachment.eni_id, branch.mac, attachment.address, branch.vlan, branch.gateway)

    def branch(self, mode: EnforcingMode) -> Branch:
        """How it is wired in a mode."""
        return Branch(vlan=self.vlan, mac=self.mac, gateway=self.gateway, is_strict=mode is EnforcingMode.STRICT)


def parse_pod_eni(text: str, *, family: Family) -> BranchEni:
    """Read the annotation: the first entry of its list counts; fields that we do not use are not looked at.

    Names of fields are compared without case, as Go does. Raises: BranchAnnotationError, which names the field.
    """
    entry = _first_entry(text)
    fields = {name.lower(): value for name, value in entry.items()}
    vlan = fields.get("vlanid")
    if type(vlan) is not int or not VLAN_MIN <= vlan <= VLAN_MAX:
        raise _refusal("vlanId", vlan, f"a number from {VLAN_MIN} to {VLAN_MAX}")
    if TABLE_BASE + vlan in KERNELS_TABLES:
        raise _refusal("vlanId", vlan, f"none whose route table, {TABLE_BASE + vlan}, is the kernel's")
    eni_id, mac = str(fields.get("eniid")), str(fields.get("ifaddress")).lower()
    if not _ENI_ID.fullmatch(eni_id):
        raise _refusal("eniId", eni_id, "the ID of an ENI")
    if not _UNICAST_MAC.fullmatch(mac):
        raise _refusal("ifAddress", mac, "a unicast MAC address")
    address, gateway = _address(fields, family)
    return BranchEni(EniId(eni_id), MacAddress(mac), address, vlan, gateway)


def _first_entry(text: str) -> dict[str, Any]:
    if len(text) > ANNOTATION_MAX:
        raise _refusal("length", len(text), f"at most {ANNOTATION_MAX} characters")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError):
        raise _refusal("text", text, "JSON") from None
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        raise _refusal("text", text, "a list of objects, at least one")
    return entries[0]


def _address(fields: dict[str, Any], family: Family) -> tuple[IpAddress, IpAddress]:
    """The pod's address and its gateway, of the pool's family."""
    of_ipv4 = ("privateIp", "subnetCidr", range(16, 29))
    name, block, lengths = of_ipv4 if family is IPV4 else ("ipv6Addr", "subnetV6Cidr", range(44, 65))
    said, cidr = str(fields.get(name.lower())), str(fields.get(block.lower()))
    try:
        address, subnet = read_address(said), family.network(cidr)
    except ValueError:
        raise _refusal(f"{name} and {block}", f"{said} and {cidr}", "an address and its subnet") from None
    if subnet.prefixlen not in lengths:
        raise _refusal(block, cidr, f"a subnet of /{lengths[0]} to /{lengths[-1]}")
    # Of each subnet AWS has the first four for router and resolver, and the last one.
    if address not in subnet or not 4 <= int(address) - int(subnet[0]) < subnet.num_addresses - 1:
        raise _refusal(name, said, f"one that a host of {cidr} may have")
    if address.is_loopback or address.is_multicast or address.is_link_local or address.is_reserved or address in AWS_LOCAL:
        raise _refusal(name, said, "a unicast address of the VPC")
    return address, subnet.network_address + 1 if family is IPV4 else IPV6_GATEWAY


def _refusal(field: str, said: object, wanted: str) -> BranchAnnotationError:
    return BranchAnnotationError(
        f"annotation {POD_ENI}: {field} is {printable(str(said), most=80)!r}, not {wanted}",
        details="amazon-vpc-resource-controller-k8s writes it; if somebody else did, delete the pod; see docs/security-groups.md",
    )


# What EC2 says of it.


VLAN_TAG, TRUNK_TAG = "vpcresources.k8s.aws/vlan-id", "vpcresources.k8s.aws/trunk-eni-id"
"""With which the controller makes a branch ENI. Source: amazon-vpc-resource-controller-k8s pkg/config/type.go, VLandIDTag."""


def contradiction(known: BranchEni, shown: DescribedEni, *, trunk: EniId | None) -> str:
    """Say what EC2's entry of a branch ENI contradicts; "" if it agrees. `trunk`: the node's, None while it is not known."""
    own = {shown.primary_address, *shown.secondary_addresses, *shown.ipv6_addresses}
    facts = [
        ("MAC", known.mac, shown.mac),
        ("address", str(known.address), str(known.address if known.address in own else shown.primary_address)),
        (f"tag {VLAN_TAG}", str(known.vlan), shown.tags.get(VLAN_TAG, "not there")),
        (f"tag {TRUNK_TAG}", trunk or shown.tags.get(TRUNK_TAG), shown.tags.get(TRUNK_TAG, "not there")),
    ]
    return ", ".join(f"its {what} is {printable(said, most=40)}, not {ours}" for what, ours, said in facts if said != ours)


# What a pod wants: the sources, and the decision by them.


class Wish(StrEnum):
    """Whether a pod must have a branch ENI. `UNMARKED`: the admission policy's mark is not on it, and it may be that there is none;
    `OLDER`: it is not on it though others have it; `UNKNOWN`: no source tells.
    """

    YES = "yes"
    NO = "no"
    UNMARKED = "unmarked"
    OLDER = "older"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class PodFacts:
    """What is known of a pod. `why`: what tells it, or why nothing does, for people. `annotation`: that of the branch ENI, "" if the
    pod has none. `is_marked`: the admission policy saw this pod, so it has seen every pod that was made since. `is_of_pod`: the source
    tells of others, whatever it lacks of this pod.
    """

    wish: Wish
    why: str
    annotation: str = ""
    is_marked: bool = False
    is_of_pod: bool = False


def read_annotations(annotations: Mapping[str, str] | None, *, is_policy_known: bool) -> PodFacts:
    """What the annotations tell that the runtime handed over with this sandbox; they do not change any more.

    `is_policy_known`: the admission policy is there, so that every pod that was made since has its mark.

    Which source a pod has is kubelet's word: it overwrites what the pod's author wrote (kubernetes pkg/kubelet/config/config.go).
    """
    if annotations is None:
        return PodFacts(Wish.UNKNOWN, "the runtime hands over no annotations of the pod")
    annotation, mark = annotations.get(POD_ENI, ""), annotations.get(MARK)
    source = annotations.get(CONFIG_SOURCE, FROM_API)
    if source != FROM_API:
        return PodFacts(Wish.NO, f"kubelet has the pod from {printable(source, most=40)}, and not from the API", annotation)
    if mark is None:
        return PodFacts(Wish.OLDER if is_policy_known else Wish.UNMARKED, f"the pod has no annotation {MARK}", annotation)
    wish = {REQUIRED: Wish.YES, NONE: Wish.NO}.get(mark, Wish.UNKNOWN)
    said = f"annotation {MARK} is {printable(mark, most=40)!r}"
    if wish is Wish.UNKNOWN:
        return PodFacts(wish, f"{said}, neither {REQUIRED!r} nor {NONE!r}", is_of_pod=True)
    return PodFacts(wish, said, annotation, is_marked=True)


class Way(StrEnum):
    """What an ADD does: attach the branch ENI, take an address of the pool, wait until the control plane has named the branch ENI, or
    fail."""

    BRANCH = "branch"
    POOL = "pool"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do, why, and the next step of whoever reads the refusal. `condition`: what is lacking on this node, "" for nothing."""

    way: Way
    why: str
    advice: str = ""
    condition: str = ""


NOBODY_MARKS = (
    "nobody marks pods: which ones must have security groups of their own is not known before they have a branch ENI, so that one may "
    "get an address of the pool; apply manifests/pod-eni, or set VPC_IPAMD_POD_FACTS=kubelet (docs/security-groups.md)"
)
"""Condition of a node where a pod without mark was given an address of the pool."""


def decide(facts: PodFacts) -> Decision:
    """What an ADD does by the facts (I19). An annotation is written for a pod that wants it: one on another pod is a stranger's."""
    if facts.wish is Wish.UNKNOWN:
        advice = "retry; while nobody tells whether a pod has security groups of its own it gets no address"
        return Decision(Way.REFUSE, facts.why, advice)
    if facts.wish is Wish.NO:
        if not facts.annotation:
            return Decision(Way.POOL, facts.why)
        advice = f"somebody else than the controller wrote annotation {POD_ENI}: delete the pod, and make it without"
        return Decision(Way.REFUSE, f"{facts.why}, and the pod is told a branch ENI all the same", advice)
    if facts.annotation:
        return Decision(Way.BRANCH, facts.why)
    if facts.wish is Wish.YES:
        return Decision(Way.WAIT, f"{facts.why}, and annotation {POD_ENI} is not there yet")
    if facts.wish is Wish.OLDER:
        return Decision(
            Way.REFUSE, f"{facts.why}: it is older than the admission policy", "delete the pod once; its successor is marked"
        )
    return Decision(Way.POOL, facts.why, condition=NOBODY_MARKS)


# The second copy of the identity, in the kernel: a lost datastore is rebuilt from it.


def encode_link_alias(address: IpAddress, eni_id: EniId, branch: Branch) -> str:
    """Encode for the VLAN link what the host veth's alias, which names sandbox and address, does not say."""
    mode = EnforcingMode.STRICT if branch.is_strict else EnforcingMode.STANDARD
    return f"{LINK_TAG} {address} {eni_id} {branch.gateway} {mode}"


def decode_link_alias(alias: str, *, name: str, mac: str) -> tuple[IpAddress, EniId, Branch] | None:
    """Decode it; `name` and `mac` are the link's. None if it is not ours or is damaged."""
    parts, vlan = alias.split(" "), name.removeprefix(LINK_PREFIX)
    if len(parts) != 5 or parts[0] != LINK_TAG or not vlan.isascii() or not vlan.isdigit() or not _ENI_ID.fullmatch(parts[2]):
        return None
    try:
        address, gateway, mode = read_address(parts[1]), read_address(parts[3]), EnforcingMode(parts[4])
    except ValueError:
        return None
    is_strict = mode is EnforcingMode.STRICT
    return address, EniId(parts[2]), Branch(int(vlan), MacAddress(mac), gateway, is_strict)
