"""Decide in one table what each refusal of EC2 stops, for how long, and what is requested instead (I13, I14).

A refusal stops only its own subject: one kind of call, one ENI, ENIs beyond a number, /28s, or more addresses than a subnet has.
Every refusal ends after a pause, because its cause may be gone then. If EC2 refuses again, the next pause is longer. Refusals
are in memory only, so that a new process may try each refused request once. Rejected: one pause for all growth, after which the same
request is refused again and again; a class for each refusal, with its own clock and pause.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import cast

from ipamd.core.backoffs import CREDENTIALS, DENIED, EC2, LIMIT, ROOM, Schedule, schedule_of, soonest_s
from ipamd.core.backoffs import Key as BackoffKey
from ipamd.core.context import ServiceContext
from ipamd.model.blocked import Blocked, blocked_by
from ipamd.model.cause import Cause, Ec2Refusal, joined
from ipamd.model.errors import (
    CloudCredentialsError,
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    CloudQuotaError,
    EniLimitError,
    SubnetChoiceError,
    SubnetExhaustedError,
    ThrottledError,
    cause_of_error,
    is_about_keys,
    log_text,
)
from ipamd.model.growth_state import GrowthRefusal, GrowthState, RetryOutcome, RetryState, growth_refusal
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.network_cards import card_of_pool, subnet_pool
from ipamd.model.pool_actions import CreateEni, Growth
from ipamd.model.record import dataclass, replace
from ipamd.model.words import counted
from ipamd.ports.cloud import Ec2

log = logging.getLogger(__name__)

Key = tuple[str, ...]
"""The subject of a refusal: a kind of call with a word for the reason, a kind of request, or an object."""

CREATION, ALLOCATION = "creation", "allocation"
PREFIXES, PREFIX_COUNT, ENI_SIZE, ENI_COUNT = ("prefixes",), ("prefixes at once",), ("addresses of a new ENI",), ("ENIs",)
RELEASE_DENIED, RELEASE_FAILED = ("release", "denied"), ("release", "error")
"""Keys of refused releases: EC2 denied a release, or a release failed otherwise. Releases that are resumed from an open intent have
the same keys. After the pause of a denial one release is tried. Neither refusal stops growth."""

FAULT = ("fault",)
"""An error of our own code, which stops everything for a moment."""

SLOTS_CODE = "PrivateIpAddressLimitExceeded"
"""EC2's code for more addresses and /28s than an ENI takes. For a creation it means that the request named too many at once. The
instance may still take another ENI. The only bound that EC2 documents for the addresses in one call is that of the instance type
(https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_CreateNetworkInterface.html)."""

PERSON = (CloudDeniedError, CloudQuotaError, SubnetChoiceError)
"""Refusals that last until a person changes something."""


@dataclass(frozen=True, slots=True)
class Ec2Request:
    """One growth request to EC2, with the facts that decide how its refusal is judged.

    `home`: the default subnet of new ENIs.
    `is_other_subnet`: the ENI that was to get addresses is in another subnet than `home`.
    `is_urgent`: an ADD waits.
    `attached_count`: ENIs of the instance.
    `foreign_count`: attached ENIs that are not ours to use.
    `used_slot_count`: slots in use on the ENI that was to get addresses.
    `pool`: the pool of pods that was to grow, "" for the node's own.
    """

    action: Growth
    home: SubnetId | None = None
    is_other_subnet: bool = False
    is_urgent: bool = True
    attached_count: int = 0
    foreign_count: int = 0
    used_slot_count: int = 0
    pool: str = ""

    @property
    def kind(self) -> str:
        """CREATION or ALLOCATION."""
        if isinstance(self.action, CreateEni):
            return CREATION
        return ALLOCATION

    @property
    def half(self) -> int:
        """Half of the requested number of addresses or prefixes, rounded down."""
        return (self.action.prefix_count or self.action.address_count) // 2

    def key(self, stopped: str) -> Key:
        """Return the key of a refusal. `stopped`: what the refusal stops (`LimitRule.stops`), for example more slots on the ENI of
        this request.
        """
        if stopped == "slots":
            return stopped, getattr(self.action, "eni_id", "")
        if stopped in ("denied", "error", "spare"):
            return call_key(self.kind, stopped, self.pool)
        if (stopped,) in (PREFIXES, PREFIX_COUNT):
            return prefix_key((stopped,), self.pool)
        if (stopped,) == ENI_COUNT:
            return eni_count_key(self.pool)
        return (stopped,)

    def is_matched_by(self, word: str, error: BaseException) -> bool:
        """Whether a word of `LimitRule.applies_to` describes this request and its error. The words:

        any: every request.
        creation, allocation: a request of this kind.
        spare: no ADD waits for the request.
        elsewhere: the request was for addresses on an attached ENI in another subnet than the default one.
        prefix: the request was for one /28.
        prefixes: the request was for several /28s.
        large: the request was for a new ENI with more addresses or /28s at once than EC2 takes.
        stale keys: EC2 refused the credentials, not the request.
        odd: the request was for /28s of an attached ENI, and EC2 refused it with a code that we do not know.
        """
        match word:
            case "spare":
                return not self.is_urgent
            case "elsewhere":
                return self.is_other_subnet
            case "prefixes":
                return self.action.prefix_count > 1
            case "prefix":
                return self.action.prefix_count == 1
            case "large":
                return self._is_too_large(error)
            case "stale keys":
                return is_about_keys(error)
            case "odd":
                return self._is_refused_prefix(error)
        return word in ("any", self.kind)

    def _is_too_large(self, error: BaseException) -> bool:
        """Whether EC2 refused to create an ENI with so many addresses or /28s, and half as many can be requested."""
        is_about_slots = isinstance(error, CloudError) and error.code == SLOTS_CODE
        return self.kind == CREATION and bool(self.half) and is_about_slots

    def _is_refused_prefix(self, error: BaseException) -> bool:
        """Whether EC2 refused, with a code that we do not know, to allocate prefixes, perhaps because the instance supports none."""
        is_unknown_answer = type(error) is CloudError and bool(error.code) and not error.may_have_happened
        return is_unknown_answer and self.kind == ALLOCATION and bool(self.action.prefix_count)


def call_key(kind: str, stopped: str, pool: str) -> Key:
    """Return the key of a refused kind of call. A pool of pods has a key of its own, so that its refusals stop no other pool."""
    if pool:
        return kind, pool, stopped
    return kind, stopped


def prefix_key(key: Key, pool: str) -> Key:
    """Return the key of a refusal of /28s. A pool of pods has a key of its own, because its /28s come from other subnets."""
    if pool:
        return *key, pool
    return key


def eni_count_key(pool: str) -> Key:
    """Return the key of the refusal to attach a further ENI. Each further network card has a limit, and so a key, of its own."""
    if card_of_pool(pool):
        return *ENI_COUNT, pool
    return ENI_COUNT


@dataclass(frozen=True, slots=True)
class LimitRule:
    """One row of the table: which requests pause after an error of EC2.

    `error`: the class of the error.
    `applies_to`: a word for the requests that the row is about (`Ec2Request.is_matched_by` has the words).
    `stops`: a word for what pauses; `Ec2Request.key` makes the refusal's key from it.
    `schedule`: how long they pause.
    `cap`: the field of `Ec2Request` with the number that may still be requested; "": nothing may be.
    `is_lasting`: the refusal is not a short disturbance, so the planner grows in another way.
    """

    error: type[BaseException] | tuple[type[BaseException], ...]
    applies_to: str
    stops: str
    schedule: Schedule
    cap: str = ""
    is_lasting: bool = False


TABLE = (
    LimitRule(ThrottledError, "spare", "spare", ROOM),
    LimitRule(SubnetExhaustedError, "elsewhere", "slots", ROOM, "used_slot_count", is_lasting=True),
    LimitRule(SubnetExhaustedError, "prefixes", *PREFIX_COUNT, ROOM, "half"),
    LimitRule(SubnetExhaustedError, "prefix", *PREFIXES, ROOM),
    LimitRule(SubnetExhaustedError, "any", "room", ROOM),  # each subnet has a limit of its own: `Limits.room_refused`
    LimitRule(EniLimitError, "large", *ENI_SIZE, LIMIT, "half"),
    LimitRule(EniLimitError, CREATION, *ENI_COUNT, LIMIT, "attached_count", is_lasting=True),
    LimitRule(EniLimitError, ALLOCATION, "slots", LIMIT, "used_slot_count", is_lasting=True),
    LimitRule(CloudNotFoundError, ALLOCATION, "slots", ROOM, "used_slot_count"),  # a comparison will show if the ENI is gone
    LimitRule(CloudCredentialsError, "any", "error", CREDENTIALS),
    LimitRule(CloudDeniedError, "stale keys", "error", EC2),
    LimitRule(PERSON, "any", "denied", DENIED, is_lasting=True),
    LimitRule(CloudError, "odd", *PREFIXES, ROOM),  # single addresses may still be available
    LimitRule(BaseException, "any", "error", EC2),
)
"""The first rule that fits is applied. Some rules halve the next request: EC2 refuses a request as a whole, although a part of it may
be available."""

YIELD_S = {CREATION: 900.0, ALLOCATION: 60.0}
YIELD_MAX_S = 1800.0
YIELD_SHARE = 2.0
"""Spare ENIs and addresses, for which no ADD waits, are not requested for a pause after EC2 has throttled this node: EC2's limits are
for an account, and ADDs may wait on other nodes (I13). The pause is at least the seconds that YIELD_S has for the kind of growth, and
at least YIELD_SHARE times the time for which EC2 has throttled this node so far, but at most YIELD_MAX_S seconds. The result is
multiplied by a random number from 1 to 2, so that nodes do not call EC2 again together.

Ours, from the fleet simulation (docs/performance.md): without the pause, 150 nodes that start at once took twice as long as EC2's
limit requires until all pods had addresses, because the first nodes spent half of EC2's tokens on spare ENIs. While 5,000 nodes are
replaced within 20 min, ADDs need five of every six Attach calls that EC2 accepts, so spare ENIs must wait long: with a pause of a
minute, like that of addresses, the slowest hundredth of the nodes waited 346 s, and with a quarter of an hour they waited 49 s."""

YIELDS = "EC2 has just throttled this node, and no ADD waits: others may need the account's calls now"

OTHERS_MAX = 4
"""How many further reasons one pause names after its first. Ours: a release makes five kinds of calls at most (Describe, Detach,
Delete, and Unassign of IPv4 or IPv6), so one reason of each kind is named."""

ROOM_ENOUGH = 64
"""Room for any creation: the most addresses that an ENI of any type takes, its primary one included."""


@dataclass(frozen=True, slots=True)
class _Limit:
    """A refusal in force.

    `cap`: the most ENIs, slots or addresses that may still be requested or used; 0: none.
    `refused_at_s`: the time, in seconds of the monotonic clock, at which EC2 refused last, or was found to have too little room.
    `further`: later refusals of other calls that share its pause.
    """

    refusal: GrowthRefusal
    cap: int
    refused_at_s: float
    further: tuple[GrowthRefusal, ...] = ()

    @property
    def all(self) -> tuple[GrowthRefusal, ...]:
        """All refusals, each reason once."""
        return self.refusal, *self.further


@dataclass(frozen=True, slots=True)
class CountedRoom:
    """How many addresses of a subnet are free: EC2's answer at `answered_monotonic_s`, less those that we have allocated since."""

    free_count: int
    answered_monotonic_s: float


class Limits:
    """The refusals in force. Used by the pool's thread; any thread may call `refusal`, `in_force`, `counted_room` and `retry`.

    `learn` puts a refusal of growth in force, `learn_release` one of a release. `state` is what the planner reads. A refusal ends with
    its pause, by `succeeded`, or by `retry`.
    """

    def __init__(self, context: ServiceContext, *, ec2: Ec2, draw: Callable[[], float] = random.random) -> None:
        """`draw` returns a random number from 0.0 to 1.0.

        It makes the pauses of spare requests longer, on each node by another factor.
        """
        self._clock = context.clock
        self._backoffs = context.backoffs
        self._ec2 = ec2
        self.spread_factor = 1.0 + draw()
        """Multiplies the pauses of spare requests, so that nodes do not call EC2 together."""
        self.more_room_step: Callable[[], str] = lambda: ""
        """Returns how the node's own pool gets another subnet; "" if no such subnet is known. Set by `Subnets`."""
        self._limits: dict[Key, _Limit] = {}
        self._retried: dict[BackoffKey, float] = {}  # keys of the pauses that the last `retry` ended, with its time
        self._rooms: dict[SubnetId, CountedRoom] = {}

    def learn(self, request: Ec2Request, error: BaseException) -> None:
        """Put a refusal of EC2 in force, as the first rule of the table that fits it demands.

        The refusal of a creation in a full subnet is left out here: `Subnets` calls `room_refused` for it.
        """
        rule = next(rule for rule in TABLE if isinstance(error, rule.error) and request.is_matched_by(rule.applies_to, error))
        key = request.key(rule.stops)
        if isinstance(error, SubnetExhaustedError) and rule.stops == "room":
            if request.home is not None and request.kind == ALLOCATION:  # for a creation `Subnets` calls `room_refused`
                self.room_refused(request.home, request.action, error)
            return
        cause = None
        if key == eni_count_key(request.pool):
            self._keep_eni_size()
            cause = _eni_count_cause(request, error)
        cap = getattr(request, rule.cap) if rule.cap else 0
        self.back_off(key, error, rule.schedule, cap=cap, is_lasting=rule.is_lasting, cause=cause)

    def _keep_eni_size(self) -> None:
        """If EC2 has refused a new ENI with many addresses, keep the reduced number (ENI_SIZE) for a further pause.

        Called when EC2 refuses any further ENI. The next creation comes after the pause of that refusal, which usually ends later than
        the earlier pause of ENI_SIZE. So without this call that creation would request too many addresses, and their number would have
        to be halved refusal by refusal once more.
        """
        if ENI_SIZE in self._limits:
            self._backoffs.back_off(("limit", *ENI_SIZE), LIMIT)

    def back_off(
        self,
        key: Key,
        error: BaseException,
        schedule: Schedule,
        *,
        cap: int = 0,
        is_lasting: bool = False,
        cause: Cause | None = None,
    ) -> None:
        """Put a refusal in force for the schedule's next pause.

        Args:
            key: the requests that the refusal concerns.
            cap: how many ENIs, slots or addresses may still be requested or used; 0: none.
            is_lasting: the refusal is not a short disturbance, so the pool grows in another way.
            cause: the reason for people; None: the reason that the error gives.
        """
        self._put(key, _refusal_of(error, is_lasting=is_lasting, cause=cause), cap, schedule)

    def learn_release(self, error: BaseException) -> None:
        """Put the refusal of a release in force. Refusals of several objects share one pause, which keeps the reason of each."""
        key, schedule = (RELEASE_DENIED, DENIED) if isinstance(error, PERSON) else (RELEASE_FAILED, EC2)
        if is_about_keys(error):
            key, schedule = RELEASE_FAILED, schedule_of(error)
        if self.cap(key) is None:
            self.back_off(key, error, schedule, is_lasting=schedule is DENIED)
            return
        limit = self._limits[key]
        other = _refusal_of(error, is_lasting=schedule is DENIED)
        if other.cause not in [refusal.cause for refusal in limit.all] and len(limit.further) < OTHERS_MAX:
            limit = replace(limit, further=(*limit.further, other))
        self._limits[key] = replace(limit, refused_at_s=self._clock.monotonic())

    def clear(self, *keys: Key) -> None:
        """End the refusals of these keys."""
        for key in keys:
            self._limits.pop(key, None)
            self._backoffs.clear(("limit", *key))

    def succeeded(self, request: Ec2Request) -> None:
        """End the refusals that a successful request has disproved."""
        self.clear(*(request.key(stopped) for stopped in ("error", "denied", "spare")))
        self.clear(eni_count_key(request.pool) if request.kind == CREATION else request.key("slots"))
        if request.action.prefix_count:
            self.clear(prefix_key(PREFIXES, request.pool))
        if request.kind == ALLOCATION and request.home is not None and not request.is_other_subnet:
            self.took_room(request.home, request.action)

    def drop_stale_cap(self, attached_count: int, pool: str = "") -> bool:
        """Drop the cap on the ENIs of a pool's network card if the card has more ENIs than the cap allows. Returns: whether it was
        dropped, so that the pool must plan again.

        The cap is the number of ENIs that we knew when EC2 refused another one. If the datastore had just been lost and Describe
        lagged, that number is too low.
        """
        cap = self.cap(eni_count_key(pool))
        if cap is None or attached_count <= cap:
            return False
        self.clear(eni_count_key(pool))
        return True

    def refusal(self, *keys: Key) -> GrowthRefusal | None:
        """Return the first refusal of these keys that is in force; None without one."""
        for key in keys:
            limit, left_s = self._limits.get(key), self._backoffs.left_s(("limit", *key))
            if limit is not None and left_s:
                remainder = f"; {counted(limit.cap, 'address')} left of it" if key[0] == "room" else ""
                cause = joined(refusal.cause for refusal in limit.all)
                return replace(limit.refusal, cause=cause.noted(remainder), left_s=left_s)
        return None

    def cap(self, key: Key) -> int | None:
        """Return the cap that the refusal of `key` sets: the most ENIs, slots or addresses. None without a refusal in force."""
        limit = self._limits.get(key)
        if limit is None or self._backoffs.is_due(("limit", *key)):
            return None
        return limit.cap

    def in_force(self) -> list[GrowthRefusal]:
        """Return every refusal of growth that is in force, for reports. A pause of spare requests does not count."""
        refusals = (self.refusal(key) for key in list(self._limits) if key[-1] != "spare" and key[0] != "release")
        return [refusal for refusal in refusals if refusal is not None]

    def retry(self, reasons: Mapping[BackoffKey, str] = MappingProxyType({})) -> list[tuple[str, GrowthRefusal]]:
        """End the pauses of refused calls, for growth or not, because a person has removed the cause. From any thread.

        The pauses of spare requests, for which no ADD waits, go on. What follows is the same as after a pause that ended by itself:
        the room of subnets and the caps are checked again, and all calls stay within the budget.

        Args:
            reasons: by back-off key, the reasons of pauses that other parts of the daemon began.
        Returns: for each refusal whose pause was ended: the key of the pause, and the refusal with the seconds that were left.
        """
        back_off = {key: left_s for key, left_s in self._backoffs.of_ec2().items() if key[-1] != "spare"}
        limits = dict(self._limits)
        self._backoffs.clear(*back_off)
        self._retried = dict.fromkeys(back_off, self._clock.monotonic())
        log.info("pauses after refusals of EC2 ended count=%d", len(back_off))
        ended = []
        for key, left_s in back_off.items():
            limit = limits.get(cast("Key", key[1:])) if key[0] == "limit" else None
            if limit is None:
                refusals: tuple[GrowthRefusal, ...] = (growth_refusal(reasons.get(key, "EC2 refused it, or did not answer")),)
            else:
                refusals = limit.all
            ended += [(" ".join(map(str, key)), replace(refusal, left_s=left_s)) for refusal in refusals]
        return ended

    def retry_outcomes(self) -> list[RetryOutcome]:
        """Return what came of each request whose pause the last `retry` ended. From any thread."""
        return [self._retry_outcome(key, at_s) for key, at_s in self._retried.items()]

    def _retry_outcome(self, key: BackoffKey, at_s: float) -> RetryOutcome:
        subject = " ".join(map(str, key))
        if key[0] != "limit":  # a pause of another part of the daemon, which does not report a success here
            return RetryOutcome(subject, RetryState.ASKED if self._backoffs.is_due(key) else RetryState.REFUSED)
        limit = self._limits.get(cast("Key", key[1:]))
        if limit is None:
            return RetryOutcome(subject, RetryState.ACCEPTED)
        if limit.refused_at_s < at_s or self._backoffs.is_due(key):
            return RetryOutcome(subject, RetryState.ASKED)
        return RetryOutcome(subject, RetryState.REFUSED, self.refusal(cast("Key", key[1:])))

    def refusal_ages(self) -> dict[Ec2Refusal, float]:
        """Return, for each refusal of EC2 that is known, the seconds since EC2 refused last. From any thread."""
        now_s, ages = self._clock.monotonic(), dict[Ec2Refusal, float]()
        for limit in list(self._limits.values()):
            for refused in joined(refusal.cause for refusal in limit.all).refusals:
                ages[refused] = min(now_s - limit.refused_at_s, ages.get(refused, math.inf))
        return ages

    def next_retry_s(self) -> float | None:
        """Seconds until the first refusal ends, or until spare requests may be made again; None if nothing is refused."""
        yields = (self._yielding(kind) for kind in YIELD_S)
        return soonest_s([self._backoffs.next_s("limit"), *(refusal.left_s for refusal in yields if refusal is not None)])

    def state(self, *, home: SubnetId | None, candidates: Collection[SubnetId], is_urgent: bool, pool: str = "") -> GrowthState:
        """Return the limits of a pool's growth for the planner. `candidates`: subnets for a new ENI, empty before they are known."""
        creation_subnets = candidates or (() if home is None else (home,))
        room, home_refusal = self._home_room(home)
        stopped, spare_refusal = self._stopped(ALLOCATION, pool), self._spare_refusal(ALLOCATION, is_urgent, pool)
        return GrowthState(
            creation=self._stopped(CREATION, pool)
            or self._advised(self._no_room(creation_subnets), pool)
            or self._spare_refusal(CREATION, is_urgent, pool),
            allocation=stopped or self._advised(home_refusal, pool) or spare_refusal,
            allocation_elsewhere=stopped or spare_refusal,
            prefixes=self.refusal(prefix_key(PREFIXES, pool)),
            eni_cap=self.cap(eni_count_key(pool)),
            eni_cap_refusal=self.refusal(eni_count_key(pool)),
            slot_caps=self._slot_caps(),
            room=room,
            prefix_cap=self.cap(prefix_key(PREFIX_COUNT, pool)),
            creation_cap=self.cap(ENI_SIZE),
            has_other_candidate=any(subnet_id != home for subnet_id in candidates),
            creation_room=self._creation_room(creation_subnets),
        )

    def _stopped(self, kind: str, pool: str) -> GrowthRefusal | None:
        """Return why no call of a kind is made for a pool: EC2 denied the last one, or answered it with an error. None if calls may be
        made.
        """
        return self.refusal(call_key(kind, "denied", pool), call_key(kind, "error", pool))

    def _advised(self, refusal: GrowthRefusal | None, pool: str) -> GrowthRefusal | None:
        """Return the refusal of a full subnet with the quickest remedy, if a subnet is known that only lacks a tag."""
        step = "" if refusal is None or subnet_pool(pool) else self.more_room_step()
        return replace(refusal, next_step=step) if refusal is not None and step else refusal

    def _home_room(self, home: SubnetId | None) -> tuple[int | None, GrowthRefusal | None]:
        """Return the room that EC2's refusals left in the default subnet, None if no refusal limits it, and the refusal if it is 0."""
        if home is None:
            return None, None
        room = self.cap(("room", home))
        if room != 0:
            return room, None
        return room, self.refusal(("room", home))

    def _spare_refusal(self, kind: str, is_urgent: bool, pool: str) -> GrowthRefusal | None:
        """Return why spare addresses or ENIs are not requested now; None if they may be, or an ADD waits."""
        if is_urgent:
            return None
        return self.refusal(call_key(kind, "spare", pool)) or self._yielding(kind)

    def _slot_caps(self) -> dict[EniId, int]:
        """Return how many slots may be used on each ENI that EC2 refused to fill further."""
        caps = {}
        for key in self._limits:
            cap = self.cap(key) if key[0] == "slots" else None
            if cap is not None:
                caps[EniId(key[1])] = cap
        return caps

    def _creation_room(self, candidates: Collection[SubnetId]) -> int | None:
        """Return the free addresses of the candidate with most room; None without candidates, or if no refusal limits one of them."""
        caps = []
        for subnet_id in candidates:
            cap = self.cap(("room", subnet_id))
            if cap is None:
                return None
            caps.append(cap)
        return max(caps, default=None)

    # Room of subnets that are short of addresses. EC2 refuses a whole request if the subnet has fewer addresses than requested. So
    # after a refusal the subnet is described once, and the next request is for the free count, or for half of the refused number if
    # the count does not explain the refusal. The count does not show whether a whole /28 is free.

    def room_refused(self, subnet_id: SubnetId, action: Growth, error: SubnetExhaustedError) -> None:
        """Limit requests to a subnet to its free addresses, or to half of the refused number if the free addresses do not explain the
        refusal.
        """
        limit = self._limits.get(("room", subnet_id))
        free_count = self._free_count(subnet_id) if limit is None else limit.cap
        cap = needs(action) // 2
        if 0 <= free_count < needs(action):
            cap = free_count
        log.info("subnet short of addresses subnet=%s addresses=%d", subnet_id, cap)
        self.back_off(("room", subnet_id), error, ROOM, cap=cap, is_lasting=True)

    def is_room_due(self, subnet_id: SubnetId) -> bool:
        """Whether the pause after a refusal for want of room is over, so that the subnet's free count must be read before the next
        request.
        """
        key = ("room", subnet_id)
        return key in self._limits and self.cap(key) is None

    def recheck_room(self, subnet_id: SubnetId, action: Growth, *, free_count: int | None = None) -> bool:
        """After the pause of a refusal, compare the subnet's free count with the next request.

        Args:
            free_count: the count that EC2 showed; negative if EC2 did not answer; None to ask EC2 here.
        Returns: True if the subnet has too few addresses for the action. False if it has enough, if EC2 does not answer, or if no
            check is due (`is_room_due`): EC2 has not refused, or the pause is not over.
        """
        if not self.is_room_due(subnet_id):
            return False
        key = ("room", subnet_id)
        if free_count is None:
            free_count = self._free_count(subnet_id)
        if free_count < 0 or free_count >= needs(action):
            del self._limits[key]  # the pause is not cleared: after another refusal the next one is longer
            return False
        self._put(key, self._limits[key].refusal, free_count, ROOM)
        return True

    def short_of_room(self, subnet_id: SubnetId, count: int) -> None:
        """Limit requests to a subnet that EC2 described with too few free addresses, without a refusal."""
        reason = f"EC2 says that subnet {subnet_id} has no room for another ENI"
        step = "delete unused ENIs in the subnet, or use another one"
        self._put(("room", subnet_id), growth_refusal(reason, step, None, True, Blocked.SUBNET_FULL), count, ROOM)

    def took_room(self, subnet_id: SubnetId, action: Growth) -> None:
        """Subtract the addresses of an action from the subnet's cap. The next refusal begins with the shortest pause."""
        key = ("room", subnet_id)
        limit = self._limits.get(key)
        if limit is not None:
            self._limits[key] = replace(limit, cap=max(limit.cap - needs(action), 0))
        self._backoffs.shorten(("limit", *key))

    def _put(self, key: Key, refusal: GrowthRefusal, cap: int, schedule: Schedule) -> None:
        self._limits[key] = _Limit(refusal, cap, self._clock.monotonic())
        self._backoffs.back_off(("limit", *key), schedule)

    def _no_room(self, candidates: Collection[SubnetId]) -> GrowthRefusal | None:
        """Return why no candidate has room for another ENI now; None if one may have room."""
        if not candidates or any(self._left(subnet_id) >= 2 for subnet_id in candidates):  # one address is for the ENI itself
            return None
        refusals = {}
        for subnet_id in candidates:
            refusal = self.refusal(("room", subnet_id))
            if refusal is not None:
                refusals[subnet_id] = refusal
        if len(refusals) <= 1:
            return next(iter(refusals.values()), None)
        causes = joined(refusal.cause.about(subnet_id) for subnet_id, refusal in refusals.items())
        first = min(refusals.values(), key=lambda refusal: refusal.left_s or 0.0)
        return replace(first, cause=causes.about("no subnet has room"))

    def _left(self, subnet_id: SubnetId) -> int:
        cap = self.cap(("room", subnet_id))
        if cap is None:
            return ROOM_ENOUGH
        return min(cap, ROOM_ENOUGH)

    def _free_count(self, subnet_id: SubnetId) -> int:
        """Return the free addresses of a subnet, -1 if EC2 does not answer."""
        try:
            free_count = self._ec2.subnet_free_count(subnet_id)
        except CloudError as error:
            log.info("reading a subnet's free count failed error=%s", log_text(error))
            return -1
        self._rooms[subnet_id] = CountedRoom(free_count, self._clock.monotonic())
        return free_count

    def counted_room(self, subnet_id: SubnetId) -> CountedRoom | None:
        """Return EC2's last answer about one subnet's free addresses, less the addresses allocated since; None without an answer."""
        return self._rooms.get(subnet_id)

    def subtract_room(self, subnet_id: SubnetId, count: int) -> None:
        """Reduce the free count in EC2's last answer about a subnet by the addresses that we have allocated since."""
        room = self._rooms.get(subnet_id)
        if room is not None:
            self._rooms[subnet_id] = replace(room, free_count=max(room.free_count - count, 0))

    def _yielding(self, kind: str) -> GrowthRefusal | None:
        """Return why spare addresses or ENIs (`kind`) are not requested now, because EC2 has throttled lately; None if they may be."""
        throttling = self._ec2.throttling()
        if throttling is None:
            return None
        began_s, last_s = throttling
        pause_s = self.spread_factor * min(max(YIELD_SHARE * (last_s - began_s), YIELD_S[kind]), YIELD_MAX_S)
        left_s = last_s + pause_s - self._clock.monotonic()
        step = "wait, or start the pod: what an ADD waits for is asked for at once"
        if left_s > 0:
            return growth_refusal(YIELDS, step, left_s=left_s, kind=Blocked.THROTTLED)
        return None


def _eni_count_cause(request: Ec2Request, error: BaseException) -> Cause:
    """Explain that EC2 attaches no further ENI to the instance, with the number of its ENIs."""
    foreign = f", {request.foreign_count} of them not ours to use" if request.foreign_count else ""
    attached = f"{counted(request.attached_count, 'ENI')}{foreign}"
    return cause_of_error(error).about(f"EC2 attaches no further ENI to this instance, which has {attached}")


def _refusal_of(error: BaseException, *, is_lasting: bool = False, cause: Cause | None = None) -> GrowthRefusal:
    step = error.next_step if isinstance(error, CloudError) else ""
    return GrowthRefusal(cause or cause_of_error(error), step, None, is_lasting, blocked_by(error))


def needs(action: Growth) -> int:
    """Return how many addresses an action takes from the subnet, including a new ENI's primary address, but not prefixes."""
    return action.address_count + isinstance(action, CreateEni)
