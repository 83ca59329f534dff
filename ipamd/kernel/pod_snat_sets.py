"""Keep the addresses of sandboxes with an SNAT choice of their own in two sets of our nftables table (docs/adr/0082).

The rules of `ruleset` that mark and translate connections match these sets. ADD puts an address into a set before it replies, and DEL
takes it out. A batch cannot contain both nftables and rtnetlink messages, so each change of a set costs a separate transaction, but
only for sandboxes with a choice. A repair of the table fills the sets from the entries that this class remembers.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.nft_changes import OwnTables, set_addresses
from ipamd.kernel.nft_record import TableRecord
from ipamd.kernel.ruleset import SNAT, SNAT_SETS, elements
from ipamd.model.attachment import Attachment
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.family import IpAddress
from ipamd.model.pod_snat import PodSnat
from ipamd.model.repairs import TRANSLATION

log = logging.getLogger(__name__)


class PodSnatSets:
    """Keeps the two nftables sets, and remembers the entries that they must have: the `PodSnat` of a sandbox, by its address.

    Concurrency: safe from any thread, but the caller of `wanted` and `record_written` holds `lock`. A thread that replaces the table
    holds the lock from `wanted` to `record_written`: otherwise an address that `enter` puts into a set in between would be lost with
    the old table. While the lock is held, only the lock of `Nftables` is taken. Each change replaces the dictionary of entries, so
    other threads read it without the lock.
    """

    def __init__(
        self,
        host: HostNetns,
        nft: Nftables,
        *,
        is_on: bool,
        recorded: Callable[[], Iterable[Attachment]] = tuple,
        record: TableRecord | None = None,
    ) -> None:
        """Read nothing, and write no table yet.

        Args:
            is_on: whether a setting allows pods to have another SNAT than the node's.
            recorded: returns the recorded sandboxes.
            record: stores for the next process of the daemon which tables were verified; None: nothing is stored.
        """
        self._host = host
        self._is_on = is_on
        self._recorded = recorded
        self.lock = threading.Lock()
        self.tables = OwnTables(host, nft, repaired_object=TRANSLATION, follows="the VPC's CIDRs or of a setting", record=record)
        """The tables for translation and marks; the table SNAT has the sets. Repaired and compared under `lock`."""
        self._entries: dict[IpAddress, PodSnat] | None = None
        self._unsure: set[IpAddress] = set()  # addresses about which the kernel's sets may differ from `_entries`

    def chosen(self) -> Mapping[IpAddress, PodSnat] | None:
        """Return the choices by address as `wanted` does, for a caller in any thread that does not hold `lock`."""
        if self._entries is None:
            with self.lock:
                return self.wanted()
        return self._needed(self._entries)

    def wanted(self) -> Mapping[IpAddress, PodSnat] | None:
        """Return the choices by address. The caller holds `lock`.

        Returns: None if the table needs no sets: the settings allow no choice, and no sandbox has a choice from earlier settings.
        """
        return self._needed(self._loaded())

    def _needed(self, entries: dict[IpAddress, PodSnat]) -> Mapping[IpAddress, PodSnat] | None:
        return entries if self._is_on or entries else None

    def _loaded(self) -> dict[IpAddress, PodSnat]:
        """Return the choices by address. The caller holds `lock`.

        The first call reads the rows of recorded sandboxes, and the sets that an earlier process has left in the kernel. The sets are
        needed if rows were
        lost: the sandboxes without a row are adopted only later.
        """
        if self._entries is None:
            entries = dict(self.seen())
            entries |= {row.address: row.snat for row in self._recorded() if row.snat is not None}
            self._entries = entries
        return self._entries

    def record_written(self) -> None:
        """Record that the table has just been replaced, so the kernel's sets have exactly our entries. The caller holds `lock`."""
        self._unsure.clear()

    def seen(self) -> dict[IpAddress, PodSnat]:
        """Return the choices in the kernel's sets; no choice if the kernel does not answer or has no such sets."""
        choices: dict[IpAddress, PodSnat] = {}
        with suppress(WiringError, KernelDumpError), self._host.netfilter() as sock:
            for choice, name in SNAT_SETS.items():
                choices |= dict.fromkeys(set_addresses(sock, SNAT, name), choice)
        return choices

    def enter(self, address: IpAddress, choice: PodSnat | None) -> None:
        """Put an address into the set of its sandbox's choice, and take it out of the other set. With None take it out of both sets.

        Raises: WiringError if nftables refuses. Then the caller must call `leave`.
        """
        # Without the lock, so that a pod without a choice never waits for a repair of the table.
        if choice is None and self._is_absent(address):
            return
        with self.lock:
            entries = dict(self._loaded())
            former = entries.pop(address, None)
            is_unsure = address in self._unsure
            if former is choice and not is_unsure:
                return
            if choice is not None:
                entries[address] = choice
            self._entries = entries
            self._unsure.add(address)
            others = set(PodSnat) if is_unsure else {former}
            self.tables.change_elements(SNAT, _change(address, choice, others), elements(entries))
            self._unsure.discard(address)

    def leave(self, address: IpAddress) -> None:
        """Take an address out of the sets.

        If nftables refuses, the next repair takes the address out. If an ADD gets the address before that repair, its call of
        `enter` corrects the sets.
        """
        try:
            self.enter(address, None)
        except WiringError as error:
            log.info(
                "nftables refused to remove an address from a set, the next repair tries again address=%s error=%s",
                address,
                error,
            )

    def _is_absent(self, address: IpAddress) -> bool:
        """Whether an address is certainly in no set. False before the rows and the sets were read."""
        entries = self._entries
        if entries is None:
            return False
        if not entries and not self._unsure:  # a shortcut, which saves hashing the address on a node where no pod has a choice
            return True
        return address not in entries and address not in self._unsure


def _change(address: IpAddress, choice: PodSnat | None, others: Collection[PodSnat | None]) -> str:
    """Return commands that take an address out of the sets of the choices `others`, and put it into the set of `choice`."""
    commands = ""
    for chosen, name in SNAT_SETS.items():
        if chosen is choice or chosen in others:
            commands += f"add element {SNAT} {name} {{ {address} }}\n"
        if chosen is not choice and chosen in others:  # the kernel refuses to delete an element that is not there
            commands += f"delete element {SNAT} {name} {{ {address} }}\n"
    return commands
