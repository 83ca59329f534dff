"""What goes into the file of amazon-vpc-cni-k8s when the node goes back: every address that somebody has, by any witness. Pure.

Its daemon gives again what is not in the file, and keeps what is: an entry with a pod's name for as long as there is a link of that
name, another one until its DEL (docs/adr/0038).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from ipaddress import IPv4Address

from ipamd.model.attachment import Attachment, pod_veth_name
from ipamd.model.aws_node import Allocation
from ipamd.model.cniresult import others_mac
from ipamd.model.ids import AttachmentKey, parse_key
from ipamd.model.kernel import HostVeth, KernelSurvey

POD_IFNAME = "eth0"
"""The interface of a pod by whose link its daemon knows the pod."""


def wanted_name(attachment: Attachment, *, prefix: str) -> str:
    """The host veth's name by which its daemon knows the sandbox; "" if the pod is not known or has another interface."""
    if not (attachment.pod_name and attachment.pod_namespace and attachment.key.ifname == POD_IFNAME):
        return ""
    return pod_veth_name(attachment.pod_namespace, attachment.pod_name, prefix=prefix)


def recorded(attachments: Iterable[Attachment], survey: KernelSurvey, *, prefix: str) -> dict[IPv4Address, Allocation]:
    """One for each recorded sandbox that has its link, by address.

    Also for one that its own plugin has just got from us and is about to wire: if it does not, its daemon drops the entry.
    """
    live = {veth.name for veth in survey.veths if not veth.is_dying}
    return {
        one.address: _of_row(one, is_named=one.host_veth == wanted_name(one, prefix=prefix))
        for one in attachments
        if one.host_veth in live or others_mac(one) == ""
    }


def unrecorded(
    survey: KernelSurvey,
    known: Mapping[IPv4Address, Allocation],
    *,
    told: Mapping[IPv4Address, Allocation],
    prefix: str,
    now: datetime,
) -> dict[IPv4Address, tuple[HostVeth, Allocation]]:
    """One for each other address that a live host veth has by its alias or by a route, with the veth.

    Args:
        known: what `recorded` found.
        told: what its file says until now. Of a link of nobody that we know it knows more than we do; else that gets a placeholder.
    """
    live = {veth.name: veth for veth in survey.veths if not veth.is_dying}
    carried = {veth.address: name for name, veth in live.items() if veth.address is not None}  # its route may be missing
    found = {address: live[device] for address, device in {**carried, **survey.routes}.items() if device in live}
    made_at_ns, keys = int(now.timestamp()) * 10**9, {one.key for one in known.values()}
    told = {address: one for address, one in told.items() if one.key not in keys}
    return {
        address: (veth, _of_link(veth, address, told.get(address), prefix=prefix, made_at_ns=made_at_ns))
        for address, veth in sorted(found.items())
        if address not in known
    }


def _of_row(attachment: Attachment, *, is_named: bool) -> Allocation:
    return Allocation(
        attachment.key,
        attachment.address,
        attachment.pod_namespace if is_named else "",
        attachment.pod_name if is_named else "",
        made_at_ns=int(attachment.created_at.timestamp()) * 10**9,
    )


def _of_link(veth: HostVeth, address: IPv4Address, told: Allocation | None, *, prefix: str, made_at_ns: int) -> Allocation:
    if veth.key is None and told is not None:
        names = told.pod_namespace, told.pod_name
        if not told.pod_name or pod_veth_name(*names, prefix=prefix) == veth.name:
            return told
    return Allocation(veth.key or _placeholder(veth.name), address, made_at_ns=made_at_ns)


def _placeholder(host_veth: str) -> AttachmentKey:
    return parse_key(f"unknown-{host_veth}", POD_IFNAME)
