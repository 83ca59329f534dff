"""One look at the host's addresses, routes, rules and ENI links, shared by the comparisons of all ENIs and of the node.

Its cost does not depend on the number of ENIs: three dumps, and one request for each ENI's link by the name that it had before. The
links of all sandboxes are dumped only if an ENI's link is not found so.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ipamd.kernel import messages, records, survey
from ipamd.kernel.links import lowest_by_mac
from ipamd.kernel.netlink import BATCH_MAX, NetlinkSocket
from ipamd.model.ids import MacAddress


@dataclass(frozen=True, slots=True)
class HostLook:
    """What the host had. `links`: of those ENIs whose link is there. `routes`: of all tables. `rules`: see `survey.rules_of`."""

    links: Mapping[MacAddress, records.Link]
    addresses: tuple[records.InterfaceAddress, ...]
    routes: tuple[records.Route, ...]
    rules: tuple[records.Rule, ...]


class HostLooker:
    """Looks at the host, and remembers the names of ENI links. Used under a lock of `KernelHostNetwork`."""

    def __init__(self, *, veth_prefix: str) -> None:
        self._veth_prefix = veth_prefix
        self._names: dict[MacAddress, str] = {}
        self._last: HostLook | None = None

    def look(self, sock: NetlinkSocket, macs: Iterable[MacAddress], *, is_silent: bool = False) -> HostLook:
        """Read everything once. Raises: KernelDumpError if a dump was interrupted in every attempt (I11); WiringError.

        Args:
            is_silent: no address, route or rule was announced since the last look: only the links are read, whose settings change
                without a word.
        """
        if is_silent and self._last is not None:
            return replace(self._last, links=self.links(sock, macs))
        self._last = None  # of a look that fails nothing may be used again, and what was read before it is out of date
        self._last = HostLook(
            links=self.links(sock, macs),
            addresses=tuple(records.read_address(body) for body in sock.dump(messages.dump_addresses())),
            routes=tuple(survey.routes_of(sock)),
            rules=tuple(survey.rules_of(sock)),
        )
        return self._last

    def links(self, sock: NetlinkSocket, macs: Iterable[MacAddress]) -> dict[MacAddress, records.Link]:
        """Find the links of ENIs by MAC: by the names that they had, all others in one dump. Raises: as `look`."""
        wanted = list(dict.fromkeys(macs))
        known = [mac for mac in wanted if mac in self._names]
        found: dict[MacAddress, records.Link] = {}
        for start in range(0, len(known), BATCH_MAX):
            batch = known[start : start + BATCH_MAX]
            asked = [replace(messages.get_link(self._names[mac]), tolerated=messages.ABSENT) for mac in batch]
            for mac, outcome in zip(batch, sock.request(asked), strict=True):
                if outcome.replies:
                    link = lowest_by_mac([records.read_link(outcome.replies[0])], mac, self._veth_prefix)
                    found |= {mac: link} if link is not None else {}
        missing = [mac for mac in wanted if mac not in found]
        if missing:
            present = survey.links_of(sock, kind="")
            for mac in missing:
                link = lowest_by_mac(present, mac, self._veth_prefix)
                found |= {mac: link} if link is not None else {}
        others = {mac: name for mac, name in self._names.items() if mac not in wanted}
        self._names = others | {mac: link.name for mac, link in found.items()}
        return found
