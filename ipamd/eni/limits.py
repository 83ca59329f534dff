"""What EC2 refused, in one table: what each refusal stops, until when, and what is asked for instead (I13, I14).

A refusal stops no more than it is about: one kind of call, one ENI, ENIs beyond a number, /28s, or more than a subnet has. Every
refusal ends, because others change the account too; one that comes again lasts longer. In memory only: a new process may ask once.
Rejected: one pause for all growth, after which the same request is refused again, for ever; a class for each refusal, with a clock and
a pause of its own.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection

from ipamd.core.agenda import DENIED, EC2, LIMIT, ROOM, Schedule, soonest_s
from ipamd.core.agenda import Key as AgendaKey
from ipamd.core.context import ServiceContext
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudQuotaError,
    EniLimitError,
    SubnetChoiceError,
    SubnetExhaustedError,
    ThrottledError,
    log_text,
)
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.pool import (
    Blocked,
    CreateEni,
    Growth,
    GrowthState,
    Refusal,
    blocked_by,
)
from ipamd.model.record import dataclass, replace
from ipamd.model.words import counted
from ipamd.ports import Ec2

log = logging.getLogger(__name__)

Key = tuple[str, ...]
"""What a refusal stops: a kind of call with a word for why, else a kind of request, or an object."""

CREATION, ALLOCATION = "creation", "allocation"
PREFIXES, PREFIX_COUNT, ENI_SIZE, ENI_COUNT = ("prefixes",), ("prefixes at once",), ("addresses of a new ENI",), ("ENIs",)
RELEASE_DENIED, RELEASE_FAILED = ("release", "denied"), ("release", "error")
"""Releases, and what is open and takes away; of what IAM denies one is tried after the pause. Neither stops growth."""

FAULT = ("fault",)
"""An error of ours, which stops everything for a moment."""

SLOTS_CODE = "PrivateIpAddressLimitExceeded"
"""EC2's code for more addresses and /28s than an ENI takes. Of a creation it says that it asked for too many at once, not that the
instance takes no further ENI. EC2 documents no bound for one call but the instance type's
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateNetworkInterface.html)."""

PERSON = (CloudDeniedError, CloudQuotaError, SubnetChoiceError)
"""Refusals that last until a person changes something."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked of EC2.

    `home`: the subnet that new ENIs go to by themselves; `is_other_subnet`: the ENI that was to get more is in another one.
    `is_urgent`: an ADD waits. `attached_count`: ENIs that the instance has, `foreign_count` of them not ours to use;
    `used_slot_count`: of the ENI that was to get more.
    """

    action: Growth
    home: SubnetId | None = None
    is_other_subnet: bool = False
    is_urgent: bool = True
    attached_count: int = 0
    foreign_count: int = 0
    used_slot_count: int = 0

    @property
    def kind(self) -> str:
        """CREATION or ALLOCATION."""
        return CREATION if isinstance(self.action, CreateEni) else ALLOCATION

    @property
    def half(self) -> int:
        """Half of what was asked for at once."""
        return (self.action.prefix_count or self.action.address_count) // 2

    def key(self, what: str) -> Key:
        """What is stopped: this ENI's slots, this kind of call, or what every action asks for."""
        if what == "slots":
            return what, getattr(self.action, "eni_id", "")
        return (self.kind, what) if what in ("denied", "error", "spare") else (what,)

    def is_called(self, word: str, error: BaseException) -> bool:
        """Whether a word of the table's second column fits this request."""
        match word:
            case "spare":
                return not self.is_urgent
            case "elsewhere":
                return self.is_other_subnet
            case "prefixes" | "prefix":
                return self.action.prefix_count > 1 if word == "prefixes" else self.action.prefix_count == 1
            case "large":
                return self.kind == CREATION and bool(self.half) and isinstance(error, CloudError) and error.code == SLOTS_CODE
            case "odd":  # answered with a code that says nothing to us: perhaps that this instance cannot have prefixes
                is_answer = type(error) is CloudError and bool(error.code) and not error.may_have_happened
                return is_answer and self.kind == ALLOCATION and bool(self.action.prefix_count)
        return word in ("any", self.kind)


@dataclass(frozen=True, slots=True)
class Row:
    """`error` for what is called `asked` stops `what`, by `schedule`. `cap`: the field of `Asked` that may be asked for all the same.
    `is_lasting`: no short disturbance, so another way is taken."""

    error: type[BaseException] | tuple[type[BaseException], ...]
    asked: str
    what: str
    schedule: Schedule
    cap: str = ""
    is_lasting: bool = False


TABLE = (
    Row(ThrottledError, "spare", "spare", ROOM),
    Row(SubnetExhaustedError, "elsewhere", "slots", ROOM, "used_slot_count", is_lasting=True),
    Row(SubnetExhaustedError, "prefixes", *PREFIX_COUNT, ROOM, "half"),
    Row(SubnetExhaustedError, "prefix", *PREFIXES, ROOM),
    Row(SubnetExhaustedError, "any", "room", ROOM),  # of each subnet: `Limits.room_refused`
    Row(EniLimitError, "large", *ENI_SIZE, LIMIT, "half"),
    Row(EniLimitError, CREATION, *ENI_COUNT, LIMIT, "attached_count", is_lasting=True),
    Row(EniLimitError, ALLOCATION, "slots", LIMIT, "used_slot_count", is_lasting=True),
    Row(CloudNotFoundError, ALLOCATION, "slots", ROOM, "used_slot_count"),  # a comparison with EC2 decides about that ENI
    Row(PERSON, "any", "denied", DENIED, is_lasting=True),
    Row(CloudError, "odd", *PREFIXES, ROOM),  # single addresses may be had, and ADDs need some
    Row(BaseException, "any", "error", EC2),
)
"""The first row that fits is taken. Halves, because EC2 refuses a request whole, and part of it may be there."""


YIELD_S = {CREATION: 900.0, ALLOCATION: 60.0}
YIELD_MAX_S = 1800.0
YIELD_SHARE = 2.0
"""What no ADD waits for is not asked for while EC2 throttles, because its limits are for an account, and ADDs may wait on other nodes
(I13): this long, or twice the time for which this node has been throttled; once to twice that by draw, so that nodes do not come back
together. Ours, from the fleet simulation (docs/fleet.md): 150 nodes that start at once took twice EC2's time for the ENIs of their
pods, because the first of them took half of the tokens for spare ones. While 5,000 nodes are replaced within 20 min EC2 accepts six
Attach calls for five ENIs that ADDs wait for: with a minute for spare ENIs too the slowest hundredth of the nodes waited 346 s, with a
quarter of an hour 49 s."""

YIELDS = "EC2 has just throttled this node, and no ADD waits: others may need the account's calls now"

ROOM_ENOUGH = 64
"""Room that bounds no creation: the most addresses that an ENI of any type takes, its primary one included."""


@dataclass(frozen=True, slots=True)
class _Limit:
    refusal: Refusal
    cap: int


class Limits:
    """The refusals in force. Used by the pool's thread; `refusal` and `in_force` by any."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, draw: Callable[[], float] = random.random) -> None:
        """`draw`: 0.0 to 1.0; 1 more than that is this node's `part` of the time for which what nobody waits for is put off."""
        self._clock = context.clock
        self._agenda = context.agenda
        self._ec2 = ec2
        self.part = 1.0 + draw()
        self._limits: dict[Key, _Limit] = {}

    def learn(self, asked: Asked, error: BaseException) -> None:
        """EC2 refused an action: the first row of the table that fits is in force."""
        row = next(one for one in TABLE if isinstance(error, one.error) and asked.is_called(one.asked, error))
        key, reason = asked.key(row.what), ""
        if isinstance(error, SubnetExhaustedError) and row.what == "room":
            if asked.home is not None and asked.kind == ALLOCATION:  # `Subnets` says which of them refused an ENI
                self.room_refused(asked.home, asked.action, error)
            return
        if key == ENI_COUNT:
            if ENI_SIZE in self._limits:  # it is believed for longer, or each try would halve its way down again
                self._agenda.put_off(("limit", *ENI_SIZE), LIMIT)
            foreign = f", {asked.foreign_count} of them not ours to use" if asked.foreign_count else ""
            has = f"{counted(asked.attached_count, 'ENI')}{foreign}"
            reason = f"EC2 attaches no further ENI to this instance, which has {has}: {refused_because(error)}"
        cap = getattr(asked, row.cap) if row.cap else 0
        self.put_off(key, error, row.schedule, cap=cap, is_lasting=row.is_lasting, reason=reason)

    def put_off(
        self, key: Key, error: BaseException, schedule: Schedule, *, cap: int = 0, is_lasting: bool = False, reason: str = ""
    ) -> None:
        """Nothing but `cap` is asked for of what `key` names, for the schedule's next pause."""
        step = error.next_step if isinstance(error, CloudError) else ""
        self._put(key, Refusal(reason or refused_because(error), step, None, is_lasting, blocked_by(error)), cap, schedule)

    def learn_release(self, error: BaseException) -> None:
        """EC2 refused to take something back: what is refused for several objects at a time is one refusal."""
        key, schedule = (RELEASE_DENIED, DENIED) if isinstance(error, PERSON) else (RELEASE_FAILED, EC2)
        if self.cap(key) is None:
            self.put_off(key, error, schedule, is_lasting=schedule is DENIED)

    def clear(self, *keys: Key) -> None:
        """These are disproved."""
        for key in keys:
            self._limits.pop(key, None)
            self._agenda.clear(("limit", *key))

    def succeeded(self, asked: Asked) -> None:
        """End what this action has disproved."""
        self.clear(*(asked.key(what) for what in ("error", "denied", "spare")))
        self.clear(ENI_COUNT if asked.kind == CREATION else asked.key("slots"), *[PREFIXES] * bool(asked.action.prefix_count))
        if asked.kind == ALLOCATION and asked.home is not None and not asked.is_other_subnet:
            self.took_room(asked.home, asked.action)

    def drop_stale_cap(self, attached_count: int) -> bool:
        """Whether the instance has more ENIs than EC2 is believed to attach, so that the plan has to be made anew.

        They were counted when EC2 refused, without one that Describe did not show then (a lag, after a lost datastore).
        """
        cap = self.cap(ENI_COUNT)
        if cap is None or attached_count <= cap:
            return False
        self.clear(ENI_COUNT)
        return True

    def refusal(self, *keys: Key) -> Refusal | None:
        """What the first of these that is in force says."""
        for key in keys:
            limit, left_s = self._limits.get(key), self._agenda.left_s(("limit", *key))
            if limit is not None and left_s:
                left = f"; {counted(limit.cap, 'address')} left of it" if key[0] == "room" else ""
                return replace(limit.refusal, reason=f"{limit.refusal.reason}{left}", left_s=left_s)
        return None

    def cap(self, key: Key) -> int | None:
        """What may be asked for all the same; None if nothing is refused."""
        limit = self._limits.get(key)
        return None if limit is None or self._agenda.is_due(("limit", *key)) else limit.cap

    def in_force(self) -> list[Refusal]:
        """Every refusal of growth that is in force, for people; that spare ones yield is none."""
        found = (self.refusal(key) for key in list(self._limits) if key[-1] != "spare" and key[0] != "release")
        return [one for one in found if one is not None]

    def retry(self) -> list[tuple[str, Refusal]]:
        """Ask now for everything that EC2 refused, growth or not: a person has seen to the cause. From any thread.

        What is known of room and caps is asked for again as after a pause, and spare ones yield as before; all calls are within the
        budget. Returns: what was put off, why, and the seconds that were left.
        """
        put_off = {key: left_s for key, left_s in self._agenda.of_ec2().items() if key[-1] != "spare"}
        refused: dict[AgendaKey, Refusal] = {
            ("limit", *key): one for key in list(self._limits) if (one := self.refusal(key)) is not None
        }
        self._agenda.clear(*put_off)
        log.info("EC2 is asked now for what it refused count=%d", len(put_off))
        default = Refusal("EC2 refused it, or did not answer")
        return [(" ".join(map(str, key)), replace(refused.get(key, default), left_s=left_s)) for key, left_s in put_off.items()]

    def next_retry_s(self) -> float | None:
        """Seconds until the first of them ends, or until nothing yields any more; None if there is none."""
        yields = (self._yielding(kind) for kind in YIELD_S)
        return soonest_s([self._agenda.next_s("limit"), *(one.left_s for one in yields if one is not None)])

    def state(self, *, home: SubnetId | None, candidates: Collection[SubnetId], is_urgent: bool) -> GrowthState:
        """What the planner must know. `candidates`: subnets that a new ENI may go to, none before that is known."""
        here = () if home is None else (home,)
        full = self.refusal(*(("room", one) for one in here))
        room = None if home is None else self.cap(("room", home))
        spare = {kind: None if is_urgent else self.refusal((kind, "spare")) or self._yielding(kind) for kind in YIELD_S}
        stopped = {kind: self.refusal((kind, "denied"), (kind, "error")) for kind in YIELD_S}
        return GrowthState(
            creation=stopped[CREATION] or self._no_room(candidates or here) or spare[CREATION],
            allocation=stopped[ALLOCATION] or (full if room == 0 else None) or spare[ALLOCATION],
            prefixes=self.refusal(PREFIXES),
            eni_cap=self.cap(ENI_COUNT),
            cap=self.refusal(ENI_COUNT),
            slot_caps={EniId(key[1]): cap for key in self._limits if key[0] == "slots" and (cap := self.cap(key)) is not None},
            room=room,
            prefix_cap=self.cap(PREFIX_COUNT),
            creation_cap=self.cap(ENI_SIZE),
            creation_room=max(map(self._left, candidates)) if any(one != home for one in candidates) else None,
        )

    # How much fits into a subnet that is short of addresses. EC2 refuses a request whole if the subnet has less than it asks for. So
    # after a refusal the subnet is described once, and less is asked for: what is free, or half of what was refused where the count
    # is no answer. The count says nothing about whole /28s.

    def room_refused(self, subnet_id: SubnetId, action: Growth, error: SubnetExhaustedError) -> None:
        """Learn what a subnet has according to EC2, or half of what it refused if that should have been enough."""
        limit = self._limits.get(("room", subnet_id))
        told = self._free_count(subnet_id) if limit is None else limit.cap
        cap = told if 0 <= told < needs(action) else needs(action) // 2
        log.info("a subnet has little room subnet=%s addresses=%d", subnet_id, cap)
        self.put_off(("room", subnet_id), error, ROOM, cap=cap, is_lasting=True)

    def recheck_room(self, subnet_id: SubnetId, action: Growth, *, told: int | None = None) -> bool:
        """Once a refusal has run out, ask for the count before asking for addresses, unless it was `told`.

        Returns: whether less fits than was planned.
        """
        key = ("room", subnet_id)
        if key not in self._limits or self.cap(key) is not None:
            return False
        known = self._free_count(subnet_id) if told is None else told
        if known < 0 or known >= needs(action):
            del self._limits[key]  # if it is refused all the same, the next pause is longer
            return False
        self._put(key, self._limits[key].refusal, known, ROOM)
        return True

    def short_of_room(self, subnet_id: SubnetId, count: int) -> None:
        """Learn without a refusal that too little is free."""
        reason, step = (
            f"EC2 says that subnet {subnet_id} has no room for another ENI",
            "delete unused ENIs in the subnet, or use another one",
        )
        self._put(("room", subnet_id), Refusal(reason, step, None, True, Blocked.SUBNET_FULL), count, ROOM)

    def took_room(self, subnet_id: SubnetId, action: Growth) -> None:
        """Count what an action took; a refusal that comes now is a new one."""
        key = ("room", subnet_id)
        if (limit := self._limits.get(key)) is not None:
            self._limits[key] = replace(limit, cap=max(limit.cap - needs(action), 0))
        self._agenda.shorten(("limit", *key))

    def _put(self, key: Key, refusal: Refusal, cap: int, schedule: Schedule) -> None:
        self._limits[key] = _Limit(refusal, cap)
        self._agenda.put_off(("limit", *key), schedule)

    def _no_room(self, candidates: Collection[SubnetId]) -> Refusal | None:
        """Why no subnet takes another ENI now; None if one may."""
        if not candidates or any(self._left(one) >= 2 for one in candidates):  # one address for the ENI itself
            return None
        refusals = {one: told for one in candidates if (told := self.refusal(("room", one))) is not None}
        if len(refusals) <= 1:
            return next(iter(refusals.values()), None)
        reason = "; ".join(f"{subnet_id}: {one.reason}" for subnet_id, one in refusals.items())
        first = min(refusals.values(), key=lambda one: one.left_s or 0.0)
        return replace(first, reason=f"no subnet has room: {reason}")

    def _left(self, subnet_id: SubnetId) -> int:
        cap = self.cap(("room", subnet_id))
        return ROOM_ENOUGH if cap is None else min(cap, ROOM_ENOUGH)

    def _free_count(self, subnet_id: SubnetId) -> int:
        """Free addresses of a subnet, -1 if EC2 does not say."""
        try:
            return self._ec2.subnet_free_count(subnet_id)
        except CloudError as error:
            log.info("a subnet's free addresses are not known error=%s", log_text(error))
            return -1

    def _yielding(self, kind: str) -> Refusal | None:
        """Why what no ADD waits for is not asked for now."""
        throttling = self._ec2.throttling()
        if throttling is None:
            return None
        began_s, last_s = throttling
        pause_s = self.part * min(max(YIELD_SHARE * (last_s - began_s), YIELD_S[kind]), YIELD_MAX_S)
        left_s = last_s + pause_s - self._clock.monotonic()
        step = "wait, or start the pod: what an ADD waits for is asked for at once"
        return Refusal(YIELDS, step, left_s=left_s, kind=Blocked.THROTTLED) if left_s > 0 else None


def refused_because(error: BaseException) -> str:
    """What EC2 said, for people."""
    return error.cause if isinstance(error, CloudError) else log_text(error)


def needs(action: Growth) -> int:
    """Addresses of the subnet that an action takes, a new ENI's primary address included; prefixes are not counted."""
    return action.address_count + isinstance(action, CreateEni)
