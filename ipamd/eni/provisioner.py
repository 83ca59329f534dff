"""Carry out the plan's actions at EC2, and recover what a crash or a lost answer left open, without losing track of anything (I9).

Each action is an operation with an intent (`operations.py`), which `steps.py` carries out, now or after a restart. Each open one is
tried by itself: one that stays open delays no other, and no growth. Until its outcome is known it counts as if EC2 had done what was
asked, so that it is not asked for twice (I13).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ipamd.core.agenda import EC2, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.loop import OddObjects
from ipamd.eni.book import PLACE
from ipamd.eni.enis import EniService
from ipamd.eni.leaked import LeakedEnis
from ipamd.eni.limits import RELEASE_DENIED
from ipamd.eni.operations import OperationLog, is_denied, new_token
from ipamd.eni.steps import MOVES_MAX, InterruptedByAddError, Steps, Work
from ipamd.eni.subnets import EniTarget, Subnets
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import ADDRESSES_PER_PREFIX, EniState, EniTags
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    EniLimitError,
    InvariantError,
    IpamError,
    SubnetExhaustedError,
    ThrottledError,
    log_text,
)
from ipamd.model.intent import Assign, Create, Delete, Intent, IntentKind, Unassign, Why
from ipamd.model.pool import (
    Allocate,
    Blocked,
    CreateEni,
    Growth,
    GrowthState,
    PendingEni,
    Release,
    ReleaseAddresses,
    blocked_by,
)
from ipamd.model.record import dataclass, replace
from ipamd.ports import Ec2

TRACKING = "connection tracking"
"""Condition: EC2 makes no ENI with the primary ENI's timeouts of connection tracking."""

PAUSE = "operation"
"""In the agenda, with an intent's ID."""

log = logging.getLogger(__name__)


RAMP_MAX_S = 3600.0
"""A ramp that lasts for so long ends: what it asked for may have been lost to others since. Ours."""

WITHOUT_EFFECT = ("operation without effect",)
"""In the agenda: EC2 did something, and it did not raise the figure that it was for."""

WHAT_HELPS = "nothing is asked for until a pause is over; `ipamctl audit` compares with EC2; please report it"


@dataclass(slots=True)
class _Ramp:
    """Since the pool was short of nothing: addresses that it was short of at most, those taken since included, and asked for."""

    began_s: float
    taken_count: int = 0
    wanted_count: int = 0
    asked_count: int = 0


class EniProvisioner(Service):
    """Creates ENIs, allocates addresses, releases. Used by one thread, the pool maintainer's.

    Operations that IAM denied share one pause with releases; after it one of them is tried, each in its turn.
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
    ) -> None:
        """`tags`: of new ENIs. `identity` returns what is known of this node; `refresh_identity` asks instance metadata first."""
        super().__init__(context)
        self._ec2 = ec2
        self.enis = enis
        self.subnets = subnets
        self._tags = tags
        self._identity = identity
        self._refresh_identity = refresh_identity
        self._log = OperationLog(context)
        self.steps = Steps(context, ec2=ec2, enis=enis, operations=self._log)
        self._odd = OddObjects(context.health, work="recovery")
        self._failed: dict[str, IpamError | None] = {}  # by intent: why it is open still; those that were tried last come last
        self._limits = subnets.limits
        self._ramp = _Ramp(context.clock.monotonic())
        self.leaked_enis = LeakedEnis(context, ec2=ec2, book=enis.book, operations=self._log, delete=self._resume)

    def has_open_intents(self) -> bool:
        """Whether an intent is open: its outcome at EC2 is not known."""
        return bool(self._log.all_open())

    def execute(self, action: Growth) -> None:
        """Grow by one action at EC2 and store the answer.

        Raises: CloudError and below, also for what the plan may not ask for, and for an action that EC2 did and that changed nothing
            (I18); what is not known to have failed stays an open intent, and is recovered later.
        """
        if not self._agenda.is_due(WITHOUT_EFFECT):
            raise CloudError("EC2 did what it was asked to last, and no address more was recorded", details=WHAT_HELPS)
        count = unit = action.address_count + action.prefix_count * ADDRESSES_PER_PREFIX
        if isinstance(action, Allocate):
            unit = ADDRESSES_PER_PREFIX if action.prefix_count else 1
        most = math.ceil(2 * self._ramp.wanted_count / max(unit, 1)) * unit
        if self._ramp.asked_count + count > most:
            asked = f"{self._ramp.asked_count} were asked for already, and {self._ramp.wanted_count} were wanted"
            raise CloudError(f"the plan asks for more than is wanted ({action}): {asked}", details=WHAT_HELPS)
        before_count, eni_count = self._usable_count(), len(self._datastore.enis())
        with self._noting_what_stays_open():
            is_done = self._create(action) if isinstance(action, CreateEni) else self._allocate(action)
        self._ramp.asked_count += count
        is_of_use = self._usable_count() > before_count or (not count and len(self._datastore.enis()) > eni_count)
        if not is_done or is_of_use:
            self._agenda.clear(WITHOUT_EFFECT)
            return
        self._agenda.put_off(WITHOUT_EFFECT, EC2)
        raise CloudError(f"EC2 did what it was asked to, and no address more is recorded: {action}", details=WHAT_HELPS)

    def _usable_count(self) -> int:
        """The figure that growth is for: addresses that are recorded, and that EC2 shows as far as is known."""
        counts = self._datastore.counts()
        return counts.total - counts.lost

    def note_wanted(self, count: int) -> None:
        """Take what the pool is short of now, for the bound of what a ramp asks for: it ends when nothing is wanted."""
        # By ADDs, and by sandboxes whose address EC2 shows only now: a /28 may arrive full.
        now_s, taken_count = self._clock.monotonic(), self._usable_count() - self._datastore.counts().free
        if not count or now_s - self._ramp.began_s > RAMP_MAX_S:
            self._ramp = _Ramp(now_s, taken_count)
        # Sandboxes whose address others took count no more: that takes nothing from what is short.
        self._ramp.wanted_count = max(self._ramp.wanted_count, count + max(taken_count - self._ramp.taken_count, 0))

    def release(self, action: Release) -> bool:
        """Release what a plan names, unless somebody has come for it: an ADD that waits, or one that was faster.

        Returns: whether EC2 was asked. Raises: CloudError; what may have happened stays an open intent, anything else is undone.
        """
        if self._demand.waiting()[0]:
            return False
        with self._noting_what_stays_open():
            try:
                if isinstance(action, ReleaseAddresses):
                    intent = self._log.open(Unassign(action.eni_id, frozenset(action.addresses), frozenset(action.prefixes)))
                else:
                    eni = self._datastore.eni(action.eni_id)
                    if eni is None or eni.is_primary or not eni.created_by_us or eni.state is not EniState.ATTACHED:
                        return False
                    if self.enis.may_carry_unrecorded(eni):
                        raise InvariantError(f"ENI {eni.eni_id} may carry a sandbox whose address EC2 does not show")
                    leaving = replace(eni, state=EniState.DETACHING, host_ready=False)
                    intent = self._log.open(Delete(action.eni_id, Why.RELEASED), also=lambda uow: uow.put_eni(leaving))
            except InvariantError as error:  # an ADD, or a comparison with EC2, was faster than the plan
                log.info("nothing is released error=%s", log_text(error))
                return False
            try:
                self.steps.run(intent, identity=None, is_first=True)
            except InterruptedByAddError as error:
                log.info("an ADD goes first intent=%s error=%s", intent.intent_id, log_text(error))
        return True

    def recover_due(self) -> list[IpamError]:
        """Find out what EC2 did with open intents whose pause is over, and finish or undo it; a release waits while an ADD does.

        Returns: why others stay open.
        """
        self._log.close_old()
        problems = []
        turns = {intent_id: turn for turn, intent_id in enumerate(self._failed)}
        for intent in sorted(self._log.all_open(), key=lambda one: turns.get(one.intent_id, -1)):
            if not self._is_due(intent):
                continue
            was_denied, failure = is_denied(self._failed.get(intent.intent_id), intent), None
            try:
                self._resume(intent)
            except InterruptedByAddError as error:
                log.info("an ADD goes first intent=%s error=%s", intent.intent_id, log_text(error))
            except IpamError as error:
                failure = error
                if not isinstance(error, ThrottledError):
                    log.warning("an intent waits kind=%s intent=%s error=%s", intent.kind, intent.intent_id, log_text(error))
                problems.append(error)
            except Exception as error:  # noqa: BLE001  # top of the work on one intent, as another release may have left it
                self._odd.report(_name(intent), error)
            if any(one.intent_id == intent.intent_id for one in self._log.all_open()):
                self._put_off(intent, failure)
            elif was_denied:
                self._limits.clear(RELEASE_DENIED)  # the others are tried at once
        return problems

    def has_due_intents(self) -> bool:
        """Whether an open intent may be tried now."""
        return self._log.close_old_in_s() == 0 or any(map(self._is_due, self._log.all_open()))

    def next_retry_s(self) -> float | None:
        """Seconds until an open intent is tried again or ends, or a place may be asked for again; None without any.

        What is due and was left for later waits for no time, but for the ADDs that go first.
        """
        opened = self._log.all_open()
        open_ids = {intent.intent_id for intent in opened}
        self._failed = {intent_id: error for intent_id, error in self._failed.items() if intent_id in open_ids}
        self._agenda.keep_only(PAUSE, open_ids)
        return soonest_s([*filter(None, map(self._left_s, opened)), self._log.close_old_in_s(), self._agenda.next_s(PLACE)])

    def with_pending(self, known: GrowthState) -> GrowthState:
        """Add what EC2 may have done, for the planner: ENIs and slots that may be taken, with the addresses that may come, and slots
        that it has filled otherwise. An intent that is malformed counts for nothing, and its recovery says why."""
        enis: list[PendingEni] = []
        slots = Counter(self.enis.book.filled())
        address_count = 0
        opened = self._log.all_open()
        self._odd.keep_only(map(_name, opened))
        for intent in opened:
            try:
                operation = intent.operation
            except ValueError:
                continue
            creation = operation.creation if isinstance(operation, Delete) else operation
            if isinstance(creation, Create) and self._datastore.eni(intent.eni_id) is None:
                enis.append(PendingEni(creation.device_index, creation.supply_count if operation is creation else 0))
            elif isinstance(operation, Assign):
                slots[operation.eni_id] += operation.count
                address_count += operation.supply_count
        errors = [error for error in self._failed.values() if error is not None]
        why = f"EC2 is asked what became of the last call, which failed: {log_text(errors[-1])}" if errors else ""
        kind = blocked_by(errors[-1]) if errors else Blocked.GROWING
        known = replace(known, pending_enis=tuple(enis), pending_slots=slots, pending_address_count=address_count)
        return replace(known, pending=why, pending_kind=kind)

    def _resume(self, intent: Intent) -> None:
        self._set_up(self.steps.run(intent, identity=self._identity()))

    def _put_off(self, intent: Intent, error: IpamError | None) -> None:
        """It stays open after a try: it is tried again after a pause."""
        self._failed.pop(intent.intent_id, None)
        self._failed[intent.intent_id] = error
        self._agenda.put_off((PAUSE, intent.intent_id), EC2)
        if error is not None and is_denied(error, intent):
            self._limits.learn_release(error)

    def _is_due(self, intent: Intent) -> bool:
        is_for_later = intent.kind in (IntentKind.UNASSIGN, IntentKind.DELETE_ENI) and self._demand.waiting()[0]
        return not is_for_later and not self._left_s(intent)

    def _left_s(self, intent: Intent) -> float:
        """Seconds left of its pause."""
        is_tried = intent.intent_id in self._failed
        if is_denied(self._failed.get(intent.intent_id), intent) or (intent.is_release and not is_tried):
            return self._agenda.left_s(("limit", *RELEASE_DENIED))
        return self._agenda.left_s((PAUSE, intent.intent_id))

    @contextmanager
    def _noting_what_stays_open(self) -> Iterator[None]:
        """What fails and leaves its intent open is continued after a pause."""
        known = {intent.intent_id for intent in self._log.all_open()}
        try:
            yield
        except IpamError as error:
            for intent in self._log.all_open():
                if intent.intent_id not in known:
                    self._put_off(intent, error)
            raise

    def _set_up(self, work: Work) -> None:
        if work.eni is not None:
            self.enis.routing.set_up(work.eni)
            self._failpoint("growth.host-ready")

    def _create(self, action: CreateEni) -> bool:
        """Make an ENI in the roomiest subnet; one that EC2 refuses for want of room is followed by the next at once.

        Returns: False if others' ENIs were found instead.
        """
        identity = self._refresh_identity()
        for target, fitted in self.subnets.choose(action, identity):
            try:
                work = self._create_in(target, fitted, identity)
            except SubnetExhaustedError as error:
                self.subnets.refused(target.subnet_id, fitted, error)
            else:
                self.subnets.took(target.subnet_id, fitted)
                self._set_up(work)
                return work.eni is not None
        return False

    def _create_in(self, target: EniTarget, action: CreateEni, identity: InstanceIdentity) -> Work:
        """With the primary ENI's timeouts of connection tracking; if EC2 may have refused it because of them, once without.

        The intent holds its subnet: a replay asks for the same.
        """
        token = new_token()
        operation = Create(
            subnet_id=target.subnet_id,
            device_index=action.device_index,
            address_count=action.address_count,
            prefix_count=action.prefix_count,
            tags=self._tags().of_new_eni(identity, created_at=self._clock.now(), token=token),
            security_group_ids=target.security_group_ids,
            connection_tracking=self.enis.book.of(identity.primary_eni_id).connection_tracking,
            moves_left=min(action.other_place_count, MOVES_MAX),
        )
        try:
            work = self.steps.run(self._log.open(operation, token=token), identity=identity, is_first=True)
        except CloudError as error:
            # An older EC2 does not know a parameter, a policy may deny it.
            is_of_parameter = type(error) is CloudError and error.code.startswith(
                ("InvalidParameter", "UnknownParameter", "Unsupported")
            )
            may_be = (is_of_parameter or isinstance(error, CloudDeniedError)) and not error.may_have_happened
            if not operation.connection_tracking or not may_be:
                raise
            token = new_token()
            tags = self._tags().of_new_eni(identity, created_at=self._clock.now(), token=token)
            without = replace(operation, tags=tags, connection_tracking=())
            work = self.steps.run(self._log.open(without, token=token), identity=identity, is_first=True)
            sentence = f"connection tracking: new ENIs have EC2's timeouts, not the primary ENI's: {log_text(error)}"
            self._health.report(TRACKING, sentence, error=error)
        else:
            self._health.report(TRACKING, "")
        return work

    def _allocate(self, action: Allocate) -> bool:
        """Returns: False if somebody else filled or detached the ENI: the pool plans again with the new state."""
        operation = Assign(action.eni_id, action.prefix_count or action.address_count, action.prefix_count > 0)
        try:
            work = self.steps.run(self._log.open(operation), identity=self._identity(), is_first=True)
        except (EniLimitError, CloudNotFoundError):
            if self.steps.adopt_changes(self._node()):
                return False
            raise
        if (eni := self._datastore.eni(action.eni_id)) is not None:
            self.subnets.allocated(eni.subnet_id, operation.supply_count)
        if work.conflicts:
            self.steps.adopt_changes(self._node())
        return True

    def _node(self) -> InstanceIdentity:
        identity = self._identity()
        if identity is None:
            raise CloudError("this node is not known yet", details="instance metadata has not answered; it is asked again")
        return identity


def _name(intent: Intent) -> str:
    return f"{intent.kind} intent {intent.intent_id}"
