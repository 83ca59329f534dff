"""Our nftables table on the node: compare it with what it must be, and replace it.

What nft prints is not what it was given, so the comparison is with what it printed right after our own replacement: the first
comparison of a process always replaces.
"""

from __future__ import annotations

from ipamd.kernel import ruleset
from ipamd.kernel.nft import Nftables

WHAT = f"nftables table {ruleset.TABLE}"


class OwnTable:
    """Remembers what was applied. Used under the lock of `KernelHostNetwork`."""

    def __init__(self, nft: Nftables) -> None:
        self._nft = nft
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
            return f"{WHAT} was missing" if not now and commands != ruleset.remove_table() else ""
        if self._applied[0] != commands:
            return f"{WHAT} did not follow a change of the VPC's CIDRs or of a setting yet"
        return f"{WHAT} had been changed" if now else f"{WHAT} was missing"

    def repair(self, commands: str) -> list[str]:
        """Replace the table if it differs; one sentence if that changed it. Raises: WiringError."""
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
            return [f"{WHAT} was missing: added"]
        if not self._applied[1]:
            return [f"{WHAT} is not needed: removed"]
        if was_changed_by_us:
            return [f"{WHAT} followed a change of the VPC's CIDRs or of a setting: replaced"]
        return [f"{WHAT} {'was of an earlier start' if first_time else 'had been changed'}: replaced"]

    def _list(self) -> str:
        return self._nft.list_table(ruleset.FAMILY, ruleset.TABLE)
