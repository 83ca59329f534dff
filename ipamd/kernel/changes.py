"""Changes to the host's own links, addresses, ENI tables and rules, carried out through pyroute2.

ADD and DEL do not come here, so a library may pack the messages (docs/adr/0004). pyroute2 is imported at the first change:
start, survey, DEL and a reconciliation that finds no difference do not need it. Reading stays with `survey`: its dumps detect
interruptions (I11) and take a tenth of pyroute2's time.
Rejected: pyroute2's `netns=` (forks), a socket kept open (pyroute2 ties it to the thread that first used it).
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from typing import TYPE_CHECKING, Literal

from ipamd.kernel import uapi
from ipamd.kernel.messages import ABSENT, PRESENT
from ipamd.kernel.netlink import RECEIVE_TIMEOUT_S, describe_errno
from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import WiringError

if TYPE_CHECKING:
    from pyroute2 import AsyncIPRoute


@dataclass(frozen=True, slots=True)
class Change:
    """One call of pyroute2: `subject` is its method, `fields` its arguments in `ip`'s words.

    `step` names it in messages. Errnos in `tolerated` count as success: the wanted state exists already.
    """

    step: str
    subject: Literal["link", "addr", "route", "rule"]
    command: Literal["set", "add", "replace", "del"]
    fields: Mapping[str, object] = field(default_factory=dict)
    tolerated: frozenset[int] = frozenset()


def execute(host: HostNetns, changes: Sequence[Change], *, what: str) -> None:
    """Make changes in the host's namespace, in order, and continue after a refused one. Without changes, import nothing.

    Raises: WiringError for the first refusal, naming its step, or if the kernel does not answer.
    Concurrency: safe from any thread; the socket and its event loop live for this call in this thread.
    """
    if not changes:
        return
    import asyncio

    with host.entered():
        asyncio.run(_carry_out(changes, what))


async def _carry_out(changes: Sequence[Change], what: str) -> None:
    import asyncio

    from pyroute2 import AsyncIPRoute

    refusals: list[WiringError] = []
    async with AsyncIPRoute(ext_ack=True) as route:
        for change in changes:
            try:
                # pyroute2 0.9.7 does not hand a socket error to the waiting call: without a timeout it would never return.
                async with asyncio.timeout(RECEIVE_TIMEOUT_S):
                    await _make(route, change, what)
            except (OSError, TimeoutError) as exc:
                details = f"{str(exc) or 'nothing came'}, after at most {RECEIVE_TIMEOUT_S} s; it is tried again"
                raise WiringError(f"{what}: {change.step}: the kernel's answer was lost", details=details) from exc
            except WiringError as exc:
                refusals.append(exc)
    if refusals:
        raise refusals[0]


async def _make(route: AsyncIPRoute, change: Change, what: str) -> None:
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        await getattr(route, change.subject)(change.command, **change.fields)
    except NetlinkError as exc:
        if exc.code not in change.tolerated:
            details = f"{describe_errno(exc.code)}: {exc.args[1]}"
            raise WiringError(f"{what}: {change.step} failed", details=details) from exc


def set_mtu(index: int, mtu: int, *, who: str) -> Change:
    """Set a link's MTU in bytes."""
    return Change(f"set MTU of {who}", "link", "set", {"index": index, "mtu": mtu})


def raise_link(index: int, *, who: str) -> Change:
    """Set a link up."""
    return Change(f"raise {who}", "link", "set", {"index": index, "state": "up"})


def add_address(index: int, address: IPv4Address, length: int, *, who: str) -> Change:
    """Add an address without the connected route in main that the kernel would add; present is fine."""
    fields = {"index": index, "address": str(address), "prefixlen": length, "flags": uapi.IFA_F_NOPREFIXROUTE}
    return Change(f"add address {address}/{length} to {who}", "addr", "add", fields, PRESENT)


def delete_address(index: int, address: IPv4Address, length: int, *, who: str) -> Change:
    """Remove an address from a link; absent is fine."""
    fields = {"index": index, "address": str(address), "prefixlen": length}
    return Change(f"delete address {address}/{length} from {who}", "addr", "del", fields, ABSENT)


def put_route(destination: IPv4Address | None, *, index: int, table: int, step: str, via: IPv4Address | None = None) -> Change:
    """Replace the route to one address (None: the default route); scope link unless `via` names a next hop."""
    fields = _route(destination, 32, table) | {"oif": index, "proto": "static"}
    fields |= {"scope": "link"} if via is None else {"scope": "universe", "gateway": str(via)}
    return Change(step, "route", "replace", fields)


def delete_route(destination: IPv4Address | None, length: int, *, index: int, table: int, metric: int, step: str) -> Change:
    """Remove one route through a link, of any scope, type and protocol; absent is fine. `index` or `metric` 0: any."""
    fields = _route(destination, length, table) | {"scope": "nowhere", "proto": 0, "type": 0}
    fields |= {"oif": index} if index else {}
    fields |= {"priority": metric} if metric else {}
    return Change(step, "route", "del", fields, ABSENT)


def add_rule(
    priority: int, *, table: int, source: IPv4Address | None = None, mark: int = 0, destination: IPv4Network | None = None
) -> Change:
    """Add a rule for a source address (/32), a mark, which is its own mask, or a destination; present is fine."""
    fields, words = _rule(priority, table, source, mark, destination)
    return Change(f"add rule {words}", "rule", "add", fields, PRESENT)


def delete_rule(
    priority: int, *, table: int, source: IPv4Address | None = None, mark: int = 0, destination: IPv4Network | None = None
) -> Change:
    """Remove one rule, selected as for `add_rule`; absent is fine."""
    fields, words = _rule(priority, table, source, mark, destination)
    return Change(f"delete rule {words}", "rule", "del", fields, ABSENT)


def _route(destination: IPv4Address | None, length: int, table: int) -> dict[str, object]:
    prefix = f"{destination}/{length}" if destination is not None else "default"
    return {"family": socket.AF_INET, "dst": prefix, "table": table}  # pyroute2 cannot tell the family of "default"


def _rule(
    priority: int, table: int, source: IPv4Address | None, mark: int, destination: IPv4Network | None
) -> tuple[Mapping[str, object], str]:
    """Describe a rule as pyroute2 takes it and as `ip rule` prints it."""
    fields: dict[str, object] = {"priority": priority, "table": table}
    words = str(priority)
    if source:
        fields["src"] = str(source)
        words += f" from {source}"
    if destination is not None:
        fields |= {"family": socket.AF_INET, "dst": str(destination.network_address), "dst_len": destination.prefixlen}
        words += f" to {destination}"
    if mark:
        fields |= {"fwmark": mark, "fwmask": mark}
        words += f" fwmark {mark:#x}/{mark:#x}"
    return fields, f"{words} lookup {'main' if table == uapi.RT_TABLE_MAIN else table}"
