"""Execute one action of the plan at EC2, without losing track of anything that EC2 creates (I9).

Before each action an intent is stored, with the token that makes a replay idempotent; it is closed when the answer is stored. An
intent that a crash or a lost answer left open is recovered before anything new is asked.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace

from ipamd.model.cloud import DescribedEni, EniRequest, InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    EniLimitError,
    InvariantError,
    IpamError,
    ThrottledError,
    log_text,
)
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.intent import Intent, IntentKind
from ipamd.model.plan import Action, AllocateAddresses, AllocatePrefixes, CreateEni
from ipamd.ports import Ec2
from ipamd.service.context import ServiceContext
from ipamd.service.pool.deletion import DELETING, EniDeletion
from ipamd.service.pool.enis import EniService
from ipamd.service.pool.intents import IntentLog
from ipamd.service.pool.sync_result import EniSyncResult
from ipamd.service.pool.tags import EniTags, description

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

log = logging.getLogger(__name__)


class EniProvisioner:
    """Creates ENIs and allocates addresses. Used by one thread, the pool maintainer's."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        enis: EniService,
        tags: EniTags,
        identity: Callable[[], InstanceIdentity | None],
        refresh_identity: Callable[[], InstanceIdentity],
    ) -> None:
        """`identity` returns what is known of this node; `refresh_identity` asks instance metadata first."""
        self._datastore = context.datastore
        self._ec2 = ec2
        self._enis = enis
        self._clock = context.clock
        self._identity = identity
        self._refresh_identity = refresh_identity
        self._tags = tags
        self._failpoint = context.failpoint
        self._intents = IntentLog(context)
        self._deletion = EniDeletion(context, ec2=ec2, intents=self._intents)

    def has_open_intents(self) -> bool:
        """Whether an intent is open: its outcome at EC2 is not known."""
        return bool(self._intents.all_open())

    def occupied(self) -> tuple[tuple[int, int], ...]:
        """Network card and device index of attached ENIs that are not recorded: places where no ENI of ours can be attached."""
        return tuple(self._enis.occupied().values())

    def execute(self, action: Action) -> None:
        """Do one action at EC2 and store the answer.

        Raises: CloudError and below; what is not known to have failed stays an open intent.
        """
        match action:
            case CreateEni():
                self._create(action)
            case AllocateAddresses() | AllocatePrefixes():
                self._allocate(action)

    def recover_open_intents(self) -> None:
        """Find out what EC2 did with every open intent, and finish or undo it.

        Raises: CloudError if EC2 does not answer; the intent stays open.
        """
        for intent in self._intents.all_open():
            match intent.kind:
                case IntentKind.CREATE_ENI if DELETING in intent.payload:
                    self._deletion.resume(intent, EniId(intent.payload["eni_id"]))
                case IntentKind.CREATE_ENI:
                    self._finish_create(intent, is_replay=True)
                case IntentKind.ASSIGN | IntentKind.UNASSIGN:
                    self._reread(intent)
                case IntentKind.DELETE_ENI:
                    self._deletion.delete(intent, EniId(intent.payload["eni_id"]), outcome="deleted")

    def _allocate(self, action: AllocateAddresses | AllocatePrefixes) -> None:
        intent = self._intents.open(IntentKind.ASSIGN, {"eni_id": action.eni_id, "count": str(action.count)})
        try:
            if isinstance(action, AllocatePrefixes):
                prefixes = self._ec2.assign_prefixes(action.eni_id, count=action.count)
                self._failpoint("growth.allocated")
                conflicts = self._enis.add_addresses(action.eni_id, frozenset(), prefixes)
            else:
                addresses = self._ec2.assign_addresses(action.eni_id, count=action.count)
                self._failpoint("growth.allocated")
                conflicts = self._enis.add_addresses(action.eni_id, addresses, frozenset())
        except CloudError as error:
            self._intents.close_if_refused(intent, error)
            if isinstance(error, EniLimitError | CloudNotFoundError) and self._adopt_changes(self._require_identity()):
                return  # somebody else filled or detached the ENI: the pool plans again with the new state
            raise
        self._intents.close(intent, "allocated")
        if conflicts:
            self._adopt_changes(self._require_identity())

    def _create(self, action: CreateEni) -> None:
        # An operator may have changed the primary ENI's security groups: the new ENI gets the current ones.
        identity = self._refresh_identity()
        intent = self._intents.open(
            IntentKind.CREATE_ENI,
            {
                "subnet_id": identity.subnet_id,
                "device_index": str(action.device_index),
                "address_count": str(action.address_count),
                "prefix_count": str(action.prefix_count),
                "tags": json.dumps(self._tags.of_new_eni(identity, created_at=self._clock.now()), sort_keys=True),
                "security_group_ids": ",".join(identity.security_group_ids),
            },
        )
        self._finish_create(intent)

    def _finish_create(self, intent: Intent, *, is_replay: bool = False) -> None:
        """Continue a creation from its last completed step until the ENI is attached and stored; every step may be repeated."""
        identity = self._require_identity()
        described = self._created(intent, identity, is_replay=is_replay)
        if described is None:
            return
        self._failpoint("growth.created")
        intent = self._intents.mark(intent, eni_id=described.eni_id)
        self._failpoint("growth.named")
        try:
            described = self._attached(intent, described, identity)
        except ThrottledError:
            raise  # nothing is wrong with the ENI: the intent stays open and is continued later
        except CloudError as error:
            if isinstance(error, CloudNotFoundError) and self._intents.is_too_new_to_be_gone(intent):
                raise  # EC2 does not show the new ENI yet: the same
            if self._datastore.eni(described.eni_id) is not None:
                raise  # it is recorded, and sandboxes may use it: it must not be deleted, however EC2 answers (I2)
            log.warning("ENI %s could not be attached and is deleted: %s", described.eni_id, log_text(error))
            self._deletion.delete(intent, described.eni_id, outcome=f"not attached: {log_text(error)}")
            if self._adopt_foreign_enis(identity):
                return  # the pool plans again with what is attached already
            raise
        self._failpoint("growth.attached")
        eni = self._store(described, identity)
        self._failpoint("growth.stored")
        self._intents.close(intent, f"attached {described.eni_id} as device {described.device_index}")
        self._enis.set_up_eni_routing(eni)
        self._failpoint("growth.host-ready")

    def _created(self, intent: Intent, identity: InstanceIdentity, *, is_replay: bool) -> DescribedEni | None:
        known = intent.payload.get("eni_id")
        if known:
            try:
                return self._ec2.describe_eni(EniId(known))
            except CloudNotFoundError:
                if self._intents.is_too_new_to_be_gone(intent):
                    raise
                self._intents.close(intent, "the ENI is gone")
                return None
        try:
            return self._ec2.create_eni(
                EniRequest(
                    subnet_id=SubnetId(intent.payload["subnet_id"]),
                    security_group_ids=tuple(intent.payload["security_group_ids"].split(",")),
                    description=description(identity),
                    tags=json.loads(intent.payload["tags"]),
                    client_token=intent.client_token,
                    address_count=int(intent.payload["address_count"]),
                    prefix_count=int(intent.payload["prefix_count"]),
                )
            )
        except (ThrottledError, CloudDeniedError):
            raise  # an earlier try whose answer was lost may have succeeded: the next replay finds its ENI (I9)
        except CloudError as error:
            # A replay may be refused for another reason than the try before it, which may have created the ENI: the same.
            if not is_replay or self._intents.is_refused_again(intent):
                self._intents.close_if_refused(intent, error)
            raise

    def _attached(self, intent: Intent, described: DescribedEni, identity: InstanceIdentity) -> DescribedEni:
        """Attach, have EC2 delete it with the instance, and verify by Describe; steps already done are skipped."""
        if not described.attachment_id:
            attachment_id = self._ec2.attach_eni(
                described.eni_id,
                instance_id=identity.instance_id,
                device_index=int(intent.payload["device_index"]),
                network_card=0,
            )
            described = replace(described, attachment_id=attachment_id)
            self._failpoint("growth.attach-asked")
        if described.instance_id not in ("", identity.instance_id):
            raise EniLimitError(f"ENI {described.eni_id} is attached to {described.instance_id}, not to this instance")
        if not described.delete_on_termination:
            self._ec2.set_delete_on_termination(described.eni_id, attachment_id=described.attachment_id)
        self._enis.await_link(described.mac)
        return self._ec2.describe_attached_eni(described.eni_id)

    def _adopt_changes(self, identity: InstanceIdentity) -> bool:
        """After a refused allocation: somebody else filled the ENI, or detached it.

        Returns: whether the datastore changed.
        """
        before = self._datastore.enis(), self._datastore.counts().total
        return self._adopt_foreign_enis(identity) or before != (self._datastore.enis(), self._datastore.counts().total)

    def _adopt_foreign_enis(self, identity: InstanceIdentity) -> bool:
        """After a refusal, ask EC2 what is attached to the instance. ENIs attached by another tool are adopted or counted; the attach
        is never retried for ever (amazon-vpc-cni-k8s issue 3833). One Describe per refusal (I13).

        Returns: whether there was an ENI that the datastore did not know.
        """
        known = {eni.eni_id for eni in self._datastore.enis()}
        try:
            self._enis.sync_with_ec2(identity)
        except IpamError as error:
            log.warning("the ENIs attached to the instance could not be listed: %s", log_text(error))
            return False
        unknown = {eni.eni_id for eni in self._datastore.enis()} - known
        if unknown:
            log.warning("ENIs attached by another tool were adopted: %s", ", ".join(sorted(unknown)))
            for problem in self._enis.set_up_eni_routings():
                log.warning("host routing: %s", problem)
        return bool(unknown)

    def _store(self, described: DescribedEni, identity: InstanceIdentity) -> Eni:
        eni = replace(self._enis.eni_of(described, identity), created_by_us=True)
        outcome = EniSyncResult()
        try:
            self._enis.record(eni, described, outcome)
        except InvariantError as error:
            log.warning("ENI %s contradicts what is recorded, EC2 is asked for all: %s", eni.eni_id, log_text(error))
            self._enis.sync_with_ec2(identity)
            if self._datastore.eni(eni.eni_id) is None:
                raise
        else:
            if outcome.kept:
                self._enis.sync_with_ec2(identity)
        return eni

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
            self._adopt_changes(self._require_identity())
            return
        self._enis.record(known, described, outcome)
        self._intents.close(intent, f"read back: {outcome.added_count} addresses added")

    def _require_identity(self) -> InstanceIdentity:
        identity = self._identity()
        if identity is None:
            raise CloudError("this node is not known yet", details="instance metadata has not answered; it is asked again")
        return identity
