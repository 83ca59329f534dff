"""The port `HostNetwork`: set up and reconcile the routing of the node and its ENIs.

Setup and reconciliation run the same comparisons and write differences only. Reconciliation is needed because other agents flush
rules and tables; amazon-vpc-cni-k8s restores them only at its start and when the VPC's CIDRs change (pkg/ipamd/ipamd.go,
updateCIDRsRulesOnChange). Nothing here runs during ADD; changes go through pyroute2 (`changes`, docs/adr/0004).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Network
from pathlib import Path

from ipamd.config import NetworkConfig
from ipamd.kernel import changes, enis, links, records, ruleset, survey, uapi
from ipamd.kernel.link_events import LinkEvents
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.model import dataplane
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import WiringError
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import NOT_REPAIRED, LinkEvent
from ipamd.ports import HostNetwork

SYSCTL_ROOT = Path("/proc/sys")
"""/proc/sys/net shows the namespace of the thread that opens it. Source: net/sysctl_net.c."""


class KernelHostNetwork(HostNetwork):
    """Host networking through netlink, /proc/sys and nftables.

    Concurrency: safe from any thread; one operation at a time. Its lock comes before that of `Nftables` and before no other.
    """

    def __init__(self, host: HostNetns, *, config: NetworkConfig, nft: Nftables, link_wait_s: float = links.LINK_WAIT_S) -> None:
        """Manage the namespace `host` by `config`; `link_wait_s` bounds the wait for a newly attached ENI's link."""
        self._host = host
        self._config = config
        self._nft = nft
        self._link_wait_s = link_wait_s
        self._link_events = LinkEvents(host, veth_prefix=config.veth_prefix)
        self._lock = threading.Lock()
        self._applied: tuple[str, str] | None = None  # the commands, and how nft lists the table that they made

    def setup_node(self, identity: InstanceIdentity) -> None:
        with self._lock:
            self._applied = None  # replace a table of an earlier release or configuration, do not compare with it
            _, refusals = self._repair_node(identity)
        if refusals:
            raise refusals[0]

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
        config = self._config
        with self._host.netlink() as sock:
            link = links.find_by_mac(sock, identity.primary_mac, veth_prefix=config.veth_prefix)
            rules = survey.rules_of(sock)
        if link is None:
            raise WiringError(
                f"the primary ENI's link with MAC {identity.primary_mac} is missing",
                details="is the daemon in the host's network namespace (hostNetwork: true)?",
            )
        found: list[enis.Repair] = []
        if link.mtu != config.eni_mtu:
            change = changes.set_mtu(link.index, config.eni_mtu, who=link.name)
            found.append((change, f"{link.name} (primary) had MTU {link.mtu}: set to {config.eni_mtu}"))
        main, mark = uapi.RT_TABLE_MAIN, config.connmark
        has_mark = any(
            rule.priority == dataplane.MARK_PRIORITY and (rule.mark, rule.mask, rule.table) == (mark, mark, main)
            for rule in rules
        )
        words = f"rule {dataplane.MARK_PRIORITY} fwmark {mark:#x}"
        if ruleset.needs_mark(config) and not has_mark:
            found.append((changes.add_rule(dataplane.MARK_PRIORITY, table=main, mark=mark), f"{words} was missing: added"))
        if not ruleset.needs_mark(config) and has_mark:
            found.append((changes.delete_rule(dataplane.MARK_PRIORITY, table=main, mark=mark), f"{words} is not needed: removed"))
        sentences: list[str] = []
        refusals: list[WiringError] = []
        pieces: tuple[Callable[[], list[str]], ...] = (
            lambda: self._repair_sysctls(link.name),
            lambda: self._carry_out(found, what="setup of the node"),
            lambda: self._repair_nft(identity, link.name, tuple(identity.vpc_cidrs)),
        )
        for piece in pieces:
            try:
                sentences += piece()
            except WiringError as exc:
                refusals.append(exc)
        return sentences, refusals

    def _repair_sysctls(self, primary_link: str) -> list[str]:
        """Turn forwarding on, and set loose reverse path filtering on the primary ENI.

        Replies to addresses of other ENIs arrive there: NodePort connections. Source of rp_filter: amazon-vpc-cni-k8s
        cmd/aws-vpc-cni-init/main.go, configureSystemParams. ip_forward is ours: without it no packet leaves a sandbox, and the
        node image may not set it.
        """
        wanted = {
            "net/ipv4/ip_forward": "1",
            f"net/ipv4/conf/{primary_link}/rp_filter": "2",
        }
        sentences = []
        with self._host.entered():
            for key, value in wanted.items():
                path = SYSCTL_ROOT / key
                try:
                    now = path.read_text(encoding="ascii").strip()
                    if now != value:
                        path.write_text(value, encoding="ascii")
                        sentences.append(f"sysctl {key} was {now}: set to {value}")
                except OSError as exc:
                    raise WiringError(
                        f"sysctl {key} could not be set to {value}",
                        details=f"{exc.strerror}; the daemon needs a writable /proc/sys/net (privileged container)",
                    ) from exc
        return sentences

    def _repair_nft(self, identity: InstanceIdentity, primary_link: str, cidrs: tuple[IPv4Network, ...]) -> list[str]:
        commands = ruleset.replace_table(
            self._config, vpc_cidrs=cidrs, primary_address=identity.primary_address, primary_link=primary_link
        )
        now = self._nft.list_table(ruleset.FAMILY, ruleset.TABLE)
        if self._applied == (commands, now):
            return []
        self._nft.run(commands)
        first_time = self._applied is None
        was_changed_by_us = self._applied is not None and self._applied[0] != commands
        self._applied = (commands, self._nft.list_table(ruleset.FAMILY, ruleset.TABLE))
        if now == self._applied[1]:
            return []
        what = f"nftables table {ruleset.TABLE}"
        if not now:
            return [f"{what} was missing: added"]
        if not self._applied[1]:
            return [f"{what} is not needed: removed"]
        if was_changed_by_us:
            return [f"{what} followed a change of the VPC's CIDRs: replaced"]
        return [f"{what} {'was of an earlier start' if first_time else 'had been changed'}: replaced"]

    def _repair_eni(self, eni: Eni, link: records.Link) -> list[str]:
        enis.refuse_kernel_table(eni)
        sentences: list[str] = []
        with self._host.netlink() as sock:
            # Each is a generator that reads when its turn comes: routes need the link up, and an address changes what follows.
            for repairs in (
                enis.link_repairs(eni, link, mtu=self._config.eni_mtu),
                enis.address_repairs(sock, eni, link),
                enis.table_repairs(sock, eni, link),
                enis.rule_repairs(sock, eni),
            ):
                sentences += self._carry_out(list(repairs), what=f"setup of {eni.eni_id}")
        return sentences

    def _carry_out(self, repairs: list[enis.Repair], *, what: str) -> list[str]:
        """Make repairs and return their sentences. Raises: WiringError for the first that is refused."""
        changes.execute(self._host, [change for change, _ in repairs], what=what)
        return [sentence for _, sentence in repairs]
