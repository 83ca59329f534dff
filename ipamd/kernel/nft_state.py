"""Are tables of ours still as they were when they were last compared? Asked of the kernel in a few microseconds, without libnftables.

The kernel numbers every change of the ruleset of a namespace (its generation). While the number is the same nothing has changed;
when it is another, the tables, chains and rules are read and compared byte by byte, because other software changes its own tables
all the time (kube-proxy). Handles are in these bytes, so a table that was deleted and made again is another one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from ipamd.kernel import uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attributes, text_attribute
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.ruleset import NftTable
from ipamd.model.errors import KernelDumpError, WiringError

# The number that nftables counts up with every change of its rules: what was read at the same number is still true.
#
# Asking for it costs microseconds; listing the chains of a node with thousands of services costs a tenth of a second of CPU.
# Source: linux/netfilter/nf_tables.h, NFT_MSG_GETGEN; the kernel's net/netfilter/nf_tables_api.c, nf_tables_fill_gen_info.


NFGENMSG_BYTES = 4
"""nfgenmsg: family, version, and a resource ID that is the lower half of the generation, so it is left out of what is compared."""


def generation(host: HostNetns) -> bytes | None:
    """The number in the host's namespace; None if the kernel does not say."""
    try:
        with host.netfilter() as sock:
            return generation_by(sock)
    except WiringError:
        return None


def generation_by(sock: NetlinkSocket) -> bytes:
    """The number in a socket's namespace. Raises: WiringError if the kernel does not say."""
    (outcome,) = sock.request([Message("look at the ruleset's generation", uapi.NFT_MSG_GETGEN, 0, bytes(NFGENMSG_BYTES))])
    found = attributes(outcome.replies[0], NFGENMSG_BYTES).get(uapi.NFTA_GEN_ID) if outcome.replies else None
    if not found:
        raise WiringError(f"{outcome.message.step} failed", details=outcome.cause)
    return found


T = TypeVar("T")

LOOK_TRIES = 3
"""How often a look is repeated that another change fell into. Ours: a look takes a fraction of a millisecond."""

_FAMILIES = {"ip": 2, "arp": 3, "ip6": 10}


@dataclass(frozen=True, slots=True)
class _Seen:
    tables: tuple[NftTable, ...]
    generation: bytes
    content: bytes


class NftState:
    """Remembers how tables were. Concurrency: safe from any thread, by a lock inside which nothing of ours is locked."""

    def __init__(self, host: HostNetns, *, chains: Iterable[str]) -> None:
        """`chains` are those that every table has and that are compared, with all rules of the table."""
        self._host = host
        self._chains = tuple(chains)
        self._seen: _Seen | None = None
        self._lock = threading.Lock()

    def remember(self, tables: Iterable[NftTable], *, generation: bytes | None) -> None:
        """Remember tables that were found right, unless the ruleset has changed since `generation`, which was read before."""
        wanted = tuple(tables)
        with self._lock:
            before, self._seen = self._seen, None
            if generation is not None and before is not None and (before.tables, before.generation) == (wanted, generation):
                self._seen = before  # every change has another number
            elif generation is not None:
                seen = self._ask(lambda sock: self._look(sock, wanted))
                self._seen = seen if seen is not None and seen.generation == generation else None

    def is_unchanged(self) -> bool:
        """Whether every remembered table is now as it was then; False if nothing is remembered or the kernel does not answer."""
        with self._lock:
            seen = self._seen
            if seen is None:
                return False
            number = generation(self._host)
            if number is None or number == seen.generation:
                return number is not None
            now = self._ask(lambda sock: self._look(sock, seen.tables))
            if now is None or now.content != seen.content:
                return False
            self._seen = now
            return True

    def _ask(self, question: Callable[[NetlinkSocket], T]) -> T | None:
        """Ask the kernel; None if it refuses: a table may be gone."""
        try:
            with self._host.netfilter() as sock:
                return question(sock)
        except (WiringError, KernelDumpError):
            return None

    def _look(self, sock: NetlinkSocket, tables: tuple[NftTable, ...]) -> _Seen | None:
        """Read tables, chains and rules of one generation; None if there was none in a few tries."""
        for _ in range(LOOK_TRIES):
            generation = generation_by(sock)
            content = b"".join(body for table in tables for body in self._content(sock, table))
            if generation_by(sock) == generation:
                return _Seen(tables, generation, content)
        return None

    def _content(self, sock: NetlinkSocket, table: NftTable) -> Iterator[bytes]:
        asked = [_message(uapi.NFT_MSG_GETTABLE, table, text_attribute(uapi.NFTA_TABLE_NAME, table.name))]
        for name in self._chains:
            selector = text_attribute(uapi.NFTA_CHAIN_TABLE, table.name) + text_attribute(uapi.NFTA_CHAIN_NAME, name)
            asked.append(_message(uapi.NFT_MSG_GETCHAIN, table, selector))
        for outcome in sock.request(asked):
            if not outcome.replies:
                raise WiringError(f"{outcome.message.step} failed", details=outcome.cause)
            yield outcome.replies[0][NFGENMSG_BYTES:]
        rules = sock.dump(_message(uapi.NFT_MSG_GETRULE, table, text_attribute(uapi.NFTA_RULE_TABLE, table.name)))
        yield from (body[NFGENMSG_BYTES:] for body in rules)


def _message(kind: int, table: NftTable, selector: bytes) -> Message:
    return Message(f"look at nftables table {table}", kind, 0, bytes((_FAMILIES[table.family], 0, 0, 0)) + selector)
