"""The port `HostNetwork`: the node's own routing and that of its ENIs, made so and kept so.

Setting up and auditing run the same comparisons; an audit that finds nothing writes nothing. Other agents flush rules and
tables sooner or later and the incumbent never notices (upstream weakness 54). Nothing here is on the ADD path: what is to be
changed goes through pyroute2 (`changes`, docs/adr/0004).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from ipaddress import IPv4Network
from pathlib import Path

from ipamd.config import NetworkConfig
from ipamd.kernel import changes, enis, links, records, ruleset, survey, uapi
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.model import dataplane
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import WiringError
from ipamd.model.ids import MacAddress

SYSCTL_ROOT = Path("/proc/sys")
"""/proc/sys/net shows the namespace of the thread that opens it. Source: net/sysctl_net.c."""


class KernelHostNetwork:
    """Implements `ipamd.ports.HostNetwork`.

    Concurrency: safe from any thread; one operation at a time (its lock comes before that of `Nftables`, and no other).
    """

    def __init__(self, host: HostNetns, *, config: NetworkConfig, nft: Nftables, link_wait_s: float = links.LINK_WAIT_S) -> None:
        """Keep `host` as `config` wants it; `link_wait_s` bounds the wait for a newly attached ENI's link."""
        self._host = host
        self._config = config
        self._nft = nft
        self._link_wait_s = link_wait_s
        self._lock = threading.Lock()
        self._applied: tuple[str, str] | None = None  # the commands, and how nft lists what they made

    def setup_node(self, identity: InstanceIdentity) -> None:
        """Make the node's own part so. Idempotent. Raises: WiringError, KernelDumpError."""
        with self._lock:
            self._applied = None  # a table of an earlier release or configuration is replaced, not compared
            _, refusals = self._repair_node(identity)
        if refusals:
            raise refusals[0]

    def await_link(self, mac: MacAddress) -> None:
        """See HostNetwork. Takes no lock: an audit must not wait for a slow hot-plug."""
        links.wait_for_link(self._host, mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)

    def setup_eni(self, eni: Eni) -> None:
        """Bring a secondary ENI's link up with address, table, routes and rule.

        Raises: WiringError if its link does not appear, if it has no table of its own, or for a refusal; KernelDumpError.
        """
        enis.refuse_kernel_table(eni)
        # waited for outside the lock: an ENI that does not come must not hold up an audit
        link = links.wait_for_link(self._host, eni.mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)
        with self._lock:
            self._repair_eni(eni, link)

    def teardown_eni(self, eni: Eni) -> None:
        """Remove an ENI's table and rules. Idempotent. Raises: WiringError, KernelDumpError."""
        enis.refuse_kernel_table(eni)
        with self._lock:
            with self._host.netlink() as sock:
                found = enis.removals(sock, eni)
            changes.execute(self._host, found, what=f"teardown of {eni.eni_id}")

    def reconcile(self, *, identity: InstanceIdentity, enis: Iterable[Eni]) -> list[str]:
        """Repair what something else on the node took away.

        Returns: one sentence per repair, and one per part that could not be repaired; the others have had their turn.
        Raises: KernelDumpError; WiringError if the primary ENI's link is missing.
        """
        with self._lock:
            sentences = []
            for eni in enis:
                if not eni.is_primary:
                    sentences += self._audit_eni(eni)
            repaired, refusals = self._repair_node(identity)
        return sentences + repaired + [f"could not be repaired: {refusal}" for refusal in refusals]

    def _audit_eni(self, eni: Eni) -> list[str]:
        """Repair one ENI; what cannot be repaired is a sentence, so that the others have their turn. Raises: KernelDumpError."""
        with self._host.netlink() as sock:
            link = links.find_by_mac(sock, eni.mac, veth_prefix=self._config.veth_prefix)
        if link is None:
            return [f"the link of {eni.eni_id} with MAC {eni.mac} is missing: not repaired"]
        try:
            return self._repair_eni(eni, link)
        except WiringError as exc:
            return [f"{eni.eni_id} could not be repaired: {exc}"]

    def _repair_node(self, identity: InstanceIdentity) -> tuple[list[str], list[WiringError]]:
        """Repair the node's own part, each piece whatever became of the others: a sysctl that is read-only in this container must
        not cost the node its SNAT. Returns: one sentence per repair, and what was refused."""
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
            found.append((changes.delete_rule(dataplane.MARK_PRIORITY, table=main, mark=mark), f"{words} is not wanted: removed"))
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
        """Forwarding on; loose reverse path on the primary ENI, where replies to other ENIs' addresses come in."""
        wanted = {
            "net/ipv4/ip_forward": "1",  # upstream_reference 3.1
            f"net/ipv4/conf/{primary_link}/rp_filter": "2",  # upstream_reference 3.1
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
            return [f"{what} is not wanted: removed"]
        if was_changed_by_us:
            return [f"{what} followed a change of the VPC's CIDRs: replaced"]
        return [f"{what} {'was of an earlier start' if first_time else 'had been changed'}: replaced"]

    def _repair_eni(self, eni: Eni, link: records.Link) -> list[str]:
        enis.refuse_kernel_table(eni)
        sentences: list[str] = []
        with self._host.netlink() as sock:
            # each looks when its turn comes: routes need the link up, and what the address brought along is looked at after it
            for repairs in (
                enis.link_repairs(eni, link, mtu=self._config.eni_mtu),
                enis.address_repairs(sock, eni, link),
                enis.table_repairs(sock, eni, link),
                enis.rule_repairs(sock, eni),
            ):
                sentences += self._carry_out(list(repairs), what=f"setup of {eni.eni_id}")
        return sentences

    def _carry_out(self, repairs: list[enis.Repair], *, what: str) -> list[str]:
        """Make repairs, and tell them. Raises: WiringError for the first that is refused."""
        changes.execute(self._host, [change for change, _ in repairs], what=what)
        return [sentence for _, sentence in repairs]
