"""The states of one address, as one transition table.

    free --reserve--> reserved --confirm--> assigned --unassign--> cooling --cooled--> free
    reserved --abort--> cooling          reserved --return--> free (the address reached no sandbox)
    free, reserved or cooling --disagree--> quarantined --resolve--> cooling
    free, cooling or quarantined --adopt--> assigned

A pair (state, event) that is not in the table raises an error, because a guessed state could assign an address twice or too soon (I1,
I8). `reserved` exists only in memory, because the runtime gets an address only after the transaction that confirms it (I5). A
quarantined address cools after `resolve`, because the DEL of its sandbox may have come seconds before (docs/datastore.md).

In a /80 only addresses that are not free have a row of their own. The row of the last address, which is never assigned, stands for all
addresses without a row (*the rest*). So a /80 takes memory only for its used addresses, and code that looks up an address always gets
a row.

`lost` is not a state but a mark on any state: EC2 does not show the address any more. The sandbox that has the address keeps it (I2),
no other sandbox gets it (I7), and its row is removed when the address would become free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from ipamd.model.errors import IllegalTransitionError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import IpAddress, IpNetwork, family_of, stand_in
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.record import dataclass, field
from ipamd.model.words import MANY


class AddressState(StrEnum):
    """State of an address.

    FREE: it may be assigned.
    RESERVED: an ADD is wiring a sandbox with it; in memory only.
    ASSIGNED: a sandbox has it.
    COOLING: a sandbox has left it, or may have had it lately. It is not assigned again before the cooldown is over.
    QUARANTINED: a wired sandbox has it, and the sources disagree about this sandbox.
    """

    FREE = "free"
    RESERVED = "reserved"
    ASSIGNED = "assigned"
    COOLING = "cooling"
    QUARANTINED = "quarantined"


class AddressEvent(StrEnum):
    """Event that changes the state of an address.

    RESERVE: an ADD takes the address.
    CONFIRM: the ADD that reserved the address succeeds.
    RETURN: this ADD fails before the address has reached the sandbox.
    ABORT: this ADD fails after the address may have reached the sandbox.
    UNASSIGN: the sandbox leaves.
    COOLED: the cooldown is over.
    DISAGREE: a wired sandbox with the address was found, and the datastore has no row of this sandbox.
    RESOLVE: the sandbox without a row is gone.
    ADOPT: the sandbox without a row is recorded.
    """

    RESERVE = "reserve"
    CONFIRM = "confirm"
    ABORT = "abort"
    RETURN = "return"
    UNASSIGN = "unassign"
    COOLED = "cooled"
    DISAGREE = "disagree"
    RESOLVE = "resolve"
    ADOPT = "adopt"


TRANSITIONS: dict[tuple[AddressState, AddressEvent], AddressState] = {
    (AddressState.FREE, AddressEvent.RESERVE): AddressState.RESERVED,
    (AddressState.RESERVED, AddressEvent.CONFIRM): AddressState.ASSIGNED,
    (AddressState.RESERVED, AddressEvent.ABORT): AddressState.COOLING,
    (AddressState.RESERVED, AddressEvent.RETURN): AddressState.FREE,
    (AddressState.ASSIGNED, AddressEvent.UNASSIGN): AddressState.COOLING,
    (AddressState.COOLING, AddressEvent.COOLED): AddressState.FREE,
    (AddressState.FREE, AddressEvent.DISAGREE): AddressState.QUARANTINED,
    (AddressState.RESERVED, AddressEvent.DISAGREE): AddressState.QUARANTINED,
    (AddressState.COOLING, AddressEvent.DISAGREE): AddressState.QUARANTINED,
    (AddressState.QUARANTINED, AddressEvent.RESOLVE): AddressState.COOLING,
    # Adoption (docs/life.md, Start): a wired sandbox that the datastore does not know keeps its address.
    (AddressState.FREE, AddressEvent.ADOPT): AddressState.ASSIGNED,
    (AddressState.COOLING, AddressEvent.ADOPT): AddressState.ASSIGNED,
    (AddressState.QUARANTINED, AddressEvent.ADOPT): AddressState.ASSIGNED,
}


@dataclass(frozen=True, slots=True)
class Address:
    """One secondary address of an ENI, as the datastore records it.

    `since`: when the current state began (aware UTC).
    `owner`: the attachment that has the address (state assigned) or is about to get it (reserved); None in every other state.
    `cooling_until`: the end of the cooldown by the wall clock (aware UTC), for people; None in every other state than cooling.
    `reason`: why the address is in its state, as one or a few words; "" if nobody gave a reason.
    `prefix`: the delegated /28 or /80 that contains the address; None for a single address.
    `cooldown_deadline_s`: the end of the cooldown on the machine's monotonic clock, which continues when the daemon restarts and is
        never stepped; None: not known.
    `since_monotonic_s`: `since` on the monotonic clock; None: not known.
    `lost_since`: since when the address is lost (aware UTC); None if EC2 shows it.
    `lost_reason`: why the address counts as lost.
    `other_address`: the address of an extra leg of the same sandbox, in the other family. It cools, and becomes free, together with
    this address.
    `kept_for`: the pod (`namespace/name`) for which the address is kept between the pod's DEL and its next ADD (docs/adr/0083); None
        if any pod may get the address.
    `kept_until_s`: when the keeping ends, on the monotonic clock; None if the address is not kept.
    """

    address: IpAddress
    eni_id: EniId
    state: AddressState
    since: datetime
    prefix: IpNetwork | None = None
    owner: AttachmentKey | None = None
    cooling_until: datetime | None = None
    reason: str = ""
    cooldown_deadline_s: float | None = field(default=None, compare=False)
    since_monotonic_s: float | None = field(default=None, compare=False)
    lost_since: datetime | None = None
    lost_reason: str = ""
    other_address: IpAddress | None = None
    kept_for: str | None = None
    kept_until_s: float | None = field(default=None, compare=False)

    @property
    def is_in_use(self) -> bool:
        """Whether a sandbox has the address, or is about to get it (I2)."""
        return self.state in (AddressState.ASSIGNED, AddressState.RESERVED)

    @property
    def is_free(self) -> bool:
        """Whether the address is free and EC2 shows it."""
        return self.state is AddressState.FREE and self.lost_since is None

    @property
    def is_lost(self) -> bool:
        """Whether EC2 does not show the address any more. A lost address is not assigned again."""
        return self.lost_since is not None

    @property
    def is_rest(self) -> bool:
        """Whether this row stands for all addresses of a /80 that have no row. The address itself is never assigned."""
        return self.prefix is not None and family_of(self.prefix).is_sparse and self.address == self.prefix.broadcast_address

    @property
    def count(self) -> int:
        """The number of addresses that this row stands for."""
        if self.is_rest:
            return MANY
        return 1

    @property
    def has_row(self) -> bool:
        """Whether the disk has a row for the address.

        In a /80 an address that is free, or reserved in memory (I5), has none, with two exceptions: a lost address, and the last
        address, whose row stands for the rest.
        """
        if self.state not in (AddressState.FREE, AddressState.RESERVED) or self.lost_since is not None:
            return True
        return self.prefix is None or not family_of(self.prefix).is_sparse or self.is_rest

    def after(self, event: AddressEvent) -> AddressState:
        """Return the state of the address after `event`.

        Raises: IllegalTransitionError for a pair that is not in the table.
        """
        try:
            return TRANSITIONS[self.state, event]
        except KeyError:
            raise failure(
                IllegalTransitionError, FailureCode.ILLEGAL_TRANSITION, address=self.address, event=event, state=self.state
            ) from None


def of_rest(address: IpAddress, find: Callable[[IpAddress], Address | None]) -> Address | None:
    """Make a row for a free address of a /80, which has no row of its own, from the row that stands for all such addresses.

    Args:
        find: returns the recorded row of an address, or None.
    Returns: the row, with `address` as its address; None if no /80 with the address is recorded.
    """
    stand_in_address = stand_in(address)
    if stand_in_address is None:
        return None
    row = find(stand_in_address)
    if row is None or not row.is_rest:
        return None
    return replace(row, address=address)
