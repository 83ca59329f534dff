"""The port `HostNetwork`: set up and reconcile the routing of the node and its ENIs.

Setup and reconciliation run the same comparisons and write differences only. Reconciliation is needed because other agents flush
rules and tables; amazon-vpc-cni-k8s restores them only at its start and when the VPC's CIDRs change (pkg/ipamd/ipamd.go,
updateCIDRsRulesOnChange). Nothing here runs during ADD.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

from ipamd.kernel import checks, devconf, messages, routing, ruleset, survey, uapi, ways
from ipamd.kernel.confinement import Confinement
from ipamd.kernel.host_events import HostEvents
from ipamd.kernel.netlink import must
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables, NftTable, OwnTables
from ipamd.kernel.other_software import OtherSoftware, remove_left_chains
from ipamd.kernel.routing import HostLook, HostLooker, Repair
from ipamd.model.attachment import Attachment, WiringSpec
from ipamd.model.branch import IPV6_GATEWAY
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni, gateway
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.family import IPV4, Family, IpAddress, IpNetwork
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import (
    LEADING,
    NODE,
    NOT_REPAIRED,
    OWN_RULE,
    OWN_TABLE,
    STRICT_TABLE,
    TRANSLATION,
    ForeignLink,
    HostChange,
    LinkEvent,
    Repaired,
    RepairedObject,
    RoutingDifference,
    as_repairs,
)
from ipamd.model.record import replace
from ipamd.ports import HostNetwork
from ipamd.settings import NetworkConfig

ENI_STEPS = 5
"""Comparisons of one ENI: settings of its link, the link, addresses, table, rules."""


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
        link_wait_s: float = routing.LINK_WAIT_S,
        attachments: Callable[[], Iterable[Attachment]] = tuple,
        prefixes: Callable[[], Mapping[IpNetwork, EniId]] = dict,
    ) -> None:
        """Manage the namespace `host` by `config`.

        Args:
            link_wait_s: bound of the wait for a newly attached ENI's link.
            attachments: the recorded sandboxes; some host veths may be named by an earlier prefix.
            prefixes: those of the pool's family whose free addresses are answered for (`routing.rest_repairs`), each with its ENI.
        """
        self._host = host
        self._config = config
        self._nft = nft
        self._attachments = attachments
        self._prefixes = prefixes
        self._table = OwnTables(host, nft, follows="the VPC's CIDRs or of a setting")
        self._former_names: set[str] = set()
        self._table_seen: tuple[str, ruleset.FormerSettings] | None = None  # what the last repair of the table saw of the host
        self._confinement = Confinement(host, config=config, nft=nft, attachments=attachments)
        self._others = OtherSoftware(
            host, nft, veth_prefix=config.veth_prefix, families=lambda: ruleset.families(self._config, self._attachments())
        )
        self._link_wait_s = link_wait_s
        self.looker = HostLooker(veth_prefix=config.veth_prefix, family=config.family)
        """Who knows the links of ENIs by MAC."""
        self._events = HostEvents(host, veth_prefix=config.veth_prefix, families=ruleset.families(config, attachments()))
        self._filtered = frozenset[str]()
        self._primary_name = ""  # of the primary ENI's link, from the last look
        self._egress: tuple[Family, IpAddress | None] | None = None  # and the node's own address of that family
        self._lock = threading.Lock()

    def use(self, config: NetworkConfig, identity: InstanceIdentity | None = None) -> None:
        """Go by other settings from now on, and set the node up by them, if it is known, in one step: a pass in between would call
        a repair what nobody broke. Raises: as `setup_node`; the next pass tries again.
        """
        with self._lock:
            self._config = self._confinement.config = config
            self._table_seen = None
            if identity:
                self._set_up_node(identity)

    def setup_node(self, identity: InstanceIdentity) -> None:
        with self._lock:
            self._set_up_node(identity)

    def _set_up_node(self, identity: InstanceIdentity) -> None:
        self._table.forget()
        with self._host.netlink() as sock:
            look = self.looker.look(sock, [identity.primary_mac])
        _, refusals = self._repair_node(look, identity)
        if refusals:
            raise refusals[0]

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[str]:
        with self._lock:
            known = list[str]()
            if self._confinement.is_in_place() is None:
                try:
                    known = self._know_strict()
                except (WiringError, KernelDumpError):  # where nobody may be in strict mode, nothing waits for it
                    if self._confinement.has_strict():
                        raise
            return [*known, *self._confinement.repair(is_silent=is_silent), *self._add_own_rule()]

    def _know_strict(self) -> list[str]:
        """Before the first tables of a process: let them know sandboxes in strict mode that amazon-vpc-cni-k8s wired, which are taken
        over a minute later, or they would be cut off until then. No sandbox can make such a route.
        """
        family = self._config.family
        with self._host.netlink() as sock:
            if not (self._confinement.has_strict() or survey.led_to_branches(sock, family)):
                return []
            seen = survey.survey(sock, veth_prefix=self._config.veth_prefix, families=(family,))
            veths = {veth.name: veth.ifindex for veth in seen.branches if not veth.is_dying}
            ways = [one for one in seen.branch_routes if one.device in veths and one.via is None and one.table != STRICT_TABLE]
            led = [(one.destination, one.device) for one in ways if isinstance(one.destination, IpAddress)]
            sock.request([checks.wiring_route(to, veths[name], name, table=STRICT_TABLE) for to, name in led])
            repairs = routing.strict_repairs(survey.rules_of(sock, family), self._config, True) if led else []
        return self._carry_out(repairs, subject=NODE, held=())

    def _add_own_rule(self) -> list[str]:
        rules = [checks.own_table_rule(family) for family in ruleset.families(self._config, self._attachments())]
        with self._host.netlink() as sock:
            outcomes = sock.request(rules)
        must(outcomes, "setup of the node")
        return [Repaired(f"{OWN_RULE} was missing: added", LEADING) for one in outcomes if not one.errno]

    def egress(self) -> tuple[Family | None, str]:
        family, found = self._config.egress, self._egress
        if family is None or found != (family, None):
            return family, ""
        why = f"the primary ENI's link {self._primary_name} has no global address of {family.nft}"
        return None, f"egress: new pods get no {family.egress.ifname}: {why}"

    def release(self) -> str:
        with self._lock:  # of IPv6 the table goes: the veths of amazon-vpc-cni-k8s have no permanent neighbour
            if self._config.family is IPV4:
                return ""
            with self._host.netlink() as sock:
                look = self.looker.look(sock, ())
            said = self._carry_out(routing.rest_repairs(look, ()), subject=NODE, held=())
            if self._nft.list_table(ruleset.IPV6):
                self._nft.run(ruleset.IPV6.removal())
                said.append(f"{ruleset.IPV6.what} removed: its sandboxes need neighbour discovery")
        return "; ".join(said)

    def confinement_differences(self) -> list[RoutingDifference]:
        with self._lock:
            return self._confinement.differences()

    def are_tables_in_place(self) -> bool | None:
        found = {self._confinement.is_in_place()}
        if self._table_seen:
            found.add(self._table.is_unchanged())
        return False if False in found else None if None in found else True

    def is_source_checked(self) -> bool:
        return self._confinement.is_source_checked()

    def dropped_packets(self) -> Mapping[str, int]:
        return self._confinement.dropped

    def filtered(self) -> frozenset[str]:
        return self._filtered

    def foreign_links(self) -> Sequence[ForeignLink]:
        return self._confinement.foreign

    def await_link(self, mac: MacAddress) -> None:
        # No lock: reconciliation must not wait for a slow hot-plug.
        routing.wait_for_link(self._host, mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)

    def remove_left_chains(self, *, egress: Collection[str] | None) -> str:
        with self._lock:
            return remove_left_chains(self._host, self._nft, egress=egress)

    def links(self, macs: Iterable[MacAddress] | None = None) -> frozenset[MacAddress]:
        with self._host.netlink() as sock:  # no lock, so not behind a repair: a link that goes is news at once
            if macs is not None:
                return frozenset(self.looker.links(sock, macs))
            found = survey.links_of(sock, kind="")
        prefix = self._config.veth_prefix
        return frozenset(MacAddress(link.mac) for link in found if link.mac and routing.may_be_eni(link, veth_prefix=prefix))

    def host_events(self) -> Iterator[LinkEvent | HostChange]:
        return self._events.follow()

    def stop_host_events(self) -> None:
        self._events.stop()

    def setup_eni(self, eni: Eni) -> None:
        """Set up a secondary ENI's link, address, table, routes and rule; of IPv6 link and table, if it is for sandboxes. Idempotent.

        Raises: WiringError if its link does not appear, if it has no table of its own, or if the kernel refuses; KernelDumpError.
        """
        routing.refuse_kernel_table(eni)
        if not self._secondary([eni]):
            return
        # Wait outside the lock: an ENI whose link does not appear must not delay reconciliation.
        link = routing.wait_for_link(self._host, eni.mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)
        with self._lock:
            with self._host.netlink() as sock:
                look = self.looker.look(sock, [eni.mac])
            self._repair_eni(look, eni, link)

    def answer_for(self, prefixes: Iterable[IpNetwork]) -> None:
        with self._lock, self._host.netlink() as sock:
            refused = [messages.refuse_rest(prefix, table=OWN_TABLE) for prefix in prefixes]
            sock.carry_out(refused, what="routes of free addresses")

    def remove_prefix_rules(self, is_needless: Callable[[IpNetwork, int], bool]) -> None:
        with self._lock, self._host.netlink() as sock:
            removals = [
                messages.delete_rule(rule.priority, table=rule.table, source=prefix)
                for rule in survey.rules_of(sock, self._config.family)
                if (prefix := survey.from_prefix(rule)) and is_needless(prefix, rule.table)
            ]
            sock.carry_out(removals, what="removal of rules of prefixes")

    def teardown_eni(self, eni: Eni, *, keep: Iterable[Eni] = ()) -> None:
        routing.refuse_kernel_table(eni)
        with self._lock, self._host.netlink() as sock:
            sock.carry_out(
                routing.removals(sock, eni, keep=tuple(keep), family=self._config.family), what=f"teardown of {eni.eni_id}"
            )

    def reconcile(
        self,
        *,
        identity: InstanceIdentity,
        enis: Iterable[Eni],
        addresses: Container[IpAddress] = (),
        held: Collection[RepairedObject] = (),
        is_silent: bool = False,
    ) -> list[str]:
        """Repair what something else on the node removed or changed.

        Returns: one `Repaired` per repair, and one sentence per part that could not be repaired; a failed part does not stop the
            others.
        Raises: KernelDumpError; WiringError if the primary ENI's link is missing.
        """
        secondary = self._secondary(enis)
        with self._lock:
            with self._host.netlink() as sock:
                look = self.looker.look(sock, [identity.primary_mac, *(eni.mac for eni in secondary)], is_silent=is_silent)
            sentences = []
            for eni in secondary:
                link = look.links.get(eni.mac)
                if link is None:
                    sentences.append(f"the link of {eni.eni_id} with MAC {eni.mac} is missing: not repaired")
                    continue
                try:
                    sentences += self._repair_eni(look, eni, link, held)
                except WiringError as exc:
                    sentences.append(f"{eni.eni_id} {NOT_REPAIRED}: {exc}")
            repaired, refusals = self._repair_node(look, identity, addresses, held)
            others = self._of_others(addresses)
            self._filtered = frozenset(one.subject for one in others if one.is_cut)
            left = [*self._foreign(look, identity, secondary, addresses), *others]
        return [*sentences, *repaired, *(f"{NOT_REPAIRED}: {one}" for one in [*refusals, *left])]

    def _secondary(self, enis: Iterable[Eni]) -> list[Eni]:
        """Those that need routing of their own; of IPv6 the one that has the /80, or is made for it."""
        serving = None if self._config.family is IPV4 else self._prefixes().values()
        return [eni for eni in enis if not eni.is_primary and (serving is None or eni.created_by_us or eni.eni_id in serving)]

    def reconcile_table(self, *, identity: InstanceIdentity) -> list[str]:
        with self._lock:
            return self._repair_table(identity, self._table_seen) if self._table_seen else []

    def _repair_table(self, identity: InstanceIdentity, seen: tuple[str, ruleset.FormerSettings]) -> list[str]:
        self._table_seen = seen
        commands = self._commands(identity, *seen)
        sentences, refused = self._table.repair(commands)
        for refusal in self._needed(refused, commands):
            raise refusal
        return as_repairs(sentences, TRANSLATION)

    def differences(
        self, *, identity: InstanceIdentity | None, enis: Iterable[Eni], addresses: Container[IpAddress] = ()
    ) -> list[RoutingDifference]:
        """Compare without changing anything, by the comparisons that `reconcile` repairs.

        Concurrency: under the lock, so that a set-up that is half done is not reported.
        """
        secondary = self._secondary(enis)
        macs = [eni.mac for eni in secondary] + ([identity.primary_mac] if identity else [])
        with self._lock:
            with self._host.netlink() as sock:
                look = self.looker.look(sock, macs)
            found: list[RoutingDifference] = []
            for eni in secondary:
                found += self._eni_differences(look, eni)
            if identity is None:
                return found
            found += self._node_differences(look, identity, addresses)
            return found + self._foreign(look, identity, secondary, addresses)

    def way_differences(self, specs: Sequence[WiringSpec], *, enis: Collection[Eni]) -> list[RoutingDifference]:
        with self._host.netlink() as sock:  # no lock: nothing waits for what is only asked
            links = self.looker.links(sock, (eni.mac for eni in enis))
            family = self._config.family  # the router of IPv6 is link-local
            uplinks: dict[int, tuple[messages.Link, IpAddress]] = {
                eni.route_table: (links[eni.mac], gateway(eni.subnet_cidr) if family is IPV4 else family.outside)
                for eni in enis
                if eni.mac in links and (eni.is_primary or self._secondary([eni]))
            }
            mark = self._config.connmark if ruleset.needs_mark(self._config) else 0
            return list(ways.differences(sock, specs, uplinks, mark=mark))

    def _eni_differences(self, look: HostLook, eni: Eni) -> list[RoutingDifference]:
        try:
            routing.refuse_kernel_table(eni)
        except WiringError as exc:
            return [RoutingDifference(eni.eni_id, str(exc), False)]
        link = look.links.get(eni.mac)
        if link is None:
            return [RoutingDifference(eni.eni_id, f"its link with MAC {eni.mac} is missing", False)]
        return [RoutingDifference(eni.eni_id, each.found) for step in self._eni_repairs(look, eni, link) for each in step]

    def _node_differences(
        self, look: HostLook, identity: InstanceIdentity, addresses: Container[IpAddress]
    ) -> list[RoutingDifference]:
        link = look.links.get(identity.primary_mac)
        if link is None:
            missing = f"its link with MAC {identity.primary_mac} is missing"
            return [RoutingDifference(identity.primary_eni_id, missing, False)]
        found = []
        if not link.is_up:
            found.append(RoutingDifference(identity.primary_eni_id, f"its link {link.name} is down", False))
        for _, repairs in self._node_repairs(look, identity, link, addresses):
            try:
                found += [RoutingDifference(NODE, each.found) for each in repairs]
            except WiringError as exc:
                found.append(RoutingDifference(NODE, str(exc), False))
        found += self._of_others(addresses)
        commands = self._commands(identity, link.name, self._former(look))
        sentences, refused = self._table.differences(commands)
        needed = self._needed(refused, commands)
        return found + [RoutingDifference(NODE, str(one), one in sentences) for one in [*sentences, *needed]]

    def _foreign(
        self, look: HostLook, identity: InstanceIdentity, secondary: Iterable[Eni], addresses: Container[IpAddress]
    ) -> list[RoutingDifference]:
        with self._host.netlink() as sock:
            return routing.foreign_differences(
                sock,
                look,
                identity=identity,
                secondary=[eni.mac for eni in secondary],
                addresses=addresses,
                family=self._config.family,
            )

    def _repair_node(
        self,
        look: HostLook,
        identity: InstanceIdentity,
        addresses: Container[IpAddress] = (),
        held: Collection[RepairedObject] = (),
    ) -> tuple[list[str], list[WiringError]]:
        """Repair the node's own part. Each piece runs even if another failed: a read-only sysctl must not cost the node its SNAT.

        Returns: one sentence per repair, and what was refused.
        """
        link = look.links.get(identity.primary_mac)
        if link is None:
            raise WiringError(
                f"the primary ENI's link with MAC {identity.primary_mac} is missing",
                details="is the daemon in the host's network namespace (hostNetwork: true)?",
            )
        sentences: list[str] = []
        refusals: list[WiringError] = []
        former = self._former(look)
        unused = [mark for mark in former.marks if not self._is_carried(mark)]
        parts = self._node_repairs(look, identity, link, addresses)
        for subject, repairs in (*parts, (NODE, routing.mark_removals(unused))):
            try:
                sentences += self._carry_out(repairs, subject=subject, held=held)
            except WiringError as exc:
                refusals.append(exc)
        try:
            former = replace(former, marks=tuple(mark for mark in former.marks if mark not in unused))
            sentences += self._repair_table(identity, (link.name, former))
        except WiringError as exc:
            refusals.append(exc)
        return sentences, refusals

    def _node_repairs(
        self, look: HostLook, identity: InstanceIdentity, link: messages.Link, addresses: Container[IpAddress]
    ) -> tuple[tuple[str, Iterator[Repair]], ...]:
        """All comparisons of the node but that of its table, each with the subject of its repairs. One may raise WiringError."""
        self._primary_name = link.name
        _, *others = ruleset.families(self._config, self._attachments())
        self._egress = next(((family, self._own_address(identity, link, family)) for family in others), None)
        families = self._config.family, self.egress()[0]
        sysctls = routing.wanted_sysctls(families, link.name, early_demux_disabled=self._config.early_demux_disabled)
        return (
            (NODE, routing.setting_repairs(link, devconf.PRIMARY_ENI)),
            (NODE, routing.sysctl_repairs(self._host, sysctls)),
            (identity.primary_eni_id, routing.pod_address_repairs(look, identity, link, addresses)),
            (NODE, routing.node_repairs(link, look.rules, self._config)),
            (NODE, routing.strict_repairs(look.rules, self._config, self._confinement.has_strict())),
            (NODE, routing.rest_repairs(look, self._prefixes())),
        )

    def _former(self, look: HostLook) -> ruleset.FormerSettings:
        """A former prefix is kept until the next start: else audit and CHECK would find a difference after its sandboxes' last DEL."""
        prefix = self._config.veth_prefix
        self._former_names.update(name for one in self._attachments() if not (name := one.host_veth).startswith(prefix))
        return routing.former_settings(look.rules, self._former_names, self._config)

    def _is_carried(self, mark: int) -> bool:
        """Whether a connection needs the rule of a former mark. That the kernel does not say is no evidence against it (I11)."""
        current = self._config.connmark
        sock = self._host.open_netlink(protocol=uapi.NETLINK_NETFILTER)
        try:
            # One that the current mark contains is in every new connection too, and these do not need the rule.
            return sock.has_any(messages.dump_connections(mark, without=current & ~mark if mark & current == mark else 0))
        except WiringError:
            return True
        finally:
            sock.close()

    def _own_address(self, identity: InstanceIdentity, link: messages.Link, family: Family) -> IpAddress | None:
        """What the packets of sandboxes leave with in a family for egress."""
        if family is IPV4:
            return identity.primary_address
        with self._host.netlink() as sock:
            return routing.own_address(sock, link, family)

    def _needed(self, refused: Mapping[NftTable, WiringError], commands: Mapping[NftTable, str]) -> list[WiringError]:
        """The refusals that matter: a kernel may lack the family of a table that is to go, or of an egress that is off."""
        is_egress_on = self.egress()[0] is not None
        return [
            why
            for table, why in refused.items()
            if table == ruleset.SNAT or (is_egress_on and commands[table] != table.removal())
        ]

    def _commands(self, identity: InstanceIdentity, primary_link: str, former: ruleset.FormerSettings) -> dict[NftTable, str]:
        """The tables that translate and mark, as they must be for this node."""
        found = {table: table.removal() for table in ruleset.EGRESS.values()}
        if self._egress:
            family, source = self._egress
            found[ruleset.EGRESS[family]] = ruleset.egress_table(self._config, family, source=source)
        found[ruleset.SNAT] = ruleset.replace_table(
            self._config,
            vpc_cidrs=tuple(identity.vpc_cidrs),
            primary_address=identity.primary_address,
            primary_link=primary_link,
            former=former,
        )
        return found

    def _of_others(self, addresses: Container[IpAddress]) -> list[RoutingDifference]:
        """What other software does to forwarded traffic; that it could not be looked at is told by our own table's repair."""
        try:
            return self._others.find(self._primary_name, addresses, self._confinement.has_strict())
        except WiringError:
            return []

    def _repair_eni(self, look: HostLook, eni: Eni, link: messages.Link, held: Collection[RepairedObject] = ()) -> list[str]:
        routing.refuse_kernel_table(eni)
        sentences: list[str] = []
        for step in range(ENI_STEPS):
            made = self._carry_out(self._eni_repairs(look, eni, link)[step], subject=eni.eni_id, held=held)
            sentences += made
            if made:
                # Routes need the link up, and an address changes what follows: what comes next is compared anew.
                with self._host.netlink() as sock:
                    look = self.looker.look(sock, look.links)
        return sentences

    def _eni_repairs(self, look: HostLook, eni: Eni, link: messages.Link) -> tuple[Iterator[Repair], ...]:
        """All comparisons of one ENI, ENI_STEPS, in the order in which they are repaired. Its own address is of IPv4."""
        is_ipv4 = self._config.family is IPV4
        return (
            routing.setting_repairs(link, devconf.ENI),
            routing.link_repairs(eni, link, mtu=self._config.eni_mtu),
            routing.address_repairs(look, eni, link) if is_ipv4 else iter(()),
            routing.table_repairs(look, eni, link, router=gateway(eni.subnet_cidr) if is_ipv4 else IPV6_GATEWAY),
            routing.rule_repairs(look, eni) if is_ipv4 else iter(()),
        )

    def _carry_out(self, repairs: Iterable[Repair], *, subject: str, held: Collection[RepairedObject]) -> list[str]:
        """Make repairs and return their sentences. Raises: WiringError for the first that is refused."""
        due = [(repair, thing) for repair in repairs if (thing := RepairedObject(repair.kind, subject)) not in held]
        if due:
            self.looker.forget()
        for repair, _ in due:
            if repair.sysctl is not None:
                key, value = repair.sysctl
                with self._host.entered():
                    routing.sysctl(key, wanted=value, is_set=True)
        what = f"setup of {'the node' if subject == NODE else subject}"
        with self._host.netlink() as sock:
            sock.carry_out([repair.change for repair, _ in due if repair.change is not None], what=what)
        return [Repaired(str(repair), thing) for repair, thing in due]
