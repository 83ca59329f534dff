"""The commands that make, replace and remove a table of ours in nftables.

nft does not print a table as it was written, so a table is compared with the text that nft printed right after our own replacement.
The first repair of a process has no such text, so it replaces the table, unless an earlier process has recorded it (`nft_record`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import NamedTuple

from ipamd.model.family import IpAddress

POD_SET = "snat_"
"""Beginning of the names of the sets that contain addresses of sandboxes."""

REFILLED = re.compile(rf"^(?:iface_index \w+|ipv4_addr {POD_SET}\w+) \[.*\n", re.M)
"""Matches, in the text of a table (`nft_changes`), the lines about sets that are refilled without replacing the table: sets of links
and sets of sandboxes' addresses."""

FLUSH = "flush set "

TRIES = 3
"""How often a repair is tried if other software changes nftables meanwhile. Ours: a try takes some 20 ms, and even software that
changes nftables all the time does so only ten times a second. So at least one of three tries is very likely undisturbed."""

COUNTED = re.compile(r"packets \d+ bytes \d+")
"""Matches the value of a counter as nft prints it."""


class NftTable(NamedTuple):
    """An nftables table of ours, as nft names it."""

    family: str
    name: str

    def __str__(self) -> str:
        return f"{self.family} {self.name}"

    @property
    def display_name(self) -> str:
        """The table's name in texts for people."""
        return f"nftables table {self.name}" + ("" if self.family == "ip" else f" ({self.family})")

    def removal(self) -> str:
        """Return commands that remove the table, whether it exists or not."""
        return f"add table {self}\ndelete table {self}\n"

    def links(self, name: str, links: Collection[int]) -> str:
        """Return commands that fill a set of links.

        Links are written by index, because a link's name may contain any character, even quotes. nft reads the text of an element
        first as a link's name, and a link may have the index of another link as its name. So the index is padded to 16 digits, which
        is longer than any name (IFNAMSIZ is 16, with the terminator).

        Args:
            name: of the set.
            links: indexes of the links.
        """
        numbers = ", ".join(f'"{index:016}"' for index in links)
        added = f"add element {self} {name} {{ {numbers} }}\n"
        return f"{FLUSH}{self} {name}\n{added if links else ''}"

    def addresses(self, name: str, addresses: Iterable[IpAddress]) -> str:
        """Return commands that fill the set `name` with addresses."""
        listed = ", ".join(str(address) for address in sorted(addresses, key=int))
        added = f"add element {self} {name} {{ {listed} }}\n"
        return f"{FLUSH}{self} {name}\n{added if listed else ''}"

    def replacement(self, body: str) -> str:
        """Return commands that replace the table, as one transaction. `body`: the text of its sets, counters and chains."""
        return f"{self.removal()}add table {self}\ntable {self} {{\n{body}\n}}\n"
