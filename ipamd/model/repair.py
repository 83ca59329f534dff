"""What the daemon repairs on the host, by kind and object, so that repairs can be counted and a fight over one object be noticed.

Pure. A repair travels as its sentence: whoever only logs needs no more, and whoever counts finds the object in it.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple


class RepairKind(StrEnum):
    """Kinds of objects that are repaired; the label of `ipamd_repairs_total`, so the list is closed."""

    LINK = "link"
    ADDRESS = "address"
    ROUTE = "route"
    RULE = "rule"
    SYSCTL = "sysctl"
    NFT = "nft"
    CONFLIST = "conflist"
    PLUGIN = "plugin"


class RepairedObject(NamedTuple):
    """One object of the host. `subject`: an ENI's ID, a sandbox's address, NODE, "confinement", or a file's path."""

    kind: RepairKind
    subject: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject}"


CONFINEMENT = RepairedObject(RepairKind.NFT, "confinement")
"""What keeps sandboxes' packets where they belong. It is put back each time, also in a fight: a pause would leave pods unconfined."""


class Repaired(str):
    """One repair that was made: its sentence, and the object. A plain `str` among repairs says what was not repaired."""

    thing: RepairedObject

    def __new__(cls, sentence: str, thing: RepairedObject) -> Repaired:
        """A sentence with its object."""
        made = super().__new__(cls, sentence)
        made.thing = thing
        return made


class Followed(str):
    """What was changed because something of ours changed, a setting or a name: no repair, so there is nobody to fight with."""

    __slots__ = ()


def as_repairs(sentences: Iterable[str], thing: RepairedObject) -> list[str]:
    """Make repairs of one object of sentences, but for those that tell of changes of ours."""
    return [one if isinstance(one, Followed) else Repaired(one, thing) for one in sentences]
