"""A table of ours in nftables: compare it with what it must be, and replace it.

What nft prints is not what it was given, so the comparison is with what it printed right after our own replacement: the first
comparison of a process always replaces.
"""

from __future__ import annotations

import re

from ipamd.kernel.nft import Nftables
from ipamd.kernel.ruleset import SNAT, NftTable
from ipamd.model.repair import Followed

COUNTED = re.compile(r"packets \d+ bytes \d+")
"""How nft prints the present value of a counter."""


class OwnTable:
    """Remembers what was applied. Used under a lock of its owner.

    `listing`: how nft printed the table at the last look, with the values of its counters.
    """

    def __init__(self, nft: Nftables, table: NftTable = SNAT, *, follows: str = "the VPC's CIDRs or of a setting") -> None:
        """`follows` says what changes what the table must be."""
        self._nft = nft
        self._table = table
        self._follows = follows
        self._what = f"nftables table {table.name}" + ("" if table.family == SNAT.family else f" ({table.family})")
        self.listing = ""
        self._applied: tuple[str, str] | None = None  # the commands, and how nft lists the table that they made

    def forget(self) -> None:
        """Replace the table at the next repair, whatever it is like: it may be of an earlier release or configuration."""
        self._applied = None

    def difference(self, commands: str) -> str:
        """Say in one sentence how the table differs from what `commands` make; "" if it does not. Raises: WiringError.

        Before the first repair of this process only its absence is told: with what it should be like, nothing can be compared yet.
        """
        now = self._list()
        if self._applied == (commands, now):
            return ""
        if self._applied is None:
            return f"{self._what} was missing" if not now and commands != self._table.removal() else ""
        if self._applied[0] != commands:
            return f"{self._what} did not follow a change of {self._follows} yet"
        return f"{self._what} had been changed" if now else f"{self._what} was missing"

    def repair(self, commands: str) -> list[str]:
        """Replace the table if it differs; one sentence if that changed it, `Followed` if `commands` did. Raises: WiringError."""
        now = self._list()
        if self._applied == (commands, now):
            return []
        self._nft.run(commands)
        first_time = self._applied is None
        was_changed_by_us = self._applied is not None and self._applied[0] != commands
        self._applied = (commands, self._list())
        if now == self._applied[1]:
            return []
        if not now:
            return [f"{self._what} was missing: added"]
        if not self._applied[1]:
            return [f"{self._what} is not needed: removed"]
        if was_changed_by_us:
            return [Followed(f"{self._what} followed a change of {self._follows}: replaced")]
        return [f"{self._what} {'was of an earlier start' if first_time else 'had been changed'}: replaced"]

    def _list(self) -> str:
        self.listing = self._nft.list_table(self._table.family, self._table.name)
        return COUNTED.sub("", self.listing)
