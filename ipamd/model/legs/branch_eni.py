"""Branch ENIs: read the annotation with which the control plane names a pod's branch ENI. Pure.

A pod with security groups of its own does not get an address of the pool, but a branch ENI: amazon-vpc-resource-controller-k8s makes
the ENI on the node's trunk ENI and names it in the pod's annotation. The webhook that guards the annotation fails open (failurePolicy
Ignore), so the text is not trusted: a closed set of fields is read, each within its bounds. `ipamd/sandbox/legs/branch.py`, which has
the datastore, compares the branch ENI with the pool and with other sandboxes. Source: amazon-vpc-cni-k8s pkg/ipamd/rpc_handler.go,
AddNetwork; amazon-vpc-resource-controller-k8s pkg/provider/branch/trunk/trunk.go, ENIDetails.
"""

from __future__ import annotations

import json
import re
from ipaddress import IPv6Address
from typing import Any

from ipamd.model.attachment import Attachment, WiringSpec
from ipamd.model.enforcing_mode import EnforcingMode
from ipamd.model.family import IPV4, IPV6_GATEWAY, Family, IpAddress, read_address, read_network
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel_numbers import LINK_PREFIX, TABLE_BASE
from ipamd.model.legs.branch_errors import BranchAnnotationError
from ipamd.model.pod_annotations import ANNOTATION_MAX, POD_ENI
from ipamd.model.record import dataclass
from ipamd.model.words import printable

VLAN_MIN, VLAN_MAX = 1, 4094
"""Bounds of a VLAN ID. IEEE 802.1Q reserves 0 and 4095. The controller assigns 1 to 120 (trunk.go, MaxAllocatableVlanIds)."""

KERNELS_TABLES = range(253, 256)
"""The kernel's route tables default, main and local. Source: linux/rtnetlink.h."""

AWS_LOCAL = read_network("fd00:ec2::/32")
"""The network of AWS's DNS resolver, time service, instance metadata and EKS Pod Identity in IPv6; no VPC has it. Source: EC2 and VPC
user guides; EKS, pod-id-agent-config."""

_ENI_ID = re.compile(r"eni-[0-9a-f]{4,17}")

_UNICAST_MAC = re.compile(r"(?!00(:00){5})[0-9a-f][02468ace](:[0-9a-f]{2}){5}")


@dataclass(frozen=True, slots=True)
class Branch:
    """How a sandbox is connected to its branch ENI. The address and the ENI's ID are fields of the sandbox's record.

    `vlan`: the VLAN ID of the sandbox's frames on the trunk ENI.
    `mac`: the MAC of the branch ENI.
    `gateway`: the router of the branch ENI's subnet, resolved by ARP or neighbour discovery.
    `is_strict`: whether all packets of the sandbox pass the branch ENI, even packets between the sandbox and its own node. The value
        stays as it was when the sandbox was wired.
    """

    vlan: int
    mac: MacAddress
    gateway: IpAddress
    is_strict: bool

    def eni(self, eni_id: EniId, address: IpAddress) -> BranchEni:
        """Return the branch ENI as the annotation named it."""
        return BranchEni(eni_id, self.mac, address, self.vlan, self.gateway)

    @property
    def link(self) -> str:
        """Name of the VLAN link on the trunk's link."""
        return f"{LINK_PREFIX}{self.vlan}"

    @property
    def route_table(self) -> int:
        """Number of the table with the routes to the branch ENI; in strict mode also with the route to the sandbox."""
        return TABLE_BASE + self.vlan


@dataclass(frozen=True, slots=True)
class BranchEni:
    """A pod's branch ENI, as the pod's annotation describes it.

    `address`: the pod's address, in the family of the node's pool.
    `vlan`, `mac`, `gateway`: as in `Branch`.
    """

    eni_id: EniId
    mac: MacAddress
    address: IpAddress
    vlan: int
    gateway: IpAddress

    def branch(self, mode: EnforcingMode) -> Branch:
        """Return how a sandbox is connected to the ENI in an enforcing mode."""
        return Branch(vlan=self.vlan, mac=self.mac, gateway=self.gateway, is_strict=mode is EnforcingMode.STRICT)


def branch_of(sandbox: Attachment | WiringSpec) -> Branch:
    """Return how a sandbox is connected to its branch ENI. Raises: ValueError if it has none."""
    if not isinstance(sandbox.uplink, Branch):
        raise ValueError(f"sandbox {sandbox.key} has no branch ENI")
    return sandbox.uplink


def branch_eni_of(sandbox: Attachment | WiringSpec) -> BranchEni:
    """Return the branch ENI of a sandbox as the annotation named it. Raises: ValueError if it has none."""
    return branch_of(sandbox).eni(sandbox.eni_id, sandbox.address)


def parse_pod_eni(text: str, *, family: Family) -> BranchEni:
    """Read the branch ENI from the first entry of the annotation's list. Fields that we do not use are ignored.

    The names of fields are case-insensitive, as in Go. Raises: BranchAnnotationError, which names the wrong field.
    """
    first_entry = _first_entry(text)
    fields = {name.lower(): value for name, value in first_entry.items()}
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
    """Read the pod's address and its gateway, of the pool's family. Raises: BranchAnnotationError."""
    if family is IPV4:
        name, subnet_name, lengths = "privateIp", "subnetCidr", range(16, 29)
    else:
        name, subnet_name, lengths = "ipv6Addr", "subnetV6Cidr", range(44, 65)
    text, cidr = str(fields.get(name.lower())), str(fields.get(subnet_name.lower()))
    try:
        address, subnet = read_address(text), family.network(cidr)
    except ValueError:
        raise _refusal(f"{name} and {subnet_name}", f"{text} and {cidr}", "an address and its subnet") from None
    if subnet.prefixlen not in lengths:
        raise _refusal(subnet_name, cidr, f"a subnet of /{lengths[0]} to /{lengths[-1]}")
    # AWS reserves the first four addresses of each subnet for router and resolver, and the last one.
    if address not in subnet or not 4 <= int(address) - int(subnet[0]) < subnet.num_addresses - 1:
        raise _refusal(name, text, f"one that a host of {cidr} may have")
    if _is_special(address):
        raise _refusal(name, text, "a unicast address of the VPC")
    return address, subnet.network_address + 1 if family is IPV4 else IPV6_GATEWAY


def _is_special(address: IpAddress) -> bool:
    """Whether an address is one that no pod can have, whatever the subnet is."""
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        # In newer releases of Python (gh-122792) the properties below describe the IPv4 part, so this IPv6 address would be accepted.
        return True
    return address.is_loopback or address.is_multicast or address.is_link_local or address.is_reserved or address in AWS_LOCAL


def _refusal(field: str, value: object, wanted: str) -> BranchAnnotationError:
    return BranchAnnotationError(
        f"annotation {POD_ENI}: {field} is {printable(str(value), most=80)!r}, not {wanted}",
        details="amazon-vpc-resource-controller-k8s writes it; if somebody else did, delete the pod; see docs/security-groups.md",
    )
