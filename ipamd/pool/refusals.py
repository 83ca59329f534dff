"""What EC2's refusals teach the pool: what not to ask for, for how long, and what to ask for instead (I13, I14).

A refusal stops no more than it is about: one kind of call, one ENI, ENIs beyond a number, /28s, or more than a subnet has. Every
lesson ends, because others change the account too; a lesson that is learned again lasts longer. In memory only: a new process may ask
once. Rejected: one pause for all growth, after which the same request is refused again, for ever.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from ipamd.core.backoff import soonest_s
from ipamd.core.lesson import Lesson, denial, error_pause
from ipamd.eni.subnets import PAUSE_FIRST_S, Subnets
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudQuotaError,
    EniLimitError,
    SubnetChoiceError,
    SubnetExhaustedError,
    ThrottledError,
)
from ipamd.model.growth import AllocateAddresses, AllocatePrefixes, Blocked, CreateEni, Growth, GrowthState, Refusal
from ipamd.model.ids import EniId
from ipamd.model.words import counted
from ipamd.ports import Clock

# What no ADD waits for yields while EC2 throttles: the account's tokens go to those who wait (I13).
#
# EC2's limits are for an account, so a throttled answer says that others ask too, on other nodes perhaps, where ADDs may wait.
# What nobody waits for is put off: addresses on an attached ENI, one call each, for a minute or two; a spare ENI, three calls of
# the scarcest kind, for a quarter of an hour or two. Each node draws its own part of that, so that they do not come back
# together.


YIELD_FIRST_S = 60.0
YIELD_MAX_S = 1800.0
YIELD_SHARE = 2.0
"""Spare addresses: this long, or this multiple of the time for which this node has been throttled; once to twice that by draw;
doubled while such a call is throttled. Ours, from the fleet simulation (docs/fleet.md): 150 nodes that start at once took twice
EC2's time for the ENIs of their pods, because the first of them took half of the tokens for spare ones."""

YIELD_ENI_FIRST_S = 900.0
"""A spare ENI: this long, once to twice by draw, doubled likewise. Ours, from the same: while 5,000 nodes are replaced within 20 min
EC2 accepts six Attach calls for five ENIs that ADDs wait for. With a minute the nodes that were done came back every few minutes, and
the slowest hundredth of the nodes waited 346 s; with a quarter of an hour 49 s. What an ADD waits for is asked for at once."""

REASON = "EC2 has just throttled this node, and no ADD waits: others may need the account's calls now"


class Yielding:
    """Used by the pool's thread. `is_creation`: of a new ENI, else of addresses on an attached one."""

    def __init__(self, *, clock: Clock, throttling: Callable[[], tuple[float, float] | None], draw: Callable[[], float]) -> None:
        """`throttling`: since when EC2 throttles calls of this node and when it last did, whether or not a repetition succeeded; None:
        not for long. `draw`: 0.0 to 1.0, this node's part."""
        self._clock = clock
        self._throttling = throttling
        self._part = 1.0 + draw()
        self._lessons = {
            True: Lesson(YIELD_ENI_FIRST_S * self._part, YIELD_MAX_S * self._part),
            False: Lesson(YIELD_FIRST_S * self._part, YIELD_MAX_S * self._part),
        }

    def learn(self, error: ThrottledError, *, is_creation: bool) -> None:
        """EC2 throttled what no ADD waited for."""
        self._lessons[is_creation].learn(error, now_s=self._clock.monotonic())

    def succeeded(self, *, is_creation: bool) -> None:
        """EC2 did it: the next refusal begins with the shortest pause again."""
        self._lessons[is_creation].forget()

    def refusal(self, *, is_creation: bool) -> Refusal | None:
        """Why what no ADD waits for is not asked for now."""
        now_s = self._clock.monotonic()
        if told := self._lessons[is_creation].refusal(now_s=now_s):
            return told
        left_s = self._ends_s(is_creation=is_creation) - now_s
        return Refusal(REASON, left_s=left_s, kind=Blocked.THROTTLED) if left_s > 0 else None

    def next_retry_s(self) -> float | None:
        """Seconds until one of them may be asked for again; None if both may be now."""
        told = [self.refusal(is_creation=of) for of in (True, False)]
        return soonest_s(one.left_s for one in told if one is not None)

    def _ends_s(self, *, is_creation: bool) -> float:
        """Monotonic point; 0.0 if nothing was throttled."""
        throttling = self._throttling()
        if throttling is None:
            return 0.0
        began_s, last_s = throttling
        least_s = YIELD_ENI_FIRST_S if is_creation else YIELD_FIRST_S
        return last_s + self._part * min(max(YIELD_SHARE * (last_s - began_s), least_s), YIELD_MAX_S)


PREFIX_PAUSE_FIRST_S = PAUSE_FIRST_S
PREFIX_PAUSE_MAX_S = 1800.0
"""Until a /28 is asked for again. The first is that of a subnet without a free address (amazon-vpc-cni-k8s
issue 1585), doubled while the answer stays: a fragmented subnet does not heal within minutes. Ours."""

LIMIT_PAUSE_FIRST_S = 1800.0
LIMIT_PAUSE_MAX_S = 21600.0
"""After EC2 attached no further ENI, or filled no further slot, though the instance type may have it. On most types volumes take the
places of ENIs, and volumes come and go with pods (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/volume_limits.html), so it
is tried again; each try makes and deletes an ENI. Ours: 6 tries a day."""

GONE_PAUSE_S = 60.0
"""After an ENI that is recorded was not found: the next comparisons with EC2 decide about it. Ours."""

SLOTS_CODE = "PrivateIpAddressLimitExceeded"
"""EC2's code for more addresses and /28s than an ENI takes. Of a creation it says that it asked for too many at once, not that the
instance takes no further ENI. EC2 documents no bound for one call but the instance type's
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateNetworkInterface.html)."""


class Refusals:
    """The lessons in force. Used by the pool's thread."""

    def __init__(
        self,
        *,
        clock: Clock,
        subnets: Subnets,
        throttling: Callable[[], tuple[float, float] | None] = lambda: None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """`subnets` keeps what each subnet refused for want of room; `throttling` and `draw` as of `Yielding`."""
        self._yielding = Yielding(clock=clock, throttling=throttling, draw=draw)
        self._clock = clock
        self._subnets = subnets
        self._pauses = {True: error_pause(), False: error_pause()}  # by: is it a creation
        self._denials = {True: denial(), False: denial()}
        self._prefixes = Lesson(PREFIX_PAUSE_FIRST_S, PREFIX_PAUSE_MAX_S)
        self._prefix_cap = Lesson(PREFIX_PAUSE_FIRST_S, PREFIX_PAUSE_MAX_S)
        self._cap = Lesson(LIMIT_PAUSE_FIRST_S, LIMIT_PAUSE_MAX_S, is_lasting=True)
        self._creation_cap = Lesson(LIMIT_PAUSE_FIRST_S, LIMIT_PAUSE_MAX_S)
        self._slots: dict[EniId, Lesson] = {}

    def learn(
        self,
        action: Growth,
        error: BaseException,
        *,
        attached_count: int,
        foreign_count: int = 0,
        used_slot_count: int = 0,
        is_other_subnet: bool = False,
        is_urgent: bool = True,
    ) -> None:
        """Take note of a refusal of an action.

        Args:
            attached_count: ENIs that the instance has, `foreign_count` of them not ours to use.
            used_slot_count: of the ENI that was to get more.
            is_other_subnet: it is in another subnet than the node; that one being full says nothing about the node's.
            is_urgent: an ADD waits for what was refused.
        """
        now_s, is_creation = self._clock.monotonic(), isinstance(action, CreateEni)
        match error:
            case ThrottledError() if not is_urgent:
                self._yielding.learn(error, is_creation=is_creation)
            case SubnetExhaustedError() if is_other_subnet and not isinstance(action, CreateEni):
                lesson = self._slots.setdefault(action.eni_id, Lesson(PREFIX_PAUSE_FIRST_S, PREFIX_PAUSE_MAX_S, is_lasting=True))
                lesson.learn(error, now_s=now_s, value=used_slot_count)
            case SubnetExhaustedError() if _prefix_count(action) > 1:  # refused whole: half of it may be there
                self._prefix_cap.learn(error, now_s=now_s, value=_prefix_count(action) // 2)
            case SubnetExhaustedError() if _prefix_count(action):
                self._prefixes.learn(error, now_s=now_s)
            case SubnetExhaustedError() if isinstance(action, CreateEni):
                return  # `subnets` knows which of them refused
            case SubnetExhaustedError() if (room := self._subnets.home_room()) is not None:
                room.refused(action, error)
            case EniLimitError(code=code) if code == SLOTS_CODE and isinstance(action, CreateEni) and _size(action) > 1:
                self._creation_cap.learn(error, now_s=now_s, value=_size(action) // 2)
            case EniLimitError() if isinstance(action, CreateEni):
                why = _cap_reason(attached_count, foreign_count, error)
                self._cap.learn(error, now_s=now_s, value=attached_count, reason=why)
            case EniLimitError() | CloudNotFoundError() if not isinstance(action, CreateEni):
                is_limit = isinstance(error, EniLimitError)
                first_s, max_s = (LIMIT_PAUSE_FIRST_S, LIMIT_PAUSE_MAX_S) if is_limit else (GONE_PAUSE_S, GONE_PAUSE_S)
                lesson = self._slots.setdefault(action.eni_id, Lesson(first_s, max_s, is_lasting=is_limit))
                lesson.learn(error, now_s=now_s, value=used_slot_count)
            case CloudDeniedError() | CloudQuotaError() | SubnetChoiceError():
                self._denials[is_creation].learn(error, now_s=now_s)
            case CloudError() if isinstance(action, AllocatePrefixes) and _is_odd_refusal(error):
                self._prefixes.learn(error, now_s=now_s)  # single addresses may be had, and ADDs need some
            case _:
                self._pauses[is_creation].learn(error, now_s=now_s)

    def attached(self, count: int) -> bool:
        """Compare the number of ENIs that the instance has with the most that EC2 is believed to attach.

        It was counted when EC2 refused, and an ENI that Describe did not show then (a lag, after a lost datastore) was left out.
        Returns: whether it has more, so that the lesson is forgotten and the plan has to be made anew.
        """
        if self._cap.refusal(now_s=self._clock.monotonic()) is None or count <= self._cap.value:
            return False
        self._cap.forget()
        return True

    def succeeded(self, action: Growth, *, is_other_subnet: bool = False) -> None:
        """Forget what this action has disproved."""
        is_creation = isinstance(action, CreateEni)
        self._pauses[is_creation].forget()
        self._denials[is_creation].forget()
        self._yielding.succeeded(is_creation=is_creation)
        if _prefix_count(action):
            self._prefixes.forget()
        if isinstance(action, CreateEni):
            self._cap.forget()
            return
        self._slots.pop(action.eni_id, None)
        if not is_other_subnet and (room := self._subnets.home_room()) is not None:
            room.took(action)

    def look_before(self, action: Growth) -> bool:
        """Ask EC2 for the subnet's room if it refused an action like this one before, and that is some time ago.

        Returns: whether the plan has to be made anew.
        """
        room = self._subnets.home_room()
        return room is not None and isinstance(action, AllocateAddresses) and room.look(action)

    def state(self, *, is_urgent: bool = True) -> GrowthState:
        """What the planner must know. `is_urgent`: an ADD waits."""
        now_s = self._clock.monotonic()
        home = self._subnets.home_room()
        subnet, room = (home.refusal(), home.count()) if home is not None else (None, None)
        cap = self._cap.refusal(now_s=now_s)
        spare = {of: None if is_urgent else self._yielding.refusal(is_creation=of) for of in (True, False)}
        return GrowthState(
            creation=self._of(is_creation=True) or self._subnets.creation_refusal() or spare[True],
            allocation=self._of(is_creation=False) or (subnet if room == 0 else None) or spare[False],
            prefixes=self._prefixes.refusal(now_s=now_s),
            eni_cap=self._cap.value if cap else None,
            cap=cap,
            slot_caps={eni_id: one.value for eni_id, one in self._slots.items() if one.refusal(now_s=now_s)},
            room=room,
            prefix_cap=self._prefix_cap.value if self._prefix_cap.refusal(now_s=now_s) else None,
            creation_cap=self._creation_cap.value if self._creation_cap.refusal(now_s=now_s) else None,
            creation_room=self._subnets.creation_room(),
        )

    def in_force(self) -> list[Refusal]:
        """Every refusal that is in force, for people; what yields to others is none."""
        now_s = self._clock.monotonic()
        told = [lesson.refusal(now_s=now_s) for lesson in self._lessons()]
        return [one for one in [*told, *self._subnets.in_force()] if one is not None]

    def next_retry_s(self) -> float | None:
        """Seconds until the first of them ends, or until nothing yields any more; None if there is none."""
        return soonest_s([*(one.left_s for one in self.in_force()), self._yielding.next_retry_s()])

    def _of(self, *, is_creation: bool) -> Refusal | None:
        now_s = self._clock.monotonic()
        return self._denials[is_creation].refusal(now_s=now_s) or self._pauses[is_creation].refusal(now_s=now_s)

    def _lessons(self) -> list[Lesson]:
        caps = (self._prefixes, self._prefix_cap, self._cap, self._creation_cap)
        return [*self._denials.values(), *self._pauses.values(), *caps, *self._slots.values()]


def _prefix_count(action: Growth) -> int:
    match action:
        case AllocatePrefixes(count=count):
            return count
        case CreateEni(prefix_count=count):
            return count
        case _:
            return 0


def _is_odd_refusal(error: CloudError) -> bool:
    """Whether EC2 answered with a code that says nothing to us: perhaps that this instance cannot have prefixes."""
    return type(error) is CloudError and bool(error.code) and not error.may_have_happened


def _size(action: CreateEni) -> int:
    return action.address_count + action.prefix_count


def _cap_reason(attached_count: int, foreign_count: int, error: CloudError) -> str:
    foreign = f", {foreign_count} of them not ours to use" if foreign_count else ""
    return f"EC2 attaches no further ENI to this instance, which has {counted(attached_count, 'ENI')}{foreign}: {error.cause}"
