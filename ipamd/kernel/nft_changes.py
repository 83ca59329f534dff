"""Ask the kernel, without libnftables, whether our tables are as they were at the last comparison, and replace changed ones.

The kernel numbers every change of the ruleset of a namespace; the number is the ruleset's generation. While the generation is the
same, nothing has changed. A new generation may be a change of other software's tables (kube-proxy changes its own all the time). So
our tables with their chains, rules and sets are then read and compared byte by byte. These bytes contain handles, so a table that was
deleted and made again differs. The cost does not grow with the tables of other software, because none of their objects is requested.
Source: linux/netfilter/nf_tables.h, NFT_MSG_GETGEN; the kernel's net/netfilter/nf_tables_api.c, nf_tables_fill_gen_info.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set
from contextlib import suppress
from typing import NamedTuple

from ipamd.kernel import uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attributes, members, must, text_attribute
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_record import RecordedTables, TableRecord, digest_of
from ipamd.kernel.nft_table import FLUSH, REFILLED, TRIES, NftTable
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IpAddress, unpack_address
from ipamd.model.record import dataclass
from ipamd.model.repairs import RepairCode, RepairedObject, RepairReport

NFGENMSG_BYTES = 4
"""Length of nfgenmsg, the head of each message: family, version, and the lower half of the generation. Comparisons skip it."""

_GENERATION_QUESTION = Message("look at the ruleset's generation", uapi.NFT_MSG_GETGEN, 0, bytes(NFGENMSG_BYTES))

_FAMILIES = {"ip": 2, "arp": 3, "bridge": 7, "ip6": 10}

_CHAIN = re.compile(r"^  chain (\w+) ", re.M)

_SET = re.compile(r"^  set (\w+) {\n    type (\w+)", re.M)
"""_CHAIN and _SET find the chains and the sets of a table in the commands that make it."""


def generation(host: HostNetns) -> bytes | None:
    """Return the generation of the ruleset in the host's namespace; None if the kernel does not answer."""
    with suppress(WiringError), host.netfilter() as sock:
        return _generation(sock)
    return None


def _generation(sock: NetlinkSocket) -> bytes:
    """Return the generation of the ruleset in a socket's namespace. Raises: WiringError if the kernel does not answer."""
    (outcome,) = sock.request([_GENERATION_QUESTION])
    number = attributes(outcome.replies[0], NFGENMSG_BYTES).get(uapi.NFTA_GEN_ID) if outcome.replies else None
    if not number:
        raise failure(WiringError, FailureCode.MESSAGE_REFUSED, step=outcome.message.step, cause=outcome.cause)
    return number


@dataclass(slots=True)
class _VerifiedTables:
    """Tables as the kernel had them when they were last verified.

    `commands`: for each table the commands that made it.
    `generation`: the last generation of the ruleset at which the tables had this content.
    `content`: the tables' objects as bytes (`_content`).
    """

    commands: Mapping[NftTable, str]
    generation: bytes
    content: bytes


class _AppliedTable(NamedTuple):
    """A table that we made.

    `commands`: the commands that made it.
    `text`: the table as nft listed it right after the commands were run.
    """

    commands: str
    text: str


Compared = tuple[list[RepairReport], Mapping[NftTable, WiringError]]
"""A report for each table of ours that differs, and an error for each table that could not be read or replaced."""


class OwnTables:
    """Applies our tables, and remembers their commands and their content in the kernel.

    Concurrency: under a lock of the owner, except `is_unchanged`, which is safe from any thread without the lock. The
    `_VerifiedTables` object is replaced as a whole. `is_unchanged` updates only the generation in this object, after it has compared
    the content. If another thread has replaced the object meanwhile, the old object is updated, which nobody reads any more.
    """

    def __init__(
        self,
        host: HostNetns,
        nft: Nftables,
        *,
        repaired_object: RepairedObject,
        follows: str,
        optional: Set[NftTable] = frozenset(),
        record: TableRecord | None = None,
    ) -> None:
        """Remember nothing yet.

        Args:
            repaired_object: the object that reports of repairs name.
            follows: text for reports that names the inputs from which the tables are made.
            optional: tables that a kernel may refuse. If it refuses no other table, the tables count as in place.
            record: stores for the next process of the daemon which tables were verified; None: that process makes the tables again.
        """
        self._host = host
        self._nft = nft
        self._repaired_object = repaired_object
        self._follows = follows
        self._optional = optional
        self._record = record
        self._applied = dict[NftTable, _AppliedTable]()
        self._verified: _VerifiedTables | None = None

    def forget(self) -> None:
        """Make the next repair replace the tables, because they may be of an earlier release or configuration.

        A table is kept if the `TableRecord` has it with the same commands as that repair.
        """
        self._applied.clear()
        self._verified = None

    def is_unchanged(self, commands: Mapping[NftTable, str] | None = None) -> bool | None:
        """Whether every table is as it was when it was last verified.

        Args:
            commands: the commands that should have made the tables; None: not compared.
        Returns: None if no table was ever verified, if the kernel does not answer, or if other commands made the tables.
        """
        verified = self._verified
        if verified is None or (commands is not None and commands != verified.commands):
            return None
        try:
            with self._host.netfilter() as sock:
                number = _generation(sock)  # before the content, so that a change during its reading is noticed the next time
                if number != verified.generation:
                    if _content(sock, verified.commands) != verified.content:
                        return False
                    verified.generation = number
        except (WiringError, KernelDumpError):
            return None
        return True

    def named_counters(self, tables: Iterable[NftTable]) -> Iterator[tuple[str, int]]:
        """Yield name and packets of each named counter, without nft, which takes 1.5 ms to print the counters of a table.

        Raises: WiringError, KernelDumpError.
        """
        with self._host.netfilter() as sock:
            for table in tables:
                for body in sock.dump(_named(table, uapi.NFT_MSG_GETOBJ, uapi.NFTA_OBJ_TABLE)):
                    parts = attributes(body, NFGENMSG_BYTES)
                    count = attributes(parts[uapi.NFTA_OBJ_DATA], 0).get(uapi.NFTA_COUNTER_PACKETS, b"")
                    yield parts[uapi.NFTA_OBJ_NAME].rstrip(b"\0").decode(), int.from_bytes(count, "big")

    def differences(self, commands: Mapping[NftTable, str]) -> Compared:
        """Return how tables differ from what `commands` make, without changing them."""
        if self.is_unchanged(commands):
            return [], {}
        listed, refused = self._listed(commands)
        codes = {table: self._difference(table, commands[table], text) for table, text in listed.items()}
        return [self._report(code, table) for table, code in codes.items() if code], refused

    def repair(self, commands: Mapping[NftTable, str]) -> Compared:
        """Replace tables that differ, in one transaction if the kernel accepts it.

        The report about a table whose commands have changed has the code TABLE_FOLLOWED. If other software changes nftables meanwhile,
        everything is compared again, at most TRIES times. If the last try is disturbed too, the next repair compares everything again.
        """
        if not self._applied:
            self._take_recorded(commands)
        if self.is_unchanged(commands):
            return [], {}
        reports = list[RepairReport]()
        for _ in range(TRIES):
            start = generation(self._host)
            before, refused = self._listed(commands)
            updates = self._updates(commands, before)
            count = self._replace(updates, refused)
            after, unlisted = self._listed(_without(refused, {table: commands[table] for table in updates}))
            refused |= unlisted
            if not reports:
                reports = self._reports(commands, before, after, updates)
            verified = self._verify_tables(_without(refused, commands), start, count)
            if verified or start is None:
                self._applied |= {table: _AppliedTable(commands[table], text) for table, text in after.items()}
                break
        # In one assignment, because `is_unchanged` may read the attribute in another thread.
        self._verified = verified if refused.keys() <= self._optional else None
        self._write_record()
        return reports, refused

    def _take_recorded(self, commands: Mapping[NftTable, str]) -> None:
        """Treat the tables that an earlier process recorded as if this process had applied and verified them.

        This is done only if `commands` made them, and if the kernel has them unchanged.
        """
        recorded = self._record.read() if self._record else None
        if recorded is None or recorded.commands != commands:
            return
        with suppress(WiringError, KernelDumpError), self._host.netfilter() as sock:
            number = _generation(sock)  # before the content, so that a change during its reading is noticed the next time
            content = _content(sock, commands)
            if digest_of(content) == recorded.digest:
                self._applied |= {table: _AppliedTable(text, recorded.texts[table]) for table, text in commands.items()}
                self._verified = _VerifiedTables(commands, number, content)

    def _write_record(self) -> None:
        """Record the verified tables for the next process."""
        verified = self._verified
        if self._record is None or verified is None:
            return
        texts = dict[NftTable, str]()
        for table, commands in verified.commands.items():
            if table in self._applied:
                texts[table] = self._applied[table].text
            elif commands == table.removal():  # there was no table to remove
                texts[table] = ""
            else:
                return
        self._record.write(RecordedTables(verified.commands, texts, digest_of(verified.content)))

    def change_elements(self, table: NftTable, update: str, elements: str) -> None:
        """Change elements of the sets of a table, and record the changed table as applied and verified.

        If other software changed the tables since they were verified, nothing is recorded, and the next repair compares everything.

        Args:
            update: the commands that make the change, as one transaction.
            elements: the commands that fill the sets of the table with all their elements after the change.
        Raises: WiringError; then nothing was changed.
        """
        verified, applied = self._verified, self._applied.get(table)
        is_as_verified = self.is_unchanged() is True
        self._nft.run(update)
        if verified is None or applied is None or not is_as_verified:
            return
        text = applied.commands.partition(FLUSH)[0] + elements
        with suppress(WiringError, KernelDumpError):
            listing = applied.text.splitlines(keepends=True)[: -len(_SET.findall(text))]
            self._applied[table] = _AppliedTable(text, "".join(listing) + _set_contents(self._host, table, text))
        self._verified = self._verify_tables({**verified.commands, table: text}, verified.generation, 1)

    def _updates(self, commands: Mapping[NftTable, str], before: Mapping[NftTable, str]) -> dict[NftTable, str]:
        """Return the commands for each table that differs. `before`: the text of each table that could be read."""
        updates = dict[NftTable, str]()
        for table, text in before.items():
            needed = self._update_commands(table, commands[table], text)
            if needed:
                updates[table] = needed
        return updates

    def _reports(
        self,
        commands: Mapping[NftTable, str],
        before: Mapping[NftTable, str],
        after: Mapping[NftTable, str],
        updates: Mapping[NftTable, str],
    ) -> list[RepairReport]:
        """Return the reports about replaced tables; not every replacement needs a report.

        Args:
            before: the text of each table before the replacement.
            after: the text of each replaced table.
            updates: the commands that were run for each replaced table.
        """
        codes = {
            table: self._change(table, commands[table], text_before=before[table], text_after=text, update=updates[table])
            for table, text in after.items()
        }
        return [self._report(code, table) for table, code in codes.items() if code]

    def _report(self, code: RepairCode, table: NftTable) -> RepairReport:
        cause = ""
        if code is RepairCode.TABLE_FOLLOWED:
            cause = self._follows
        return RepairReport(code, self._repaired_object, table.display_name, cause=cause)

    def _replace(self, updates: Mapping[NftTable, str], refused: dict[NftTable, WiringError]) -> int:
        """Run the commands of each table, and add refused tables to `refused`. Returns: how many transactions the kernel accepted."""
        if not updates:
            return 0
        try:
            self._nft.run("".join(updates.values()))
        except WiringError:  # perhaps because of a single table: try each alone
            refused_alone = _for_each(updates, lambda table: self._nft.run(updates[table]))
            refused |= refused_alone
            return len(updates) - len(refused_alone)
        return 1

    def _verify_tables(self, commands: Mapping[NftTable, str], start: bytes | None, count: int) -> _VerifiedTables | None:
        """Read the tables as they are now.

        Returns: None if other software may have changed nftables: the generation has grown by more than our `count` transactions since
            `start`. Also None if the kernel does not answer.
        """
        with suppress(WiringError, KernelDumpError), self._host.netfilter() as sock:
            content = _content(sock, commands)
            number = _generation(sock)
            if start and int.from_bytes(number, "big") == int.from_bytes(start, "big") + count:
                return _VerifiedTables(commands, number, content)
        return None

    def _listed(self, commands: Mapping[NftTable, str]) -> tuple[dict[NftTable, str], dict[NftTable, WiringError]]:
        """Return the text of each table, "" for one that does not exist, and the tables that could not be read."""
        listed = dict[NftTable, str]()

        def list_table(table: NftTable) -> None:
            text = self._nft.list_table(table)
            listed[table] = text and text + _set_contents(self._host, table, commands[table])

        return listed, _for_each(commands, list_table)

    def _difference(self, table: NftTable, commands: str, text: str) -> RepairCode | None:
        """Return how a table differs from the table that its commands make; None if no difference is known. `text`: the table as nft
        lists it.
        """
        applied = self._applied.get(table)
        if applied is not None and applied.commands != commands:
            return RepairCode.TABLE_FOLLOWED
        if not text and commands != table.removal():
            return RepairCode.ADDED
        # Before the first repair of this process there is no text to compare with, so only a missing table is reported.
        if applied is not None and applied.text != text:
            return RepairCode.TABLE_RESTORED
        return None

    def _update_commands(self, table: NftTable, commands: str, text: str) -> str:
        """Return the commands that make a table right, "" if it is right.

        Args:
            commands: the commands that replace the table.
            text: the table as nft lists it.
        """
        applied = self._applied.get(table)
        if not text:
            if commands == table.removal():
                return ""
            return commands
        if applied is None:
            return commands
        if applied == (commands, text):
            return ""
        # If only the elements of sets differ (links or addresses came or went), refill the sets and report nothing. The counters then
        # keep their values.
        body, _, elements = commands.partition(FLUSH)
        applied_body, _, applied_elements = applied.commands.partition(FLUSH)
        is_same_table = body == applied_body and REFILLED.sub("", applied.text) == REFILLED.sub("", text)
        if is_same_table and elements != applied_elements:
            return FLUSH + elements
        return commands

    def _change(self, table: NftTable, commands: str, *, text_before: str, text_after: str, update: str) -> RepairCode | None:
        """Return the code of the report about a replaced table; None if the replacement needs no report.

        `update`: the commands that were run.
        """
        applied = self._applied.get(table)
        if text_before == text_after or update != commands:
            return None
        if not text_before:
            return RepairCode.ADDED
        if commands == table.removal():
            return RepairCode.REMOVED
        if applied is None:
            return RepairCode.TABLE_RENEWED
        if applied.commands != commands:
            return RepairCode.TABLE_FOLLOWED
        return RepairCode.TABLE_RESTORED


def _without(refused: Container[NftTable], commands: Mapping[NftTable, str]) -> dict[NftTable, str]:
    return {table: text for table, text in commands.items() if table not in refused}


def _for_each(tables: Iterable[NftTable], act: Callable[[NftTable], object]) -> dict[NftTable, WiringError]:
    """Call `act` for each table. Returns: the tables for which `act` failed, each with its error."""
    refused = dict[NftTable, WiringError]()
    for table in tables:
        try:
            act(table)
        except WiringError as exc:
            refused[table] = exc
        except KernelDumpError as exc:  # other software changes nftables all the time; the next repair tries again
            refused[table] = failure(WiringError, FailureCode.TABLE_UNREADABLE, table=table.display_name, cause=str(exc))
    return refused


def _set_contents(host: HostNetns, table: NftTable, commands: str) -> str:
    """Return the elements of each set of a table, one line for each set. Raises: WiringError, KernelDumpError."""
    lines = ""
    with host.netfilter() as sock:
        for name, kind in _SET.findall(commands):
            elements = set[bytes]()
            for body in sock.dump(_elements(table, name)):
                elements.update(members(attributes(body, NFGENMSG_BYTES).get(uapi.NFTA_SET_ELEM_LIST_ELEMENTS, b"")))
            lines += f"{kind} {name} {[element.hex() for element in sorted(elements)]}\n"
    return lines


def _content(sock: NetlinkSocket, commands: Mapping[NftTable, str]) -> bytes:
    """Return the kernel's objects of tables as bytes. Raises: WiringError, KernelDumpError.

    Chains and sets that are not ours, flowtables and counters are not read. If one is added or removed, the bytes differ nevertheless,
    because the object of its table contains their number (NFTA_TABLE_USE). Nobody can exchange a counter of ours for another object,
    which would keep the number: a rule uses the counter, and the kernel deletes no counter that a rule uses.
    """
    content = bytearray()
    for table, text in commands.items():
        for body in _objects(sock, table, text):
            content += body[NFGENMSG_BYTES:]
    return bytes(content)


def _objects(sock: NetlinkSocket, table: NftTable, commands: str) -> Iterator[bytes]:
    requests = [_named(table, uapi.NFT_MSG_GETTABLE, uapi.NFTA_TABLE_NAME)]
    for name in _CHAIN.findall(commands):
        requests.append(_named(table, uapi.NFT_MSG_GETCHAIN, uapi.NFTA_CHAIN_TABLE, text_attribute(uapi.NFTA_CHAIN_NAME, name)))
    sets = [name for name, _ in _SET.findall(commands)]
    for name in sets:
        requests.append(_named(table, uapi.NFT_MSG_GETSET, uapi.NFTA_SET_TABLE, text_attribute(uapi.NFTA_SET_NAME, name)))
    outcomes = sock.request(requests)
    must(outcomes, "a comparison of nftables")
    for outcome in outcomes:
        yield from outcome.replies
    yield from sock.dump(_named(table, uapi.NFT_MSG_GETRULE, uapi.NFTA_RULE_TABLE))
    for name in sets:
        yield from sock.dump(_elements(table, name))


def set_addresses(sock: NetlinkSocket, table: NftTable, name: str) -> set[IpAddress]:
    """Return the addresses in a set of single addresses; none if there is no such set. Raises: WiringError, KernelDumpError."""
    addresses = set[IpAddress]()
    for body in sock.dump(_elements(table, name)):
        for element in members(attributes(body, NFGENMSG_BYTES).get(uapi.NFTA_SET_ELEM_LIST_ELEMENTS, b"")):
            key = attributes(element, 0)[uapi.NFTA_SET_ELEM_KEY]
            addresses.add(unpack_address(attributes(key, 0)[uapi.NFTA_DATA_VALUE]))
    return addresses


def _elements(table: NftTable, name: str) -> Message:
    set_selector = text_attribute(uapi.NFTA_SET_ELEM_LIST_SET, name)
    return _named(table, uapi.NFT_MSG_GETSETELEM, uapi.NFTA_SET_ELEM_LIST_TABLE, set_selector)


def _named(table: NftTable, kind: int, table_kind: int, more: bytes = b"") -> Message:
    body = bytes((_FAMILIES[table.family], 0, 0, 0)) + text_attribute(table_kind, table.name) + more
    # A missing object is not an error here: the comparison finds the difference.
    return Message(f"look at nftables table {table}", kind, 0, body, tolerated=frozenset({errno.ENOENT}))
