"""The reasons why a sandbox is kept, reaped, adopted or quarantined: codes and their sentences. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.record import dataclass, field


class ReasonCode(StrEnum):
    """A reason, from what the sources report about a sandbox."""

    DELETED = "deleted"
    NEVER_PROMISED = "never-promised"
    NETNS_GONE = "netns-gone"
    VETH_GONE = "veth-gone"
    ONLY_REMAINS_LEFT = "only-remains-left"
    WIRING_UNKNOWN = "wiring-unknown"
    WIRING_GONE = "wiring-gone"
    WIRED_AND_LISTED = "wired-and-listed"
    WIRED_AND_SILENT = "wired-and-silent"
    WIRED_NOT_LISTED = "wired-not-listed"
    LISTED = "listed"
    RUNTIME_SILENT = "runtime-silent"
    LISTS_TOO_FEW = "lists-too-few"
    TOO_YOUNG = "too-young"
    NETNS_THERE = "netns-there"
    NETNS_UNKNOWN = "netns-unknown"
    VETH_THERE = "veth-there"
    VETH_UNKNOWN = "veth-unknown"
    ABSENT_FROM_LISTS = "absent-from-lists"
    NOT_VALID = "not-valid"
    ABSENT_FOR_LONG = "absent-for-long"


SENTENCES: Mapping[ReasonCode, str] = {
    ReasonCode.DELETED: "its DEL was done",
    ReasonCode.NEVER_PROMISED: "no ADD succeeded for it",
    ReasonCode.NETNS_GONE: "its network namespace is gone",
    ReasonCode.VETH_GONE: "its host veth is gone",
    ReasonCode.ONLY_REMAINS_LEFT: "only its network namespace or veth is left",
    ReasonCode.WIRING_UNKNOWN: "whether it is wired is not known",
    ReasonCode.WIRING_GONE: "its wiring is gone",
    ReasonCode.WIRED_AND_LISTED: "wired, and the runtime lists its sandbox",
    ReasonCode.WIRED_AND_SILENT: "wired, and the runtime is silent",
    ReasonCode.WIRED_NOT_LISTED: "wired, but the runtime does not list its sandbox",
    ReasonCode.LISTED: "the runtime lists its sandbox",
    ReasonCode.RUNTIME_SILENT: "the runtime has not given a complete list",
    ReasonCode.LISTS_TOO_FEW: "absent from {count} complete list(s), {needed} are needed",
    ReasonCode.TOO_YOUNG: "attached {age_s} s ago, {needed_s} s are needed",
    ReasonCode.NETNS_THERE: "its network namespace is there",
    ReasonCode.NETNS_UNKNOWN: "whether its network namespace is there is not known",
    ReasonCode.VETH_THERE: "its host veth is there",
    ReasonCode.VETH_UNKNOWN: "whether its host veth is there is not known",
    ReasonCode.ABSENT_FROM_LISTS: "absent from {count} complete lists",
    ReasonCode.NOT_VALID: "not among the runtime's valid attachments (GC)",
    ReasonCode.ABSENT_FOR_LONG: "absent from the runtime for over {minutes} min",
}
"""By code: the reason in words."""


@dataclass(frozen=True, slots=True)
class VerdictReason:
    """One reason of a verdict. `fields`: the values for the names in braces in the code's sentence, as text."""

    code: ReasonCode
    fields: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return SENTENCES[self.code].format_map(self.fields)


def verdict_reason(code: ReasonCode, /, **fields: object) -> VerdictReason:
    """Make a reason; the fields become text."""
    return VerdictReason(code, {name: str(value) for name, value in fields.items()})
