"""Identify sandboxes with branch ENIs that amazon-vpc-cni-k8s wired. Pure.

The file of amazon-vpc-cni-k8s does not contain pods with security groups of their own. The kernel shows the VLAN link, the route table
and the gateway of such a pod's sandbox, and the pod's annotation names its branch ENI. Source: amazon-vpc-cni-k8s
cmd/routed-eni-cni-plugin/driver/driver.go, SetupBranchENIPodNetwork.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ipamd.model.attachment import POD_IFNAME
from ipamd.model.aws_node import _of_veth
from ipamd.model.family import IpAddress, family_of
from ipamd.model.ids import AttachmentKey, EniId, IfName, MacAddress
from ipamd.model.kernel import HostVeth, KernelSurvey, VlanLink
from ipamd.model.kernel_numbers import STRICT_VETH_PREFIX, TABLE_BASE
from ipamd.model.legs.branch_eni import Branch, BranchEni, parse_pod_eni
from ipamd.model.legs.branch_errors import BranchAnnotationError
from ipamd.model.pod_annotations import POD_ENI
from ipamd.model.record import dataclass
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted


@dataclass(frozen=True, slots=True)
class BranchPath:
    """How packets from a host veth that amazon-vpc-cni-k8s made reach a branch ENI, according to the kernel alone.

    `address`: the sandbox's address.
    `link`: the VLAN link.
    `branch`: VLAN ID, MAC, gateway and mode, as the kernel shows them.
    """

    address: IpAddress
    link: VlanLink
    branch: Branch


def find_branch_path(veth: HostVeth, survey: KernelSurvey) -> BranchPath | str:
    """Find the path from a host veth without our alias to a branch ENI.

    In strict mode the route to the sandbox is only in the table of the VLAN. In standard mode the route is in the main table, and a
    rule for packets from the address selects the table of the VLAN.

    Returns: the path; "" if the veth leads to no branch ENI; or a sentence that says why this cannot be determined.
    """
    links = {TABLE_BASE + link.vlan: link for link in survey.vlans if not (link.is_dying or link.impostor_why)}
    is_strict = veth.has_uplink
    if is_strict:
        tables = _tables_with_route(veth, survey, links)
    else:
        tables = _tables_by_rules(veth, survey, links)
        if not tables:
            return ""
    if len(tables) != 1:
        return f"{counted(len(tables), 'address')} of VLAN links' tables lead to it, not 1"
    ((address, table),) = tables.items()
    link = links[table]
    gateway = _gateway(table, link, survey)
    if gateway is None:
        return f"table {table} has no default route through {link.name}"
    return BranchPath(address, link, Branch(link.vlan, MacAddress(link.mac), gateway, is_strict))


def leads_to_uplink(veth: HostVeth, survey: KernelSurvey) -> bool:
    """Whether a host veth without our alias leads to a branch ENI, or may."""
    return bool(find_branch_path(veth, survey))


def _tables_with_route(veth: HostVeth, survey: KernelSurvey, links: Mapping[int, VlanLink]) -> dict[IpAddress, int]:
    """Find, in strict mode, the addresses that are routed to a veth. Returns: address -> the table of a VLAN link with the route to
    it.

    STRICT_TABLE has these routes too, once sandboxes are confined, but it is not the table of a VLAN link.
    """
    tables = {}
    for route in survey.uplink_routes:
        is_to_veth = route.device == veth.name and route.via is None
        if is_to_veth and route.table in links and isinstance(route.destination, IpAddress):
            tables[route.destination] = route.table
    return tables


def _tables_by_rules(veth: HostVeth, survey: KernelSurvey, links: Mapping[int, VlanLink]) -> dict[IpAddress, int]:
    """Find, in standard mode, the addresses that are routed to a veth, and whose packets leave by a VLAN link.

    For such an address the main table has a route to the veth, and a rule for packets from the address looks up the VLAN link's table.

    Returns: address -> the table of the VLAN link.
    """
    tables = {}
    for address, device in survey.routes.items():
        if device != veth.name:
            continue
        for table in survey.from_rules.get(address, ()):
            if table in links:
                tables[address] = table
    return tables


def _gateway(table: int, link: VlanLink, survey: KernelSurvey) -> IpAddress | None:
    """Return the gateway of the default route through a VLAN link; None if its table has none."""
    for route in survey.uplink_routes:
        if route.table == table and route.device == link.name and route.destination is None:
            return route.via
    return None


def identify_branch(
    veth_name: str, path: BranchPath, *, listed: Mapping[str, Sandbox] | None, annotation: Callable[[Sandbox], str], prefix: str
) -> tuple[AttachmentKey, EniId] | str:
    """Return the sandbox of a host veth with a branch path, and its branch ENI; or a sentence that says why they are unknown.

    Args:
        listed: the runtime's sandboxes by container ID; None while the runtime does not answer.
        annotation: returns the annotation `pod-eni` of a sandbox's pod; "" if it is not known.
        prefix: how the names of host veths begin outside strict mode, according to the setting.
    """
    if listed is None:
        return "the runtime is silent, and its file has no pods with branch ENIs"
    prefix = STRICT_VETH_PREFIX if path.branch.is_strict else prefix
    sandboxes = _of_veth(veth_name, listed, prefix=prefix)
    if len(sandboxes) != 1:
        return f"the runtime lists {counted(len(sandboxes), 'sandbox')} of its pod, not 1"
    (sandbox,) = sandboxes
    text = annotation(sandbox)
    if not text:
        return f"the annotation {POD_ENI} of pod {sandbox.pod_namespace}/{sandbox.pod_name} is not known"
    try:
        annotated = parse_pod_eni(text, family=family_of(path.address))
    except BranchAnnotationError as error:
        return str(error)
    wired = BranchEni(annotated.eni_id, path.branch.mac, path.address, path.branch.vlan, path.branch.gateway)
    if annotated != wired:
        return f"its pod's annotation says {_describe(annotated)}, the kernel {_describe(wired)}"
    return AttachmentKey(sandbox.container_id, IfName(POD_IFNAME)), annotated.eni_id


def _describe(eni: BranchEni) -> str:
    return f"{eni.address} by VLAN {eni.vlan}, {eni.mac} and {eni.gateway}"
