"""Things that must never happen, by name: each is counted, and any count above 0 is a defect of ours to be reported. Pure."""

from __future__ import annotations

from enum import StrEnum

from ipamd.model.errors import IllegalTransitionError, InvariantError, IpamError


class Defect(StrEnum):
    """What must never happen.

    DUPLICATE: at a start one address was wired to two sandboxes (I1). INVARIANT: a request or a loop ended because a constraint or the
    transition table refused its change (I1-I9); nothing was changed. UNEXPECTED: it ended in an error that is none of our own.
    DATASTORE: `ipamctl audit` found that memory and disk differ, or contradict themselves.
    """

    DUPLICATE = "duplicate-address"
    INVARIANT = "invariant-refused"
    UNEXPECTED = "unexpected-error"
    DATASTORE = "datastore-differs"


def defect_of(error: BaseException) -> Defect | None:
    """Which defect an error that ended a request or one turn of a loop shows; None for what happens to a node without a defect."""
    if isinstance(error, InvariantError | IllegalTransitionError):
        return Defect.INVARIANT
    return None if isinstance(error, IpamError) else Defect.UNEXPECTED
