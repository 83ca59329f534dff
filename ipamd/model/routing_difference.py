"""A difference between the host's networking and what sandboxes need."""

from __future__ import annotations

from collections.abc import Mapping

from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.difference_messages import difference_text, mend_text
from ipamd.model.record import dataclass
from ipamd.model.repair_messages import difference_text as repair_difference_text
from ipamd.model.repairs import RepairReport

REPAIRED = frozenset({DifferenceCode.NOT_AS_REQUIRED, DifferenceCode.NEIGHBOUR_OF_ANOTHER, DifferenceCode.NEIGHBOUR_NOT_FIXED})
"""Differences that the next reconciliation repairs. Any other difference, such as a missing link, lasts until an operator mends it."""

LOSES_NO_PACKETS = frozenset(
    {
        DifferenceCode.SERVICES_BY_IPVS,
        DifferenceCode.CHAIN_LEFT_SNAT,
        DifferenceCode.CHAIN_LEFT_MARKS,
        DifferenceCode.TABLE_LEFT,
        DifferenceCode.FILTER_POLICY_DROPS,
        DifferenceCode.FILTER_RULE_DROPS_REST,
        DifferenceCode.FILTER_RULE_DROPS,
    }
)
"""Differences that do not count as a loss of packets: packets pass, but not as our settings say; or a loss is only suspected."""


@dataclass(frozen=True, slots=True)
class RoutingDifference:
    """One difference.

    `subject`: an ENI's ID, an address, a host veth, or NODE.
    `fields`: the values for the names in braces in the code's sentence, as text.
    `report`: the report of a repair that would end the difference but was not made; None: the sentence is that of the code.
    """

    code: DifferenceCode
    subject: str
    fields: Mapping[str, str]
    report: RepairReport | None = None

    @property
    def will_be_repaired(self) -> bool:
        """Whether the next reconciliation repairs the difference; otherwise it lasts until an operator acts."""
        return self.code in REPAIRED

    @property
    def loses_packets(self) -> bool:
        """Whether packets of sandboxes are lost because of the difference."""
        return self.code not in LOSES_NO_PACKETS

    @property
    def text(self) -> str:
        """The sentence that says what is wrong."""
        return difference_text(self.code, self.fields) if self.report is None else repair_difference_text(self.report)

    @property
    def mend(self) -> str:
        """How an operator mends the difference; "" if there is no advice for it."""
        return mend_text(self.code, self.fields)

    @property
    def advised_text(self) -> str:
        """The sentence that says what is wrong, with the advice if there is any."""
        return f"{self.text}; to mend it: {self.mend}" if self.mend else self.text


def routing_difference(code: DifferenceCode, subject: object, /, **fields: object) -> RoutingDifference:
    """Make a difference; subject and fields become text."""
    return RoutingDifference(code, str(subject), {name: str(value) for name, value in fields.items()})


def repair_difference(report: RepairReport, subject: object) -> RoutingDifference:
    """Make the difference for a repair that a reconciliation would make. `report`: the report of this repair."""
    return RoutingDifference(DifferenceCode.NOT_AS_REQUIRED, str(subject), {}, report)
