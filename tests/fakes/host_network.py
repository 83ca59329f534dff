"""The node's own routing as lists: what was set up, what was announced, what others took."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence

from ipamd.model.attachment import WiringSpec
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import IpamError
from ipamd.model.family import Family, IpAddress, IpNetwork
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import (
    NODE,
    TRANSLATION,
    ForeignLink,
    HostChange,
    LinkEvent,
    LinkEventKind,
    Repaired,
    RepairedObject,
    RepairKind,
    RoutingDifference,
)


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
        self.confine_refusals: list[str] = []
        self.dropped: dict[str, int] = {}
        self.has_extra_sources = False
        self.confine_count = 0
        self.is_table_lost = False
        self.table_count = 0
        self.left_chains = ""
        self.filters = frozenset[str]()
        self.left_egress: Collection[str] | None = ()
        self.led_astray: set[IpAddress] = set()
        self.asked: list[IpAddress] = []
        self.egress_family: Family | None = None
        self.egress_problem = ""

    def setup_node(self, identity: InstanceIdentity) -> None:
        """See the port."""
        self.nodes.append(identity)

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[str]:
        """See the port: refused for as long as a test has a sentence in `confine_refusals`."""
        self.confine_count += not is_silent  # looks at all veths
        if self.confine_refusals:
            return list(self.confine_refusals)
        was, self.is_confined = self.is_confined, True
        return [] if was else ["nftables table was missing: added"]

    def release(self) -> str:
        """See the port: there is no table here."""
        return ""

    def confinement_differences(self) -> list[RoutingDifference]:
        """See the port."""
        return [] if self.is_confined else [RoutingDifference(NODE, "nftables table was missing", not self.confine_refusals)]

    def are_tables_in_place(self) -> bool | None:
        """See the port: a refusal, or a failure that a test planned, makes it unknown."""
        if self.confine_refusals or self.fail.get("reconcile_table"):
            return None
        return self.is_confined and not self.is_table_lost

    def is_source_checked(self) -> bool:
        """See the port."""
        return self.is_confined and not self.has_extra_sources

    def egress(self) -> tuple[Family | None, str]:
        """See the port: what a test put there."""
        return self.egress_family, self.egress_problem

    def dropped_packets(self) -> Mapping[str, int]:
        """See the port: what a test put into `dropped`."""
        return self.dropped

    def filtered(self) -> frozenset[str]:
        """See the port: what a test put there."""
        return self.filters

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

    def answer_for(self, prefixes: Iterable[IpNetwork]) -> None:
        """See the port: they are noted."""
        if self.fail.get("answer_for"):
            raise self.fail["answer_for"].pop(0)
        self.answered.update(prefixes)

    def remove_prefix_rules(self, is_needless: Callable[[IpNetwork, int], bool]) -> None:
        """See the port: of those in `prefix_rules`."""
        if self.fail.get("remove_prefix_rules"):
            raise self.fail["remove_prefix_rules"].pop(0)
        self.prefix_rules = [one for one in self.prefix_rules if not is_needless(*one)]

    def teardown_eni(self, eni: Eni, *, keep: Iterable[Eni] = ()) -> None:
        """See the port."""
        self.enis.pop(eni.eni_id, None)

    def reconcile(
        self,
        *,
        identity: InstanceIdentity,
        enis: Iterable[Eni],
        addresses: Container[IpAddress] = (),
        held: Collection[RepairedObject] = (),
        is_silent: bool = False,
    ) -> list[str]:
        """See the port."""
        missing = [eni for eni in enis if not eni.is_primary and eni.eni_id not in self.enis]
        repairs: list[str] = []
        for eni in missing:
            thing = RepairedObject(RepairKind.RULE, eni.eni_id)
            if thing not in held:
                self.enis[eni.eni_id] = eni
                repairs.append(Repaired(f"routing of {eni.eni_id} was missing: set up", thing))
        return repairs + self.reconcile_table(identity=identity)

    def reconcile_table(self, *, identity: InstanceIdentity) -> list[str]:
        """See the port: `is_table_lost` says that the table is not there."""
        self.table_count += 1
        if self.fail.get("reconcile_table"):
            raise self.fail["reconcile_table"].pop(0)
        if not self.is_table_lost:
            return []
        self.is_table_lost = False
        return [Repaired("nftables table was missing: added", TRANSLATION)]

    def way_differences(self, specs: Sequence[WiringSpec], *, enis: Collection[Eni]) -> list[RoutingDifference]:
        """See the port: of the addresses that a test put into `led_astray`; what was asked is in `asked`."""
        del enis
        self.asked += [one.address for one in specs]
        return [
            RoutingDifference(str(one), f"packets to {one} go by lo", is_repaired=False, mend="ip rule")
            for one in self.led_astray
            if one in self.asked
        ]

    def remove_left_chains(self, *, egress: Collection[str] | None) -> str:
        """See the port: what a test put into `left_chains`; for whose egress goes into `left_egress`."""
        self.left_egress = egress
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
                found.append(RoutingDifference(eni.eni_id, f"its link with MAC {eni.mac} is missing", is_repaired=False))
            elif not eni.is_primary and eni.eni_id not in self.enis:
                found.append(RoutingDifference(eni.eni_id, "its routing was missing"))
        return found + (self.node_differences if identity is not None else [])
