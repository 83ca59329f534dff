"""Execute the plan's actions at EC2, and recover operations that a crash or a lost answer left open, without losing any (I9).

Each action is an operation with an intent (`operations.py`), which `steps.py` runs, now or after a restart. Open operations are
recovered one by one: one that stays open delays neither the others nor growth. Until its outcome is known, the planner counts an
operation as done, so that nothing is requested twice (I13).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ipamd.core.backoffs import EC2, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.failure_isolation import NAMED_MAX, FailureIsolation
from ipamd.eni.book import PLACE
from ipamd.eni.enis import EniService
from ipamd.eni.leaked import LeakedEnis
from ipamd.eni.limits import RELEASE_DENIED
from ipamd.eni.operations import OperationLog, is_denied, new_token
from ipamd.eni.release_guard import FrozenError, ReleaseGuard
from ipamd.eni.steps import MOVES_MAX, InterruptedByAddError, OperationRunner, Work
from ipamd.eni.subnets import EniTarget, Subnets
from ipamd.model.blocked import Blocked, blocked_by
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState
from ipamd.model.eni_tags import POOL_TAG, EniTags
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    EniLimitError,
    InvariantError,
    IpamError,
    SubnetExhaustedError,
    ThrottledError,
    is_about_keys,
    log_text,
)
from ipamd.model.growth_state import GrowthState, PendingEni
from ipamd.model.ids import EniId
from ipamd.model.intent import Assign, Create, Delete, DeleteReason, Intent, IntentKind, Operation, Unassign
from ipamd.model.network_cards import card_of_pool
from ipamd.model.pool_actions import Allocate, CreateEni, Growth, Release, ReleaseAddresses
from ipamd.model.record import dataclass, replace
from ipamd.model.words import first_of
from ipamd.ports.cloud import Ec2

TRACKING = "connection tracking"
"""Condition: EC2 refuses to create ENIs with the primary ENI's timeouts of connection tracking."""

PAUSE = "operation"
"""First part of the back-off keys (PAUSE, intent ID). Such a key is due when an open operation may be tried again."""

RAMP_MAX_S = 3600.0
"""Longest duration of a ramp (`_Ramp`). Then a new one begins, because other programs may have taken the requested addresses away, and
the old ramp may allow no further request. Ours: so requests beyond the bound of one ramp are possible only once an hour."""

WITHOUT_EFFECT = ("operation without effect",)
"""Back-off key: EC2 confirmed a request, but the number of addresses did not grow."""

WHAT_HELPS = "nothing is asked for until a pause is over; `ipamctl audit` compares with EC2; please report it"

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Ramp:
    """Growth since the pool last had enough addresses.

    `began_s`: when the ramp began, on the monotonic clock.
    `taken_count`: addresses that sandboxes had when it began.
    `wanted_count`: the most addresses that were missing at any time, including those that sandboxes have taken since.
    `asked_count`: addresses that were requested from EC2.
    """

    began_s: float
    taken_count: int = 0
    wanted_count: int = 0
    asked_count: int = 0


class EniProvisioner(Service):
    """Creates ENIs, allocates and releases addresses. Used by the pool maintainer's thread; any thread may call `failures`.

    All open operations that IAM denied (`is_denied`), and all open releases that this process has not tried yet, wait for the same
    pause (`limits.RELEASE_DENIED`). After this pause one of them is tried: one that was not tried yet, or else the one whose last try
    is longest ago. If IAM denies it, the next pause begins for all of them. Otherwise all other ones are tried at once.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        enis: EniService,
        subnets: Subnets,
        tags: Callable[[], EniTags],
        identity: Callable[[], InstanceIdentity | None],
        refresh_identity: Callable[[], InstanceIdentity],
        look_for_other_daemon: Callable[[], object],
    ) -> None:
        """Keep the collaborators.

        Args:
            tags: returns the tags of new ENIs.
            identity: returns this node's identity, None before it is known.
            refresh_identity: reads instance metadata, and returns the identity.
            look_for_other_daemon: see `ReleaseGuard`.
        """
        super().__init__(context)
        self._ec2 = ec2
        self.enis = enis
        self.subnets = subnets
        self._tags = tags
        self._identity = identity
        self._refresh_identity = refresh_identity
        self._log = OperationLog(context)
        self._guard = ReleaseGuard(context, operations=self._log, look_for_other_daemon=look_for_other_daemon)
        self.steps = OperationRunner(context, ec2=ec2, enis=enis, operations=self._log, guard=self._guard)
        self._odd = FailureIsolation(context.health, work="recovery")
        self._untracked: set[EniId] = set()
        """ENIs that were created without the primary ENI's timeouts of connection tracking."""
        self._failed: dict[str, IpamError | None] = {}
        """By intent ID: the error of the last try, None if the try left the intent open without an error. Oldest try first."""
        self._limits = subnets.limits
        self._ramps: dict[str, _Ramp] = {}
        """The ramps, by the name of the pool."""
        self.leaked_enis = LeakedEnis(context, ec2=ec2, book=enis.book, operations=self._log, delete=self._resume)

    def has_open_intents(self) -> bool:
        """Whether the outcome of any operation is not known."""
        return bool(self._log.all_open())

    def execute(self, action: Growth) -> None:
        """Grow by one action at EC2 and store the answer.

        Raises: CloudError and its subclasses, also for an action that exceeds the bound of the ramp (`_require_wanted`), and for an
            action that EC2 confirmed without any effect (I18). If the outcome is not known, the intent stays open and is recovered
            later.
        """
        if not self._backoffs.is_due(WITHOUT_EFFECT):
            raise CloudError("EC2 confirmed the last request, but no new address was recorded", details=WHAT_HELPS)
        count = action.address_count + action.prefix_count * ADDRESSES_PER_PREFIX
        pool = self._pool_of(action)
        self._require_wanted(action, count, self._ramp(pool))
        usable_before, enis_before = self._usable_count(), len(self._datastore.enis())
        with self._backing_off_open_intents():
            is_done = self._create(action) if isinstance(action, CreateEni) else self._allocate(action)
        self._ramp(pool).asked_count += count
        is_grown = self._usable_count() > usable_before
        is_new_empty_eni = not count and len(self._datastore.enis()) > enis_before
        if not is_done or is_grown or is_new_empty_eni:
            self._backoffs.clear(WITHOUT_EFFECT)
            return
        self._backoffs.back_off(WITHOUT_EFFECT, EC2)
        raise CloudError(f"EC2 confirmed the request, but no new address was recorded: {action}", details=WHAT_HELPS)

    def _pool_of(self, action: Growth) -> str:
        """Return the pool that an action is for."""
        if isinstance(action, CreateEni):
            return action.pool
        eni = self._datastore.eni(action.eni_id)
        return eni.pool if eni else ""

    def _ramp(self, pool: str) -> _Ramp:
        return self._ramps.setdefault(pool, _Ramp(self._clock.monotonic()))

    def _require_wanted(self, action: Growth, count: int, ramp: _Ramp) -> None:
        """Check that the ramp requests, with this action, no more than twice the addresses that it wants (I18).

        The bound is rounded up to whole prefixes or ENIs. `count`: addresses of the action. Raises: CloudError.
        """
        unit = count
        if isinstance(action, Allocate):
            unit = ADDRESSES_PER_PREFIX if action.prefix_count else 1
        most = math.ceil(2 * ramp.wanted_count / max(unit, 1)) * unit
        if ramp.asked_count + count > most:
            reason = f"{ramp.asked_count} were asked for already, and {ramp.wanted_count} were wanted"
            raise CloudError(f"the plan asks for more than is wanted ({action}): {reason}", details=WHAT_HELPS)

    def _usable_count(self) -> int:
        """Count the recorded addresses that are not lost. A confirmed request for addresses had an effect if it raised the count."""
        counts = self._datastore.counts()
        return counts.total - counts.lost

    def note_wanted(self, count: int, pool: str = "") -> None:
        """Record how many addresses a pool needs now, which bounds the requests of a ramp. The ramp ends when nothing is wanted."""
        if self._untracked and not self._untracked & {eni.eni_id for eni in self._datastore.enis()}:
            self._end_tracking()  # all ENIs that lack the primary ENI's timeouts are gone
        now_s = self._clock.monotonic()
        # All addresses that are not free: an ADD took them, or EC2 has just shown them with a new /28 and sandboxes use them already.
        taken_count = self._usable_count() - self._datastore.counts().free
        if not count or now_s - self._ramp(pool).began_s > RAMP_MAX_S:
            self._ramps[pool] = _Ramp(now_s, taken_count)
        ramp = self._ramp(pool)
        # max(): the taken count falls if an address in use is lost, which must not reduce the wanted count.
        ramp.wanted_count = max(ramp.wanted_count, count + max(taken_count - ramp.taken_count, 0))

    def release(self, action: Release) -> bool:
        """Release the addresses or the ENI of a plan, unless the pool is frozen, or an ADD waits or took an address after the plan.

        Returns: False if the release was skipped, or stopped by a freeze. Raises: CloudError; if the outcome is not known, the intent
        stays open, otherwise the release is undone.
        """
        if self._demand.waiting()[0] or self._guard.why_frozen():
            return False
        with self._backing_off_open_intents():
            try:
                intent = self._open_release(action)
            except InvariantError as error:  # an ADD or a comparison with EC2 changed the rows after the plan
                log.info("release skipped error=%s", log_text(error))
                return False
            if intent is None:
                return False
            try:
                self.steps.run(intent, identity=None, is_first=True)
            except InterruptedByAddError as error:
                log.info("yielding to a waiting ADD intent=%s error=%s", intent.intent_id, log_text(error))
            except FrozenError as error:
                log.info("release stopped intent=%s error=%s", intent.intent_id, log_text(error))
                return False
        return True

    def _open_release(self, action: Release) -> Intent | None:
        """Open the intent of a release. Returns: None if the ENI must not be released. Raises: InvariantError if a sandbox uses it."""
        if isinstance(action, ReleaseAddresses):
            return self._log.open(Unassign(action.eni_id, frozenset(action.addresses), frozenset(action.prefixes)))
        eni = self._datastore.eni(action.eni_id)
        if eni is None or eni.is_primary or not eni.created_by_us or eni.state is not EniState.ATTACHED:
            return None
        if self.enis.may_carry_unrecorded(eni):
            raise InvariantError(f"ENI {eni.eni_id} may have the address of a sandbox that EC2 does not show")
        leaving = replace(eni, state=EniState.DETACHING, host_ready=False)
        return self._log.open(Delete(action.eni_id, DeleteReason.RELEASED), also=lambda uow: uow.put_eni(leaving))

    def recover_due(self) -> list[IpamError]:
        """Find out the outcome of open intents whose pause is over, and finish or undo them. Releases wait while an ADD waits.

        Returns: the errors because of which intents stay open.
        """
        self._log.close_old()
        problems: list[IpamError] = []
        turns = {intent_id: turn for turn, intent_id in enumerate(self._failed)}
        for intent in sorted(self._log.all_open(), key=lambda intent: turns.get(intent.intent_id, -1)):
            if not self._is_due(intent):
                continue
            was_denied = is_denied(self._failed.get(intent.intent_id), intent)
            failure = self._try_resume(intent)
            if failure is not None and not isinstance(failure, FrozenError):
                problems.append(failure)
            if any(still_open.intent_id == intent.intent_id for still_open in self._log.all_open()):
                self._back_off(intent, failure)
            elif was_denied:
                self._limits.clear(RELEASE_DENIED)  # IAM allows the call again, so the other intents are tried at once
        return problems

    def _try_resume(self, intent: Intent) -> IpamError | None:
        """Resume one open intent.

        Returns: the error that stopped it, a FrozenError included. None if it succeeded, if it yielded to a waiting ADD, or after a
            defect, which becomes a condition.
        """
        try:
            self._resume(intent)
        except InterruptedByAddError as error:
            log.info("yielding to a waiting ADD intent=%s error=%s", intent.intent_id, log_text(error))
        except FrozenError as error:  # a freeze is not a refusal of EC2
            log.info("operation stopped kind=%s intent=%s error=%s", intent.kind, intent.intent_id, log_text(error))
            return error
        except IpamError as error:
            if not isinstance(error, ThrottledError):
                log.warning(
                    "operation pending, will retry kind=%s intent=%s error=%s", intent.kind, intent.intent_id, log_text(error)
                )
            return error
        except Exception as error:  # noqa: BLE001  # top of the work on one intent, which another version may have written
            self._odd.report(_name(intent), error)
        return None

    def failures(self) -> dict[str, IpamError]:
        """Return the last errors of open intents, by ID, without those that a freeze stopped. From any thread."""
        open_ids = {intent.intent_id for intent in self._log.all_open()}
        failures = {}
        for intent_id, error in self._failed.copy().items():  # a copy, because the pool's thread may add an error meanwhile
            if error is not None and intent_id in open_ids and not isinstance(error, FrozenError):
                failures[intent_id] = error
        return failures

    def has_due_intents(self) -> bool:
        """Whether `recover_due` has work: an open intent may be tried now, or a settled one may be closed."""
        return self._log.close_old_in_s() == 0 or any(map(self._is_due, self._log.all_open()))

    def next_retry_s(self) -> float | None:
        """Seconds until the first of these: an open intent is tried again, a settled one is closed, or a device index that EC2 refused
        may be tried again. None if none of these will happen.

        An intent that is due already does not count: it is tried as soon as no ADD waits, and not at a certain time.
        """
        intents = self._log.all_open()
        open_ids = {intent.intent_id for intent in intents}
        self._failed = {intent_id: error for intent_id, error in self._failed.items() if intent_id in open_ids}
        self._backoffs.retain(PAUSE, open_ids)
        self._guard.retain(open_ids)
        return soonest_s([*filter(None, map(self._left_s, intents)), self._log.close_old_in_s(), self._backoffs.next_s(PLACE)])

    def with_pending(self, state: GrowthState, pool: str = "") -> GrowthState:
        """Add to `state` the possible effects of open operations: new ENIs, used slots and new addresses.

        Slots whose address is recorded elsewhere are added too (`EniBook.enis_with_conflicting_slots`). A malformed intent is left
        out, and its recovery reports it.

        `pool`: the pool that is planned. An open operation of another pool counts with the place or slots that it uses, but not
        with its addresses. A new ENI on another network card than this pool's is left out.
        """
        enis: list[PendingEni] = []
        slots = Counter(self.enis.book.enis_with_conflicting_slots())
        address_count = 0
        intents = self._log.all_open()
        self._odd.retain(map(_name, intents))
        for intent in intents:
            try:
                operation = intent.operation
            except ValueError:
                continue
            pending_eni = self._pending_eni(intent, operation, pool)
            if pending_eni is not None:
                if card_of_pool(pending_eni.pool) == card_of_pool(pool):
                    enis.append(pending_eni)
            elif isinstance(operation, Assign):
                slots[operation.eni_id] += operation.count
                eni = self._datastore.eni(operation.eni_id)
                if (eni.pool if eni else "") == pool:
                    address_count += operation.expected_address_count
        state = replace(state, pending_enis=tuple(enis), pending_slots=slots, pending_address_count=address_count)
        errors = list(self.failures().values())
        if not errors:
            return replace(state, pending="", pending_kind=Blocked.GROWING)
        reasons = list(dict.fromkeys(map(log_text, reversed(errors))))
        pending = f"EC2 is asked what became of the last call, which failed: {first_of(reasons, NAMED_MAX)}"
        return replace(state, pending=pending, pending_kind=blocked_by(errors[-1]))

    def _pending_eni(self, intent: Intent, operation: Operation, pool: str) -> PendingEni | None:
        """Return the ENI that an open operation may have created; None if it creates no ENI, or the ENI is recorded.

        Its addresses count only if it is for `pool`.
        """
        creation = operation.creation if isinstance(operation, Delete) else operation
        if not isinstance(creation, Create) or self._datastore.eni(intent.eni_id) is not None:
            return None
        of_pool = creation.tags.get(POOL_TAG, "")
        is_supply = operation is creation and of_pool == pool
        return PendingEni(creation.device_index, creation.expected_address_count if is_supply else 0, of_pool)

    def _resume(self, intent: Intent) -> None:
        self._set_up(self.steps.run(intent, identity=self._identity()))

    def _back_off(self, intent: Intent, error: IpamError | None) -> None:
        """Back off from an intent that stays open after a try."""
        self._failed.pop(intent.intent_id, None)
        self._failed[intent.intent_id] = error
        self._backoffs.back_off((PAUSE, intent.intent_id), EC2)
        if isinstance(error, FrozenError) and error.again_s:
            self._backoffs.put((PAUSE, intent.intent_id), in_s=error.again_s)
        if error is not None and is_denied(error, intent):
            self._limits.learn_release(error)

    def _is_due(self, intent: Intent) -> bool:
        is_for_later = intent.kind in (IntentKind.UNASSIGN, IntentKind.DELETE_ENI) and self._demand.waiting()[0]
        return not is_for_later and not self._left_s(intent)

    def _left_s(self, intent: Intent) -> float:
        """Seconds left of an intent's pause."""
        is_tried = intent.intent_id in self._failed
        if is_denied(self._failed.get(intent.intent_id), intent) or (intent.is_release and not is_tried):
            return self._backoffs.left_s(("limit", *RELEASE_DENIED))
        return self._backoffs.left_s((PAUSE, intent.intent_id))

    @contextmanager
    def _backing_off_open_intents(self) -> Iterator[None]:
        """If the block fails, back off from the intents that it opened and that stay open."""
        open_before = {intent.intent_id for intent in self._log.all_open()}
        try:
            yield
        except IpamError as error:
            for intent in self._log.all_open():
                if intent.intent_id not in open_before:
                    self._back_off(intent, error)
            raise

    def _set_up(self, work: Work) -> None:
        if work.eni is not None:
            self.enis.routing.set_up(work.eni)
            self._failpoint("growth.host-ready")

    def _create(self, action: CreateEni) -> bool:
        """Create an ENI in the subnet with most room, and at once in the next one if EC2 refuses because a subnet is full.

        Returns: False if foreign ENIs were adopted instead.
        """
        identity = self._refresh_identity()
        for target, fitted in self.subnets.choose(action, identity):
            try:
                work = self._create_in(target, fitted, identity)
            except SubnetExhaustedError as error:
                self.subnets.record_refusal(target.subnet_id, fitted, error)
            else:
                self.subnets.record_creation(target.subnet_id, fitted)
                self._set_up(work)
                return work.eni is not None
        return False

    def _create_in(self, target: EniTarget, action: CreateEni, identity: InstanceIdentity) -> Work:
        """Create an ENI in one subnet, with the primary ENI's timeouts of connection tracking.

        If EC2 may have refused the creation because of these timeouts, try once without them. The subnet is stored in the intent, so
        that a repeated call names the same subnet.
        """
        token = new_token()
        operation = Create(
            subnet_id=target.subnet_id,
            device_index=action.device_index,
            address_count=action.address_count,
            prefix_count=action.prefix_count,
            tags=self._tags().of_new_eni(identity, created_at=self._clock.now(), token=token, pool=action.pool),
            security_group_ids=target.security_group_ids,
            connection_tracking=self.enis.book.facts_of(identity.primary_eni_id).connection_tracking,
            moves_left=min(action.other_place_count, MOVES_MAX),
        )
        try:
            work = self.steps.run(self._log.open(operation, token=token), identity=identity, is_first=True)
        except CloudError as error:
            if not operation.connection_tracking or not _may_be_refused_parameter(error):
                raise
            token = new_token()
            tags = self._tags().of_new_eni(identity, created_at=self._clock.now(), token=token, pool=action.pool)
            without = replace(operation, tags=tags, connection_tracking=())
            work = self.steps.run(self._log.open(without, token=token), identity=identity, is_first=True)
            self._health.report(TRACKING, problem(ConditionCode.TRACKING_REFUSED, cause=log_text(error)), error=error)
            self._untracked.add(work.intent.eni_id if work.eni is None else work.eni.eni_id)
        else:
            self._end_tracking()
        return work

    def _end_tracking(self) -> None:
        """End the condition that new ENIs have other timeouts of connection tracking than the primary ENI."""
        self._untracked.clear()
        self._health.report(TRACKING, None)

    def _allocate(self, action: Allocate) -> bool:
        """Allocate addresses or prefixes on an ENI. Returns: False if other software has filled or detached the ENI; then the pool
        must plan again.
        """
        operation = Assign(action.eni_id, action.prefix_count or action.address_count, action.prefix_count > 0)
        try:
            work = self.steps.run(self._log.open(operation), identity=self._identity(), is_first=True)
        except (EniLimitError, CloudNotFoundError):
            if self.steps.adopt_changes(self._node()):
                return False
            raise
        eni = self._datastore.eni(action.eni_id)
        if eni is not None:
            self.subnets.allocated(eni.subnet_id, operation.expected_address_count)
        if work.conflicts:
            self.steps.adopt_changes(self._node())
        return True

    def _node(self) -> InstanceIdentity:
        identity = self._identity()
        if identity is None:
            raise CloudError("this node is not known yet", details="instance metadata has not answered; it is read again")
        return identity


def _may_be_refused_parameter(error: CloudError) -> bool:
    """Whether EC2 may have refused a creation because of a parameter that it does not know, or that a policy denies."""
    is_of_parameter = type(error) is CloudError and error.code.startswith(("InvalidParameter", "UnknownParameter", "Unsupported"))
    is_denied_call = isinstance(error, CloudDeniedError) and not is_about_keys(error)
    return (is_of_parameter or is_denied_call) and not error.may_have_happened


def _name(intent: Intent) -> str:
    return f"{intent.kind} intent {intent.intent_id}"
