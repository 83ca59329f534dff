"""The node's own routing as lists: what was set up, what was announced, what others took."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

from ipamd.model.attachment import WiringSpec
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import Eni
from ipamd.model.errors import IpamError
from ipamd.model.family import Family, IpAddress, IpNetwork
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import ForeignLink, HostChange, LinkEvent, LinkEventKind
from ipamd.model.repairs import CONFINEMENT, NODE, TRANSLATION, RepairCode, RepairedObject, RepairKind, RepairReport
from ipamd.model.routing_difference import RoutingDifference, repair_difference, routing_difference


class FakeHostNetwork:
    """Implements `HostNetwork`; remembers what was set up. The links are those of `plugged`, less those in `unplugged`."""

    def __init__(self, plugged: Callable[[], Iterable[MacAddress]] = tuple) -> None:
        self.plugged = plugged
        self.unplugged: set[MacAddress] = set()
        self.events: queue.Queue[LinkEvent | HostChange | None] = queue.Queue()
        self.enis: dict[str, Eni] = {}
        self.prefix_rules: list[tuple[IpNetwork, int]] = []
        self.answered = set[IpNetwork]()
        self.nodes: list[InstanceIdentity] = []
        self.fail: dict[str, list[IpamError]] = {}
        self.node_differences: list[RoutingDifference] = []
        self.is_confined = True
        self.confine_refusals: list[RepairReport] = []
        self.dropped: dict[str, int] = {}
        self.has_extra_sources = False
        self.confine_count = 0
        self.is_table_lost = False
        self.software_now: list[RoutingDifference] = []
        self.software_findings: tuple[RoutingDifference, ...] = ()
        self.table_count = 0
        self.left_chains = ""
        self.left_names: Collection[str] | None = ()
        self.led_astray: set[IpAddress] = set()
        self.asked: list[IpAddress] = []
        self.egress_family: Family | None = None
        self.egress_problem = ""
        self.source_tree = False

    def choose_source_tree(self, is_chosen: bool) -> bool:
        """See the port."""
        was, self.source_tree = self.source_tree, is_chosen
        return was is not is_chosen

    def has_source_tree(self) -> bool:
        """See the port."""
        return self.source_tree

    def setup_node(self, identity: InstanceIdentity) -> None:
        """See the port."""
        self.nodes.append(identity)

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[RepairReport]:
        """See the port: refused for as long as a test has a report in `confine_refusals`."""
        self.confine_count += not is_silent  # looks at all veths
        if self.confine_refusals:
            return list(self.confine_refusals)
        was, self.is_confined = self.is_confined, True
        return [] if was else [RepairReport(RepairCode.ADDED, CONFINEMENT, "nftables table")]

    def allow_neighbour_discovery(self) -> list[RepairReport]:
        """See the port: there is no table here."""
        return []

    def confinement_differences(self) -> list[RoutingDifference]:
        """See the port."""
        if self.is_confined:
            return []
        if self.confine_refusals:
            return [routing_difference(DifferenceCode.NOT_COMPARED, NODE, cause="the table is refused")]
        return [repair_difference(RepairReport(RepairCode.ADDED, CONFINEMENT, "nftables table"), NODE)]

    def are_tables_in_place(self) -> bool | None:
        """See the port: a refusal, or a failure that a test planned, makes it unknown."""
        if self.confine_refusals or self.fail.get("reconcile_table"):
            return None
        return self.is_confined and not self.is_table_lost

    def is_source_checked(self) -> bool:
        """See the port."""
        return self.is_confined and not self.has_extra_sources

    def extra_family(self) -> tuple[Family | None, str]:
        """See the port: what a test put there."""
        return self.egress_family, self.egress_problem

    def dropped_packets(self) -> Mapping[str, int]:
        """See the port: what a test put into `dropped`."""
        return self.dropped

    def other_software(self) -> Sequence[RoutingDifference]:
        """See the port: what the last inspection found."""
        return self.software_findings

    def inspect_other_software(self, addresses: Container[IpAddress]) -> None:
        """See the port: finds what a test put into `software_now`."""
        self.software_findings = tuple(self.software_now)

    def foreign_links(self) -> Sequence[ForeignLink]:
        """See the port: there are none."""
        return ()

    def await_link(self, mac: MacAddress) -> None:
        """See the port: links appear at once here."""

    def setup_eni(self, eni: Eni) -> None:
        """See the port."""
        if self.fail.get("setup_eni"):
            raise self.fail["setup_eni"].pop(0)
        self.enis[eni.eni_id] = eni

    def setup_enis(self, enis: Collection[Eni]) -> Mapping[EniId, IpamError]:
        """See the port."""
        errors: dict[EniId, IpamError] = {}
        for eni in enis:
            try:
                self.setup_eni(eni)
            except IpamError as error:
                errors[eni.eni_id] = error
        return errors

    def reject_free_addresses(self, prefixes: Iterable[IpNetwork]) -> None:
        """See the port: they are noted."""
        if self.fail.get("reject_free_addresses"):
            raise self.fail["reject_free_addresses"].pop(0)
        self.answered.update(prefixes)

    def remove_prefix_rules(self, is_needless: Callable[[IpNetwork, int], bool]) -> None:
        """See the port: of those in `prefix_rules`."""
        if self.fail.get("remove_prefix_rules"):
            raise self.fail["remove_prefix_rules"].pop(0)
        self.prefix_rules = [one for one in self.prefix_rules if not is_needless(*one)]

    def teardown_eni(self, eni: Eni, *, remaining: Iterable[Eni] = ()) -> None:
        """See the port."""
        self.enis.pop(eni.eni_id, None)

    def reconcile(
        self,
        *,
        identity: InstanceIdentity,
        enis: Iterable[Eni],
        addresses: Container[IpAddress] = (),
        backed_off: Collection[RepairedObject] = (),
        is_silent: bool = False,
    ) -> list[RepairReport]:
        """See the port."""
        missing = [eni for eni in enis if not eni.is_primary and eni.eni_id not in self.enis]
        repairs: list[RepairReport] = []
        for eni in missing:
            thing = RepairedObject(RepairKind.RULE, eni.eni_id)
            if thing not in backed_off:
                self.enis[eni.eni_id] = eni
                repairs.append(RepairReport(RepairCode.ADDED, thing, f"routing of {eni.eni_id}"))
        return repairs + self.reconcile_table(identity=identity)

    def reconcile_table(self, *, identity: InstanceIdentity) -> list[RepairReport]:
        """See the port: `is_table_lost` says that the table is not there."""
        self.table_count += 1
        if self.fail.get("reconcile_table"):
            raise self.fail["reconcile_table"].pop(0)
        if not self.is_table_lost:
            return []
        self.is_table_lost = False
        return [RepairReport(RepairCode.ADDED, TRANSLATION, "nftables table")]

    def reachability_problems(self, specs: Sequence[WiringSpec], *, enis: Collection[Eni]) -> list[RoutingDifference]:
        """See the port: of the addresses that a test put into `led_astray`; what was asked is in `asked`."""
        del enis
        self.asked += [one.address for one in specs]
        return [
            routing_difference(DifferenceCode.PACKET_DIVERTED, one, address=one, link="eni", packet="a packet", table=7, ip="ip")
            for one in self.led_astray
            if one in self.asked
        ]

    def remove_left_chains(self, names: Collection[str] | None) -> str:
        """See the port: what a test put into `left_chains`; the names go into `left_names`."""
        self.left_names = names
        removed, self.left_chains = self.left_chains, ""
        return removed

    def links(self, macs: Iterable[MacAddress] | None = None) -> frozenset[MacAddress]:
        """See the port."""
        if self.fail.get("links"):
            raise self.fail["links"].pop(0)
        present = frozenset(self.plugged()) - self.unplugged
        return present if macs is None else present.intersection(macs)

    def host_events(self) -> Iterator[LinkEvent | HostChange]:
        """See the port: what a test puts into `events`, until None."""
        yield LinkEvent(LinkEventKind.OPENED)
        while (event := self.events.get()) is not None:
            yield event

    def stop_host_events(self) -> None:
        """See the port."""
        self.events.put(None)

    def differences(
        self, *, identity: InstanceIdentity | None, enis: Iterable[Eni], addresses: Container[IpAddress] = ()
    ) -> list[RoutingDifference]:
        """See the port: an ENI that was not set up, or whose link is unplugged; and what a test put into `node_differences`."""
        if self.fail.get("differences"):
            raise self.fail["differences"].pop(0)
        found = []
        for eni in enis:
            if eni.mac in self.unplugged:
                found.append(routing_difference(DifferenceCode.ENI_LINK_MISSING, eni.eni_id, mac=eni.mac))
            elif not eni.is_primary and eni.eni_id not in self.enis:
                routing = RepairedObject(RepairKind.ROUTE, eni.eni_id)
                report = RepairReport(RepairCode.ADDED, routing, f"routing of {eni.eni_id}")
                found.append(repair_difference(report, eni.eni_id))
        return found + (self.node_differences if identity is not None else [])
