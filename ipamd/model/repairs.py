"""The report of a repair on the host, as a code and fields: what it did, or why it failed. `repair_messages` makes its sentence. Pure.

The code determines how a report is handled (`OUTCOMES`). Repairs are counted, and many repairs of one object are a repair conflict. A
refusal is shown as a condition until the same repair succeeds.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from ipamd.model.record import dataclass

NODE = "node"
"""Subject of differences and repairs in the node's own networking: sysctls, marks, our nftables table."""


class RepairKind(StrEnum):
    """The kinds of objects that are repaired. They are a label of the metric `ipamd_repairs_total`, so the list is closed."""

    LINK = "link"
    ADDRESS = "address"
    ROUTE = "route"
    RULE = "rule"
    SYSCTL = "sysctl"
    NFT = "nft"
    CONFLIST = "conflist"
    PLUGIN = "plugin"


class RepairedObject(NamedTuple):
    """One object of the host. `subject`: an ENI's ID, a sandbox's address, NODE, "confinement", "all sandboxes", or a file's path."""

    kind: RepairKind
    subject: str

    def __str__(self) -> str:
        return f"{self.kind} of {self.subject}"


CONFINEMENT = RepairedObject(RepairKind.NFT, "confinement")
"""The nftables rules that drop packets which a sandbox must not send or receive."""

SHARED_RULE = RepairedObject(RepairKind.RULE, "all sandboxes")
"""The one rule by which packets to sandboxes are looked up in our own table."""

TRANSLATION = RepairedObject(RepairKind.NFT, NODE)
"""The nftables rules that translate the sources of sandboxes' packets: SNAT to outside the VPC, and SNAT of the local range."""

NODE_ROUTING = RepairedObject(RepairKind.ROUTE, NODE)
"""The node's own routing as a whole, for refusals that concern no single object."""

PUT_BACK_ALWAYS = frozenset({CONFINEMENT, SHARED_RULE, TRANSLATION})
"""Objects that are repaired each time, even in a repair conflict, because a pause would leave pods unconfined or without network."""


class RepairCode(StrEnum):
    """The kind of a report. `repair_messages` has the sentence for each code, and `OUTCOMES` how it is handled."""

    ADDED = "added"
    REMOVED = "removed"
    FOREIGN_REMOVED = "foreign removed"
    MISLEADING_REMOVED = "misleading removed"
    ROUTE_REPLACED = "route replaced"
    VALUE_SET = "value set"
    LINK_SET = "link set"
    LINK_RENAMED = "link renamed"
    TABLE_RENEWED = "table renewed"
    TABLE_RESTORED = "table restored"
    FILE_WRITTEN = "file written"

    TABLE_FOLLOWED = "table followed"
    FILE_UPDATED = "file updated"
    STRAY_REMOVED = "stray removed"
    CUT_OFF = "cut off"
    LINK_TAKEN_DOWN = "link taken down"
    DISCOVERY_OPENED = "discovery opened"
    ENTRY_REMOVED = "entry removed"

    STEP_FAILED = "step failed"
    LINK_GOING = "link going"
    ENI_LINK_MISSING = "eni link missing"
    ROUTE_OF_ANOTHER = "route of another"
    NOT_WIRED_AGAIN = "not wired again"

    REFUSED = "refused"
    ENI_REFUSED = "eni refused"

    LINK_NOT_OURS = "link not ours"
    VLAN_LINK_MISSING = "vlan link missing"
    VLAN_LINK_NOT_OURS = "vlan link not ours"


class RepairOutcome(StrEnum):
    """How a report is handled.

    REPAIRED: a change by other software was undone. The repair is counted.
    ADJUSTED: we changed something that no other software had altered: to follow a change of ours, to clean up, or to cut a sandbox
        off. The report is only logged.
    LEFT: nothing was repaired, and there is no condition. The report is only logged.
    REFUSED: the repair failed. A condition of the repaired part shows this until the repair succeeds.
    NEEDS_OPERATOR: only an operator can mend the difference. A condition of the sandbox shows this until an operator has mended it.
    """

    REPAIRED = "repaired"
    ADJUSTED = "adjusted"
    LEFT = "left"
    REFUSED = "refused"
    NEEDS_OPERATOR = "needs-operator"


OUTCOMES = {
    RepairCode.ADDED: RepairOutcome.REPAIRED,
    RepairCode.REMOVED: RepairOutcome.REPAIRED,
    RepairCode.FOREIGN_REMOVED: RepairOutcome.REPAIRED,
    RepairCode.MISLEADING_REMOVED: RepairOutcome.REPAIRED,
    RepairCode.ROUTE_REPLACED: RepairOutcome.REPAIRED,
    RepairCode.VALUE_SET: RepairOutcome.REPAIRED,
    RepairCode.LINK_SET: RepairOutcome.REPAIRED,
    RepairCode.LINK_RENAMED: RepairOutcome.REPAIRED,
    RepairCode.TABLE_RENEWED: RepairOutcome.REPAIRED,
    RepairCode.TABLE_RESTORED: RepairOutcome.REPAIRED,
    RepairCode.FILE_WRITTEN: RepairOutcome.REPAIRED,
    RepairCode.TABLE_FOLLOWED: RepairOutcome.ADJUSTED,
    RepairCode.FILE_UPDATED: RepairOutcome.ADJUSTED,
    RepairCode.STRAY_REMOVED: RepairOutcome.ADJUSTED,
    RepairCode.CUT_OFF: RepairOutcome.ADJUSTED,
    RepairCode.LINK_TAKEN_DOWN: RepairOutcome.ADJUSTED,
    RepairCode.DISCOVERY_OPENED: RepairOutcome.ADJUSTED,
    RepairCode.ENTRY_REMOVED: RepairOutcome.ADJUSTED,
    RepairCode.STEP_FAILED: RepairOutcome.LEFT,
    RepairCode.LINK_GOING: RepairOutcome.LEFT,
    RepairCode.ENI_LINK_MISSING: RepairOutcome.LEFT,
    RepairCode.ROUTE_OF_ANOTHER: RepairOutcome.LEFT,
    RepairCode.NOT_WIRED_AGAIN: RepairOutcome.LEFT,
    RepairCode.REFUSED: RepairOutcome.REFUSED,
    RepairCode.ENI_REFUSED: RepairOutcome.REFUSED,
    RepairCode.LINK_NOT_OURS: RepairOutcome.NEEDS_OPERATOR,
    RepairCode.VLAN_LINK_MISSING: RepairOutcome.NEEDS_OPERATOR,
    RepairCode.VLAN_LINK_NOT_OURS: RepairOutcome.NEEDS_OPERATOR,
}


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What happened to one object of the host.

    `object`: the object that is repaired.
    `target`: the exact part of the object, as `ip` and `nft` write it, such as "rule 513 lookup 113213"; an object may have several.
    `before`, `after`: what was there before the repair, and what is there after it; "" if the sentence of the code does not need it.
        With LINK_SET and FILE_WRITTEN `before` says in words what was wrong.
    `owner`: the sandbox or ENI that needs the target; "" if the target names it.
    `cause`: why nothing was repaired; with TABLE_FOLLOWED the thing whose change the table follows; "" after any other repair.
    """

    code: RepairCode
    object: RepairedObject
    target: str = ""
    before: str = ""
    after: str = ""
    owner: str = ""
    cause: str = ""

    @property
    def outcome(self) -> RepairOutcome:
        """How the report is handled."""
        return OUTCOMES[self.code]

    @property
    def is_repair(self) -> bool:
        """Whether a change by other software was undone."""
        return self.outcome is RepairOutcome.REPAIRED

    @property
    def is_refusal(self) -> bool:
        """Whether the repair failed."""
        return self.outcome is RepairOutcome.REFUSED

    @property
    def needs_operator(self) -> bool:
        """Whether the sandbox's wiring stays wrong until an operator acts."""
        return self.outcome is RepairOutcome.NEEDS_OPERATOR


def refusals_of(reports: Iterable[RepairReport]) -> list[RepairReport]:
    """Return the reports of failed repairs."""
    return [report for report in reports if report.is_refusal]
