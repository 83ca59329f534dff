"""Collect the entries for the file of amazon-vpc-cni-k8s when the node goes back to it: one entry for every address in use. Pure.

The daemon of amazon-vpc-cni-k8s assigns addresses that are not in its file to new pods. That daemon keeps an entry with a pod's name
as long as a host veth named after this pod exists, and any other entry until the DEL of its sandbox (docs/adr/0038).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from ipamd.model.attachment import POD_IFNAME, Attachment, pod_veth_name
from ipamd.model.aws_node import Allocation, _may_be_named
from ipamd.model.cniresult import others_mac
from ipamd.model.family import IpAddress
from ipamd.model.ids import parse_key
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.legs.aws_node_uplinks import leads_to_uplink


def wanted_name(attachment: Attachment, *, prefix: str) -> str:
    """Return the host veth's name that amazon-vpc-cni-k8s expects for an attachment; "" if its pod is unknown, or if it is not the
    pod's first interface.
    """
    if not (attachment.pod_name and attachment.pod_namespace and attachment.key.ifname == POD_IFNAME):
        return ""
    return pod_veth_name(attachment.pod_namespace, attachment.pod_name, prefix=prefix)


def recorded(attachments: Iterable[Attachment], survey: KernelSurvey, *, prefix: str) -> dict[IpAddress, Allocation]:
    """Return, by address, an entry for each recorded sandbox whose host veth exists.

    A sandbox that the plugin of amazon-vpc-cni-k8s is about to wire with an address from us is included; if the plugin never wires it,
    the daemon of amazon-vpc-cni-k8s drops the entry. Sandboxes whose address is in no pool have no entry in the file.
    """
    live_names = {veth.name for veth in survey.veths if not veth.is_dying}
    entries = {}
    for attachment in attachments:
        if not attachment.is_of_pool:
            continue
        if attachment.host_veth in live_names or others_mac(attachment) == "":
            is_named = attachment.host_veth == wanted_name(attachment, prefix=prefix)
            pod = (attachment.pod_namespace, attachment.pod_name) if is_named else ("", "")
            made_at_ns = int(attachment.created_at.timestamp()) * 10**9
            entries[attachment.address] = Allocation(
                attachment.key, attachment.address, *pod, made_at_ns, other_address=attachment.other_address
            )
    return entries


def unrecorded(
    survey: KernelSurvey,
    recorded_allocations: Mapping[IpAddress, Allocation],
    *,
    listed: Mapping[IpAddress, Allocation],
    prefix: str,
    now: datetime,
) -> dict[IpAddress, tuple[HostVeth, Allocation]]:
    """Return an entry for the file for each address that a live host veth has and that `recorded` left out.

    Returns: address -> the veth that has the address, according to its alias or a route, and the entry.

    Args:
        recorded_allocations: the result of `recorded`.
        listed: the present entries of the file, by address. A veth without our alias keeps its present entry, or gets a placeholder.
        prefix: how the names of host veths begin.
    """
    known_keys = {allocation.key for allocation in recorded_allocations.values()}
    made_at_ns = int(now.timestamp()) * 10**9
    entries = {}
    for address, veth in sorted(_carried_addresses(survey).items()):
        if address in recorded_allocations:
            continue
        allocation = listed.get(address) if veth.key is None else None
        if allocation is None or allocation.key in known_keys or not _may_be_named(allocation, veth.name, prefix=prefix):
            key = veth.key or parse_key(f"unknown-{veth.name}", POD_IFNAME)
            allocation = Allocation(key, address, made_at_ns=made_at_ns)
        entries[address] = veth, allocation
    return entries


def _carried_addresses(survey: KernelSurvey) -> dict[IpAddress, HostVeth]:
    """Return the live host veth of each address: by the address's route, or without a route by the veth's alias.

    Veths that lead to an uplink are left out.
    """
    live = {veth.name: veth for veth in survey.veths if not veth.is_dying and not leads_to_uplink(veth, survey)}
    carried = {veth.address: veth for veth in live.values() if veth.address is not None}
    for address, device in survey.routes.items():
        if device in live:
            carried[address] = live[device]
        else:
            carried.pop(address, None)  # the address is routed elsewhere, so an alias with this address does not count
    return carried
