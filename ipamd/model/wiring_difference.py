"""A difference between the record of a sandbox and its wiring, on the host or inside the sandbox."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.difference_messages import INSIDE_IS_LEFT, difference_text
from ipamd.model.record import dataclass
from ipamd.model.repairs import RepairKind

ABSENCES = frozenset(
    {
        DifferenceCode.VETH_MISSING,
        DifferenceCode.VETH_DYING,
        DifferenceCode.ROUTE_MISSING,
        DifferenceCode.UPLINK_MISSING,
        DifferenceCode.UPLINK_DYING,
        DifferenceCode.UPLINK_ROUTE_MISSING,
    }
)
"""Differences that consist in something missing. Only a whole survey proves them (I11)."""

INSIDE = frozenset(
    {
        DifferenceCode.INTERFACE_MISSING,
        DifferenceCode.INTERFACE_NOT_THE_OTHER_END,
        DifferenceCode.INTERFACE_KIND,
        DifferenceCode.INTERFACE_DOWN,
        DifferenceCode.INTERFACE_MAC,
        DifferenceCode.INTERFACE_MTU,
        DifferenceCode.INTERFACE_ADDRESS_MISSING,
        DifferenceCode.INTERFACE_ADDRESS_UNUSED,
        DifferenceCode.INSIDE_REFUSES,
        DifferenceCode.GATEWAY_ROUTE_UNUSED,
        DifferenceCode.DEFAULT_ROUTE_UNUSED,
        DifferenceCode.GATEWAY_NEIGHBOUR,
    }
)
"""Differences inside a sandbox, which no repair touches."""


@dataclass(frozen=True, slots=True)
class WiringDifference:
    """One difference.

    `fields`: the values for the names in braces in the code's sentence, as text.
    `kind`: the kind of the object that the repair of sandboxes changes; None: that repair changes nothing, for example because the
        link is gone or may be another sandbox's, or because the difference is inside the sandbox.
    """

    code: DifferenceCode
    fields: Mapping[str, str]
    kind: RepairKind | None = None

    @property
    def is_absence(self) -> bool:
        """Whether something was missing. Only a whole survey proves this (I11)."""
        return self.code in ABSENCES

    @property
    def text(self) -> str:
        """The sentence that says what differs from the record."""
        return difference_text(self.code, self.fields)


def wiring_difference(code: DifferenceCode, kind: RepairKind | None = None, /, **fields: object) -> WiringDifference:
    """Make a difference; the fields become text."""
    return WiringDifference(code, {name: str(value) for name, value in fields.items()}, kind)


def advised_texts(differences: Iterable[WiringDifference]) -> list[str]:
    """Return the sentences of differences, and after them the advice about differences inside the sandbox, if there are any."""
    texts, is_inside = list[str](), False
    for difference in differences:
        texts.append(difference.text)
        is_inside = is_inside or difference.code in INSIDE
    return [*texts, INSIDE_IS_LEFT] if is_inside else texts


def difference_texts(differences: Iterable[WiringDifference]) -> str:
    """Return the sentences of differences in one line."""
    return "; ".join(difference.text for difference in differences)
