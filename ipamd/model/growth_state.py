"""The planner's input besides the datastore: limits from EC2's refusals, and calls that may have taken effect. Pure values.

A refusal applies only to its subject. If the subject is a single ENI, one kind of call or one subnet, the pool can still grow in
another way. A call with an unknown outcome counts as done, so that it is not made twice (I9, I13).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from ipamd.model.blocked import Blocked
from ipamd.model.cause import Cause, cause_of_text
from ipamd.model.ids import EniId
from ipamd.model.record import dataclass, field
from ipamd.model.seen_demand import SeenDemand


@dataclass(frozen=True, slots=True)
class GrowthRefusal:
    """Why a kind of growth is not requested now, and what an operator can do (I14).

    `cause`: why, in our own words or as EC2's refusals.
    `next_step`: what an operator can do; "" if nothing helps but waiting.
    `left_s`: seconds until the growth is requested again; None if that does not depend on time.
    `is_lasting`: whether the refusal is expected to last, so that the pool should grow in another way.
    `kind`: the reason in one word, for metrics.
    """

    cause: Cause
    next_step: str = ""
    left_s: float | None = None
    is_lasting: bool = False
    kind: Blocked = field(default=Blocked.ERROR, compare=False)

    def __str__(self) -> str:
        return str(self.timed_cause)

    @property
    def reason(self) -> str:
        """The cause in a sentence, without its countdown."""
        return str(self.cause)

    @property
    def timed_cause(self) -> Cause:
        """The cause with its countdown, if there is one."""
        if self.left_s is None:
            return self.cause
        return self.cause.noted(f" (next try in {self.left_s:.0f} s)")


class RetryState(StrEnum):
    """What came of a request that `ipamctl retry` let be made again.

    ASKED: EC2 has not answered yet, or the request is not needed any more, or its outcome is not recorded here.
    ACCEPTED: EC2 accepted it.
    REFUSED: EC2 refused it again.
    """

    ASKED = "asked"
    ACCEPTED = "accepted"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class RetryOutcome:
    """The state of one request. `subject`: the key of its pause. `refusal`: EC2's new refusal, if it is known."""

    subject: str
    state: RetryState
    refusal: GrowthRefusal | None = None


def growth_refusal(
    reason: str,
    next_step: str = "",
    left_s: float | None = None,
    is_lasting: bool = False,
    kind: Blocked = Blocked.ERROR,
) -> GrowthRefusal:
    """Make a refusal with a reason in our own words."""
    return GrowthRefusal(cause_of_text(reason), next_step, left_s, is_lasting, kind)


@dataclass(frozen=True, slots=True)
class PendingEni:
    """An ENI that EC2 may have created for us, because the creation has not ended or its outcome is not known.

    `device_index`: the place that it takes.
    `address_count`: how many addresses it may add to the pool; 0 for an ENI of another pool, or one that is being deleted again.
    `pool`: the pool for which it was created; "" for the node's own pool.
    """

    device_index: int
    address_count: int = 0
    pool: str = ""


@dataclass(frozen=True, slots=True)
class GrowthState:
    """Obstacles to growth and growth under way, at one moment.

    `creation`, `allocation`, `prefixes`: why new ENIs, more addresses on an attached ENI, or /28s are not requested now; None if they
        may be.
    `allocation_elsewhere`: as `allocation`, for an ENI in another subnet than the default one (see `room`): a lack of addresses in the
        default subnet is not a reason here.
    `eni_cap`: the number of ENIs beyond which EC2 refused to attach more.
    `eni_cap_refusal`: the refusal that set this number.
    `slot_caps`: how many slots of an ENI may be used at most, by ENI.
    `room`: the free addresses of the default subnet of the pool's new ENIs, which is usually the node's own; None unless EC2 has
        refused a request because there were too few.
    `has_other_candidate`: whether a new ENI may be created in another subnet than the default one.
    `creation_room`: the most free addresses that any subnet for a new ENI has; None unless EC2 has refused a request in each of these
        subnets because the subnet was short of addresses.
    `prefix_cap`: the most /28s to request at once; None unless EC2 has refused more.
    `creation_cap`: the most addresses or /28s with which a new ENI is created; None unless EC2 has refused more.

    `pending_enis`: the ENIs of creations whose outcome is not known, of any pool, on the network card of this pool.
    `pending_slots`: by ENI, the slots of allocations whose outcome is not known. A slot with an address that EC2 shows on the ENI, but
        that is recorded elsewhere, counts as pending too.
    `pending_address_count`: how many addresses the allocations with an unknown outcome may add to the pool.
    `pending`: that EC2 is asked for the outcome of operations whose last try failed, and why it failed; "" if none has failed.
    `pending_kind`: the reason for `pending` in one word.
    `host`: why the host's routing of an attached ENI is not in place; None if all host routing is in place.
    `has_stuck_eni`: whether the host's routing of an ENI has failed for so long that its addresses do not count as supply.

    `demand`: the addresses that ADDs took lately, as `DemandWindow` measured them.
    `is_spare_eni_settling`: whether an ADD took an address so recently that no spare ENI is created yet.
    """

    creation: GrowthRefusal | None = None
    allocation: GrowthRefusal | None = None
    allocation_elsewhere: GrowthRefusal | None = None
    prefixes: GrowthRefusal | None = None
    eni_cap: int | None = None
    eni_cap_refusal: GrowthRefusal | None = None
    slot_caps: Mapping[EniId, int] = field(default_factory=dict)
    room: int | None = None
    prefix_cap: int | None = None
    creation_cap: int | None = None
    has_other_candidate: bool = False
    creation_room: int | None = None
    pending_enis: tuple[PendingEni, ...] = ()
    pending_slots: Mapping[EniId, int] = field(default_factory=dict)
    pending_address_count: int = 0
    pending: str = ""
    pending_kind: Blocked = Blocked.GROWING
    host: GrowthRefusal | None = None
    has_stuck_eni: bool = False
    is_spare_eni_settling: bool = False
    demand: SeenDemand = field(default_factory=SeenDemand)
