"""nftables through libnftables: text in, one transaction, no fork (docs/adr/0005).

The library is loaded on first use, so that a node without it still starts, wires sandboxes and reports what is missing.
"""

from __future__ import annotations

import ctypes
import errno
import json
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from typing import Any, NamedTuple

from ipamd.kernel import uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attributes, members, must, text_attribute
from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.kernel import Followed
from ipamd.model.record import dataclass

LIBRARY = "libnftables.so.1"
PACKAGE = "libnftables1"
"""Debian's and Ubuntu's package of the library; it is in the image."""

OUTPUT_JSON, OUTPUT_TERSE = 1 << 4, 1 << 11
"""NFT_CTX_OUTPUT_JSON, NFT_CTX_OUTPUT_TERSE. Source: nftables/libnftables.h."""


class Nftables:
    """Runs nft commands in the host's namespace.

    Concurrency: safe from any thread, by a lock, because libnftables' contexts are not. No other lock is taken inside it.
    """

    def __init__(self, host: HostNetns, *, library: str = LIBRARY) -> None:
        """Load nothing yet; `library` is the name for dlopen."""
        self._host = host
        self._library_name = library
        self._library: ctypes.CDLL | None = None
        self._lock = threading.Lock()

    def query(self, command: str) -> list[dict[str, Any]]:
        """List something as JSON objects, {kind: fields} each (libnftables-json(5)). Raises: WiringError."""
        try:
            answer = json.loads(self.run(f"{command}\n", form=OUTPUT_JSON))["nftables"]
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            raise WiringError(f"nftables' answer to `{command}` was not understood", details=str(exc)[:200]) from exc
        return [item for item in answer if isinstance(item, dict)] if isinstance(answer, list) else []

    def run(self, commands: str, *, form: int = 0) -> str:
        """Run commands as one transaction: all of them or none.

        Returns: what they print (of `list`), in another `form` if asked. Raises: WiringError with libnftables' own text.
        """
        with self._lock, self._host.entered():
            library = self._load()
            # A context opens its socket when it is created, so create it inside the namespace; it is cheap, do not keep it.
            context = ctypes.c_void_p(library.nft_ctx_new(0))
            if not context:
                raise WiringError("nftables context could not be made", details="libnftables: nft_ctx_new returned NULL")
            try:
                library.nft_ctx_buffer_output(context)
                library.nft_ctx_buffer_error(context)
                library.nft_ctx_output_set_flags(context, form)
                code = library.nft_run_cmd_from_buffer(context, commands.encode())
                output = library.nft_ctx_get_output_buffer(context) or b""
                errors = library.nft_ctx_get_error_buffer(context) or b""
            finally:
                library.nft_ctx_free(context)
        if code:
            raise WiringError("nftables refused the transaction; nothing was changed", details=_one_line(errors))
        return bytes(output).decode("utf-8", "replace")

    def list_table(self, table: NftTable) -> str:
        """Print a table without counters, handles and what is in its sets; an empty string if there is none.

        Names of links would have all links of the node read, each time. Raises: WiringError if nftables cannot be asked at all.
        """
        try:
            return COUNTED.sub("", self.run(f"list table {table}\n", form=OUTPUT_TERSE))
        except WiringError:  # most likely there is none, which no code tells apart
            if f"table {table}\n" in self.run(f"list tables {table.family}\n"):
                raise
            return ""

    def _load(self) -> ctypes.CDLL:
        if self._library is None:
            try:
                library = ctypes.CDLL(self._library_name)
            except OSError as exc:
                raise WiringError(
                    f"{self._library_name} is missing: no SNAT and no connection marks on this node",
                    details=f"install the package {PACKAGE} into the daemon's image ({exc})",
                ) from exc
            library.nft_ctx_new.restype = ctypes.c_void_p
            library.nft_ctx_new.argtypes = [ctypes.c_uint32]
            library.nft_ctx_output_set_flags.argtypes = [ctypes.c_void_p, ctypes.c_uint]
            library.nft_run_cmd_from_buffer.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
            for name in ("nft_ctx_get_output_buffer", "nft_ctx_get_error_buffer"):
                getter = getattr(library, name)
                getter.restype = ctypes.c_char_p
                getter.argtypes = [ctypes.c_void_p]
            for name in ("nft_ctx_buffer_output", "nft_ctx_buffer_error", "nft_ctx_free"):
                getattr(library, name).argtypes = [ctypes.c_void_p]
            self._library = library
        return self._library


def _one_line(errors: bytes) -> str:
    """Keep the error lines, not the echo of our commands: it always shows the first line of the buffer, not the faulty one."""
    said = [line.strip() for line in errors.decode("utf-8", "replace").splitlines() if "Error:" in line]
    return "; ".join(said) or "no text from libnftables"


# Tables of ours in nftables: compare one with what it must be, and replace it.
#
# What nft prints is not what it was given, so the comparison is with what it printed right after our own replacement: the first
# comparison of a process always replaces.


_LINKS = re.compile(r"^iface_index .*\n", re.M)
"""What `_contents` says of a set of links."""

_FLUSH = "flush set "

TRIES = 3
"""Of a repair that others disturb. Ours: one takes some 20 ms, and who changes nftables all the time does so ten times a second."""

COUNTED = re.compile(r"packets \d+ bytes \d+")
"""How nft prints the present value of a counter."""


class NftTable(NamedTuple):
    """An nftables table of ours, as nft names it."""

    family: str
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"

    @property
    def what(self) -> str:
        """For sentences."""
        return f"nftables table {self.name}" + ("" if self.family == "ip" else f" ({self.family})")

    def removal(self) -> str:
        """Return commands that remove it, whether it exists or not."""
        return f"add table {self}\ndelete table {self}\n"

    def links(self, name: str, links: Collection[int]) -> str:
        """Return commands that fill a set of links, by index: a link's name may be anything, quotes included.

        nft looks for a link of such a name first, and a name may be another link's index: none has so many digits (IFNAMSIZ is 16).
        """
        numbers = ", ".join(f'"{index:016}"' for index in links)
        added = f"add element {self} {name} {{ {numbers} }}\n"
        return f"{_FLUSH}{self} {name}\n{added if links else ''}"

    def replacement(self, body: str) -> str:
        """Return commands that make it anew, as one transaction."""
        return f"{self.removal()}add table {self}\ntable {self} {{\n{body}\n}}\n"


# Are tables of ours still as they were when they were last compared? Asked of the kernel, without libnftables.
#
# The kernel numbers every change of the ruleset of a namespace (its generation). While the number is the same nothing has changed;
# when it is another, our tables, their chains, rules and sets are read and compared byte by byte, because other software
# changes its own tables all the time (kube-proxy). Handles are in these bytes, so a table that was deleted and made again is another
# one. What is read does not grow with what others have there: no object of theirs is asked for.
# Source: linux/netfilter/nf_tables.h, NFT_MSG_GETGEN; the kernel's net/netfilter/nf_tables_api.c, nf_tables_fill_gen_info.


NFGENMSG_BYTES = 4
"""nfgenmsg: family, version, and a resource ID that is the lower half of the generation, so it is left out of what is compared."""

_FAMILIES = {"ip": 2, "arp": 3, "bridge": 7, "ip6": 10}

_CHAIN = re.compile(r"^  chain (\w+) ", re.M)
_SET = re.compile(r"^  set (\w+) {\n    type (\w+)", re.M)
"""As `ruleset` writes them."""


def generation(host: HostNetns) -> bytes | None:
    """The number in the host's namespace; None if the kernel does not say."""
    with suppress(WiringError), host.netfilter() as sock:
        return _generation(sock)
    return None


def _generation(sock: NetlinkSocket) -> bytes:
    """The number in a socket's namespace. Raises: WiringError if the kernel does not say."""
    (outcome,) = sock.request([Message("look at the ruleset's generation", uapi.NFT_MSG_GETGEN, 0, bytes(NFGENMSG_BYTES))])
    found = attributes(outcome.replies[0], NFGENMSG_BYTES).get(uapi.NFTA_GEN_ID) if outcome.replies else None
    if not found:
        raise WiringError(f"{outcome.message.step} failed", details=outcome.cause)
    return found


@dataclass(slots=True)
class _Seen:
    """Tables as they were found, by the commands that made them; `generation`: the last at which they were known to be so."""

    commands: Mapping[NftTable, str]
    generation: bytes
    content: bytes


Compared = tuple[list[str], Mapping[NftTable, WiringError]]
"""A sentence for each table of ours that differs, and the tables that nft could not be asked about or refused."""


class OwnTables:
    """Remembers what was applied, and how the kernel had it. Used under a lock of its owner; `is_unchanged` from any thread, without.

    No lock for that: a record is replaced whole, and only its generation is written again, by whoever has just compared its content.
    A reader that holds a record which was replaced meanwhile writes into that one.
    """

    def __init__(self, host: HostNetns, nft: Nftables, *, follows: str, optional: Set[NftTable] = frozenset()) -> None:
        """`follows` says what changes what the tables must be; without the `optional` ones the others still are in place."""
        self._host = host
        self._nft = nft
        self._follows = follows
        self._optional = optional
        self._applied = dict[NftTable, tuple[str, str]]()  # the commands, and how nft lists the table that they made
        self._seen: _Seen | None = None

    def forget(self) -> None:
        """Replace the tables at the next repair, whatever they are like: they may be of an earlier release or configuration."""
        self._applied.clear()
        self._seen = None

    def is_unchanged(self, commands: Mapping[NftTable, str] | None = None) -> bool | None:
        """Whether every table is now as it was when found right; None if none ever was or the kernel does not answer.

        `commands`: and whether these made them; nft need not be asked then.
        """
        if (seen := self._seen) is None or (commands is not None and commands != seen.commands):
            return None
        try:
            with self._host.netfilter() as sock:
                number = _generation(sock)  # before the content: a change that falls into the reading has another
                if number != seen.generation:
                    if _content(sock, seen.commands) != seen.content:
                        return False
                    seen.generation = number
        except (WiringError, KernelDumpError):
            return None
        return True

    def counted(self, tables: Iterable[NftTable]) -> Iterator[tuple[str, int]]:
        """Tell the packets of each named counter; nft takes 1.5 ms to print those of a table. Raises: WiringError, KernelDumpError."""
        with self._host.netfilter() as sock:
            for table in tables:
                for body in sock.dump(_named(table, uapi.NFT_MSG_GETOBJ, uapi.NFTA_OBJ_TABLE)):
                    parts = attributes(body, NFGENMSG_BYTES)
                    count = attributes(parts[uapi.NFTA_OBJ_DATA], 0).get(uapi.NFTA_COUNTER_PACKETS, b"")
                    yield parts[uapi.NFTA_OBJ_NAME].rstrip(b"\0").decode(), int.from_bytes(count, "big")

    def differences(self, commands: Mapping[NftTable, str]) -> Compared:
        """Say how tables differ from what `commands` make."""
        if self.is_unchanged(commands):
            return [], {}
        found, refused = self._listed(commands)
        return [said for table, now in found.items() if (said := self._difference(table, commands[table], now))], refused

    def repair(self, commands: Mapping[NftTable, str]) -> Compared:
        """Replace tables that differ, in one transaction if the kernel takes it. A sentence is `Followed` if `commands` changed.

        What others did meanwhile is never taken for right: then all is looked at again, and after TRIES at the next repair.
        """
        if self.is_unchanged(commands):
            return [], {}
        sentences = list[str]()
        for _ in range(TRIES):
            start = generation(self._host)
            found, refused = self._listed(commands)
            due = {table: text for table, now in found.items() if (text := self._due(table, commands[table], now))}
            count = self._replace(due, refused)
            made, unlisted = self._listed({table: commands[table] for table in due if table not in refused})
            refused |= unlisted
            sentences = sentences or [
                said for table, now in made.items() if (said := self._said(table, commands[table], found[table], now, due[table]))
            ]
            seen = self._look({table: text for table, text in commands.items() if table not in refused}, start, count)
            if seen or start is None:
                self._applied |= {table: (commands[table], text) for table, text in made.items()}
                break
        self._seen = seen if refused.keys() <= self._optional else None
        return sentences, refused

    def _replace(self, due: Mapping[NftTable, str], refused: dict[NftTable, WiringError]) -> int:
        """Run what is due. Returns: how many transactions the kernel took."""
        if not due:
            return 0
        try:
            self._nft.run("".join(due.values()))
        except WiringError:  # of one of them, perhaps
            alone = _each(due, lambda table: self._nft.run(due[table]))
            refused |= alone
            return len(due) - len(alone)
        return 1

    def _look(self, commands: Mapping[NftTable, str], start: bytes | None, count: int) -> _Seen | None:
        """What tables are now, if since a generation nothing but so many transactions of ours has changed nftables."""
        with suppress(WiringError, KernelDumpError), self._host.netfilter() as sock:
            content, number = _content(sock, commands), _generation(sock)
            if start and int.from_bytes(number, "big") == int.from_bytes(start, "big") + count:
                return _Seen(commands, number, content)
        return None

    def _listed(self, commands: Mapping[NftTable, str]) -> tuple[dict[NftTable, str], dict[NftTable, WiringError]]:
        """What tables are, "" if there is none, and those that could not be asked about."""
        found = dict[NftTable, str]()

        def look(table: NftTable) -> None:
            text = self._nft.list_table(table)
            found[table] = text and text + _contents(self._host, table, commands[table])

        return found, _each(commands, look)

    def _difference(self, table: NftTable, commands: str, now: str) -> str:
        before = self._applied.get(table)
        if before is not None and before[0] != commands:
            return f"{table.what} did not follow a change of {self._follows} yet"
        if not now and commands != table.removal():
            return f"{table.what} was missing"
        # Before the first repair of this process only absence is told: with what it should be like, nothing can be compared yet.
        return f"{table.what} had been changed" if before and before[1] != now else ""

    def _due(self, table: NftTable, commands: str, now: str) -> str:
        """What makes it right: "" if it is."""
        before = self._applied.get(table)
        if not now:
            return "" if commands == table.removal() else commands
        if before == (commands, now):
            return ""
        # Sets of links follow them without a word, and the counters go on.
        (body, _, links), (body_before, _, links_before) = (one.partition(_FLUSH) for one in (commands, (before or [""])[0]))
        is_links_only = (
            before is not None
            and body == body_before
            and links != links_before
            and _LINKS.sub("", before[1]) == _LINKS.sub("", now)
        )
        return _FLUSH + links if is_links_only else commands

    def _said(self, table: NftTable, commands: str, now: str, made: str, done: str) -> str:
        """What was `done`, in words."""
        before = self._applied.get(table)
        if now == made or done != commands:
            return ""
        if not now:
            return f"{table.what} was missing: added"
        if commands == table.removal():
            return f"{table.what} is not needed: removed"
        if before is not None and before[0] != commands:
            return Followed(f"{table.what} followed a change of {self._follows}: replaced")
        return f"{table.what} {'was of an earlier start' if before is None else 'had been changed'}: replaced"


def _each(tables: Iterable[NftTable], do: Callable[[NftTable], object]) -> dict[NftTable, WiringError]:
    """Do something to each table. Returns: the refusals."""
    refused = dict[NftTable, WiringError]()
    for table in tables:
        try:
            do(table)
        except WiringError as exc:
            refused[table] = exc
        except KernelDumpError as exc:  # others change nftables all the time: it is asked again
            refused[table] = WiringError(f"{table.what} could not be read", details=str(exc))
    return refused


def _contents(host: HostNetns, table: NftTable, commands: str) -> str:
    """Say what is in the sets of a table, a line each. Raises: WiringError, KernelDumpError."""
    lines = ""
    with host.netfilter() as sock:
        for name, kind in _SET.findall(commands):
            found = (attributes(body, NFGENMSG_BYTES) for body in sock.dump(_elements(table, name)))
            elements = sorted({one for each in found for one in members(each.get(uapi.NFTA_SET_ELEM_LIST_ELEMENTS, b""))})
            lines += f"{kind} {name} {[one.hex() for one in elements]}\n"
    return lines


def _content(sock: NetlinkSocket, commands: Mapping[NftTable, str]) -> bytes:
    """What the kernel holds of tables. Raises: WiringError, KernelDumpError."""
    return b"".join(body[NFGENMSG_BYTES:] for table, text in commands.items() for body in _objects(sock, table, text))


def _objects(sock: NetlinkSocket, table: NftTable, commands: str) -> Iterator[bytes]:
    asked = [_named(table, uapi.NFT_MSG_GETTABLE, uapi.NFTA_TABLE_NAME)]
    for name in _CHAIN.findall(commands):
        asked.append(_named(table, uapi.NFT_MSG_GETCHAIN, uapi.NFTA_CHAIN_TABLE, text_attribute(uapi.NFTA_CHAIN_NAME, name)))
    outcomes = sock.request(asked)
    must(outcomes, "a comparison of nftables")
    for outcome in outcomes:
        yield from outcome.replies
    yield from sock.dump(_named(table, uapi.NFT_MSG_GETRULE, uapi.NFTA_RULE_TABLE))
    for name, _ in _SET.findall(commands):
        yield from sock.dump(_elements(table, name))


def _elements(table: NftTable, name: str) -> Message:
    asked_set = text_attribute(uapi.NFTA_SET_ELEM_LIST_SET, name)
    return _named(table, uapi.NFT_MSG_GETSETELEM, uapi.NFTA_SET_ELEM_LIST_TABLE, asked_set)


def _named(table: NftTable, kind: int, table_kind: int, more: bytes = b"") -> Message:
    body = bytes((_FAMILIES[table.family], 0, 0, 0)) + text_attribute(table_kind, table.name) + more
    # What is gone is no failure of the look: it differs from what was there.
    return Message(f"look at nftables table {table}", kind, 0, body, tolerated=frozenset({errno.ENOENT}))
