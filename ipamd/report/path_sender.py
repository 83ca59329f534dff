"""Read the two arguments of `ipamctl path`, sender and destination. A wrong argument is refused with InvalidRequestError."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Address
from typing import NamedTuple

from ipamd.model.attachment import Attachment
from ipamd.model.errors import InvalidRequestError, IpamError
from ipamd.model.family import IpAddress, read_spelling
from ipamd.model.packet_path import RoutedPacket, RouteResult
from ipamd.model.record import dataclass
from ipamd.report.selection import sandboxes_by_address, sandboxes_by_container_id, sandboxes_of_pod
from ipamd.report.sources import Sources

TARGET_MAX = 60
"""The largest number of characters of a destination. Ours: every valid one fits, because an IPv6 address in brackets with a
port has at most 48."""

PORT_MAX = 65535

BROADCAST = IPv4Address("255.255.255.255")

FORMS = "give an address, ADDRESS:PORT or [IPV6]:PORT; of a name: `getent ahosts NAME`, in the pod"


class PathTarget(NamedTuple):
    """The destination. `port`: the TCP port, 0 if none was given."""

    address: IpAddress
    port: int

    def __str__(self) -> str:
        if not self.port:
            return str(self.address)
        if self.address.version == 6:
            return f"[{self.address}]:{self.port}"
        return f"{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class PathSender:
    """The sender.

    `attachments`: the interfaces of its sandbox; empty for a process or pod in the node's own network.
    `bound`: the address from which it sends; None if the kernel chooses the address.
    """

    name: str
    attachments: tuple[Attachment, ...]
    bound: IpAddress | None = None

    @property
    def is_host_network(self) -> bool:
        """Whether the sender has no network namespace of its own."""
        return not self.attachments


def read_target(text: str) -> PathTarget:
    """Read `ADDRESS`, `ADDRESS:PORT` or `[IPV6]:PORT`. Raises: InvalidRequestError."""
    if len(text) > TARGET_MAX:
        raise InvalidRequestError(f"a destination of {len(text)} characters", details=f"at most {TARGET_MAX}; {FORMS}")
    address_text, port_text = _split(text)
    try:
        address = read_spelling(address_text)
    except ValueError as error:
        raise InvalidRequestError(f"destination {text!r} is no address", details=FORMS) from error
    if address.is_unspecified or address.is_multicast or address.is_loopback or address == BROADCAST:
        raise InvalidRequestError(f"destination {address} is no address of one other host", details=FORMS)
    if address.version == 6 and address.is_link_local:
        raise InvalidRequestError(f"destination {address} has a meaning on one link only", details=FORMS)
    return PathTarget(address, _port(port_text, text))


def _split(text: str) -> tuple[str, str | None]:
    """Separate the address from the port. The port is None if the text has none."""
    if text.startswith("["):
        address, _, suffix = text[1:].partition("]")
        if suffix.startswith(":"):
            return address, suffix[1:]
        if suffix:
            return text, None  # malformed; `read_target` refuses it, because it is not an address
        return address, None
    if text.count(":") == 1:
        address, _, port = text.partition(":")
        return address, port
    return text, None


def _port(port_text: str | None, text: str) -> int:
    if port_text is None:
        return 0
    port = 0
    if port_text.isascii() and port_text.isdecimal() and len(port_text) <= len(str(PORT_MAX)):
        port = int(port_text)
    if not 0 < port <= PORT_MAX:
        raise InvalidRequestError(f"destination {text!r} has no port from 1 to {PORT_MAX}", details=FORMS)
    return port


def select_sender(sources: Sources, subject: str) -> PathSender:
    """Find the sender by `namespace/name`, a pod's name, the beginning of a container ID, or an address.

    If a pod has several sandboxes, the sender is the newest of them.
    Raises: InvalidRequestError if the subject fits no sender of this node, or if it fits several pods or container IDs.
    """
    with suppress(ValueError):
        return _by_address(sources, read_spelling(subject))
    attachments = sandboxes_of_pod(sources, subject) or sandboxes_by_container_id(sources, subject)
    if attachments:
        newest = max(attachments, key=lambda attachment: attachment.created_at)
        of_sandbox = [row for row in attachments if row.key.container_id == newest.key.container_id]
        return PathSender(newest.sandbox_name or newest.key.container_id, tuple(of_sandbox))
    pod = _host_network_pod(sources, subject)
    if pod:
        return PathSender(pod, ())
    raise InvalidRequestError(f"{subject} is not known", details="no address, pod or sandbox of this node")


def _by_address(sources: Sources, address: IpAddress) -> PathSender:
    """Find the sender that has an address. Raises: InvalidRequestError if neither a sandbox nor the node itself has it."""
    attachments = sandboxes_by_address(sources, address)
    if attachments:
        return PathSender(attachments[0].sandbox_name or attachments[0].key.container_id, tuple(attachments), address)
    if any(eni.primary_address == address for eni in sources.datastore.enis()) or _is_local(sources, address):
        return PathSender("the node", (), address)
    raise InvalidRequestError(f"{address} is not known", details="no sandbox of this node has it, and not the node itself")


def _is_local(sources: Sources, address: IpAddress) -> bool:
    """Whether the node itself has an address, for example its IPv6 address, which is not the primary address of an ENI."""
    if address.is_loopback or address.is_multicast or address.is_unspecified:
        return False
    try:
        return sources.paths.on_node(RoutedPacket(address)).result is RouteResult.LOCAL
    except IpamError:
        return False


def _host_network_pod(sources: Sources, subject: str) -> str:
    """Return the name of the pod in the node's own network that fits `subject`; "" if there is none, or if runtime or kernel cannot be
    read.

    The runtime lists such a pod, and the pod has no host veth of ours. A missing row alone would prove nothing, because a row can be
    lost.
    """
    if sources.cri is None:
        return ""
    try:
        listed, survey = sources.cri.sandboxes(), sources.wiring.survey()
    except IpamError:
        return ""
    wired = {veth.key.container_id for veth in survey.firsts if veth.key}
    for sandbox in listed:
        name = f"{sandbox.pod_namespace}/{sandbox.pod_name}"
        if subject in (name, sandbox.pod_name) and sandbox.container_id not in wired:
            return name
    return ""
