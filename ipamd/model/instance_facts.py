"""Properties of an instance type that cause failures whose reason is hard to find. `ipamctl status` shows them. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.cloud import ConnectionTracking
from ipamd.model.eni import InstanceLimits
from ipamd.model.record import dataclass

TCP_TIMEOUT = "TcpEstablishedTimeout"
"""EC2's name of a timeout: after so many seconds without a packet security groups forget an established TCP connection.
Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_ConnectionTrackingConfiguration.html."""

LONG_TIMEOUT_S, SHORT_TIMEOUT_S = 432_000, 350
"""EC2's defaults of TCP_TIMEOUT, in seconds: the long one for instance types before the sixth generation of Nitro, the short one for
the types from this generation on.

Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/security-group-connection-tracking.html, idle timeout."""

_SHORT_TIMEOUT = """
c8a c8gb c8gn c8i c8i-flex c8ib c8id c8in c8ine c9g c9gd g7 g7e hpc8a i8ge m8a m8azn m8gb m8gn m8i m8i-flex m8ib m8id m8idb m8idn m8in
m8ine m9g m9gd p6-b200 p6-b300 r8a r8gb r8gn r8i r8i-flex r8ib r8id r8idb r8idn r8in r9g r9gd t8i x8aedz x8i
"""
SHORT_TIMEOUT_FAMILIES = frozenset(_SHORT_TIMEOUT.split())
"""Instance families with the default SHORT_TIMEOUT_S. They are used when DescribeInstanceTypes does not answer. Source:
DescribeInstanceTypes as recorded in moto 5.2.5, NetworkInfo.ConnectionTrackingConfiguration; a test compares this list with that
source."""

MAX_PODS_IN_FILE = {
    "i7ie.48xlarge": 737,
    "i7ie.metal-48xl": 737,
    "i8ge.48xlarge": 1178,
    "i8ge.metal-48xl": 1178,
}
"""Instance type -> pods, for types for which amazon-vpc-cni-k8s misc/eni-max-pods.txt (v1.23.1) counts the ENIs of both network cards.
Every pod takes an address of the default card, even a pod that asks for an interface of each card. The default card has only 8 of 15,
or 12 of 24, of these ENIs, so the file allows more pods than can have addresses."""


class FactCode(StrEnum):
    """The kind of a fact. It stays the same when the sentence is reworded."""

    TCP_TIMEOUT = "tcp-timeout"
    MAX_PODS_FILE = "max-pods-file"


@dataclass(frozen=True, slots=True)
class InstanceFact:
    """One fact. `text`: a sentence with the fact and what an operator should do."""

    code: FactCode
    text: str


def instance_facts(limits: InstanceLimits | None, tracking: ConnectionTracking) -> tuple[InstanceFact, ...]:
    """List the properties of this node's instance type that an operator should know.

    Args:
        limits: the limits of the instance type; None while they are not known, and then the list is empty.
        tracking: the timeouts that are set on the primary ENI; new ENIs get the same ones.
    """
    if limits is None:
        return ()
    facts = []
    timeout = _tcp_timeout(limits, tracking)
    if timeout:
        facts.append(InstanceFact(FactCode.TCP_TIMEOUT, timeout))
    in_file = MAX_PODS_IN_FILE.get(limits.instance_type)
    if in_file:
        text = (
            f"eni-max-pods.txt allows {in_file} pods on {limits.instance_type}, and the ENIs of its default network card carry "
            f"{limits.max_pods} with single addresses: give kubelet (--max-pods) no more than `ipamctl capacity` shows"
        )
        facts.append(InstanceFact(FactCode.MAX_PODS_FILE, text))
    return tuple(facts)


def default_tcp_timeout_s(limits: InstanceLimits) -> int:
    """Return the type's default timeout of an established TCP connection, in seconds: from EC2's answer, else by the family."""
    if limits.tcp_timeout_s:
        return limits.tcp_timeout_s
    family = limits.instance_type.partition(".")[0]
    return SHORT_TIMEOUT_S if family in SHORT_TIMEOUT_FAMILIES else LONG_TIMEOUT_S


def short_tcp_timeout_s(limits: InstanceLimits, tracking: ConnectionTracking) -> int:
    """Return the timeout of an established TCP connection in seconds if it is shorter than LONG_TIMEOUT_S, else 0."""
    timeout_s = dict(tracking).get(TCP_TIMEOUT, 0) or default_tcp_timeout_s(limits)
    return timeout_s if timeout_s < LONG_TIMEOUT_S else 0


def _tcp_timeout(limits: InstanceLimits, tracking: ConnectionTracking) -> str:
    """Describe a timeout that is shorter than LONG_TIMEOUT_S; "" if it is not shorter."""
    set_s = dict(tracking).get(TCP_TIMEOUT, 0)
    default_s = default_tcp_timeout_s(limits)
    timeout_s = short_tcp_timeout_s(limits, tracking)
    if not timeout_s:
        return ""
    reason = (
        f"set on the primary ENI; the default of {limits.instance_type} is {default_s} s"
        if set_s
        else (f"the default of {limits.instance_type}; types before the sixth Nitro generation have {LONG_TIMEOUT_S} s")
    )
    return (
        f"security groups forget a TCP connection after {timeout_s} s without a packet ({reason}): let applications send keepalives "
        f"sooner, or set {TCP_TIMEOUT} on the primary ENI, which new ENIs get too"
    )
