"""Implement the port `HostNetwork`: set up and reconcile the routing of the node and its ENIs.

Setup and reconciliation run the same comparisons and change only what differs. Reconciliation is needed because other agents flush
rules and tables; amazon-vpc-cni-k8s restores them only at its start and when the VPC's CIDRs change (pkg/ipamd/ipamd.go,
updateCIDRsRulesOnChange). The thread of an ADD asks this module only for values in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from ipaddress import IPv4Network

from ipamd.kernel import (
    answers,
    confinement_ruleset,
    devconf,
    eni_links,
    foreign_routing,
    messages,
    node_routing,
    reachability,
    routing,
    ruleset,
    sandbox_repair,
    static_default_route,
    survey,
    translation,
    uapi,
)
from ipamd.kernel import sysctls as sysctls_module
from ipamd.kernel.carrier import CarrierMonitor
from ipamd.kernel.confinement import Confinement
from ipamd.kernel.host_events import HostEvents
from ipamd.kernel.host_state import HostState, HostStateReader
from ipamd.kernel.left_chains import remove_left_chains
from ipamd.kernel.legs import local_range_ruleset
from ipamd.kernel.legs.wirings import LegWirings
from ipamd.kernel.netlink import Message, must
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_record import TableRecord
from ipamd.kernel.nft_table import NftTable
from ipamd.kernel.other_software import OtherSoftware
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.kernel.repair import Repair
from ipamd.kernel.source_tree import SourceTree
from ipamd.model.attachment import Attachment, WiringSpec
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import Eni, gateway
from ipamd.model.errors import IpamError, KernelDumpError, WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IPV4, IPV6, IPV6_GATEWAY, Family, IpAddress, IpNetwork, family_of
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import ForeignLink, HostChange, LinkEvent, UplinkRoute
from ipamd.model.kernel_numbers import OWN_RULE, OWN_TABLE, STRICT_TABLE
from ipamd.model.legs.condition_codes import EXTRA_LEGS
from ipamd.model.packet_path import NewConnection, Translation
from ipamd.model.record import replace
from ipamd.model.repairs import (
    CONFINEMENT,
    NODE,
    NODE_ROUTING,
    SHARED_RULE,
    RepairCode,
    RepairedObject,
    RepairKind,
    RepairReport,
)
from ipamd.model.routing_difference import RoutingDifference, repair_difference, routing_difference
from ipamd.ports.kernel import HostNetwork, VlanLinks
from ipamd.settings import NetworkConfig

ENI_STEPS = 5
"""Number of comparisons of one ENI (`_eni_repairs`): its link's settings, its link's MTU and state, addresses, table, rules."""


class KernelHostNetwork(HostNetwork):
    """Host networking through netlink, /proc/sys and nftables.

    Concurrency: safe from any thread; one operation at a time. While its lock is held, only the locks of `PodSnatSets` and `Nftables`
    are taken.
    """

    def __init__(
        self,
        host: HostNetns,
        *,
        config: NetworkConfig,
        nft: Nftables,
        link_wait_s: float = eni_links.LINK_WAIT_S,
        attachments: Callable[[], Iterable[Attachment]] = tuple,
        prefixes: Callable[[], Mapping[IpNetwork, EniId]] = dict,
        vlan_links: VlanLinks | None = None,
        pod_snat: PodSnatSets | None = None,
        record: TableRecord | None = None,
    ) -> None:
        """Manage the namespace `host` according to `config`.

        Args:
            link_wait_s: how long to wait for the link of a newly attached ENI.
            attachments: returns the recorded sandboxes. Some of their host veths may have names with an earlier prefix.
            prefixes: returns the prefixes of the pool's family whose free addresses get an unreachable route, each with its ENI.
            vlan_links: makes and recognises the links that a lab uses in place of VLAN links; None if the kernel makes VLAN links.
            pod_snat: the SNAT choices of single sandboxes, which `KernelWiring` changes; None: made from the recorded sandboxes.
            record: stores for the daemon's next process which tables of `Confinement` were verified; None: nothing is stored.
        """
        self._host = host
        self._config = config
        self._pod_snat = pod_snat or PodSnatSets(host, nft, is_on=config.has_pod_snat, recorded=attachments)
        self._table = self._pod_snat.tables
        self._nft = nft
        self._attachments = attachments
        self._prefixes = prefixes
        self._former_names: set[str] = set()
        # Primary link's name and former settings at the last repair of the tables for SNAT and marks; None before the first one.
        self._table_inputs: tuple[str, ruleset.FormerSettings] | None = None
        vlan_kind = vlan_links.kind if vlan_links else uapi.VLAN_KIND
        self._confinement = Confinement(host, config=config, nft=nft, attachments=attachments, vlan_kind=vlan_kind, record=record)
        self._other_software = OtherSoftware(host, nft, veth_prefix=config.veth_prefix, families=self._families)
        self._last_findings: tuple[RoutingDifference, ...] = ()
        self._link_wait_s = link_wait_s
        self._carriers = CarrierMonitor()
        self.state_reader = HostStateReader(veth_prefix=config.veth_prefix, family=config.family)
        """Finds the links of ENIs by MAC."""
        self._wirings = LegWirings(state_reader=self.state_reader, vlan_links=vlan_links)
        families = ruleset.families(config, attachments())
        self._events = HostEvents(host, veth_prefix=config.veth_prefix, families=families, vlan_links=vlan_links)
        self._primary_name = ""  # last known name of the primary ENI's link
        self._tree = SourceTree()
        # The family of extra legs, and the node's address to which their packets are translated; None without extra legs. The address
        # is None if the node has none.
        self._extra_range: tuple[Family, IpAddress | None] | None = None
        self._lock = threading.Lock()

    def _families(self) -> tuple[Family, ...]:
        """Return the families of all legs on the node."""
        return ruleset.families(self._config, self._attachments())

    def recall_primary_mac(self, mac: MacAddress) -> None:
        """Assume the MAC of the primary ENI that an earlier process recorded, until `setup_node` sets the present one."""
        self._confinement.primary_mac = mac

    def choose_source_tree(self, is_chosen: bool) -> bool:
        had_tree = self.has_source_tree()
        self._tree.is_chosen = is_chosen and self._config.family is IPV4
        return self.has_source_tree() is not had_tree

    def has_source_tree(self) -> bool:
        return bool(self._tree.is_chosen)

    def apply_settings(self, config: NetworkConfig, identity: InstanceIdentity | None = None) -> None:
        """Apply other settings, and set up the node accordingly if its identity is known.

        Settings and setup happen under one lock, because a reconciliation in between would report the changes as repairs. Raises: as
        `setup_node`; the next reconciliation tries again.
        """
        with self._lock:
            self._config = self._confinement.config = config
            self._table_inputs = None
            if identity:
                self._set_up_node(identity)

    def setup_node(self, identity: InstanceIdentity) -> None:
        with self._lock:
            self._set_up_node(identity)

    def _set_up_node(self, identity: InstanceIdentity) -> None:
        with self._pod_snat.lock:
            self._table.forget()
        with self._host.netlink() as sock:
            host_state = self.state_reader.read(sock, [identity.primary_mac])
        _, refusals = self._repair_node(host_state, identity)
        self._allow_router_advertisements(identity.primary_mac)
        if refusals:
            raise refusals[0]

    def _allow_router_advertisements(self, primary_mac: MacAddress) -> None:
        """Let the tables accept router advertisements by the primary ENI's link if that is a virtual one, as in a lab."""
        if primary_mac == self._confinement.primary_mac:
            return
        self._confinement.primary_mac = primary_mac
        if self._confinement.is_in_place() is not None:  # if it is None, the first repair makes the tables with this link
            self._confinement.repair()

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[RepairReport]:
        with self._lock:
            reports = list[RepairReport]()
            if self._confinement.is_in_place() is None:
                try:
                    reports = self._route_strict_sandboxes()
                except (WiringError, KernelDumpError):  # the failure matters only if a sandbox may be in strict mode
                    if self._confinement.has_strict():
                        raise
            return [*reports, *self._confinement.repair(is_silent=is_silent), *self._add_own_rule()]

    def _route_strict_sandboxes(self) -> list[RepairReport]:
        """Add routes for the sandboxes in strict mode that amazon-vpc-cni-k8s wired, before this process makes its first tables.

        The start takes such sandboxes over only after it has waited for the runtime and for EC2. Without these routes the tables would
        cut the sandboxes off until then, perhaps for a minute. A sandbox in strict mode is recognised by its route in the table of
        an uplink, which no sandbox can make.
        """
        family = self._config.family
        with self._host.netlink() as sock:
            if not (self._confinement.has_strict() or survey.strict_links(sock, family)):
                return []
            surveyed = survey.survey(sock, veth_prefix=self._config.veth_prefix, families=(family,))
            veths = {veth.name: veth.ifindex for veth in surveyed.uplinked if not veth.is_dying}
            sandboxes = _directly_routed(surveyed.uplink_routes, veths)
            sock.request(
                [sandbox_repair.wiring_route(address, veths[name], name, table=STRICT_TABLE) for address, name in sandboxes]
            )
            repairs = node_routing.strict_repairs(survey.rules_of(sock, family), self._config, True) if sandboxes else []
        return self._carry_out(repairs, subject=NODE, backed_off=())

    def _add_own_rule(self) -> list[RepairReport]:
        rules = [sandbox_repair.own_table_rule(family) for family in self._families()]
        with self._host.netlink() as sock:
            outcomes = sock.request(rules)
        must(outcomes, "setup of the node")
        return [RepairReport(RepairCode.ADDED, SHARED_RULE, OWN_RULE) for outcome in outcomes if not outcome.errno]

    def extra_family(self) -> tuple[Family | None, str]:
        family = self._config.extra_family
        if family is None or self._extra_range != (family, None):
            return family, ""
        cause = f"the primary ENI's link {self._primary_name} has no global address of {family.nft}"
        return None, f"{EXTRA_LEGS}: new pods get no {family.local_range.ifname}: {cause}"

    def allow_neighbour_discovery(self) -> list[RepairReport]:
        # The veths of amazon-vpc-cni-k8s have no permanent neighbour entries, so the IPv6 table, which drops neighbour discovery, is
        # removed.
        with self._lock:
            if self._config.family is IPV4:
                return []
            with self._host.netlink() as sock:
                host_state = self.state_reader.read(sock, ())
            reports = self._carry_out(sysctls_module.unreachable_route_repairs(host_state, ()), subject=NODE, backed_off=())
            reports += self._carry_out(static_default_route.removals(host_state.routes), subject=NODE, backed_off=())
            if self._nft.list_table(confinement_ruleset.IPV6):
                self._nft.run(confinement_ruleset.IPV6.removal())
                reports.append(RepairReport(RepairCode.DISCOVERY_OPENED, CONFINEMENT, confinement_ruleset.IPV6.display_name))
        return reports

    def confinement_differences(self) -> list[RoutingDifference]:
        with self._lock:
            return self._confinement.differences()

    def are_tables_in_place(self) -> bool | None:
        states = {self._confinement.is_in_place()}
        if self._table_inputs:
            states.add(self._table.is_unchanged())
        if False in states:
            return False
        if None in states:
            return None
        return True

    def is_source_checked(self) -> bool:
        return self._confinement.is_source_checked()

    def dropped_packets(self) -> Mapping[str, int]:
        return self._confinement.dropped

    def other_software(self) -> Sequence[RoutingDifference]:
        return self._last_findings

    def inspect_other_software(self, addresses: Container[IpAddress]) -> None:
        with self._lock:
            self._last_findings = tuple(self._inspect_other_software(addresses))

    def foreign_links(self) -> Sequence[ForeignLink]:
        return self._confinement.foreign

    def filter_problems(self, addresses: Container[IpAddress]) -> list[RoutingDifference]:
        """Return the filters of other software that may drop packets of these addresses. Changes nothing."""
        with self._lock:
            return self._inspect_other_software(addresses)

    def translation(self, packet: NewConnection, identity: InstanceIdentity) -> Translation:
        """Return how our nftables tables, as they were last written, translate and mark a new connection. Only the first call may read
        the kernel, for the SNAT choices of single sandboxes.
        """
        _, former = self._table_inputs or ("", ruleset.NO_FORMER_SETTINGS)
        extra_family, source = self._extra_range or (None, None)
        is_extra = extra_family is family_of(packet.destination)
        return translation.translation_of(
            packet,
            self._config,
            vpc_cidrs=identity.vpc_cidrs,
            primary_address=identity.primary_address,
            former=former,
            extra_source=source if is_extra else None,
            choices=self._pod_snat.chosen(),
        )

    def await_link(self, mac: MacAddress) -> None:
        # Without the lock, because reconciliation must not wait for a slow hot-plug.
        self._wait_for_link(mac)

    def remove_left_chains(self, names: Collection[str] | None) -> str:
        with self._lock:
            return remove_left_chains(self._host, self._nft, names)

    def links(self, macs: Iterable[MacAddress] | None = None) -> frozenset[MacAddress]:
        with self._host.netlink() as sock:  # without the lock, because a lost link must be seen at once, not after a repair
            if macs is not None:
                return frozenset(self.state_reader.links(sock, macs))
            links = survey.links_of(sock, kind="")
        enis = eni_links.eni_links(links, veth_prefix=self._config.veth_prefix)
        return frozenset(MacAddress(link.mac) for link in enis if link.mac)

    def host_events(self) -> Iterator[LinkEvent | HostChange]:
        return self._events.follow()

    def stop_host_events(self) -> None:
        self._events.stop()

    def setup_eni(self, eni: Eni) -> None:
        for error in self.setup_enis([eni]).values():
            raise error

    def setup_enis(self, enis: Collection[Eni]) -> dict[EniId, IpamError]:
        """Set up link, address, table, routes and rule of secondary ENIs. For IPv6 only link and table are set up, and only if the ENI
        is for sandboxes.

        The host is read once, and again after a change. Returns: the error of each ENI that could not be set up.
        """
        # Wait outside the lock: an ENI whose link does not appear must not delay reconciliation.
        links, errors = self._await_links(enis)
        with self._lock:
            is_unchanged = False
            prepared_subnets = set[IPv4Network]()
            for eni in enis:
                if eni.eni_id not in links:
                    continue
                try:
                    with self._host.netlink() as sock:
                        host_state = self.state_reader.read(sock, [eni.mac], is_silent=is_unchanged)
                    is_unchanged = True  # the next ENI may use this reading too; a change of ours makes the reader forget it
                    self._repair_eni(host_state, eni, links[eni.eni_id])
                    if self._config.family is IPV4 and eni.subnet_cidr not in prepared_subnets:
                        self._prepare_source_tree(host_state, eni)
                        prepared_subnets.add(eni.subnet_cidr)
                except IpamError as error:
                    errors[eni.eni_id] = error
        return errors

    def _await_links(self, enis: Iterable[Eni]) -> tuple[dict[EniId, answers.Link], dict[EniId, IpamError]]:
        """Find the links of the ENIs that need routing, and wait for each link that does not exist yet.

        Returns: links and errors by ENI.
        """
        links: dict[EniId, answers.Link] = {}
        errors: dict[EniId, IpamError] = {}
        with self._host.netlink() as sock:
            present = self.state_reader.links(sock, [eni.mac for eni in self._secondary(enis)])
        for eni in enis:
            try:
                routing.refuse_kernel_table(eni)
                if self._secondary([eni]):
                    links[eni.eni_id] = present.get(eni.mac) or self._wait_for_link(eni.mac)
            except IpamError as error:
                errors[eni.eni_id] = error
        return links, errors

    def _wait_for_link(self, mac: MacAddress) -> answers.Link:
        return eni_links.wait_for_link(self._host, mac, veth_prefix=self._config.veth_prefix, timeout_s=self._link_wait_s)

    def _prepare_source_tree(self, host_state: HostState, eni: Eni) -> None:
        """Add the `goto` rules that lead to buckets of rules (`source_tree`), before the first sandbox of an ENI is wired."""
        changes = self._tree.preparations(host_state.rules, eni.subnet_cidr)
        if changes:
            self.state_reader.forget()
        with self._host.netlink() as sock:
            sock.carry_out(changes, operation=f"setup of {eni.eni_id}")

    def reject_free_addresses(self, prefixes: Iterable[IpNetwork]) -> None:
        with self._lock, self._host.netlink() as sock:
            refused = [messages.add_unreachable_route(prefix, table=OWN_TABLE) for prefix in prefixes]
            sock.carry_out(refused, operation="routes of free addresses")

    def remove_prefix_rules(self, is_needless: Callable[[IpNetwork, int], bool]) -> None:
        with self._lock, self._host.netlink() as sock:
            removals = list[Message]()
            for rule in survey.rules_of(sock, self._config.family):
                prefix = survey.from_prefix(rule)
                if prefix and is_needless(prefix, rule.table):
                    removals.append(messages.delete_rule(rule.priority, table=rule.table, source=prefix))
            sock.carry_out(removals, operation="removal of rules of prefixes")

    def teardown_eni(self, eni: Eni, *, remaining: Iterable[Eni] = ()) -> None:
        routing.refuse_kernel_table(eni)
        with self._lock, self._host.netlink() as sock:
            removals = routing.removals(sock, eni, remaining=tuple(remaining), family=self._config.family)
            sock.carry_out(removals, operation=f"teardown of {eni.eni_id}")

    def reconcile(
        self,
        *,
        identity: InstanceIdentity,
        enis: Iterable[Eni],
        addresses: Container[IpAddress] = (),
        backed_off: Collection[RepairedObject] = (),
        is_silent: bool = False,
    ) -> list[RepairReport]:
        """Repair what other software on the node removed or changed.

        Returns: one report per repair, and one per part that could not be repaired. The repair of the other parts continues after a
            failure.
        Raises: KernelDumpError; WiringError if the primary ENI's link is missing.
        """
        secondary = self._secondary(enis)
        with self._lock:
            with self._host.netlink() as sock:
                host_state = self.state_reader.read(
                    sock, [identity.primary_mac, *(eni.mac for eni in secondary)], is_silent=is_silent
                )
            reports = list[RepairReport]()
            for eni in secondary:
                reports += self._repair_eni_if_present(host_state, eni, backed_off)
            repaired, refusals = self._repair_node(host_state, identity, addresses, backed_off)
            try:
                repaired += self._repair_source_tree(host_state, secondary, backed_off)
            except WiringError as exc:
                refusals.append(exc)
            self._last_findings = tuple(self._inspect_other_software(addresses))
            unrepaired = [
                *self._without_carrier(host_state, identity, secondary),
                *self._foreign_differences(host_state, identity, secondary, addresses),
            ]
        causes = [*map(str, refusals), *(difference.advised_text for difference in unrepaired)]
        return [*reports, *repaired, *(RepairReport(RepairCode.REFUSED, NODE_ROUTING, cause=cause) for cause in causes)]

    def _repair_source_tree(
        self, host_state: HostState, secondary: Collection[Eni], backed_off: Collection[RepairedObject]
    ) -> list[RepairReport]:
        """Repair the `goto` rules that lead to buckets of rules (`source_tree`). Raises: WiringError.

        Returns: a report for each change that other software made necessary. Changes that follow from a decision of the daemon are
            made too, and not reported.
        """
        if self._config.family is not IPV4:
            return []
        changes = self._tree.changes(host_state.rules, [eni.subnet_cidr for eni in secondary])
        self._carry_out(changes.silent, subject=NODE, backed_off=())
        reports = self._carry_out(changes.repairs, subject=NODE, backed_off=backed_off)
        self._tree.record_made(changes)
        return reports

    def _repair_eni_if_present(
        self, host_state: HostState, eni: Eni, backed_off: Collection[RepairedObject]
    ) -> list[RepairReport]:
        """Repair the routing of one ENI. A refusal becomes a report, so that the other ENIs are repaired too."""
        link = host_state.links.get(eni.mac)
        if link is None:
            eni_link = RepairedObject(RepairKind.LINK, eni.eni_id)
            return [RepairReport(RepairCode.ENI_LINK_MISSING, eni_link, eni.mac, owner=eni.eni_id)]
        try:
            return self._repair_eni(host_state, eni, link, backed_off)
        except WiringError as exc:
            routing_of_eni = RepairedObject(RepairKind.ROUTE, eni.eni_id)
            return [RepairReport(RepairCode.ENI_REFUSED, routing_of_eni, owner=eni.eni_id, cause=str(exc))]

    def _secondary(self, enis: Iterable[Eni]) -> list[Eni]:
        """Return the ENIs that need routing of their own: for IPv4 all but the primary one.

        For IPv6 these are only the ENI that has the node's /80, and the ENIs that we created.
        """
        secondary = [eni for eni in enis if not eni.is_primary]
        if self._config.family is IPV4:
            return secondary
        enis_with_prefix = self._prefixes().values()
        return [eni for eni in secondary if eni.created_by_us or eni.eni_id in enis_with_prefix]

    def reconcile_table(self, *, identity: InstanceIdentity) -> list[RepairReport]:
        with self._lock:
            if self._table_inputs:
                return self._repair_table(identity, self._table_inputs)
            return []

    def _repair_table(self, identity: InstanceIdentity, inputs: tuple[str, ruleset.FormerSettings]) -> list[RepairReport]:
        self._table_inputs = inputs
        with self._pod_snat.lock:
            commands = self._commands(identity, *inputs)
            reports, refused = self._table.repair(commands)
            if ruleset.SNAT not in refused:
                self._pod_snat.record_written()
        for refusal in self._needed_refusals(refused, commands):
            raise refusal
        return reports

    def differences(
        self, *, identity: InstanceIdentity | None, enis: Iterable[Eni], addresses: Container[IpAddress] = ()
    ) -> list[RoutingDifference]:
        """Run the comparisons of `reconcile` without changing anything. Without `identity` only ENIs are compared.

        Concurrency: takes the lock, so that a setup in progress is not reported.
        """
        secondary = self._secondary(enis)
        macs = [eni.mac for eni in secondary] + ([identity.primary_mac] if identity else [])
        with self._lock:
            with self._host.netlink() as sock:
                host_state = self.state_reader.read(sock, macs)
            differences: list[RoutingDifference] = []
            for eni in secondary:
                differences += self._eni_differences(host_state, eni)
            differences += self._without_carrier(host_state, identity, secondary)
            if identity is None:
                return differences
            differences += self._node_differences(host_state, identity, addresses)
            differences += self._source_tree_differences(host_state, secondary)
            return differences + self._foreign_differences(host_state, identity, secondary, addresses)

    def _without_carrier(
        self, host_state: HostState, identity: InstanceIdentity | None, secondary: Iterable[Eni]
    ) -> list[RoutingDifference]:
        """Report the ENIs whose links have had no carrier for a while."""
        macs = {eni.eni_id: eni.mac for eni in secondary}
        if identity is not None:
            macs[identity.primary_eni_id] = identity.primary_mac
        links = {eni_id: host_state.links[mac] for eni_id, mac in macs.items() if mac in host_state.links}
        return self._carriers.links_without_carrier(links)

    def reachability_problems(self, specs: Sequence[WiringSpec], *, enis: Collection[Eni]) -> list[RoutingDifference]:
        with self._host.netlink() as sock:  # without the lock, because this only reads
            links = self.state_reader.links(sock, (eni.mac for eni in enis))
            family = self._config.family
            eni_links_by_table: dict[int, tuple[answers.Link, IpAddress]] = {}
            for eni in enis:
                if eni.mac not in links or not (eni.is_primary or self._secondary([eni])):
                    continue
                # The IPv6 router has a link-local address, which needs no route, so an address outside (`Family.outside`) stands for
                # it.
                router = gateway(eni.subnet_cidr) if family is IPV4 else family.outside
                eni_links_by_table[eni.route_table] = links[eni.mac], router
            mark = self._config.connmark if ruleset.needs_mark(self._config) else 0
            return list(reachability.unreachable(sock, specs, eni_links_by_table, wirings=self._wirings, mark=mark))

    def _eni_differences(self, host_state: HostState, eni: Eni) -> list[RoutingDifference]:
        try:
            routing.refuse_kernel_table(eni)
        except WiringError as exc:
            return [routing_difference(DifferenceCode.NOT_COMPARED, eni.eni_id, cause=exc)]
        link = host_state.links.get(eni.mac)
        if link is None:
            return [routing_difference(DifferenceCode.ENI_LINK_MISSING, eni.eni_id, mac=eni.mac)]
        differences: list[RoutingDifference] = []
        for repairs in self._eni_repairs(host_state, eni, link):
            for repair in repairs:
                differences.append(repair_difference(repair.report(eni.eni_id), eni.eni_id))
        return differences

    def _source_tree_differences(self, host_state: HostState, secondary: Iterable[Eni]) -> list[RoutingDifference]:
        if self._config.family is not IPV4:
            return []
        repairs = self._tree.changes(host_state.rules, [eni.subnet_cidr for eni in secondary]).repairs
        return [repair_difference(repair.report(NODE), NODE) for repair in repairs]

    def _node_differences(
        self, host_state: HostState, identity: InstanceIdentity, addresses: Container[IpAddress]
    ) -> list[RoutingDifference]:
        link = host_state.links.get(identity.primary_mac)
        if link is None:
            return [routing_difference(DifferenceCode.ENI_LINK_MISSING, identity.primary_eni_id, mac=identity.primary_mac)]
        differences = []
        if not link.is_up:
            differences.append(routing_difference(DifferenceCode.ENI_LINK_DOWN, identity.primary_eni_id, link=link.name))
        for _, repairs in self._node_repairs(host_state, identity, link, addresses):
            try:
                differences += [repair_difference(repair.report(NODE), NODE) for repair in repairs]
            except WiringError as exc:
                differences.append(routing_difference(DifferenceCode.NOT_COMPARED, NODE, cause=exc))
        differences += self._inspect_other_software(addresses)
        former = self._former_settings(host_state)
        with self._pod_snat.lock:
            commands = self._commands(identity, link.name, former)
            reports, refused = self._table.differences(commands)
        differences += [repair_difference(report, NODE) for report in reports]
        refusals = self._needed_refusals(refused, commands)
        return differences + [routing_difference(DifferenceCode.NOT_COMPARED, NODE, cause=refusal) for refusal in refusals]

    def _foreign_differences(
        self, host_state: HostState, identity: InstanceIdentity, secondary: Iterable[Eni], addresses: Container[IpAddress]
    ) -> list[RoutingDifference]:
        with self._host.netlink() as sock:
            return foreign_routing.foreign_differences(
                sock,
                host_state,
                identity=identity,
                secondary=[eni.mac for eni in secondary],
                addresses=addresses,
                family=self._config.family,
            )

    def _repair_node(
        self,
        host_state: HostState,
        identity: InstanceIdentity,
        addresses: Container[IpAddress] = (),
        backed_off: Collection[RepairedObject] = (),
    ) -> tuple[list[RepairReport], list[WiringError]]:
        """Repair the routing and settings that belong to the node and not to one ENI. Every comparison is tried even if another one
        fails: for example, SNAT is repaired even if a sysctl is read-only.

        Returns: one report for each repair, and the errors of the repairs that the kernel refused.
        Raises: WiringError if the primary ENI's link is missing.
        """
        link = host_state.links.get(identity.primary_mac)
        if link is None:
            raise failure(WiringError, FailureCode.NO_PRIMARY_LINK, mac=identity.primary_mac)
        reports: list[RepairReport] = []
        refusals: list[WiringError] = []
        former = self._former_settings(host_state)
        unused = [mark for mark in former.marks if not self._is_in_use(mark)]
        parts = self._node_repairs(host_state, identity, link, addresses)
        for subject, repairs in (*parts, (NODE, node_routing.mark_removals(unused))):
            try:
                reports += self._carry_out(repairs, subject=subject, backed_off=backed_off)
            except WiringError as exc:
                refusals.append(exc)
        try:
            former = replace(former, marks=tuple(mark for mark in former.marks if mark not in unused))
            reports += self._repair_table(identity, (link.name, former))
        except WiringError as exc:
            refusals.append(exc)
        return reports, refusals

    def _node_repairs(
        self, host_state: HostState, identity: InstanceIdentity, link: answers.Link, addresses: Container[IpAddress]
    ) -> tuple[tuple[str, Iterator[Repair]], ...]:
        """Return all comparisons of the node except that of its nftables table, each with the subject of its repairs.

        Raises: WiringError, also while a comparison is iterated.
        """
        self._primary_name = link.name
        _, *extra_families = self._families()
        self._extra_range = next(((family, self._own_address(identity, link, family)) for family in extra_families), None)
        families = self._config.family, self.extra_family()[0]
        sysctls = sysctls_module.wanted_sysctls(families, link.name, early_demux_disabled=self._config.early_demux_disabled)
        return (
            (NODE, sysctls_module.setting_repairs(link, devconf.PRIMARY_ENI)),
            (NODE, sysctls_module.sysctl_repairs(self._host, sysctls)),
            (identity.primary_eni_id, foreign_routing.pod_address_repairs(host_state, identity, link, addresses)),
            (NODE, node_routing.node_repairs(link, host_state.rules, self._config)),
            (NODE, node_routing.strict_repairs(host_state.rules, self._config, self._confinement.has_strict())),
            (NODE, sysctls_module.unreachable_route_repairs(host_state, self._prefixes())),
            (NODE, self._static_default_route_repairs(host_state, link)),
        )

    def _static_default_route_repairs(self, host_state: HostState, link: answers.Link) -> Iterator[Repair]:
        """Compare the second IPv6 default route, which the node needs only if its sandboxes have IPv6."""
        if self._config.family is IPV6:
            yield from static_default_route.repairs(host_state.routes, link)
        elif self.extra_family()[0] is IPV6:
            with self._host.netlink() as sock:
                routes = survey.routes_of(sock, table=uapi.RT_TABLE_MAIN, index=link.index, family=IPV6)
            yield from static_default_route.repairs(routes, link)

    def _former_settings(self, host_state: HostState) -> ruleset.FormerSettings:
        """Return earlier settings that sandboxes or connections may still use.

        A former veth prefix stays among them until the next start. Otherwise audit and CHECK would report a difference of the table
        after the last DEL of a sandbox with that prefix.
        """
        for attachment in self._attachments():
            if not attachment.host_veth.startswith(self._config.veth_prefix):
                self._former_names.add(attachment.host_veth)
        return node_routing.former_settings(host_state.rules, self._former_names, self._config)

    def _is_in_use(self, mark: int) -> bool:
        """Whether an open connection needs the rule of a former mark; true if the kernel does not answer (I11)."""
        current = self._config.connmark
        sock = self._host.open_netlink(protocol=uapi.NETLINK_NETFILTER)
        try:
            # If the current mark contains the bits of the former mark, every new connection has these bits too, but does not need the
            # former rule. A new connection also has the other bits of the current mark, so connections with those other bits are left
            # out.
            without = 0
            if mark & current == mark:
                without = current & ~mark
            return sock.has_any(messages.dump_connections(mark, without=without))
        except WiringError:
            return True
        finally:
            sock.close()

    def _own_address(self, identity: InstanceIdentity, link: answers.Link, family: Family) -> IpAddress | None:
        """Return the address with which packets of sandboxes leave the node in the family of extra legs.

        None if the family is IPv6 and the primary ENI's link has no global address.
        """
        if family is IPV4:
            return identity.primary_address
        with self._host.netlink() as sock:
            return foreign_routing.global_address(sock, link, family)

    def _needed_refusals(self, refused: Mapping[NftTable, WiringError], commands: Mapping[NftTable, str]) -> list[WiringError]:
        """Return the refusals of tables that are needed. A kernel may lack the family of a table that is not needed."""
        has_extra_legs = self.extra_family()[0] is not None
        needed = list[WiringError]()
        for table, refusal in refused.items():
            is_removed = commands[table] == table.removal()
            if table == ruleset.SNAT or (has_extra_legs and not is_removed):
                needed.append(refusal)
        return needed

    def _commands(self, identity: InstanceIdentity, primary_link: str, former: ruleset.FormerSettings) -> dict[NftTable, str]:
        """Return the commands that make the tables for translation and marks as this node needs them.

        The caller holds the lock of `PodSnatSets`.
        """
        commands = {table: table.removal() for table in local_range_ruleset.TABLES.values()}
        if self._extra_range:
            family, source = self._extra_range
            commands[local_range_ruleset.TABLES[family]] = local_range_ruleset.range_table(self._config, family, source=source)
        commands[ruleset.SNAT] = ruleset.replace_table(
            self._config,
            vpc_cidrs=tuple(identity.vpc_cidrs),
            primary_address=identity.primary_address,
            primary_link=primary_link,
            former=former,
            choices=self._pod_snat.wanted(),
        )
        return commands

    def _inspect_other_software(self, addresses: Container[IpAddress]) -> list[RoutingDifference]:
        """Return the rules and filters of other software that change or may drop forwarded traffic.

        If nftables cannot be read, the last findings are returned (I11). The repair of our own table reports that failure.
        """
        try:
            return self._other_software.find(addresses, self._confinement.has_strict())
        except (WiringError, KernelDumpError):
            return list(self._last_findings)

    def _repair_eni(
        self, host_state: HostState, eni: Eni, link: answers.Link, backed_off: Collection[RepairedObject] = ()
    ) -> list[RepairReport]:
        routing.refuse_kernel_table(eni)
        reports: list[RepairReport] = []
        for step in range(ENI_STEPS):
            repaired = self._carry_out(self._eni_repairs(host_state, eni, link)[step], subject=eni.eni_id, backed_off=backed_off)
            reports += repaired
            if repaired:
                # Routes need the link up, and an address changes routes: read the host again for the next comparison.
                with self._host.netlink() as sock:
                    host_state = self.state_reader.read(sock, host_state.links)
        return reports

    def _eni_repairs(self, host_state: HostState, eni: Eni, link: answers.Link) -> tuple[Iterator[Repair], ...]:
        """Return the ENI_STEPS comparisons of one ENI in the order of their repair.

        Addresses and rules are compared only for IPv4: with IPv6 the link has no address of its own.
        """
        is_ipv4 = self._config.family is IPV4
        return (
            sysctls_module.setting_repairs(link, devconf.ENI),
            routing.link_repairs(eni, link, mtu=self._config.eni_mtu),
            routing.address_repairs(host_state, eni, link) if is_ipv4 else iter(()),
            routing.table_repairs(host_state, eni, link, router=gateway(eni.subnet_cidr) if is_ipv4 else IPV6_GATEWAY),
            routing.rule_repairs(host_state, eni) if is_ipv4 else iter(()),
        )

    def _carry_out(
        self, repairs: Iterable[Repair], *, subject: str, backed_off: Collection[RepairedObject]
    ) -> list[RepairReport]:
        """Make repairs and report them; repairs of objects in `backed_off` are left out.

        Raises: WiringError for the first repair that is refused.
        """
        allowed = [repair for repair in repairs if RepairedObject(repair.kind, subject) not in backed_off]
        if allowed:
            self.state_reader.forget()
        for repair in allowed:
            if repair.sysctl is not None:
                key, value = repair.sysctl
                with self._host.entered():
                    sysctls_module.sysctl(key, wanted=value, is_set=True)
        operation = f"setup of {'the node' if subject == NODE else subject}"
        with self._host.netlink() as sock:
            sock.carry_out([repair.change for repair in allowed if repair.change is not None], operation=operation)
        return [repair.report(subject) for repair in allowed]


def _directly_routed(routes: Iterable[UplinkRoute], veths: Container[str]) -> list[tuple[IpAddress, str]]:
    """Return address and host veth of each sandbox that has a direct route in the table of an uplink."""
    sandboxes = list[tuple[IpAddress, str]]()
    for route in routes:
        is_direct = route.device in veths and route.via is None and route.table != STRICT_TABLE
        if is_direct and isinstance(route.destination, IpAddress):
            sandboxes.append((route.destination, route.device))
    return sandboxes
