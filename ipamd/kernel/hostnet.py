"""The port `HostNetwork`: set up and reconcile the routing of the node and its ENIs.

Setup and reconciliation run the same comparisons and write differences only. Reconciliation is needed because other agents flush
rules and tables; amazon-vpc-cni-k8s restores them only at its start and when the VPC's CIDRs change (pkg/ipamd/ipamd.go,
updateCIDRsRulesOnChange). Nothing here runs during ADD.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from ipaddress import IPv4Address

from ipamd.kernel import devconf, enis, links, records, survey
from ipamd.kernel.confinement import Confinement
from ipamd.kernel.foreign import LeftChains, foreign_differences, pod_address_repairs
from ipamd.kernel.host_events import HostEvents
from ipamd.kernel.links import HostLook, HostLooker
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.node import node_repairs, promote_secondaries, repair_sysctls, wrong_sysctls
from ipamd.kernel.other_software import OtherSoftware
from ipamd.kernel.snat_table import SnatTable
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import WiringError
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import (
    CONFINEMENT,
    NODE,
    NOT_REPAIRED,
    HostChange,
    LinkEvent,
    Repaired,
    RepairedObject,
    RepairKind,
    RoutingDifference,
    as_repairs,
)
from ipamd.ports import HostNetwork
from ipamd.settings import NetworkConfig

ENI_STEPS = 4
"""Comparisons of one ENI: link, addresses, table, rules."""

TABLE = RepairedObject(RepairKind.NFT, NODE)
SYSCTLS = RepairedObject(RepairKind.SYSCTL, NODE)


class KernelHostNetwork(HostNetwork):
    """Host networking through netlink, /proc/sys and nftables.

    Concurrency: safe from any thread; one operation at a time. Its lock comes before that of `Nftables` and before no other.
    """

    def __init__(
        self,
        host: HostNetns,
        *,
        config: NetworkConfig,
        nft: Nftables,
        link_wait_s: float = links.LINK_WAIT_S,
        veth_names: Callable[[], Iterable[str]] = tuple,
    ) -> None:
        """Manage the namespace `host` by `config`.

        Args:
            link_wait_s: bound of the wait for a newly attached ENI's link.
            veth_names: the host veths of recorded sandboxes; some may be named by an earlier prefix.
        """
        self._host = host
        self._config = config
        self._table = SnatTable(nft, config=config, veth_names=veth_names)
        self._confinement = Confinement(host, config=config, nft=nft)
        self._others = OtherSoftware(host, nft, veth_prefix=config.veth_prefix)
        self._left = LeftChains(host, nft)
        self._link_wait_s = link_wait_s
        self._looker, self._presence = (HostLooker(veth_prefix=config.veth_prefix) for _ in range(2))
        self._events = HostEvents(host, veth_prefix=config.veth_prefix)
        self._primary_name = ""  # of the primary ENI's link, from the last look
        self._lock, self._presence_lock = threading.Lock(), threading.Lock()

    def use(self, config: NetworkConfig) -> None:
        """Go by other settings from now on; the next comparison finds what differs. What confines sandboxes stays as it is."""
        with self._lock:
            self._config = config
            self._table.use(config)

    def setup_node(self, identity: InstanceIdentity) -> None:
        with self._lock:
            self._table.forget()
            with self._host.netlink() as sock:
                look = self._looker.look(sock, [identity.primary_mac])
            _, refusals = self._repair_node(look, identity)
        if refusals:
            raise refusals[0]

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[str]:
        sentences, refusals = self._confinement.repair(is_silent=is_silent)
        return as_repairs(sentences, CONFINEMENT) + [f"{NOT_REPAIRED}: {refusal}" for refusal in refusals]

    def confinement_differences(self) -> list[RoutingDifference]:
        repairable, lasting = self._confinement.differences()
        found = [RoutingDifference(NODE, what) for what in repairable]
        return found + [RoutingDifference(NODE, what, is_repaired=False) for what in lasting]

    def is_drop_in_place(self) -> bool:
        return self._confinement.is_in_place()

    def is_source_checked(self) -> bool:
        return self._confinement.is_source_checked()

    def dropped_packets(self) -> Mapping[str, int]:
        return self._confinement.dropped_packets()

    def await_link(self, mac: MacAddress) -> None:
        # No lock: reconciliation must not wait for a slow hot-plug.
        links.wait_for_link(self._host, mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)

    def remove_left_chains(self) -> str:
        with self._lock:
            return self._left.remove()

    def links(self, macs: Iterable[MacAddress] | None = None) -> frozenset[MacAddress]:
        if macs is not None:
            with self._presence_lock, self._host.netlink() as sock:  # not behind a repair: a link that goes is news at once
                return frozenset(self._presence.links(sock, macs))
        with self._host.netlink() as sock:
            found = survey.links_of(sock, kind="")
        prefix = self._config.veth_prefix
        return frozenset(MacAddress(link.mac) for link in found if link.mac and links.may_be_eni(link, veth_prefix=prefix))

    def host_events(self) -> Iterator[LinkEvent | HostChange]:
        return self._events.follow()

    def stop_host_events(self) -> None:
        self._events.stop()

    def setup_eni(self, eni: Eni) -> None:
        """Set up a secondary ENI's link, address, table, routes and rule. Idempotent.

        Raises: WiringError if its link does not appear, if it has no table of its own, or if the kernel refuses; KernelDumpError.
        """
        enis.refuse_kernel_table(eni)
        # Wait outside the lock: an ENI whose link does not appear must not delay reconciliation.
        link = links.wait_for_link(self._host, eni.mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)
        with self._lock:
            with self._host.netlink() as sock:
                look = self._looker.look(sock, [eni.mac])
            self._repair_eni(look, eni, link)

    def teardown_eni(self, eni: Eni, *, keep: Iterable[Eni] = ()) -> None:
        enis.refuse_kernel_table(eni)
        with self._lock, self._host.netlink() as sock:
            sock.carry_out(enis.removals(sock, eni, keep=tuple(keep)), what=f"teardown of {eni.eni_id}")

    def reconcile(
        self,
        *,
        identity: InstanceIdentity,
        enis: Iterable[Eni],
        addresses: Container[IPv4Address] = (),
        held: Collection[RepairedObject] = (),
        is_silent: bool = False,
    ) -> list[str]:
        """Repair what something else on the node removed or changed.

        Returns: one `Repaired` per repair, and one sentence per part that could not be repaired; a failed part does not stop the
            others.
        Raises: KernelDumpError; WiringError if the primary ENI's link is missing.
        """
        secondary = [eni for eni in enis if not eni.is_primary]
        with self._lock:
            with self._host.netlink() as sock:
                look = self._looker.look(sock, [identity.primary_mac, *(eni.mac for eni in secondary)], is_silent=is_silent)
            sentences = []
            for eni in secondary:
                sentences += self._reconcile_eni(look, eni, held)
            repaired, refusals = self._repair_node(look, identity, addresses, held)
            left = [*self._foreign(look, identity, secondary, addresses), *self._of_others()]
        sentences += repaired + [f"{NOT_REPAIRED}: {refusal}" for refusal in refusals]
        return sentences + [f"{NOT_REPAIRED}: {one}" for one in left]

    def reconcile_table(self, *, identity: InstanceIdentity, held: Collection[RepairedObject] = ()) -> list[str]:
        if TABLE in held:
            return []
        with self._lock:
            return as_repairs(self._table.repair_again(identity), TABLE)

    def differences(
        self, *, identity: InstanceIdentity | None, enis: Iterable[Eni], addresses: Container[IPv4Address] = ()
    ) -> list[RoutingDifference]:
        """Compare without changing anything, by the comparisons that `reconcile` repairs.

        Concurrency: under the lock, so that a set-up that is half done is not reported.
        """
        secondary = [eni for eni in enis if not eni.is_primary]
        macs = [eni.mac for eni in secondary] + ([identity.primary_mac] if identity is not None else [])
        with self._lock:
            with self._host.netlink() as sock:
                look = self._looker.look(sock, macs)
            found: list[RoutingDifference] = []
            for eni in secondary:
                found += self._eni_differences(look, eni)
            if identity is None:
                return found
            found += self._node_differences(look, identity, addresses)
            return found + self._foreign(look, identity, secondary, addresses)

    def _eni_differences(self, look: HostLook, eni: Eni) -> list[RoutingDifference]:
        try:
            enis.refuse_kernel_table(eni)
        except WiringError as exc:
            return [RoutingDifference(eni.eni_id, str(exc), is_repaired=False)]
        link = look.links.get(eni.mac)
        if link is None:
            return [RoutingDifference(eni.eni_id, f"its link with MAC {eni.mac} is missing", is_repaired=False)]
        repairs = [repair for group in self._eni_repairs(look, eni, link) for repair in group]
        what = [*(repair.found for repair in repairs), *devconf.found(link, devconf.ENI).values()]
        return [RoutingDifference(eni.eni_id, each) for each in what]

    def _node_differences(
        self, look: HostLook, identity: InstanceIdentity, addresses: Container[IPv4Address]
    ) -> list[RoutingDifference]:
        link = look.links.get(identity.primary_mac)
        if link is None:
            missing = f"its link with MAC {identity.primary_mac} is missing"
            return [RoutingDifference(identity.primary_eni_id, missing, is_repaired=False)]
        self._primary_name = link.name
        repairs = [*pod_address_repairs(look, identity, link, addresses), *node_repairs(link, look.rules, self._config)]
        found = [RoutingDifference(NODE, repair.found) for repair in repairs]
        found += [RoutingDifference(NODE, what) for what in devconf.found(link, devconf.PRIMARY_ENI).values()]
        if not link.is_up:
            found.append(RoutingDifference(identity.primary_eni_id, f"its link {link.name} is down", is_repaired=False))
        try:
            found += [RoutingDifference(NODE, what) for what in wrong_sysctls(self._host).values()]
        except WiringError as exc:
            found.append(RoutingDifference(NODE, str(exc), is_repaired=False))
        found += self._of_others()
        try:
            table = self._table.difference(identity, primary_link=link.name, rules=look.rules)
        except WiringError as exc:
            return [*found, RoutingDifference(NODE, str(exc), is_repaired=False)]
        return [*found, RoutingDifference(NODE, table)] if table else found

    def _foreign(
        self, look: HostLook, identity: InstanceIdentity, secondary: Iterable[Eni], addresses: Container[IPv4Address]
    ) -> list[RoutingDifference]:
        macs = [eni.mac for eni in secondary]
        with self._host.netlink() as sock:
            return foreign_differences(sock, look, primary=identity.primary_mac, secondary=macs, addresses=addresses)

    def _reconcile_eni(self, look: HostLook, eni: Eni, held: Collection[RepairedObject]) -> list[str]:
        """Repair one ENI. A failure becomes a sentence, so that it does not stop the other ENIs. Raises: KernelDumpError."""
        link = look.links.get(eni.mac)
        if link is None:
            return [f"the link of {eni.eni_id} with MAC {eni.mac} is missing: not repaired"]
        try:
            return self._repair_eni(look, eni, link, held)
        except WiringError as exc:
            return [f"{eni.eni_id} {NOT_REPAIRED}: {exc}"]

    def _repair_node(
        self,
        look: HostLook,
        identity: InstanceIdentity,
        addresses: Container[IPv4Address] = (),
        held: Collection[RepairedObject] = (),
    ) -> tuple[list[str], list[WiringError]]:
        """Repair the node's own part. Each piece runs even if another failed: a read-only sysctl must not cost the node its SNAT.

        Returns: one sentence per repair, and what was refused.
        """
        link = look.links.get(identity.primary_mac)
        if link is None:
            raise _no_primary_link(identity)
        self._primary_name = link.name
        foreign = list(pod_address_repairs(look, identity, link, addresses))
        found = list(node_repairs(link, look.rules, self._config))
        sentences: list[str] = []
        refusals: list[WiringError] = []
        pieces: tuple[tuple[RepairedObject | None, Callable[[], list[str]]], ...] = (
            (SYSCTLS, lambda: devconf.repair(self._host, link, devconf.PRIMARY_ENI)),
            (SYSCTLS, lambda: repair_sysctls(self._host)),
            (None, lambda: self._carry_out(foreign, subject=identity.primary_eni_id, held=held)),
            (None, lambda: self._carry_out(found, subject=NODE, held=held)),
            (TABLE, lambda: self._table.repair(identity, primary_link=link.name, rules=look.rules)),
        )
        for thing, piece in pieces:
            try:
                if thing is None:
                    sentences += piece()
                elif thing not in held:
                    sentences += as_repairs(piece(), thing)
            except WiringError as exc:
                refusals.append(exc)
        return sentences, refusals

    def _of_others(self) -> list[RoutingDifference]:
        """What other software does to forwarded traffic; that it could not be looked at is told by our own table's repair."""
        try:
            return self._others.find(self._primary_name)
        except WiringError:
            return []

    def _repair_eni(self, look: HostLook, eni: Eni, link: records.Link, held: Collection[RepairedObject] = ()) -> list[str]:
        enis.refuse_kernel_table(eni)
        thing = RepairedObject(RepairKind.SYSCTL, eni.eni_id)
        sentences: list[str] = []
        if thing not in held:
            sentences += [Repaired(sentence, thing) for sentence in devconf.repair(self._host, link, devconf.ENI)]
        for step in range(ENI_STEPS):
            repairs = list(self._eni_repairs(look, eni, link)[step])
            made = self._carry_out(repairs, subject=eni.eni_id, held=held)
            sentences += made
            if made:
                # Routes need the link up, and an address changes what follows: what comes next is compared anew.
                with self._host.netlink() as sock:
                    look = self._looker.look(sock, look.links)
        return sentences

    def _eni_repairs(self, look: HostLook, eni: Eni, link: records.Link) -> tuple[Iterator[enis.Repair], ...]:
        """All comparisons of one ENI, ENI_STEPS, in the order in which they are repaired."""
        return (
            enis.link_repairs(eni, link, mtu=self._config.eni_mtu),
            enis.address_repairs(look, eni, link),
            enis.table_repairs(look, eni, link),
            enis.rule_repairs(look, eni),
        )

    def _carry_out(self, repairs: list[enis.Repair], *, subject: str, held: Collection[RepairedObject]) -> list[str]:
        """Make repairs and return their sentences. Raises: WiringError for the first that is refused."""
        due = [(repair, thing) for repair in repairs if (thing := RepairedObject(repair.kind, subject)) not in held]
        for repair, _ in due:
            if repair.promoted_on:
                promote_secondaries(self._host, repair.promoted_on)
        what = f"setup of {'the node' if subject == NODE else subject}"
        with self._host.netlink() as sock:
            sock.carry_out([repair.change for repair, _ in due], what=what)
        return [Repaired(str(repair), thing) for repair, thing in due]


def _no_primary_link(identity: InstanceIdentity) -> WiringError:
    return WiringError(
        f"the primary ENI's link with MAC {identity.primary_mac} is missing",
        details="is the daemon in the host's network namespace (hostNetwork: true)?",
    )
