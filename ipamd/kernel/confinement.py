"""Keep sandboxes confined: a packet with a source that is not the sandbox's, a redirect or anything of a family that sandboxes do not
have goes nowhere.

The guarantee are three nftables tables (`ruleset`); they need no identity of the node and no EC2, so they are in place before
the first sandbox is. The second line are settings of each host veth (`devconf`), which ADD makes and which are made again here: the
nftables table does not depend on them, so others that set them (systemd's rules for new links) are no fault and are not reported.
"""

from __future__ import annotations

import errno
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import starmap

from ipamd.kernel import checks, devconf, messages, routing, ruleset, survey, uapi
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables, NftTable, OwnTables
from ipamd.model.attachment import ALIAS_TAG, EGRESS_TAG, Attachment
from ipamd.model.branch import LINK_PREFIX
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.kernel import CONFINEMENT, NODE, NOT_REPAIRED, ForeignLink, RoutingDifference, as_repairs
from ipamd.settings import NetworkConfig

ABSENT = "if nftables says that something is not there, the kernel lacks"
"""It refuses for other reasons too."""

_PLAIN = re.compile(r"[A-Za-z0-9]+")
"""Names of host veths of ours. A sandbox may give a link any name, and any alias: not each can be written into a rule."""

OWN_TAGS = (f"{ALIAS_TAG} ", f"{EGRESS_TAG} ")
"""How the aliases of links begin that we wired, or that were taken over with their neighbours."""

NAMED_MAX = 3
"""Host veths that one sentence names."""

log = logging.getLogger(__name__)


class Confinement:
    """The drop tables and the settings of host veths.

    Concurrency: one repair or comparison at a time, by the lock of its owner; `is_in_place`, `is_source_checked` and
    `dropped` from any thread, without it.
    """

    def __init__(
        self, host: HostNetns, *, config: NetworkConfig, nft: Nftables, attachments: Callable[[], Iterable[Attachment]]
    ) -> None:
        self._host = host
        self._attachments = attachments
        self.config = config
        """The settings in force, set by the owner; a change is followed at the next repair."""
        self.foreign = tuple[ForeignLink, ...]()
        """What led into sandboxes at the last look."""
        self.dropped = dict[str, int]()
        """How many packets were dropped, by reason, at the last repair; from zero again when the tables are replaced."""
        # Without the tables of ARP and bridges, which a kernel may lack, sources of packets are checked all the same.
        self._tables = OwnTables(
            host, nft, follows="the host veths' names or of a setting", optional={ruleset.ARP, ruleset.BRIDGE}
        )
        self._links = list[int]()  # those of others of which it is known where they lead
        self._wanted = devconf.host_veth(is_strict=not config.extra_sources)
        self._other_veths: frozenset[str] | None = None  # unknown before the first uninterrupted dump
        self._strict_veths = frozenset[str]()  # those that the kernel's rules led to branch ENIs, until they are gone
        self._veths_in_order: list[messages.Link] | None = None  # the last ones that needed no setting

    def is_in_place(self) -> bool | None:
        """Whether the tables were verified and nothing of them has changed since; None if they never were, or were refused.

        Tens of microseconds, a fraction of a millisecond after a change of somebody else; no dump of others' objects.
        """
        return None if self._other_veths is None else self._tables.is_unchanged()

    def is_source_checked(self) -> bool:
        """Whether that is so, and without extra sources: with them a sandbox may send from addresses that are not routed to it."""
        return not self.config.extra_sources and self.is_in_place() is True

    def repair(self, *, is_silent: bool = False) -> list[str]:
        """Put tables and settings in place. Returns: one sentence per repair, and one per part that was refused; each is tried.

        Args:
            is_silent: no link was announced since the last repair; the settings of the veths wait for a repair without it.
        """
        veths = (self._veths_in_order if is_silent else None) or self._look_at_veths()
        commands = self._commands()
        own = [link for link in veths if not link.name.startswith(LINK_PREFIX)]
        if self._is_served(IPV6) and self._tables.is_unchanged() is not True:
            self._fix_neighbours(own)
        sentences, refused = self._tables.repair(commands)
        refusals = list(starmap(self._not_checked, refused.items()))
        with suppress(WiringError, KernelDumpError):
            self.dropped |= {name.removeprefix(ruleset.COUNTER_PREFIX): count for name, count in self._tables.counted(commands)}
        if veths != self._veths_in_order:  # what the kernel says of a link has its settings too
            self._veths_in_order = None
            different = [(link, found) for link in own if (found := devconf.wrong(link, self._wanted))]
            try:
                sentences += self._repair_settings(different)
            except WiringError as exc:
                refusals.append(exc)
            is_needless = not self._is_served(IPV6)  # of all links: it asks for every attachment
            has_needless = {link.index: is_needless and devconf.has_ipv6(link) for link in veths}
            self._turn_ipv6_off(link for link in veths if has_needless[link.index])
            if not different and not any(has_needless.values()):
                self._veths_in_order = veths
        refusals += self._overruled()
        return as_repairs(sentences, CONFINEMENT) + [f"{NOT_REPAIRED}: {refusal}" for refusal in refusals]

    def differences(self) -> list[RoutingDifference]:
        """Compare and change nothing."""
        sentences, refused = self._tables.differences(self._commands())
        refusals = [*starmap(self._not_checked, refused.items()), *self._overruled()]
        return [RoutingDifference(NODE, str(one), one in sentences) for one in [*sentences, *refusals]]

    def has_strict(self) -> bool:
        """Whether sandboxes are led to branch ENIs in strict mode: by settings or rows, or by the kernel where those were lost."""
        return bool(self._strict_veths) or ruleset.has_strict(self.config, self._attachments())

    def _commands(self) -> dict[NftTable, str]:
        others, strict = self._other_veths or frozenset(), self.has_strict()
        found = {
            ruleset.IPV4: ruleset.ipv4_table(self.config, other_veths=others, is_served=self._is_served(IPV4), has_strict=strict),
            ruleset.ARP: ruleset.arp_table(self.config, other_veths=others, has_strict=strict),
            ruleset.BRIDGE: ruleset.bridge_table(self.config),
        }
        with self._host.entered():
            has_ipv6 = (routing.SYSCTL_ROOT / "net/ipv6").exists()
        if has_ipv6:
            served = self._is_served(IPV6)
            found[ruleset.IPV6] = ruleset.ipv6_table(self.config, other_veths=others, is_served=served, has_strict=strict)
        foreign = {one.index for one in self.foreign}
        return {table: text + ruleset.links(table, text, self._links, foreign=foreign) for table, text in found.items()}

    def _is_served(self, family: Family) -> bool:
        """Whether sandboxes have addresses of a family."""
        return family in ruleset.families(self.config, self._attachments())

    def _fix_neighbours(self, veths: Iterable[messages.Link]) -> None:
        """Make each sandbox's neighbour entry permanent before the answers that would keep it are dropped: those that
        amazon-vpc-cni-k8s wired have none, and packets that are under way must find it. Ours have it since their ADD, so a start
        does not ask for hundreds; a pass compares the recorded ones.
        """
        theirs = {link.index: link for link in veths if not link.alias.startswith(OWN_TAGS)}
        if not theirs:
            return
        with self._host.netlink() as sock:
            routes = {
                (one.index, one.destination)
                for one in survey.routes_of(sock, family=IPV6)
                if one.index in theirs and one.destination is not None and one.is_to(one.destination) and one.via is None
            }
            asked = sock.request([messages.get_neighbour(index, address) for index, address in routes])
            for (index, address), outcome in zip(routes, asked, strict=True):
                entry = outcome.read(messages.read_neighbour)
                if entry is not None and entry.is_permanent:
                    continue
                if mac := checks.mac_inside(sock, theirs[index]) or (entry.mac if entry else ""):
                    sock.request([messages.add_neighbour(index, address, mac=mac)])

    def _look_at_veths(self) -> list[messages.Link]:
        """All host veths of ours that are in use, and the links to branch ENIs; none if every dump was interrupted: the next repair
        looks again (I11)."""
        try:
            with self._host.netlink() as sock:
                links = survey.links_of(sock, kind="")
                ours = [one for one in links if one.kind == uapi.VETH_KIND and self._is_ours(one)]
                own = {one.index for one in ours}
                others = [one for one in links if one.kind and one.index not in own]
                behind = survey.sandboxes_behind(sock, others, ours=ours, attachments=tuple(self._attachments()))
                # It matters of links into namespaces; if one is alone, the sandboxes' routes stay unread.
                asked = [one.index for one in others if one.netnsid]
                families = {IPV4, *ruleset.families(self.config, self._attachments())} if asked else ()
                only = asked[0] if len(asked) == 1 else 0
                led = {route.index for family in families for route in survey.routes_of(sock, index=only, family=family)}
                strict = {one.name for one in ours if survey.is_strict_veth(one)}
                # A name anybody gives who may make links, a rule no sandbox makes; a dying link has none any more.
                if strict:
                    strict &= self._strict_veths.union(survey.led_to_branches(sock, self.config.family))
        except KernelDumpError as exc:
            log.info("settings of host veths are compared later error=%s", exc)
            return []
        self._strict_veths = frozenset(strict)
        prefix, in_use = self.config.veth_prefix, {one.index for one in others if one.master or one.index in led}
        self.foreign = tuple(
            ForeignLink(one.name, one.index, behind[one.index], one.index in in_use) for one in links if one.index in behind
        )
        # A sandbox may have made a namespace of its own, and a link into that: what nobody on the node uses leads nowhere known.
        self._links = [one.index for one in others if one.index in in_use or one.index in behind or not one.netnsid]
        # Dying ones too: their sandboxes may still send.
        self._other_veths = frozenset(one.name for one in ours if not (one.name.startswith(prefix) or survey.is_strict_veth(one)))
        vlans = [one for one in others if one.name.startswith(LINK_PREFIX)]
        return [one for one in (*ours, *vlans) if one.group != uapi.DYING_GROUP]

    def _is_ours(self, link: messages.Link) -> bool:
        if link.name.startswith(self.config.veth_prefix) or survey.is_strict_veth(link):
            return True
        return bool(_PLAIN.fullmatch(link.name) and survey.host_veth(link).key)

    def _repair_settings(self, different: Sequence[tuple[messages.Link, Mapping[int, int]]]) -> list[str]:
        """Set what differs, numbers of settings by link. Only forwarding is worth a sentence: without it a sandbox has no network."""
        batch = [
            replace(messages.change_link(link.index, step=f"set {link.name}", ipv4_conf=self._wanted), tolerated=messages.ABSENT)
            for link, _ in different
        ]
        with self._host.netlink() as sock:
            sock.carry_out(batch, what="settings of host veths")
        if different:
            names = {devconf.NAMES[number] for _, found in different for number in found}
            log.info("settings of host veths set names=%s count=%d", ", ".join(sorted(names)), len(different))
        stopped = [link.name for link, found in different if uapi.IPV4_DEVCONF_FORWARDING in found]
        if not stopped:
            return []
        more = f" and {len(stopped) - NAMED_MAX} more" if len(stopped) > NAMED_MAX else ""
        return [f"forwarding was off for host veths {', '.join(stopped[:NAMED_MAX])}{more}: set to 1"]

    def _overruled(self) -> list[WiringError]:
        """The sysctl that takes effect from allowed extra sources: the kernel uses the higher value of all links' and the veth's."""
        if not self.config.extra_sources:
            return []
        try:
            with self._host.entered():
                now = routing.sysctl("net/ipv4/conf/all/rp_filter", wanted=str(devconf.OFF))
        except WiringError as exc:
            return [exc]
        if now == str(devconf.OFF):
            return []
        what = f"sysctl net/ipv4/conf/all/rp_filter is {now}: the kernel drops what VPC_IPAMD_EXTRA_SOURCE_CIDRS allows"
        return [WiringError(what, details="sysctl -w net.ipv4.conf.all.rp_filter=0, or unset the setting")]

    def _turn_ipv6_off(self, veths: Iterable[messages.Link]) -> None:
        """Turn IPv6 off where sandboxes have none: an old veth's address goes, and the kernel reads no router advertisement there, nor
        by the link to a branch ENI.

        Not in ADD: the write waits for the kernel's lock of all links. It is a line more and no guarantee, so a read-only /proc/sys
        is no fault.
        """
        with self._host.entered():
            for link in veths:
                try:
                    (routing.SYSCTL_ROOT / f"net/ipv6/conf/{link.name}/disable_ipv6").write_text("1", encoding="ascii")
                except OSError as exc:
                    if exc.errno != errno.ENOENT:  # the veth has gone meanwhile
                        return

    def _not_checked(self, table: NftTable, exc: WiringError) -> WiringError:
        if table == ruleset.BRIDGE:
            return WiringError("what comes from sandboxes by ports of bridges is not dropped", details=str(exc))
        if table == ruleset.ARP:
            what = "ARP requests of sandboxes are not dropped, and may fill the node's table of neighbours"
            return WiringError(what, details=f"{exc}; {ABSENT} nf_tables for ARP (CONFIG_NF_TABLES_ARP)")
        family = IPV4 if table == ruleset.IPV4 else IPV6
        if not self._is_served(family):
            return WiringError(f"IPv{4 if family is IPV4 else 6} packets of sandboxes are not dropped", details=str(exc))
        left = {IPV4: "strict rp_filter of the host veths is all that is left", IPV6: "nothing else checks it"}[family]
        needed = f"{ABSENT} nft_fib (CONFIG_NFT_FIB_IPV{4 if family is IPV4 else 6})"
        return WiringError("the source of sandboxes' packets is not checked", details=f"{exc}: {left}; {needed}")
