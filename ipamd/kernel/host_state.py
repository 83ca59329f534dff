"""Read the host's addresses, routes, rules and ENI links once for the comparisons of all ENIs and of the node.

Addresses, routes and rules take one dump each, whatever the number of ENIs is. The link of each ENI is requested by its last known
name. All links, also those of sandboxes, are dumped only if an ENI's link is not found by that name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from ipamd.kernel import answers, messages, survey
from ipamd.kernel.eni_links import is_hardware, lowest_by_mac
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model.family import Family
from ipamd.model.ids import MacAddress
from ipamd.model.legs.leg import SHARED_TABLES
from ipamd.model.record import dataclass, replace


@dataclass(frozen=True, slots=True)
class HostState:
    """Links of ENIs, and the host's addresses, routes and rules of the pool's family, at one time.

    `links`: the link of each ENI whose link exists, by MAC.
    `addresses`: the addresses of all links.
    `routes`: the routes of all tables, except the routes to single sandboxes.
    `rules`: all policy rules. Rules that were removed while they were read may be among them (`survey.rules_of`).
    `tables`: numbers of the tables that these routes are in or that these rules lead to.
    """

    links: Mapping[MacAddress, answers.Link]
    addresses: list[answers.InterfaceAddress]
    routes: list[answers.Route]
    rules: list[answers.PolicyRule]
    tables: set[int]


class HostStateReader:
    """Reads the state of the host, and remembers the links of ENIs from the last reading.

    Concurrency: `read` under the lock of `KernelHostNetwork`; the other methods from any thread, because the remembered links are
    replaced as a whole. A link that is gone or was renamed costs a dump of all links.
    """

    def __init__(self, *, veth_prefix: str, family: Family) -> None:
        self._veth_prefix = veth_prefix
        self._family = family
        self._last_links: dict[MacAddress, answers.Link] = {}
        self._has_hardware = False  # whether the last dump of links showed a hardware link
        self._last: HostState | None = None

    def read(self, sock: NetlinkSocket, macs: Iterable[MacAddress], *, is_silent: bool = False) -> HostState:
        """Read the state of the host once. Raises: KernelDumpError if a dump was interrupted in every attempt (I11); WiringError.

        Args:
            is_silent: the kernel announced no change of an address, route or rule since the last reading. Then only the links are
                read, because the kernel does not announce changes of their settings.
        """
        if is_silent and self._last is not None:
            return replace(self._last, links=self.links(sock, macs))
        self._last = None  # if this reading fails, the next one must be complete
        # No comparison needs the routes to single sandboxes, but each comparison of an ENI would search hundreds of them.
        routes = [route for route in survey.routes_of(sock, family=self._family) if not _leads_to_sandbox(route)]
        rules = survey.rules_of(sock, self._family)
        self._last = HostState(
            links=self.links(sock, macs),
            addresses=[answers.read_address(body) for body in sock.dump(messages.dump_addresses(self._family))],
            routes=routes,
            rules=rules,
            tables={route.table for route in routes} | {rule.table for rule in rules},
        )
        return self._last

    def forget(self) -> None:
        """Make the next reading complete. To be called before our own changes, whose announcements are ignored (`host_events`)."""
        self._last = None

    def links(self, sock: NetlinkSocket, macs: Iterable[MacAddress]) -> dict[MacAddress, answers.Link]:
        """Find the links of ENIs by MAC: first by their last known names, and the missing ones in one dump. Raises: as `read`."""
        wanted = list(dict.fromkeys(macs))
        last_links = self._last_links
        links = _links_by_mac(self._links_at_last_names(sock, last_links, wanted), wanted, self._veth_prefix)
        if len(links) < len(wanted):
            missing = [mac for mac in wanted if mac not in links]
            present = survey.links_of(sock, kind="")
            self._has_hardware = any(map(is_hardware, present))
            links |= _links_by_mac(present, missing, self._veth_prefix)
        self._last_links = {mac: link for mac, link in last_links.items() if mac not in wanted} | links
        return links

    def _links_at_last_names(
        self, sock: NetlinkSocket, last_links: Mapping[MacAddress, answers.Link], wanted: Iterable[MacAddress]
    ) -> list[answers.Link]:
        """Read the links that now have the last known names of the wanted ENIs' links."""
        outcomes = sock.request([messages.get_link(last_links[mac].name) for mac in wanted if mac in last_links])
        present = [survey.read_link(outcome.replies[0]) for outcome in outcomes if outcome.replies]
        if self._has_hardware:  # the remembered link may be virtual, from when the node had no hardware link yet
            return [link for link in present if is_hardware(link)]
        return present

    def may_be_used(self, table: int) -> bool:
        """Whether a table may have a route, or a rule may lead to it, according to the last reading. True if nothing was read since
        our last change.
        """
        last = self._last
        return not last or table in last.tables

    def last_link(self, mac: MacAddress) -> answers.Link | None:
        """Return the link with a MAC as it was when it was last read; None if it was never read, or not found at the last try."""
        return self._last_links.get(mac)


def _leads_to_sandbox(route: answers.Route) -> bool:
    """Whether a route leads to the address of a single sandbox."""
    address = route.destination
    return route.table in SHARED_TABLES and address is not None and route.is_to(address)


def _links_by_mac(
    links: Collection[answers.Link], macs: Iterable[MacAddress], veth_prefix: str
) -> dict[MacAddress, answers.Link]:
    """Return the link of each ENI, by the ENI's MAC. `macs`: the MACs of the ENIs; those without a link are left out."""
    by_mac = dict[MacAddress, answers.Link]()
    for mac in macs:
        link = lowest_by_mac(links, mac, veth_prefix)
        if link:
            by_mac[mac] = link
    return by_mac
