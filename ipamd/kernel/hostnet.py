"""The port `HostNetwork`: set up and reconcile the routing of the node and its ENIs.

Setup and reconciliation run the same comparisons and write differences only. Reconciliation is needed because other agents flush
rules and tables; amazon-vpc-cni-k8s restores them only at its start and when the VPC's CIDRs change (pkg/ipamd/ipamd.go,
updateCIDRsRulesOnChange). Nothing here runs during ADD; changes go through pyroute2 (`changes`, docs/adr/0004).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping

from ipamd.config import NetworkConfig
from ipamd.kernel import changes, devconf, enis, links, records, ruleset, survey
from ipamd.kernel.confinement import Confinement
from ipamd.kernel.link_events import LinkEvents
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.node import node_repairs
from ipamd.kernel.own_table import OwnTable
from ipamd.kernel.sysctls import repair_sysctls, wrong_sysctls
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import WiringError
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import NODE, NOT_REPAIRED, LinkEvent, RoutingDifference
from ipamd.ports import HostNetwork


class KernelHostNetwork(HostNetwork):
    """Host networking through netlink, /proc/sys and nftables.

    Concurrency: safe from any thread; one operation at a time. Its lock comes before that of `Nftables` and before no other.
    """

    def __init__(self, host: HostNetns, *, config: NetworkConfig, nft: Nftables, link_wait_s: float = links.LINK_WAIT_S) -> None:
        """Manage the namespace `host` by `config`; `link_wait_s` bounds the wait for a newly attached ENI's link."""
        self._host = host
        self._config = config
        self._table = OwnTable(nft)
        self._confinement = Confinement(host, config=config, nft=nft)
        self._link_wait_s = link_wait_s
        self._link_events = LinkEvents(host, veth_prefix=config.veth_prefix)
        self._lock = threading.Lock()

    def setup_node(self, identity: InstanceIdentity) -> None:
        with self._lock:
            self._table.forget()
            _, refusals = self._repair_node(identity)
        if refusals:
            raise refusals[0]

    def confine_sandboxes(self) -> list[str]:
        sentences, refusals = self._confinement.repair()
        return sentences + [f"{NOT_REPAIRED}: {refusal}" for refusal in refusals]

    def confinement_differences(self) -> list[RoutingDifference]:
        repairable, lasting = self._confinement.differences()
        found = [RoutingDifference(NODE, what) for what in repairable]
        return found + [RoutingDifference(NODE, what, is_repaired=False) for what in lasting]

    def is_source_checked(self) -> bool:
        return self._confinement.is_source_checked()

    def dropped_packets(self) -> Mapping[str, int]:
        return self._confinement.dropped_packets()

    def await_link(self, mac: MacAddress) -> None:
        # No lock: reconciliation must not wait for a slow hot-plug.
        links.wait_for_link(self._host, mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)

    def links(self) -> frozenset[MacAddress]:
        with self._host.netlink() as sock:
            found = survey.links_of(sock, kind="")
        prefix = self._config.veth_prefix
        return frozenset(MacAddress(link.mac) for link in found if link.mac and links.may_be_eni(link, veth_prefix=prefix))

    def link_events(self) -> Iterator[LinkEvent]:
        return self._link_events.follow()

    def stop_link_events(self) -> None:
        self._link_events.stop()

    def setup_eni(self, eni: Eni) -> None:
        """Set up a secondary ENI's link, address, table, routes and rule. Idempotent.

        Raises: WiringError if its link does not appear, if it has no table of its own, or if the kernel refuses; KernelDumpError.
        """
        enis.refuse_kernel_table(eni)
        # Wait outside the lock: an ENI whose link does not appear must not delay reconciliation.
        link = links.wait_for_link(self._host, eni.mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)
        with self._lock:
            self._repair_eni(eni, link)

    def teardown_eni(self, eni: Eni, *, keep: Iterable[Eni] = ()) -> None:
        enis.refuse_kernel_table(eni)
        with self._lock:
            with self._host.netlink() as sock:
                found = enis.removals(sock, eni, keep=tuple(keep))
            changes.execute(self._host, found, what=f"teardown of {eni.eni_id}")

    def reconcile(self, *, identity: InstanceIdentity, enis: Iterable[Eni]) -> list[str]:
        """Repair what something else on the node removed or changed.

        Returns: one sentence per repair, and one per part that could not be repaired; a failed part does not stop the others.
        Raises: KernelDumpError; WiringError if the primary ENI's link is missing.
        """
        with self._lock:
            sentences = []
            for eni in enis:
                if not eni.is_primary:
                    sentences += self._reconcile_eni(eni)
            repaired, refusals = self._repair_node(identity)
        return sentences + repaired + [f"{NOT_REPAIRED}: {refusal}" for refusal in refusals]

    def differences(self, *, identity: InstanceIdentity | None, enis: Iterable[Eni]) -> list[RoutingDifference]:
        """Compare without changing anything, by the comparisons that `reconcile` repairs.

        Concurrency: under the lock, so that a set-up that is half done is not reported.
        """
        with self._lock:
            found: list[RoutingDifference] = []
            for eni in enis:
                if not eni.is_primary:
                    found += self._eni_differences(eni)
            return found + (self._node_differences(identity) if identity is not None else [])

    def _eni_differences(self, eni: Eni) -> list[RoutingDifference]:
        try:
            enis.refuse_kernel_table(eni)
        except WiringError as exc:
            return [RoutingDifference(eni.eni_id, str(exc), is_repaired=False)]
        with self._host.netlink() as sock:
            link = links.find_by_mac(sock, eni.mac, veth_prefix=self._config.veth_prefix)
            if link is None:
                return [RoutingDifference(eni.eni_id, f"its link with MAC {eni.mac} is missing", is_repaired=False)]
            repairs = [repair for group in self._eni_repairs(sock, eni, link) for repair in group]
        what = [*(repair.found for repair in repairs), *devconf.found(link, devconf.ENI).values()]
        return [RoutingDifference(eni.eni_id, each) for each in what]

    def _node_differences(self, identity: InstanceIdentity) -> list[RoutingDifference]:
        with self._host.netlink() as sock:
            link = links.find_by_mac(sock, identity.primary_mac, veth_prefix=self._config.veth_prefix)
            rules = survey.rules_of(sock)
        if link is None:
            missing = f"its link with MAC {identity.primary_mac} is missing"
            return [RoutingDifference(identity.primary_eni_id, missing, is_repaired=False)]
        found = [RoutingDifference(NODE, repair.found) for repair in node_repairs(link, rules, self._config)]
        found += [RoutingDifference(NODE, what) for what in devconf.found(link, devconf.PRIMARY_ENI).values()]
        if not link.is_up:
            found.append(RoutingDifference(identity.primary_eni_id, f"its link {link.name} is down", is_repaired=False))
        try:
            found += [RoutingDifference(NODE, wrong.found) for wrong in wrong_sysctls(self._host)]
        except WiringError as exc:
            found.append(RoutingDifference(NODE, str(exc), is_repaired=False))
        try:
            table = self._table.difference(self._table_commands(identity, link.name))
        except WiringError as exc:
            return [*found, RoutingDifference(NODE, str(exc), is_repaired=False)]
        return [*found, RoutingDifference(NODE, table)] if table else found

    def _reconcile_eni(self, eni: Eni) -> list[str]:
        """Repair one ENI. A failure becomes a sentence, so that it does not stop the other ENIs. Raises: KernelDumpError."""
        with self._host.netlink() as sock:
            link = links.find_by_mac(sock, eni.mac, veth_prefix=self._config.veth_prefix)
        if link is None:
            return [f"the link of {eni.eni_id} with MAC {eni.mac} is missing: not repaired"]
        try:
            return self._repair_eni(eni, link)
        except WiringError as exc:
            return [f"{eni.eni_id} {NOT_REPAIRED}: {exc}"]

    def _repair_node(self, identity: InstanceIdentity) -> tuple[list[str], list[WiringError]]:
        """Repair the node's own part. Each piece runs even if another failed: a read-only sysctl must not cost the node its SNAT.

        Returns: one sentence per repair, and what was refused.
        """
        with self._host.netlink() as sock:
            link = links.find_by_mac(sock, identity.primary_mac, veth_prefix=self._config.veth_prefix)
            rules = survey.rules_of(sock)
        if link is None:
            raise WiringError(
                f"the primary ENI's link with MAC {identity.primary_mac} is missing",
                details="is the daemon in the host's network namespace (hostNetwork: true)?",
            )
        found = list(node_repairs(link, rules, self._config))
        sentences: list[str] = []
        refusals: list[WiringError] = []
        pieces: tuple[Callable[[], list[str]], ...] = (
            lambda: devconf.repair(self._host, link, devconf.PRIMARY_ENI),
            lambda: repair_sysctls(self._host),
            lambda: self._carry_out(found, what="setup of the node"),
            lambda: self._table.repair(self._table_commands(identity, link.name)),
        )
        for piece in pieces:
            try:
                sentences += piece()
            except WiringError as exc:
                refusals.append(exc)
        return sentences, refusals

    def _table_commands(self, identity: InstanceIdentity, primary_link: str) -> str:
        return ruleset.replace_table(
            self._config,
            vpc_cidrs=tuple(identity.vpc_cidrs),
            primary_address=identity.primary_address,
            primary_link=primary_link,
        )

    def _repair_eni(self, eni: Eni, link: records.Link) -> list[str]:
        enis.refuse_kernel_table(eni)
        sentences = devconf.repair(self._host, link, devconf.ENI)
        with self._host.netlink() as sock:
            # Each is a generator that reads when its turn comes: routes need the link up, and an address changes what follows.
            for repairs in self._eni_repairs(sock, eni, link):
                sentences += self._carry_out(list(repairs), what=f"setup of {eni.eni_id}")
        return sentences

    def _eni_repairs(self, sock: NetlinkSocket, eni: Eni, link: records.Link) -> tuple[Iterator[enis.Repair], ...]:
        """All comparisons of one ENI, in the order in which they are repaired."""
        return (
            enis.link_repairs(eni, link, mtu=self._config.eni_mtu),
            enis.address_repairs(sock, eni, link),
            enis.table_repairs(sock, eni, link),
            enis.rule_repairs(sock, eni),
        )

    def _carry_out(self, repairs: list[enis.Repair], *, what: str) -> list[str]:
        """Make repairs and return their sentences. Raises: WiringError for the first that is refused."""
        changes.execute(self._host, [repair.change for repair in repairs], what=what)
        return [str(repair) for repair in repairs]
