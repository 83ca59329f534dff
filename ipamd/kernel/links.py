"""Find an ENI's link by its MAC, and wait for it to appear after EC2 reported "attached".

The wait listens to the kernel's link notifications instead of polling.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from ipamd.kernel import messages, records, survey, uapi
from ipamd.kernel.netlink import BATCH_MAX, NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.model.attachment import decode_alias
from ipamd.model.errors import WiringError
from ipamd.model.ids import MacAddress

LINK_WAIT_S = 10.0
"""How long an attached ENI's link may take to appear. Ours: EC2 hot-plug takes 1-2 s; the caller retries."""

BORROWING_KINDS = frozenset({"bridge", "bond", "team", "vlan", "macvlan", "macvtap", "macsec", "ipvlan", "ipvtap", "vrf"})
"""Links on top of others, which may have the MAC of the one below: none of them is the ENI. Source: ip-link(8), TYPE."""


def wait_for_link(
    host: HostNetns,
    mac: MacAddress,
    *,
    veth_prefix: str,
    timeout_s: float = LINK_WAIT_S,
    monotonic: Callable[[], float] = time.monotonic,
) -> records.Link:
    """Find the link with a MAC, waiting for it up to `timeout_s`.

    Raises: WiringError if it does not appear; KernelDumpError.
    """
    deadline = monotonic() + timeout_s
    listener = host.open_netlink(groups=uapi.RTMGRP_LINK)  # listen before looking, or a link that appears in between is missed
    try:
        while True:
            with host.netlink() as sock:
                link = lowest_by_mac(survey.links_of(sock, kind=""), mac, veth_prefix)
            if link is not None:
                return link
            left_s = deadline - monotonic()
            if left_s <= 0 or not listener.wait(timeout_s=left_s):
                raise WiringError(
                    f"no link with MAC {mac} appeared within {timeout_s:g} s",
                    details="EC2 reports the ENI as attached, but the node's driver does not show its link yet; it is retried",
                )
    finally:
        listener.close()


def may_be_eni(link: records.Link, *, veth_prefix: str) -> bool:
    """Whether a link can be an ENI's: no sandbox's host veth, and not of a kind that borrows its MAC."""
    is_ours = link.name.startswith(veth_prefix) or decode_alias(link.alias) is not None  # the prefix may have been changed
    is_sandbox = link.group == uapi.DYING_GROUP or (link.kind == uapi.VETH_KIND and is_ours)
    return not is_sandbox and link.kind not in BORROWING_KINDS


def lowest_by_mac(links: Iterable[records.Link], mac: MacAddress, veth_prefix: str) -> records.Link | None:
    """Choose the link with a MAC that may be an ENI's; the lowest index if several have it."""
    found = [link for link in links if link.mac == mac and may_be_eni(link, veth_prefix=veth_prefix)]
    return min(found, key=lambda link: link.index, default=None)


# One look at the host's addresses, routes, rules and ENI links, shared by the comparisons of all ENIs and of the node.
#
# Its cost does not depend on the number of ENIs: three dumps, and one request for each ENI's link by the name that it had before.
# The links of all sandboxes are dumped only if an ENI's link is not found so.


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
            asked = [messages.get_link(self._names[mac]) for mac in batch]
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
