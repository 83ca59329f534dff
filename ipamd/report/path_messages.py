"""All conclusions of `ipamctl path`: each cause with its verdict, its sentence, and the next action.

The names in braces are fields of the finding. `MESSAGES` is sorted by weight. If a walk finds several causes, the cause that is first
in `MESSAGES` is the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple

from ipamd.model.record import dataclass


class PathVerdict(StrEnum):
    """The fate of the packet, as far as it can be seen from the node.

    REACHES: the node delivers the packet.
    DROPPED: the packet, or the answer to it, is dropped, and the report says by what.
    LEAVES: nothing on this node is in the way, and the packet leaves by an ENI. What follows decides about it.
    UNSEEN: it cannot be decided on this node whether the packet passes the node, for example because of a filter of other software.
    """

    REACHES = "reaches"
    DROPPED = "dropped"
    LEAVES = "leaves"
    UNSEEN = "unseen"


class PathCause(StrEnum):
    """The cause of a verdict; a stable code, independent of the sentence."""

    NAMESPACE_GONE = "namespace-gone"
    NO_NETWORK = "no-network"
    NO_FAMILY = "no-address-of-family"
    POD_REFUSES = "pod-refuses"
    LOCAL_RANGE = "local-range"
    REVERSE_PATH = "reverse-path"
    NODE_REFUSES = "node-refuses"
    SOURCE_CHECK = "ec2-source-check"
    FILTERED = "filtered"
    ANSWER_REVERSE_PATH = "answer-reverse-path"
    ANSWER_REFUSED = "answer-refused"
    ANSWER_DIVERTED = "answer-diverted"
    UNREADABLE = "kernel-unreadable"
    FOREIGN_INTERFACE = "foreign-interface"
    FOREIGN_LINK = "foreign-link"
    NO_AGENT = "no-agent"
    MAY_BE_FILTERED = "may-be-filtered"
    WIRING_DIFFERS = "wiring-differs"
    ITSELF = "itself"
    NODE = "node"
    POD_ON_NODE = "pod-on-node"
    VPC_SERVICE = "vpc-service"
    LEAVES = "leaves-node"


class PathMessage(NamedTuple):
    """The verdict of a cause, its sentence, and the next action."""

    verdict: PathVerdict
    text: str
    next: str


_DROPPED, _LEAVES, _UNSEEN, _REACHES = PathVerdict.DROPPED, PathVerdict.LEAVES, PathVerdict.UNSEEN, PathVerdict.REACHES
_RULE = "{commands}: remove the rule or route that is not of this daemon; `ipamctl audit` names ours"
_FILTER = "{mend}"

MESSAGES: Mapping[PathCause, PathMessage] = {
    PathCause.NAMESPACE_GONE: PathMessage(_DROPPED, "the pod's network namespace is gone: {error}", "`ipamctl explain {pod}`"),
    PathCause.NO_NETWORK: PathMessage(
        _DROPPED, "the pod has no network: {reason}", "`ipamctl explain {pod}` and `ipamctl audit`"
    ),
    PathCause.NO_FAMILY: PathMessage(
        _DROPPED,
        "the pod has no {family} address",
        "use an address of the pod's family, or set {setting}=true and recreate the pod: docs/ipv6.md",
    ),
    PathCause.POD_REFUSES: PathMessage(
        _DROPPED,
        "the routes inside the pod refuse it: {error}",
        "look for rules and routes that the pod itself has changed; otherwise delete it, and its successor is wired anew",
    ),
    PathCause.LOCAL_RANGE: PathMessage(
        _DROPPED,
        "{destination} is in the range that is valid on this node only, and nobody may connect to these addresses",
        "connect to the pod's own address: `ipamctl attachments`",
    ),
    PathCause.REVERSE_PATH: PathMessage(
        _DROPPED,
        "the reverse-path filter of {incoming} drops it: the source {source} is not routed back through that link, {rule}",
        "the pod must send from its own address; if it does, `ipamctl audit`",
    ),
    PathCause.NODE_REFUSES: PathMessage(_DROPPED, "the node's routing refuses it, {rule}: {error}", _RULE),
    PathCause.SOURCE_CHECK: PathMessage(
        _DROPPED,
        "it leaves by {eni} with the source {source}, which is an address of {owner}: EC2's source/destination check drops it",
        _RULE,
    ),
    PathCause.FILTERED: PathMessage(_DROPPED, "{what}", _FILTER),
    PathCause.ANSWER_REVERSE_PATH: PathMessage(
        _DROPPED,
        "the reverse-path filter of {link} drops the answer: {destination} is not routed through that link, {rule}",
        "set net.ipv4.conf.{link}.rp_filter to 2; `ipamctl audit` shows what else differs",
    ),
    PathCause.ANSWER_REFUSED: PathMessage(_DROPPED, "the node's routing refuses the answer, {rule}: {error}", _RULE),
    PathCause.ANSWER_DIVERTED: PathMessage(_DROPPED, "the answer would go by {link}, not by {expected}, {rule}", _RULE),
    PathCause.UNREADABLE: PathMessage(_UNSEEN, "the kernel could not be read: {error}", "run it again; `ipamctl status`"),
    PathCause.FOREIGN_INTERFACE: PathMessage(
        _UNSEEN,
        "it leaves the pod by its interface {link}, which this daemon did not make",
        "look at the configuration of the software that made {link}: a VPN, a service mesh or another CNI plugin",
    ),
    PathCause.FOREIGN_LINK: PathMessage(
        _UNSEEN,
        "it leaves the node by {link}, which does not belong to an ENI, {rule}",
        "look at the configuration of the software that made {link}",
    ),
    PathCause.NO_AGENT: PathMessage(
        _UNSEEN,
        "it leaves by {link} ({eni}), but {destination} is a link-local address, and nothing beyond the node is known to have it",
        "on this node must run what serves this address, as node-local DNS or EKS Pod Identity's agent: "
        "`kubectl get pods -A -o wide --field-selector spec.nodeName=NODE`",
    ),
    PathCause.MAY_BE_FILTERED: PathMessage(_UNSEEN, "a filter of other software may drop its packets: {what}", _FILTER),
    PathCause.WIRING_DIFFERS: PathMessage(
        _UNSEEN,
        "the pod's wiring is not as it was made: {differences}",
        "wait 30 s for the repair and run it again; if it stays, delete the pod",
    ),
    PathCause.ITSELF: PathMessage(_REACHES, "{destination} is the pod's own address", "does a process listen there?"),
    PathCause.NODE: PathMessage(
        _REACHES,
        "{destination} is an address of this node, {rule}",
        "does a process of the node listen there, and on that address?",
    ),
    PathCause.POD_ON_NODE: PathMessage(
        _REACHES, "the node delivers it to {pod} by {link}", "does the pod listen there? Its network policies may drop it"
    ),
    PathCause.VPC_SERVICE: PathMessage(
        _LEAVES,
        "nothing of this node is in the way: it leaves by {link} ({eni}) to {service}, which no security group and no network ACL "
        "filters",
        "{mend}",
    ),
    PathCause.LEAVES: PathMessage(
        _LEAVES,
        "nothing of this node is in the way: it leaves by {link} ({eni}), {seen}",
        "{mend}in the AWS console check what is listed below, the likeliest first, or have VPC Reachability Analyzer do it: "
        "source {eni}, destination {target}",
    ),
}


@dataclass(frozen=True, slots=True)
class PathFinding:
    """One cause, with the fields of its sentence as text."""

    cause: PathCause
    fields: Mapping[str, str]

    @property
    def verdict(self) -> PathVerdict:
        """The fate of the packet because of this cause."""
        return MESSAGES[self.cause].verdict

    @property
    def text(self) -> str:
        """The cause, in a sentence."""
        return MESSAGES[self.cause].text.format_map(self.fields)

    @property
    def next(self) -> str:
        """The next action, in a sentence."""
        return MESSAGES[self.cause].next.format_map(self.fields)


_WEIGHT = {cause: weight for weight, cause in enumerate(MESSAGES)}


def path_finding(cause: PathCause, **fields: object) -> PathFinding:
    """Make a finding. The fields are converted to text."""
    return PathFinding(cause, {name: str(value) for name, value in fields.items()})


def by_weight(findings: Iterable[PathFinding]) -> list[PathFinding]:
    """Sort findings so that the first is the answer. "Nothing is in the way" is left out if there is any other finding."""
    ordered = sorted(findings, key=lambda finding: _WEIGHT[finding.cause])
    return [finding for finding in ordered if finding.cause not in (PathCause.LEAVES, PathCause.VPC_SERVICE)] or ordered
