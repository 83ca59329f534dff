"""Other software whose CNI plugins run beside ours on this node. `ipamctl status` shows it as a fact, not as a fault."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.record import dataclass


class CompanionKind(StrEnum):
    """How other software runs beside our plugin."""

    APPENDED = "appended"
    """The other software's plugin is an entry behind ours in our conflist."""
    FIRST = "first"
    """The other software's CNI configuration sorts before ours, so the runtime uses it instead of ours; its plugin calls our
    plugin."""


@dataclass(frozen=True, slots=True)
class Companion:
    """A plugin of other software in our conflist, or a configuration file of other software.

    `name`: the plugin's name, or the path of the file.
    `detail`: a sentence about it.
    """

    kind: CompanionKind
    name: str
    detail: str


class Companions:
    """The companions at the last reading of the CNI configuration directory. One thread sets `seen`, and any thread may read it."""

    def __init__(self) -> None:
        self.seen: tuple[Companion, ...] = ()
