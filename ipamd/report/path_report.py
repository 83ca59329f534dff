"""The report of `ipamctl path`, from which the RPC reply and the text are made."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.family import IpAddress
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.packet_path import RouteAnswer, RoutedPacket
from ipamd.model.record import dataclass
from ipamd.report.path_messages import PathFinding


class PathKind(StrEnum):
    """How the packet leaves if it does not leave by a leg of a pod: from the node's own network, or not known."""

    HOST_NETWORK = "host-network"
    UNKNOWN = ""


class LookupPlace(StrEnum):
    """Where a route was looked up; ANSWER: on the node, for the packet that comes back."""

    POD = "pod"
    NODE = "node"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class PathLookup:
    """One question to the kernel and its answer, as `ip route get` shows them."""

    place: LookupPlace
    packet: RoutedPacket
    answer: RouteAnswer


@dataclass(frozen=True, slots=True)
class PathEni:
    """The ENI by which the packet leaves.

    A pod's own ENI has device index -1, and its subnet and groups are empty: they are not known.
    """

    eni_id: EniId
    link: str
    device_index: int = -1
    network_card: int = 0
    subnet_id: SubnetId = SubnetId("")
    security_group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnseenPart:
    """Something that decides about the packet and cannot be seen from the node.

    `text`: its name.
    `console`: the page of the AWS console, or the command, that shows it.
    `subject`: its ID, or what it must allow.
    """

    text: str
    console: str
    subject: str


@dataclass(frozen=True, slots=True)
class PathReport:
    """The whole report.

    `findings`: the first is the answer.
    `seen_as`: the source address that the other side sees, None if it is not known.
    `translated`: whether it differs from the pod's.
    `port`: 0 if none was given.
    `policy_mode`: mode of the network policy agent that filters the pod, "none" without one.
    """

    pod: str
    sandbox: str
    kind: str
    source: IpAddress | None
    destination: IpAddress
    port: int
    findings: tuple[PathFinding, ...]
    lookups: tuple[PathLookup, ...]
    eni: PathEni | None
    translated: bool
    seen_as: IpAddress | None
    policy_mode: str
    unseen: tuple[UnseenPart, ...]
