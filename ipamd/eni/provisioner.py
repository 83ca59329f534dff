"""Execute one action of the plan at EC2, of growth or of release, without losing track of anything that EC2 creates (I9).

Before each action an intent is stored, with the token that makes a replay idempotent; it is closed when the answer is stored. An
intent that a crash or a lost answer left open is recovered by `recovery.py`, beside further growth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from ipamd.core.backoff import soonest_s
from ipamd.core.context import ServiceContext
from ipamd.core.odd_objects import OddObjects
from ipamd.eni.creation import Adoption, EniCreation
from ipamd.eni.enis import EniService
from ipamd.eni.intents import IntentLog
from ipamd.eni.leaked import LEAKED, LeakedEnis
from ipamd.eni.recovery import RELEASES, IntentRecovery
from ipamd.eni.releasing import DELETING, RELEASE, EniDeletion, Releasing
from ipamd.eni.routing import HostSetup
from ipamd.eni.subnets import Subnets
from ipamd.eni.sync_result import EniSyncResult
from ipamd.eni.tags import EniTags
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import ADDRESSES_PER_PREFIX, Eni
from ipamd.model.errors import CloudError, CloudNotFoundError, EniLimitError, IpamError, SubnetExhaustedError
from ipamd.model.growth import AllocateAddresses, AllocatePrefixes, CreateEni, Growth, GrowthState, Release
from ipamd.model.ids import EniId
from ipamd.model.intent import Intent, IntentKind
from ipamd.ports import Ec2

FAILPOINTS = (
    "growth.intent-opened",
    "growth.created",
    "growth.named",
    "growth.attach-asked",
    "growth.attached",
    "growth.stored",
    "growth.host-ready",
    "growth.allocated",
    "growth.intent-closed",
)
"""Between every two effects of growing; `named`: the intent knows the ENI."""


@dataclass(frozen=True, slots=True)
class NewEnis:
    """Where new ENIs are made, and what they are tagged with."""

    subnets: Subnets
    tags: Callable[[], EniTags]


class EniProvisioner:
    """Creates ENIs and allocates addresses. Used by one thread, the pool maintainer's."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        enis: EniService,
        new_enis: NewEnis,
        identity: Callable[[], InstanceIdentity | None],
        refresh_identity: Callable[[], InstanceIdentity],
    ) -> None:
        """`identity` returns what is known of this node; `refresh_identity` asks instance metadata first."""
        self._datastore = context.datastore
        self._failpoint = context.failpoint
        self._ec2 = ec2
        self._enis = enis
        self.subnets = new_enis.subnets
        self._identity = identity
        self._refresh_identity = refresh_identity
        self._intents = IntentLog(context)
        self._deletion = EniDeletion(context, ec2=ec2, intents=self._intents, recent_changes=enis.recent_changes)
        self._creation = EniCreation(
            context, ec2=ec2, enis=enis, intents=self._intents, tags=new_enis.tags, deletion=self._deletion
        )
        self._adoption = Adoption(context, enis=enis)
        self._releasing = Releasing(context, ec2=ec2, enis=enis, intents=self._intents)
        odd = OddObjects(context.health, work="recovery")
        self._recovery = IntentRecovery(
            self._intents, datastore=context.datastore, clock=context.clock, odd=odd, resume=self._resume
        )
        self.denial = self._recovery.denial
        self.leaked_enis = LeakedEnis(context, ec2=ec2, intents=self._intents)
        self.host_setup = HostSetup(context, routing=enis.routing)

    def has_open_intents(self) -> bool:
        """Whether an intent is open: its outcome at EC2 is not known."""
        return bool(self._intents.all_open())

    def occupied(self) -> tuple[tuple[int, int], ...]:
        """Network card and device index of attached ENIs that are not recorded: places where no ENI of ours can be attached."""
        return tuple(self._enis.occupied().values())

    def refused(self) -> frozenset[tuple[int, int]]:
        """Network card and device index of places where EC2 attached nothing, because an ENI is there that it does not show."""
        return self._enis.places.refused()

    def execute(self, action: Growth) -> None:
        """Grow by one action at EC2 and store the answer.

        Raises: CloudError and below; what is not known to have failed stays an open intent, and is recovered later.
        """
        with self._noting_what_stays_open():
            match action:
                case CreateEni():
                    self._set_up(self._create(action, self._refresh_identity()))
                case AllocateAddresses() | AllocatePrefixes():
                    self._allocate(action)

    def release(self, action: Release) -> bool:
        """Give one thing back to EC2, unless an ADD waits. Returns: whether EC2 was asked. Raises: as `execute`."""
        with self._noting_what_stays_open():
            return self._releasing.begin(action)

    def released_counts(self) -> Mapping[str, int]:
        """Addresses, prefixes and ENIs that were given back since the start."""
        return self._releasing.counts()

    def recover_due(self, *, is_add_waiting: bool = False) -> list[IpamError]:
        """Find out what EC2 did with open intents whose pause is over, and finish or undo it; what gives back waits while an ADD does.

        Returns: why others stay open.
        """
        self._intents.close_old()
        return self._recovery.recover_due(without=RELEASES if is_add_waiting else ())

    def has_due_intents(self, *, is_add_waiting: bool = False) -> bool:
        """Whether an open intent may be tried now."""
        return self._intents.close_old_in_s() == 0 or self._recovery.has_due(without=RELEASES if is_add_waiting else ())

    def next_retry_s(self) -> float | None:
        """Seconds until an open intent is tried again or ends, or a place may be asked for again; None without any."""
        return soonest_s([self._recovery.next_retry_s(), self._intents.close_old_in_s(), self._enis.places.next_end_s()])

    def pending(self) -> GrowthState:
        """What EC2 may have done already, for the planner."""
        return self._recovery.pending()

    def _resume(self, intent: Intent) -> None:
        match intent.kind:
            case IntentKind.CREATE_ENI if DELETING in intent.payload:
                self._deletion.resume(intent, EniId(intent.payload["eni_id"]))
            case IntentKind.CREATE_ENI:
                self._set_up(self._creation.resume(intent, self._require_identity()))
            case IntentKind.ASSIGN:
                self._reread(intent)
            case IntentKind.UNASSIGN:
                self._releasing.resume(intent)
            case IntentKind.DELETE_ENI if RELEASE in intent.payload:
                self._releasing.resume(intent)
            case IntentKind.DELETE_ENI if LEAKED in intent.payload:
                self.leaked_enis.delete(intent)
            case IntentKind.DELETE_ENI:
                self._deletion.delete(intent, EniId(intent.payload["eni_id"]), outcome="deleted")

    @contextmanager
    def _noting_what_stays_open(self) -> Iterator[None]:
        """What fails and leaves its intent open is continued after a pause."""
        before = {intent.intent_id for intent in self._intents.all_open()}
        try:
            yield
        except IpamError as error:
            for intent in self._intents.all_open():
                if intent.intent_id not in before:
                    self._recovery.note(intent, error)
            raise

    def _set_up(self, eni: Eni | None) -> None:
        if eni is not None:
            self.host_setup.set_up(eni)
            self._failpoint("growth.host-ready")

    def _create(self, action: CreateEni, identity: InstanceIdentity) -> Eni | None:
        """Make an ENI in the roomiest subnet; one that EC2 refuses for want of room is followed by the next at once."""
        for target, fitted in self.subnets.choose(action, identity):
            try:
                made = self._creation.begin(fitted, identity, target)
            except SubnetExhaustedError as error:
                self.subnets.refused(target.subnet_id, fitted, error)
            else:
                self.subnets.took(target.subnet_id, fitted)
                return made
        return None

    def _allocate(self, action: AllocateAddresses | AllocatePrefixes) -> None:
        of = "prefixes" if isinstance(action, AllocatePrefixes) else "addresses"
        intent = self._intents.open(IntentKind.ASSIGN, {"eni_id": action.eni_id, "count": str(action.count), "of": of})
        count = action.count * (ADDRESSES_PER_PREFIX if of == "prefixes" else 1)
        try:
            if isinstance(action, AllocatePrefixes):
                prefixes = self._ec2.assign_prefixes(action.eni_id, count=action.count)
                self._failpoint("growth.allocated")
                conflicts = self._enis.add_addresses(action.eni_id, frozenset(), prefixes, asked_count=count)
            else:
                addresses = self._ec2.assign_addresses(action.eni_id, count=action.count)
                self._failpoint("growth.allocated")
                conflicts = self._enis.add_addresses(action.eni_id, addresses, frozenset(), asked_count=count)
        except CloudError as error:
            self._intents.close_if_refused(intent, error)
            if isinstance(error, EniLimitError | CloudNotFoundError) and self._adoption.adopt_changes(self._require_identity()):
                return  # somebody else filled or detached the ENI: the pool plans again with the new state
            raise
        self._intents.close(intent, "allocated")
        if (eni := self._datastore.eni(action.eni_id)) is not None:
            self.subnets.allocated(eni.subnet_id, count)
        if conflicts:
            self._adoption.adopt_changes(self._require_identity())

    def _reread(self, intent: Intent) -> None:
        """Recover an allocation whose answer was lost: read the ENI's addresses from EC2."""
        eni_id = EniId(intent.payload["eni_id"])
        known = self._datastore.eni(eni_id)
        if known is None:
            self._intents.close(intent, "the ENI is not ours any more")
            return
        outcome = EniSyncResult()
        try:
            described = self._ec2.describe_eni(eni_id)
        except CloudNotFoundError:
            self._intents.close(intent, "the ENI does not exist any more")
            self._adoption.adopt_changes(self._require_identity())
            return
        self._enis.record(known, described, outcome)
        self._intents.close(intent, f"read back: {outcome.added_count} addresses added")

    def _require_identity(self) -> InstanceIdentity:
        identity = self._identity()
        if identity is None:
            raise CloudError("this node is not known yet", details="instance metadata has not answered; it is asked again")
        return identity
