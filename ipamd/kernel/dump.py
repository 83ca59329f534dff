"""Everything that the kernel has of one kind, for people: the support archive. The image has neither `ip` nor `nft`.

Through pyroute2, which knows all attributes; the daemon's own paths do not (docs/adr/0004). An interrupted dump is told as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.model.family import IPV4, IPV6

_LEFT_OUT = frozenset({"attrs", "header", "event", "__align"})


def links() -> list[dict[str, Any]]:
    """Dump all links of this network namespace. Raises: OSError, pyroute2's NetlinkError."""
    return _dumped(lambda kernel: kernel.get_links())


def addresses() -> list[dict[str, Any]]:
    """Dump all addresses."""
    return _dumped(lambda kernel: kernel.get_addr())


def rules() -> list[dict[str, Any]]:
    """Dump the routing rules of both families."""
    return _dumped(lambda kernel: [rule for family in (IPV4, IPV6) for rule in kernel.get_rules(family=family.number)])


def routes() -> list[dict[str, Any]]:
    """Dump the routes of all tables, of both families."""
    return _dumped(lambda kernel: [route for family in (IPV4, IPV6) for route in kernel.get_routes(family=family.number)])


def neighbours() -> list[dict[str, Any]]:
    """Dump the neighbour entries of both families: with IPv6 they alone lead to a sandbox."""
    return _dumped(lambda kernel: [entry for family in (IPV4, IPV6) for entry in kernel.get_neighbours(family=family.number)])


def nft_ruleset() -> str:
    """List all of nftables as text. Raises: WiringError."""
    return Nftables(HostNetns()).run("list ruleset\n")


def _dumped(ask: Callable[[Any], Iterable[Any]]) -> list[dict[str, Any]]:
    from pyroute2 import IPRoute

    with IPRoute() as kernel:
        return [dict(_flat(message)) for message in ask(kernel)]


def _flat(message: Any) -> Iterator[tuple[str, Any]]:
    """Fields and attributes of one message side by side; nested ones as objects of their own."""
    for name, value in message.items():
        if name not in _LEFT_OUT:
            yield str(name), _value(value)
    for name, value in message.get("attrs", ()):
        yield str(name), _value(value)


def _value(value: Any) -> Any:
    if isinstance(value, dict):
        return dict(_flat(value))
    if isinstance(value, (list, tuple)):
        return [_value(one) for one in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)
