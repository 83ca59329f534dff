"""Things that must never happen, by name: each is counted, and any count above 0 is a defect of ours to be reported. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.disk_refusal import disk_refusal
from ipamd.model.errors import IllegalTransitionError, InvariantError, IpamError


class Defect(StrEnum):
    """Names of events that must never happen.

    DUPLICATE: at a start one address was wired to two sandboxes (I1).
    INVARIANT: a request or a loop ended because a constraint or the transition table refused its change (I1-I9); nothing was changed.
    UNEXPECTED: it ended in an error that is none of our own.
    DATASTORE: `ipamctl audit` found that memory and disk differ, or contradict themselves.
    """

    DUPLICATE = "duplicate-address"
    INVARIANT = "invariant-refused"
    UNEXPECTED = "unexpected-error"
    DATASTORE = "datastore-differs"


def defect_of(error: BaseException) -> Defect | None:
    """Return the defect that an error of a request or of a loop's turn reveals; None for an error that can occur without a defect."""
    if isinstance(error, InvariantError | IllegalTransitionError):
        return Defect.INVARIANT
    if isinstance(error, IpamError) or disk_refusal(error):
        return None
    return Defect.UNEXPECTED
