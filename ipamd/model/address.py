"""The states of one address, as one transition table.

    free --reserve--> reserved --confirm--> assigned --unassign--> cooling --cooled--> free
    reserved --abort--> cooling          any unassigned --disagree--> quarantined --resolve--> cooling, or it is removed

A pair that is not in the table raises (I1, I8): no state is repaired by a guess. `reserved` exists in memory only, because before
the confirming transaction nothing was promised (I5). A resolved address cools before it is free, because its DEL may have come
seconds before (docs/adr/0012).

Of a /80 only what is not free has a row, and its last address, which is given to nobody: that row stands for all that have none
(*the rest*). So a /80 costs no more than a /28, and every path that asks for an address finds it.

`lost` is not a state but is laid over any of them: EC2 does not show the address any more. Its sandbox keeps it (I2), nobody else
gets it (I7), and where it would become free it is removed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from ipamd.model.errors import IllegalTransitionError
from ipamd.model.family import IpAddress, IpNetwork, family_of, stand_in
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.record import dataclass, field
from ipamd.model.words import MANY


class AddressState(StrEnum):
    """State of an address."""

    FREE = "free"
    RESERVED = "reserved"
    ASSIGNED = "assigned"
    COOLING = "cooling"
    QUARANTINED = "quarantined"


class AddressEvent(StrEnum):
    """Event that changes the state of an address."""

    RESERVE = "reserve"
    CONFIRM = "confirm"
    ABORT = "abort"
    UNASSIGN = "unassign"
    COOLED = "cooled"
    DISAGREE = "disagree"
    RESOLVE = "resolve"
    ADOPT = "adopt"


TRANSITIONS: dict[tuple[AddressState, AddressEvent], AddressState] = {
    (AddressState.FREE, AddressEvent.RESERVE): AddressState.RESERVED,
    (AddressState.RESERVED, AddressEvent.CONFIRM): AddressState.ASSIGNED,
    (AddressState.RESERVED, AddressEvent.ABORT): AddressState.COOLING,
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
    """One secondary address of an ENI, as the datastore knows it.

    `since` is when the current state began (aware UTC); `owner` is set if and only if the state is assigned or reserved;
    `cooling_until` if and only if it is cooling. `prefix` is the delegated /28 or /80 that contains it, or None. `cooldown_deadline_s`
    is the end of the cooldown on the machine's monotonic clock, which continues when the daemon restarts and is never stepped;
    None: not known. `since_monotonic_s` is `since` on that clock; None: not known, the address may be any age. `lost_since` is
    when EC2 was found not to show it any more (aware UTC), `lost_reason` how; None: EC2 shows it. `other_address`: the one for
    egress of the sandbox that has it, which then cools as long as it does.
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

    @property
    def is_in_use(self) -> bool:
        """Whether a sandbox has it, or is about to (I2)."""
        return self.state in (AddressState.ASSIGNED, AddressState.RESERVED)

    @property
    def is_free(self) -> bool:
        """Whether nobody has it and EC2 shows it."""
        return self.state is AddressState.FREE and self.lost_since is None

    @property
    def is_lost(self) -> bool:
        """Whether EC2 does not show it any more: it is given to nobody again."""
        return self.lost_since is not None

    @property
    def is_rest(self) -> bool:
        """Whether its row stands for all addresses of its /80 that have none; it is given to nobody itself."""
        return self.prefix is not None and family_of(self.prefix).is_sparse and self.address == self.prefix.broadcast_address

    @property
    def count(self) -> int:
        """How many addresses its row counts for."""
        return MANY if self.is_rest else 1

    @property
    def has_row(self) -> bool:
        """Whether the disk has a row of it: not while it is free or reserved (I5) in a /80; a mark as lost needs one."""
        if self.state not in (AddressState.FREE, AddressState.RESERVED) or self.lost_since is not None:
            return True
        return self.prefix is None or not family_of(self.prefix).is_sparse or self.is_rest

    def after(self, event: AddressEvent) -> AddressState:
        """The state that `event` leads to.

        Raises: IllegalTransitionError for a pair that is not in the table.
        """
        try:
            return TRANSITIONS[self.state, event]
        except KeyError:
            raise IllegalTransitionError(
                f"address {self.address} cannot {event} while {self.state}",
                details="this is a defect in vpc-ipamd: the operation was stopped and nothing was changed; please report it",
            ) from None


def of_rest(address: IpAddress, find: Callable[[IpAddress], Address | None]) -> Address | None:
    """An address that has no row as the rest of its /80 has it: free. None if no such /80 is recorded. `find`: gives a row."""
    other = stand_in(address)
    row = None if other is None else find(other)
    return None if row is None or not row.is_rest else replace(row, address=address)
