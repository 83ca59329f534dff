"""Events that must never happen, by name. Each event is counted, and a count above 0 shows a defect of vpc-ipamd. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.disk_refusal import disk_refusal
from ipamd.model.errors import IllegalTransitionError, InvariantError, IpamError


class Defect(StrEnum):
    """Names of events that must never happen.

    DUPLICATE: at a start one address was wired to two sandboxes (I1).
    INVARIANT: a request, or a turn (one pass) of a background loop, failed, because a constraint of the datastore or the transition
        table refused its change (I1-I9). Nothing was changed.
    UNEXPECTED: a request or a turn ended in an exception that is neither an `IpamError` nor a disk error.
    DATASTORE: `ipamctl audit` found that memory and disk differ, or that the rows contradict each other.
    """

    DUPLICATE = "duplicate-address"
    INVARIANT = "invariant-refused"
    UNEXPECTED = "unexpected-error"
    DATASTORE = "datastore-differs"


def defect_of(error: BaseException) -> Defect | None:
    """Return the defect that an error of a request or of a loop's turn shows; None for an error that occurs without a defect."""
    if isinstance(error, InvariantError | IllegalTransitionError):
        return Defect.INVARIANT
    if isinstance(error, IpamError) or disk_refusal(error):
        return None
    return Defect.UNEXPECTED
