"""Keep sandboxes confined: drop their packets if the source address is not theirs, their ICMP redirects, and their packets of an IP
family in which sandboxes have no addresses.

The nftables tables of `confinement_ruleset` guarantee this. They need neither the identity of the node nor EC2, so they are in place
before the first sandbox is wired. Settings of each host veth (`devconf`) are a second line of defence: ADD makes them, and this module
restores them. The tables do not depend on these settings, so a change by other software (systemd's rules for new links) is not a fault
and is not reported. The exception is forwarding, which is reported if it was off, because then the sandbox had no network.
"""

from __future__ import annotations

import errno
import logging
import re
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import starmap

from ipamd.kernel import answers, checks, confinement_ruleset, devconf, eni_links, messages, ruleset, survey, sysctls, uapi
from ipamd.kernel.legs import uplink_survey
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_changes import OwnTables
from ipamd.kernel.nft_record import TableRecord
from ipamd.kernel.nft_table import NftTable
from ipamd.model.attachment import Attachment
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.family import IPV4, IPV6, Family, IpAddress
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.kernel import ForeignLink
from ipamd.model.kernel_numbers import LINK_PREFIX
from ipamd.model.legs import WIRED_TAGS
from ipamd.model.repairs import CONFINEMENT, NODE, RepairCode, RepairReport
from ipamd.model.routing_difference import RoutingDifference, repair_difference, routing_difference
from ipamd.settings import NetworkConfig

MISSING_MODULE_HINT = "if nftables reports that something does not exist, the kernel lacks"
"""Beginning of a hint in error details; the name of a kernel module follows. It is only a hint, because the kernel also refuses tables
for other reasons."""

_PLAIN = re.compile(r"[A-Za-z0-9]+")
"""Form of the link names that are safe in the text of an nftables rule. The names of our host veths have it. A veth with another name
prefix and our alias counts as ours only if its name has this form, because a sandbox may give a link any name and any alias."""

OWN_ALIASES = tuple(f"{tag} " for tag in WIRED_TAGS)
"""Beginnings of the aliases which show that we have made the neighbour entries of a host veth permanent (`WIRED_TAGS`)."""

NAMED_MAX = 3
"""How many host veths one sentence names at most."""

log = logging.getLogger(__name__)


class Confinement:
    """Maintains the tables of `confinement_ruleset` and the settings of host veths.

    Concurrency: one repair or comparison at a time, under the lock of its owner. `is_in_place`, `is_source_checked`, `foreign` and
    `dropped` may be used from any thread without that lock.
    """

    def __init__(
        self,
        host: HostNetns,
        *,
        config: NetworkConfig,
        nft: Nftables,
        attachments: Callable[[], Iterable[Attachment]],
        vlan_kind: str = uapi.VLAN_KIND,
        record: TableRecord | None = None,
    ) -> None:
        """Read nothing, and write no table yet.

        Args:
            attachments: returns the recorded sandboxes.
            vlan_kind: the kernel's name of the kind of the uplinks, which are the VLAN links of branch ENIs.
            record: stores for the next process of the daemon which tables were verified; None: nothing is stored.
        """
        self._vlan_kind = vlan_kind
        self._host = host
        self._attachments = attachments
        self.config = config
        """The settings in force, set by the owner; the next repair applies a change."""
        self.primary_mac: MacAddress | None = None
        """The MAC of the primary ENI, None while it is not known. Like `config`, it is set by the owner."""
        self.foreign = tuple[ForeignLink, ...]()
        """Links of other software that led into sandboxes when the links were last read."""
        self.dropped = dict[str, int]()
        """Number of dropped packets by reason, read at the last repair. Replacing the tables resets the counts to zero."""
        # A kernel may lack nftables for ARP or for bridges. The source of packets is checked without these tables too.
        self._tables = OwnTables(
            host,
            nft,
            repaired_object=CONFINEMENT,
            follows="the host veths' names or of a setting",
            optional={confinement_ruleset.ARP, confinement_ruleset.BRIDGE},
            record=record,
        )
        # Indexes of the links of other software that have been inspected: it is known whether they lead into a sandbox. The tables
        # treat all other links as if they led into a sandbox.
        self._inspected_links = list[int]()
        # Index of the primary ENI's link if that is a virtual one, as in a lab; otherwise 0. The tables accept router advertisements
        # by it.
        self._router_link = 0
        self._wanted = devconf.host_veth(is_strict=not config.extra_sources)
        self._other_veths: frozenset[str] | None = None  # our veths with another name prefix; None before a complete dump
        # Names of host veths in strict mode (POD_SECURITY_GROUP_ENFORCING_MODE): a rule leads all their packets to an uplink. A dying
        # veth stays in this set after its rule was removed.
        self._strict_veths = frozenset[str]()
        # The host veths and uplinks as they were at the last repair, if that repair found all their settings right; otherwise None.
        self._veths_in_order: list[answers.Link] | None = None

    def is_in_place(self) -> bool | None:
        """Whether the tables are unchanged since they were verified; None if they never were, or if the kernel refused them or does
        not answer.

        Takes tens of microseconds, or a fraction of a millisecond after other software changed nftables.
        """
        if self._other_veths is None:
            return None
        return self._tables.is_unchanged()

    def is_source_checked(self) -> bool:
        """Whether the tables are in place and no extra sources are allowed.

        With extra sources a sandbox may send from addresses that are not routed to it.
        """
        return not self.config.extra_sources and self.is_in_place() is True

    def repair(self, *, is_silent: bool = False) -> list[RepairReport]:
        """Put tables and settings in place, and try every part even if another one is refused.

        Args:
            is_silent: the kernel announced no link since the last repair. If that repair found every setting right, the settings of
                the veths are then not read again.
        Returns: one report per repair of a table, one if forwarding of host veths was off, and one per part that was refused. Repairs
            of other settings are not reported.
        """
        veths = (self._veths_in_order if is_silent else None) or self._read_links()
        commands = self._commands()
        host_veths = [link for link in veths if not link.name.startswith(LINK_PREFIX)]
        if self._is_served(IPV6) and self._tables.is_unchanged() is not True:
            self._fix_neighbours(host_veths)
        reports, refused = self._tables.repair(commands)
        refusals = list(starmap(self._unconfined_error, refused.items()))
        self._update_drop_counts(commands)
        if veths != self._veths_in_order:  # a `Link` contains the settings of the link too
            setting_reports, setting_refusals = self._repair_links(veths, host_veths)
            reports += setting_reports
            refusals += setting_refusals
        refusals += self._overruling_sysctl()
        return reports + [RepairReport(RepairCode.REFUSED, CONFINEMENT, cause=str(refusal)) for refusal in refusals]

    def _update_drop_counts(self, tables: Iterable[NftTable]) -> None:
        """Read how many packets the tables dropped, and add up the counts of all tables. If that fails, the last counts stay."""
        counts = Counter[str]()
        with suppress(WiringError, KernelDumpError):
            for name, count in self._tables.named_counters(tables):
                counts[name.removeprefix(confinement_ruleset.COUNTER_PREFIX)] += count
            self.dropped |= counts

    def _repair_links(
        self, veths: list[answers.Link], host_veths: Iterable[answers.Link]
    ) -> tuple[list[RepairReport], list[WiringError]]:
        """Correct the settings of the links of sandboxes, and remember the links if every setting was right.

        Args:
            veths: all our host veths that are in use, and the uplinks.
            host_veths: those of `veths` that are host veths.
        Returns: the reports of `_repair_settings`, and what was refused.
        """
        self._veths_in_order = None
        reports = list[RepairReport]()
        refusals = list[WiringError]()
        different = _links_with_wrong_settings(host_veths, self._wanted)
        try:
            reports += self._repair_settings(different)
        except WiringError as exc:
            refusals.append(exc)
        is_ipv6_changed = self._repair_ipv6_settings(veths)
        if not different and not is_ipv6_changed:
            self._veths_in_order = veths
        return reports, refusals

    def _repair_ipv6_settings(self, links: Iterable[answers.Link]) -> bool:
        """Turn IPv6 off on the links if sandboxes have no IPv6. Make all other links ignore router advertisements and redirects.

        Returns: whether any setting was wrong.
        """
        needs_ipv6 = self._is_served(IPV6)  # once for all links: it looks at every attachment
        with_needless_ipv6 = list[answers.Link]()
        accepting_router_messages = list[answers.Link]()
        for link in links:
            if not needs_ipv6 and devconf.has_ipv6(link):
                with_needless_ipv6.append(link)
            elif devconf.accepts_router_messages(link):
                accepting_router_messages.append(link)
        self._turn_ipv6_off(with_needless_ipv6)
        self._set_ipv6(accepting_router_messages, accept_ra=0, accept_redirects=0)
        return bool(with_needless_ipv6 or accepting_router_messages)

    def differences(self) -> list[RoutingDifference]:
        """Return how tables and sysctls differ from what `repair` would make of them. Changes nothing."""
        reports, refused = self._tables.differences(self._commands())
        differences = [repair_difference(report, NODE) for report in reports]
        refusals = [*starmap(self._unconfined_error, refused.items()), *self._overruling_sysctl()]
        return differences + [routing_difference(DifferenceCode.NOT_COMPARED, NODE, cause=refusal) for refusal in refusals]

    def has_strict(self) -> bool:
        """Whether any sandbox may have an uplink in strict mode, according to the settings, the datastore's rows, or (if the rows were
        lost) the kernel's rules.
        """
        return bool(self._strict_veths) or ruleset.has_strict(self.config, self._attachments())

    def _commands(self) -> dict[NftTable, str]:
        other_veths = self._other_veths or frozenset()
        has_strict = self.has_strict()
        commands = {
            confinement_ruleset.IPV4: confinement_ruleset.ipv4_table(
                self.config,
                other_veths=other_veths,
                is_served=self._is_served(IPV4),
                has_strict=has_strict,
                vlan_kind=self._vlan_kind,
            ),
            confinement_ruleset.ARP: confinement_ruleset.arp_table(self.config, other_veths=other_veths, has_strict=has_strict),
            confinement_ruleset.BRIDGE: confinement_ruleset.bridge_table(self.config),
        }
        with self._host.entered():
            has_ipv6 = (sysctls.SYSCTL_ROOT / "net/ipv6").exists()
        if has_ipv6:
            commands[confinement_ruleset.IPV6] = confinement_ruleset.ipv6_table(
                self.config,
                other_veths=other_veths,
                is_served=self._is_served(IPV6),
                has_strict=has_strict,
                vlan_kind=self._vlan_kind,
                router_link=self._router_link,
            )
        foreign = {link.index for link in self.foreign}
        return {
            table: text + confinement_ruleset.links(table, text, self._inspected_links, foreign=foreign)
            for table, text in commands.items()
        }

    def _is_served(self, family: Family) -> bool:
        """Whether sandboxes have addresses of a family."""
        return family in ruleset.families(self.config, self._attachments())

    def _fix_neighbours(self, veths: Iterable[answers.Link]) -> None:
        """Make the neighbour entries of sandboxes permanent, before the tables drop the messages that keep other entries alive.

        Sandboxes that amazon-vpc-cni-k8s wired have no permanent entry. Veths whose alias shows that we made their entries permanent
        (OWN_ALIASES) are left out here, so that a start does not make hundreds of requests; the reconciler compares their entries
        later.
        """
        theirs = {link.index: link for link in veths if not link.alias.startswith(OWN_ALIASES)}
        if not theirs:
            return
        with self._host.netlink() as sock:
            routes = [route for route in _sandbox_routes(survey.routes_of(sock, family=IPV6)) if route[0] in theirs]
            outcomes = sock.request([messages.get_neighbour(index, address) for index, address in routes])
            for (index, address), outcome in zip(routes, outcomes, strict=True):
                _make_permanent(sock, theirs[index], address, outcome.read(answers.read_neighbour))

    def _read_links(self) -> list[answers.Link]:
        """Read all links of the node, and remember those of other software.

        Returns: our host veths that are in use, and the uplinks; an empty list if every attempt of the dump was interrupted. The next
            repair then reads the links again (I11).
        """
        try:
            with self._host.netlink() as sock:
                links = survey.links_of(sock, kind="")
                ours, foreign_links = self._split_by_owner(links)
                sandboxes_behind = survey.sandboxes_behind(sock, foreign_links, ours=ours, attachments=tuple(self._attachments()))
                routed = self._indexes_with_routes(sock, foreign_links)
                strict_veths = self._veths_in_strict_mode(sock, ours)
        except KernelDumpError as exc:
            log.info("dump of links interrupted, settings of host veths will be compared later error=%s", exc)
            return []
        self._strict_veths = strict_veths
        self._router_link = self._virtual_primary_link(links)
        self._remember_foreign_links(links, foreign_links, sandboxes_behind=sandboxes_behind, routed=routed)
        # Dying veths are included, because their sandboxes may still send.
        self._other_veths = frozenset(link.name for link in ours if not self._has_our_name(link))
        uplinks = [link for link in foreign_links if link.name.startswith(LINK_PREFIX)]
        return [link for link in (*ours, *uplinks) if link.group != uapi.DYING_GROUP]

    def _virtual_primary_link(self, links: Collection[answers.Link]) -> int:
        """Return the index of the primary ENI's link if it is a virtual link; otherwise 0."""
        if self.primary_mac is None:
            return 0
        link = eni_links.lowest_by_mac(links, self.primary_mac, self.config.veth_prefix)
        if link is None or not link.kind:
            return 0
        return link.index

    def _split_by_owner(self, links: Iterable[answers.Link]) -> tuple[list[answers.Link], list[answers.Link]]:
        """Return our host veths, and all other virtual links, which are those of other software and our uplinks. Links without a kind,
        such as those of ENIs, are in neither list.
        """
        ours = list[answers.Link]()
        foreign_links = list[answers.Link]()
        for link in links:
            if link.kind == uapi.VETH_KIND and self._is_ours(link):
                ours.append(link)
            elif link.kind:
                foreign_links.append(link)
        return ours, foreign_links

    def _remember_foreign_links(
        self,
        links: Iterable[answers.Link],
        foreign_links: Iterable[answers.Link],
        *,
        sandboxes_behind: Mapping[int, AttachmentKey],
        routed: Container[int],
    ) -> None:
        """Remember which links of other software lead into sandboxes (`foreign`), and which links are inspected (`_inspected_links`).

        Args:
            links: all links of the node. All are searched, because a sandbox may make its link look like one of ours.
            foreign_links: the links of other software.
            sandboxes_behind: sandboxes by the index of the link that leads into them.
            routed: indexes of links that routes use.
        """
        in_use = {link.index for link in foreign_links if link.master or link.index in routed}
        self.foreign = tuple(
            ForeignLink(link.name, link.index, sandboxes_behind[link.index], link.index in in_use)
            for link in links
            if link.index in sandboxes_behind
        )
        # A sandbox may have made a namespace of its own and a link into it. So a link into a namespace counts as inspected only if it
        # leads into a known sandbox, or if a bridge or a route of the node uses it.
        known_indexes = in_use | sandboxes_behind.keys()
        self._inspected_links = [link.index for link in foreign_links if link.index in known_indexes or not link.netnsid]

    def _indexes_with_routes(self, sock: NetlinkSocket, foreign_links: Iterable[answers.Link]) -> set[int]:
        """Return the indexes of the links that routes use; an empty set if no link of other software leads into a namespace.

        If there is exactly one such link, only its routes are read, and not those of all sandboxes.
        """
        into_namespaces = [link.index for link in foreign_links if link.netnsid]
        if not into_namespaces:
            return set()
        only = 0
        if len(into_namespaces) == 1:
            only = into_namespaces[0]
        routed = set[int]()
        for family in {IPV4, *ruleset.families(self.config, self._attachments())}:
            routed.update(route.index for route in survey.routes_of(sock, index=only, family=family))
        return routed

    def _veths_in_strict_mode(self, sock: NetlinkSocket, ours: Iterable[answers.Link]) -> frozenset[str]:
        """Return the names of the host veths whose packets the kernel's rules send to uplinks.

        A name proves nothing, because a sandbox can make a link of any name on the node. A rule is a proof, because no sandbox can
        make one. The rule of a dying link has been removed already, so links that had a rule at the last reading count too.
        """
        named = {link.name for link in ours if uplink_survey.is_strict_veth(link)}
        if not named:
            return frozenset()
        return frozenset(named & self._strict_veths.union(survey.strict_links(sock, self.config.family)))

    def _has_our_name(self, link: answers.Link) -> bool:
        return link.name.startswith(self.config.veth_prefix) or uplink_survey.is_strict_veth(link)

    def _is_ours(self, link: answers.Link) -> bool:
        if self._has_our_name(link):
            return True
        return bool(_PLAIN.fullmatch(link.name) and survey.host_veth(link).key)

    def _repair_settings(self, different: Sequence[tuple[answers.Link, Mapping[int, int]]]) -> list[RepairReport]:
        """Set the IPv4 settings of links. `different`: each link with its wrong settings. Raises: WiringError.

        Returns: one report if forwarding was off, because a sandbox has no network without it; no report about other settings.
        """
        batch = [
            replace(messages.change_link(link.index, step=f"set {link.name}", ipv4_conf=self._wanted), tolerated=messages.ABSENT)
            for link, _ in different
        ]
        with self._host.netlink() as sock:
            sock.carry_out(batch, operation="settings of host veths")
        if different:
            names = {devconf.NAMES[number] for _, wrong in different for number in wrong}
            log.info("settings of host veths restored names=%s count=%d", ", ".join(sorted(names)), len(different))
        stopped = [link.name for link, wrong in different if uapi.IPV4_DEVCONF_FORWARDING in wrong]
        if not stopped:
            return []
        more = ""
        if len(stopped) > NAMED_MAX:
            more = f" and {len(stopped) - NAMED_MAX} more"
        target = f"forwarding of host veths {', '.join(stopped[:NAMED_MAX])}{more}"
        return [RepairReport(RepairCode.VALUE_SET, CONFINEMENT, target, before="off", after="on")]

    def _overruling_sysctl(self) -> list[WiringError]:
        """Report the sysctl rp_filter of `conf.all` if it makes the kernel drop packets from extra sources, or if it cannot be read.

        The kernel compares the rp_filter of `conf.all` with that of the veth, and applies the higher one.
        """
        if not self.config.extra_sources:
            return []
        try:
            with self._host.entered():
                current = sysctls.sysctl("net/ipv4/conf/all/rp_filter", wanted=str(devconf.OFF))
        except WiringError as exc:
            return [exc]
        if current == str(devconf.OFF):
            return []
        problem = f"sysctl net/ipv4/conf/all/rp_filter is {current}: the kernel drops what VPC_IPAMD_EXTRA_SOURCE_CIDRS allows"
        return [WiringError(problem, details="sysctl -w net.ipv4.conf.all.rp_filter=0, or unset the setting")]

    def _turn_ipv6_off(self, veths: Iterable[answers.Link]) -> None:
        """Turn IPv6 off on links of sandboxes that have no IPv6 address.

        The kernel then removes the link's IPv6 addresses, and ignores router advertisements on the link. ADD does not turn IPv6 off,
        because the write waits for RTNL, the kernel's lock of all links.
        """
        self._set_ipv6(veths, disable_ipv6=1)

    def _set_ipv6(self, veths: Iterable[answers.Link], **values: int) -> None:
        """Write IPv6 settings, which netlink cannot set.

        They are only a second line of defence. So it is not a fault if they cannot be written, for example to a read-only /proc/sys.
        After the first failure no other link is tried, unless the failure is only that the veth is gone meanwhile.
        """
        with self._host.entered():
            for link in veths:
                for name, value in values.items():
                    try:
                        (sysctls.SYSCTL_ROOT / f"net/ipv6/conf/{link.name}/{name}").write_text(str(value), encoding="ascii")
                    except OSError as exc:
                        if exc.errno != errno.ENOENT:  # ENOENT: the veth is gone meanwhile
                            return

    def _unconfined_error(self, table: NftTable, exc: WiringError) -> WiringError:
        """Return the error that says which packets are not dropped or checked because the kernel refused a table."""
        if table == confinement_ruleset.BRIDGE:
            return WiringError("packets that sandboxes send through bridges are not dropped", details=str(exc))
        if table == confinement_ruleset.ARP:
            problem = "ARP requests of sandboxes are not dropped, and may fill the node's table of neighbours"
            return WiringError(problem, details=f"{exc}; {MISSING_MODULE_HINT} nf_tables for ARP (CONFIG_NF_TABLES_ARP)")
        family = IPV4 if table == confinement_ruleset.IPV4 else IPV6
        if not self._is_served(family):
            return WiringError(f"IPv{4 if family is IPV4 else 6} packets of sandboxes are not dropped", details=str(exc))
        remaining_check = {IPV4: "only the strict rp_filter of the host veths checks it", IPV6: "nothing else checks it"}[family]
        needed = f"{MISSING_MODULE_HINT} nft_fib (CONFIG_NFT_FIB_IPV{4 if family is IPV4 else 6})"
        return WiringError("the source of sandboxes' packets is not checked", details=f"{exc}: {remaining_check}; {needed}")


def _links_with_wrong_settings(
    links: Iterable[answers.Link], wanted: Mapping[int, int]
) -> list[tuple[answers.Link, Mapping[int, int]]]:
    different = list[tuple[answers.Link, Mapping[int, int]]]()
    for link in links:
        wrong = devconf.wrong_settings(link, wanted)
        if wrong:
            different.append((link, wrong))
    return different


def _sandbox_routes(routes: Iterable[answers.Route]) -> set[tuple[int, IpAddress]]:
    """Return the link index and address of every direct route to a single address."""
    pairs = set[tuple[int, IpAddress]]()
    for route in routes:
        address = route.destination
        if address is not None and route.is_to(address) and route.via is None:
            pairs.add((route.index, address))
    return pairs


def _make_permanent(sock: NetlinkSocket, veth: answers.Link, address: IpAddress, neighbour: answers.Neighbour | None) -> None:
    """Make the neighbour entry of a sandbox permanent.

    The entry gets the MAC of the link inside the sandbox. If the kernel does not report that MAC, the entry keeps the MAC that it has;
    if it has none, nothing is changed.
    """
    if neighbour is not None and neighbour.is_permanent:
        return
    mac = checks.mac_inside(sock, veth) or (neighbour.mac if neighbour else "")
    if mac:
        sock.request([messages.add_neighbour(veth.index, address, mac=mac)])
