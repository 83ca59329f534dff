"""Carry out one action of the planner at EC2, so that nothing we create can be lost (I9).

Every action is an intent first, written with the token that makes its replay idempotent; the intent is closed when the answer is
in the datastore. What a crash or a lost answer leaves open is settled before anything new is asked.
Over 300 lines because what may happen between an intent and its end is one story: a mistake in it leaks an ENI, or takes one from
under live sandboxes.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace

from ipamd.model.cloud import DescribedEni, EniRequest, InstanceIdentity
from ipamd.model.eni import Eni, EniState
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
from ipamd.model.times import rfc3339
from ipamd.ports import Clock, Datastore, Ec2, Failpoint, no_failpoint
from ipamd.service.pool.enis import INSTANCE_TAG, EniService, EniSyncResult
from ipamd.service.pool.intents import IntentLog

CLUSTER_TAG = "cluster.k8s.amazonaws.com/name"
OWNER_TAG = ("eks:eni:owner", "amazon-vpc-cni")
CREATED_AT_TAG = "node.k8s.amazonaws.com/createdAt"
"""The incumbent's tags, so that its clean-up tools and IAM conditions hold for our ENIs. Source: upstream_reference 2.13."""

DELETING = "deleting"
"""Mark in an intent's payload: EC2 has shown the ENI, and was asked to delete it."""

FAILPOINTS = (
    "growth.intent-opened",
    "growth.created",
    "growth.named",
    "growth.attach-asked",
    "growth.attached",
    "growth.stored",
    "growth.host-ready",
    "growth.allocated",
    "growth.detached",
    "growth.deleted",
    "growth.marked",
    "growth.intent-closed",
)
"""Between every two effects of growing; `named`: the intent knows the ENI."""

log = logging.getLogger(__name__)


class EniProvisioner:
    """Creates ENIs and allocates addresses; used by one thread at a time (the pool loop, or restore before it)."""

    def __init__(
        self,
        *,
        datastore: Datastore,
        ec2: Ec2,
        enis: EniService,
        clock: Clock,
        cluster_name: str,
        additional_tags: tuple[tuple[str, str], ...],
        failpoint: Failpoint = no_failpoint,
    ) -> None:
        self._datastore = datastore
        self._ec2 = ec2
        self._enis = enis
        self._clock = clock
        self._cluster_name = cluster_name
        self._additional_tags = additional_tags
        self._failpoint = failpoint
        self._intents = IntentLog(datastore=datastore, clock=clock, failpoint=failpoint)
        self._identity: InstanceIdentity | None = None

    def set_identity(self, identity: InstanceIdentity) -> None:
        """This node became known."""
        self._identity = identity

    def has_open_intents(self) -> bool:
        """Whether an intent is open: its outcome at EC2 is not known."""
        return bool(self._intents.all_open())

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
        """Find out what became of every open intent, and finish or undo it.

        Raises: CloudError if EC2 does not tell; the intent stays open.
        """
        for intent in self._intents.all_open():
            match intent.kind:
                case IntentKind.CREATE_ENI if DELETING in intent.payload:
                    self._delete_at_last(intent, EniId(intent.payload["eni_id"]))
                case IntentKind.CREATE_ENI:
                    self._finish_create(intent)
                case IntentKind.ASSIGN | IntentKind.UNASSIGN:
                    self._reread(intent)
                case IntentKind.DELETE_ENI:
                    self._delete(intent, EniId(intent.payload["eni_id"]), outcome="deleted")

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
                return  # another hand filled or took the ENI: the pool plans anew, with what is true now
            raise
        self._intents.close(intent, "allocated")
        if conflicts:
            self._adopt_changes(self._require_identity())

    def _create(self, action: CreateEni) -> None:
        identity = self._require_identity()
        intent = self._intents.open(
            IntentKind.CREATE_ENI,
            {
                "subnet_id": identity.subnet_id,
                "device_index": str(action.device_index),
                "address_count": str(action.address_count),
                "prefix_count": str(action.prefix_count),
                "tags": json.dumps(self._tags(identity), sort_keys=True),
                "security_group_ids": ",".join(identity.security_group_ids),
            },
        )
        self._finish_create(intent)

    def _finish_create(self, intent: Intent) -> None:
        """Take a creation from wherever it stands to attached and stored; replays are harmless at every step."""
        identity = self._require_identity()
        described = self._created(intent, identity)
        if described is None:
            return
        self._failpoint("growth.created")
        intent = self._intents.mark(intent, eni_id=described.eni_id)
        self._failpoint("growth.named")
        try:
            described = self._attached(intent, described, identity)
        except ThrottledError:
            raise  # nothing is wrong with the ENI: the intent stays open and goes on later
        except CloudError as error:
            if isinstance(error, CloudNotFoundError) and self._intents.is_too_new_to_be_gone(intent):
                raise  # EC2 does not show yet what it made: the same
            if any(eni.eni_id == described.eni_id for eni in self._datastore.enis()):
                raise  # it is recorded, and sandboxes may be on it: nothing that EC2 says now may delete it (I2)
            log.warning("ENI %s could not be attached and is deleted: %s", described.eni_id, log_text(error))
            self._delete(intent, described.eni_id, outcome=f"not attached: {log_text(error)}")
            if self._adopt_foreign_enis(identity):
                return  # the pool plans anew, with what hangs on the instance already
            raise
        self._failpoint("growth.attached")
        eni = self._store(described, identity)
        self._failpoint("growth.stored")
        self._intents.close(intent, f"attached {described.eni_id} as device {described.device_index}")
        self._enis.set_up_eni_routing(eni)
        self._failpoint("growth.host-ready")

    def _created(self, intent: Intent, identity: InstanceIdentity) -> DescribedEni | None:
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
                    description=f"aws-K8S-{identity.instance_id}",
                    tags=json.loads(intent.payload["tags"]),
                    client_token=intent.client_token,
                    address_count=int(intent.payload["address_count"]),
                    prefix_count=int(intent.payload["prefix_count"]),
                )
            )
        except (ThrottledError, CloudDeniedError):
            raise  # says nothing about an earlier try, whose answer was lost: its ENI is found by the next replay (I9)
        except CloudError as error:
            self._intents.close_if_refused(intent, error)
            raise

    def _attached(self, intent: Intent, described: DescribedEni, identity: InstanceIdentity) -> DescribedEni:
        """Attach, have EC2 delete it with the instance, and verify by Describe; each step only where it is missing."""
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
        """The same after a refused allocation: another hand filled the ENI, or took it.

        Returns: whether EC2 told anything that the datastore did not know.
        """
        before = self._datastore.enis(), self._datastore.counts().total
        return self._adopt_foreign_enis(identity) or before != (self._datastore.enis(), self._datastore.counts().total)

    def _adopt_foreign_enis(self, identity: InstanceIdentity) -> bool:
        """After a refused attach, ask EC2 what hangs on the instance: an ENI that came by another hand, and takes the place, is
        adopted or counted by rule, never looped over (design 7; amazon-vpc-cni-k8s #3833). One Describe per refusal (I13).

        Returns: whether there was an ENI that the datastore did not know.
        """
        known = {eni.eni_id for eni in self._datastore.enis()}
        try:
            self._enis.sync_with_ec2(identity)
        except IpamError as error:
            log.warning("what hangs on the instance is not known: %s", log_text(error))
            return False
        unknown = {eni.eni_id for eni in self._datastore.enis()} - known
        if unknown:
            log.warning("ENIs that another hand attached were taken in: %s", ", ".join(sorted(unknown)))
            for problem in self._enis.set_up_eni_routings():
                log.warning("host routing: %s", problem)
        return bool(unknown)

    def _store(self, described: DescribedEni, identity: InstanceIdentity) -> Eni:
        subnet = identity.subnet_cidr if described.subnet_id == identity.subnet_id else self._ec2.subnet_cidr(described.subnet_id)
        eni = Eni(
            eni_id=described.eni_id,
            mac=described.mac,
            device_index=described.device_index,
            network_card=described.network_card,
            subnet_id=described.subnet_id,
            subnet_cidr=subnet,
            primary_address=described.primary_address,
            is_primary=False,
            state=EniState.ATTACHED,
            created_by_us=True,
        )
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
        """An allocation whose answer was lost: what EC2 shows on the ENI now is the answer."""
        eni_id = EniId(intent.payload["eni_id"])
        known = {eni.eni_id: eni for eni in self._datastore.enis()}.get(eni_id)
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

    def _delete_at_last(self, intent: Intent, eni_id: EniId) -> None:
        """Go on with a deletion that EC2 refused, unless the ENI was attached after all and has been recorded since (I2)."""
        if self._datastore.eni(eni_id) is not None:
            self._mark_attached(eni_id)
            self._intents.close(intent, "attached and recorded after all: not deleted")
            return
        self._delete(intent, eni_id, outcome="deleted after all")
        if self._intents.is_open(intent):
            raise CloudError(f"ENI {eni_id} is not deleted yet", details="EC2 refused; it is asked again after a pause")

    def _mark_attached(self, eni_id: EniId) -> None:
        """Have EC2 delete it with the instance, where the failed creation had not come so far: it would outlive the node (I9)."""
        try:
            described = self._ec2.describe_eni(eni_id)
        except CloudNotFoundError:
            return  # nothing is left to mark; the next comparison tells what that means
        if described.attachment_id and not described.delete_on_termination:
            self._ec2.set_delete_on_termination(eni_id, attachment_id=described.attachment_id)
            self._failpoint("growth.marked")

    def _delete(self, intent: Intent, eni_id: EniId, *, outcome: str) -> None:
        """Delete an ENI of ours; if that fails the intent stays open and is tried again."""
        try:
            attachment_id = self._ec2.describe_eni(eni_id).attachment_id
            if attachment_id:
                self._ec2.detach_eni(attachment_id)
                self._failpoint("growth.detached")
            intent = self._intents.mark(intent, eni_id=eni_id, **{DELETING: "asked"})
            self._ec2.delete_eni(eni_id)
            self._failpoint("growth.deleted")
        except CloudNotFoundError as error:
            # Once we have seen it and asked for its end, "not found" is that end; before, EC2 may only be late.
            if DELETING not in intent.payload and self._intents.is_too_new_to_be_gone(intent):
                log.info("ENI %s is looked for again: %s", eni_id, log_text(error))
                return
            outcome = f"{outcome} (it was gone already)"
        except IpamError as error:
            log.warning("ENI %s is deleted later: %s", eni_id, log_text(error))
            return
        self._intents.close(intent, outcome)

    def _tags(self, identity: InstanceIdentity) -> dict[str, str]:
        tags = {INSTANCE_TAG: str(identity.instance_id), CREATED_AT_TAG: rfc3339(self._clock.now(), timespec="seconds")}
        if self._cluster_name:
            tags |= {CLUSTER_TAG: self._cluster_name, OWNER_TAG[0]: OWNER_TAG[1]}
        return tags | dict(self._additional_tags)

    def _require_identity(self) -> InstanceIdentity:
        if self._identity is None:
            raise CloudError("this node is not known yet", details="instance metadata has not answered; it is asked again")
        return self._identity
