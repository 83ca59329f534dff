"""Report rules and settings of other software that harm sandboxes' traffic and that we do not repair, each with the command that ends
it.

There are three kinds: rules that amazon-vpc-cni-k8s left behind, which translate or mark traffic against our settings; filters (of
Docker, of firewalld, of an administrator) that may drop packets of sandboxes (`foreign_filters`); and kube-proxy in IPVS mode on a
node with sandboxes in strict mode. Source of the names: amazon-vpc-cni-k8s pkg/networkutils/network.go.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator, Sequence
from pathlib import Path

from ipamd.kernel.foreign_filters import ForeignFilters, concerns
from ipamd.kernel.foreign_rules import rules_of
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_chains import Chain, read_chains
from ipamd.kernel.nft_changes import generation
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.family import IPV4, Family, IpAddress
from ipamd.model.repairs import NODE
from ipamd.model.routing_difference import RoutingDifference, routing_difference

LEFT_CHAINS = ("AWS-SNAT-CHAIN-", "AWS-CONNMARK-CHAIN-")
"""Beginnings of the names of the chains that amazon-vpc-cni-k8s makes for the whole node."""

LEFT_TABLE = ("ip", "aws-cni")
"""The table in which amazon-vpc-cni-k8s marks connections if the node's iptables is iptables-nft. Source: amazon-vpc-cni-k8s
pkg/networkutils/nftables_connmark.go."""

IPVS_CONF = Path("/proc/sys/net/ipv4/conf/kube-ipvs0")
"""Settings of the link with the addresses of services in IPVS mode.

Source: kubernetes pkg/proxy/ipvs/proxier.go, defaultDummyDevice.
"""

IPVS = routing_difference(DifferenceCode.SERVICES_BY_IPVS, NODE)
"""The finding that sandboxes in strict mode reach no service. IPVS handles packets that are delivered to the node. In strict mode a
rule sends the packets of a sandbox to its uplink before they are delivered (`MOVED_LOCAL_PRIORITY` in `kernel_numbers.py`)."""


class OtherSoftware:
    """Inspects the rules of other software, and changes nothing. Used under the lock of `KernelHostNetwork`."""

    def __init__(
        self,
        host: HostNetns,
        nft: Nftables,
        *,
        veth_prefix: str,
        families: Callable[[], Collection[Family]] = lambda: (IPV4,),
    ) -> None:
        """`families`: returns the families of the pool and of extra legs."""
        self._host = host
        self._nft = nft
        self._families = families
        self._veth_prefix = veth_prefix
        self._last_findings: tuple[object, list[RoutingDifference]] | None = None
        """The ruleset's generation and the IP families at the last reading, and its findings; None if the generation is unknown."""

    def find(self, addresses: Container[IpAddress] = (), has_strict: bool = False) -> list[RoutingDifference]:
        """Return a difference for each finding, with the command that ends it. Raises: WiringError if nftables cannot be read.

        The call takes less than a millisecond while no rule changes.

        Args:
            addresses: the addresses of sandboxes. A suspicion about a single address that is not among them is left out.
            has_strict: whether the node has sandboxes in strict mode.
        """
        differences = [
            difference
            for difference in self._find_in_nft(tuple(self._families()))
            if concerns(difference, addresses, veth_prefix=self._veth_prefix)
        ]
        if has_strict:
            with self._host.entered():
                if IPVS_CONF.exists():
                    differences.append(IPVS)
        return differences

    def _find_in_nft(self, families: tuple[Family, ...]) -> list[RoutingDifference]:
        """Return the findings in nftables: the last ones if its generation is the same. Raises: WiringError."""
        # Read the generation first: a change while the rules are read then leads to a new reading the next time.
        ruleset_generation = generation(self._host)
        state = ruleset_generation, families
        if self._last_findings is not None and ruleset_generation is not None and self._last_findings[0] == state:
            return self._last_findings[1]
        chains = read_chains(self._nft.query("list chains"))
        with self._host.netfilter() as sock:
            filters = ForeignFilters(sock, veth_prefix=self._veth_prefix, families=[family.nft for family in families])
            differences = [*_left_chains(sock, chains), *filters.suspicions(chains)]
        self._last_findings = None if ruleset_generation is None else (state, differences)
        return differences


def _left_chains(sock: NetlinkSocket, chains: Sequence[Chain]) -> Iterator[RoutingDifference]:
    """Report what amazon-vpc-cni-k8s left. A chain without rules does nothing, so it is not reported."""
    for chain in chains:
        is_left = (chain.family, chain.table) == ("ip", "nat") and chain.name.startswith(LEFT_CHAINS)
        if is_left and rules_of(sock, chain):
            is_snat = "SNAT" in chain.name
            code = DifferenceCode.CHAIN_LEFT_SNAT if is_snat else DifferenceCode.CHAIN_LEFT_MARKS
            yield routing_difference(code, NODE, chain=chain)
    if any((chain.family, chain.table) == LEFT_TABLE for chain in chains):
        yield routing_difference(DifferenceCode.TABLE_LEFT, NODE, table=" ".join(LEFT_TABLE))
