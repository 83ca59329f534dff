"""The report of `ipamctl path`, from which the RPC reply and the text are made."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.family import IpAddress
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.packet_path import RouteAnswer, RoutedPacket
from ipamd.model.record import dataclass
from ipamd.report.path_messages import PathFinding


class PathKind(StrEnum):
    """Why the report names no kind of leg.

    HOST_NETWORK: the packet comes from a process or pod in the node's own network namespace, which has no leg.
    UNKNOWN: the pod's leg is not known.
    """

    HOST_NETWORK = "host-network"
    UNKNOWN = ""


class LookupPlace(StrEnum):
    """Where a route was looked up.

    POD: inside the pod.
    NODE: on the node, for the packet of the pod.
    ANSWER: on the node, for the packet that comes back.
    """

    POD = "pod"
    NODE = "node"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class PathLookup:
    """One question to the kernel and its answer, as `ip route get` shows them.

    `place`: where the route was looked up.
    """

    place: LookupPlace
    packet: RoutedPacket
    answer: RouteAnswer


@dataclass(frozen=True, slots=True)
class PathEni:
    """The ENI by which the packet leaves.

    `link`: the name of its link on the node.
    A pod's own (branch) ENI has device index -1. Its subnet and security groups are not known here, and are empty.
    """

    eni_id: EniId
    link: str
    device_index: int = -1
    network_card: int = 0
    subnet_id: SubnetId = SubnetId("")
    security_group_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UnseenPart:
    """A part of AWS or of the cluster that decides about the packet and cannot be seen from the node.

    `text`: its name.
    `console`: the page of the AWS console, or the command, that shows it.
    `subject`: its ID, or the traffic that it must allow.
    """

    text: str
    console: str
    subject: str


@dataclass(frozen=True, slots=True)
class PathReport:
    """The report about one packet of a pod, or of the node's own network, to a destination.

    `pod`: the name of the sender.
    `sandbox`: the container ID of its sandbox; "" for a sender in the node's own network.
    `kind`: the kind of leg by which the packet leaves the pod, or a `PathKind` if no leg can be named.
    `source`: the source address that the sender uses; None if it is not known.
    `port`: the TCP port of the destination; 0 if none was given.
    `findings`: the findings by weight. The first is the answer.
    `lookups`: the routes that were looked up, in this order.
    `eni`: the ENI by which the packet leaves; None if it leaves by none.
    `seen_as`: the source address that the other side sees; None if it is not known.
    `translated`: whether `seen_as` differs from `source`.
    `policy_mode`: the mode of the network policy agent that filters the pod, "none" without an agent.
    `unseen`: the parts beyond this node that decide about the packet, the likeliest cause first.
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
