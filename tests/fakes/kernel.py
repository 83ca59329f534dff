"""The kernel as dictionaries: wired links, dying links, and the namespaces that exist."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from ipaddress import IPv4Address

from ipamd.model.attachment import NetnsIdentity, Wired, WiringSpec, decode_alias, sandbox_mac
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import MAIN_TABLE, Eni
from ipamd.model.errors import IpamError, NetnsError
from ipamd.model.ids import MacAddress
from ipamd.model.kernel import NODE, HostVeth, KernelSurvey, LinkEvent, LinkEventKind, RoutingDifference


class FakeWiring:
    """Implements `Wiring`. `fail[method]` is raised by that method, once per entry; `before_wire` runs inside `wire`."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.netns: dict[str, NetnsIdentity] = {}
        self.wired: dict[str, WiringSpec] = {}
        self.routes: dict[IPv4Address, str] = {}
        self.rules: dict[IPv4Address, int] = {}
        self.dying: dict[str, IPv4Address] = {}
        self.fail: dict[str, list[IpamError]] = {}
        self.before_wire: Callable[[WiringSpec], None] = lambda spec: None

    def make_netns(self, path: str) -> str:
        """A namespace comes to be at `path`."""
        self.netns[path] = NetnsIdentity(4, 1000 + len(self.netns))
        return path

    def identify_netns(self, path: str) -> NetnsIdentity:
        """See the port."""
        self._maybe_fail("identify_netns")
        try:
            return self.netns[path]
        except KeyError:
            raise NetnsError(f"netns {path} does not exist") from None

    def wire(self, spec: WiringSpec) -> Wired:
        """See the port."""
        self.before_wire(spec)
        self._maybe_fail("wire")
        identity = self.identify_netns(spec.netns)
        with self.lock:
            self.wired[spec.host_veth] = spec
            self.routes[spec.address] = spec.host_veth
            self.rules[spec.address] = spec.route_table
        return Wired(sandbox_mac(spec.key, side="host"), sandbox_mac(spec.key, side="sandbox"), identity)

    def unwire(self, spec: WiringSpec) -> None:
        """See the port."""
        self._maybe_fail("unwire")
        with self.lock:
            self._drop(spec.host_veth, spec.address)

    def mark_for_deletion(self, *, host_veth: str, address: IPv4Address, route_table: int) -> None:
        """See the port."""
        self._maybe_fail("mark_for_deletion")
        with self.lock:
            if self.wired.pop(host_veth, None) is not None:
                self.dying[host_veth] = address
            self.routes.pop(address, None)
            self.rules.pop(address, None)

    def sweep(self) -> None:
        """See the port."""
        self._maybe_fail("sweep")
        with self.lock:
            self.dying.clear()

    def check(self, spec: WiringSpec) -> list[str]:
        """See the port."""
        held = self.wired.get(spec.host_veth)
        return [] if held is not None and held.address == spec.address else [f"host veth {spec.host_veth} is missing"]

    def repair(self, specs: Iterable[WiringSpec]) -> list[str]:
        """See the port."""
        said = []
        with self.lock:
            for spec in specs:
                if spec.host_veth not in self.wired:
                    said.append(f"host link {spec.host_veth} of {spec.key} is missing: not repaired")
                elif spec.address not in self.routes:
                    self.routes[spec.address] = spec.host_veth
                    self.rules[spec.address] = spec.route_table
                    said.append(f"route to {spec.address} was missing: added")
                elif self.rules.get(spec.address) != spec.route_table:
                    self.rules[spec.address] = spec.route_table
                    said.append(f"rule from {spec.address} lookup {spec.route_table} was missing: added")
        return said

    def survey(self) -> KernelSurvey:
        """See the port."""
        self._maybe_fail("survey")
        with self.lock:
            live = [(name, spec.alias, spec.address, False) for name, spec in self.wired.items()]
            dead = [(name, "", address, True) for name, address in self.dying.items()]
            veths = []
            from_rules = {address: (table,) for address, table in self.rules.items() if table != MAIN_TABLE}
            for index, (name, alias, address, is_dying) in enumerate(live + dead, start=1):
                key = decode_alias(alias)
                veths.append(HostVeth(name, index, alias, is_dying, not is_dying, key[0] if key else None, address))
            return KernelSurvey(tuple(veths), dict(self.routes), frozenset(self.rules), from_rules)

    def remove_leftover(self, *, host_veth: str | None, address: IPv4Address | None) -> None:
        """See the port."""
        self._maybe_fail("remove_leftover")
        with self.lock:
            if host_veth is not None and host_veth in self.wired:
                named = self.wired[host_veth].address
                address = address or (named if self.routes.get(named, host_veth) == host_veth else None)
            self._drop(host_veth, address)

    def _drop(self, host_veth: str | None, address: IPv4Address | None) -> None:
        self.wired.pop(host_veth or "", None)
        self.dying.pop(host_veth or "", None)
        if address is not None:
            self.routes.pop(address, None)
            self.rules.pop(address, None)

    def _maybe_fail(self, method: str) -> None:
        if self.fail.get(method):
            raise self.fail[method].pop(0)


class FakeHostNetwork:
    """Implements `HostNetwork`; remembers what was set up. The links are those of `plugged`, less those in `unplugged`."""

    def __init__(self, plugged: Callable[[], Iterable[MacAddress]] = tuple) -> None:
        self.plugged = plugged
        self.unplugged: set[MacAddress] = set()
        self.events: queue.Queue[LinkEvent | None] = queue.Queue()
        self.enis: dict[str, Eni] = {}
        self.nodes: list[InstanceIdentity] = []
        self.fail: dict[str, list[IpamError]] = {}
        self.node_differences: list[RoutingDifference] = []
        self.is_confined = True
        self.confine_refusals: list[str] = []
        self.dropped: dict[str, int] = {}

    def setup_node(self, identity: InstanceIdentity) -> None:
        """See the port."""
        self.nodes.append(identity)

    def confine_sandboxes(self) -> list[str]:
        """See the port: refused for as long as a test has a sentence in `confine_refusals`."""
        if self.confine_refusals:
            return list(self.confine_refusals)
        was, self.is_confined = self.is_confined, True
        return [] if was else ["nftables table was missing: added"]

    def confinement_differences(self) -> list[RoutingDifference]:
        """See the port."""
        return [] if self.is_confined else [RoutingDifference(NODE, "nftables table was missing", not self.confine_refusals)]

    def is_source_checked(self) -> bool:
        """See the port."""
        return self.is_confined

    def dropped_packets(self) -> Mapping[str, int]:
        """See the port: what a test put into `dropped`."""
        return self.dropped

    def await_link(self, mac: MacAddress) -> None:
        """See the port: links appear at once here."""

    def setup_eni(self, eni: Eni) -> None:
        """See the port."""
        if self.fail.get("setup_eni"):
            raise self.fail["setup_eni"].pop(0)
        self.enis[eni.eni_id] = eni

    def teardown_eni(self, eni: Eni, *, keep: Iterable[Eni] = ()) -> None:
        """See the port."""
        self.enis.pop(eni.eni_id, None)

    def reconcile(self, *, identity: InstanceIdentity, enis: Iterable[Eni]) -> list[str]:
        """See the port."""
        missing = [eni for eni in enis if not eni.is_primary and eni.eni_id not in self.enis]
        for eni in missing:
            self.enis[eni.eni_id] = eni
        return [f"routing of {eni.eni_id} was missing: set up" for eni in missing]

    def links(self) -> frozenset[MacAddress]:
        """See the port."""
        if self.fail.get("links"):
            raise self.fail["links"].pop(0)
        return frozenset(self.plugged()) - self.unplugged

    def link_events(self) -> Iterator[LinkEvent]:
        """See the port: what a test puts into `events`, until None."""
        yield LinkEvent(LinkEventKind.OPENED)
        while (event := self.events.get()) is not None:
            yield event

    def stop_link_events(self) -> None:
        """See the port."""
        self.events.put(None)

    def differences(self, *, identity: InstanceIdentity | None, enis: Iterable[Eni]) -> list[RoutingDifference]:
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
