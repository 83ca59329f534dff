"""Other software whose plugins run beside ours on this node: facts for `ipamctl status`, no faults."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.record import dataclass


class CompanionKind(StrEnum):
    """How another plugin stands to ours."""

    APPENDED = "appended"
    """Its entry follows ours in our conflist."""
    FIRST = "first"
    """The runtime takes its file instead of ours, and that leads to our plugin."""


@dataclass(frozen=True, slots=True)
class Companion:
    """One plugin or file beside ours. `name`: of the plugin, or the path of the file. `detail`: one sentence."""

    kind: CompanionKind
    name: str
    detail: str


class Companions:
    """The companions at the last reading of the CNI configuration directory. One thread writes, any reads."""

    def __init__(self) -> None:
        self.seen: tuple[Companion, ...] = ()
