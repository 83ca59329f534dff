"""Create an ENI and attach it, step by step, so that every step may be repeated after a crash or a lost answer (I9).

The creation is covered by an intent from before the call until the ENI is recorded or deleted. If the outcome of the call is not
known, it is repeated with its token; if EC2 refuses the repetition, the ENI is searched for by the tag that carries the token
(docs/adr/0018-a-creation-is-searched-for.md).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import replace

from ipamd.core.context import ServiceContext
from ipamd.eni.enis import EniService
from ipamd.eni.intents import GONE_AFTER_S, REFUSED, IntentLog
from ipamd.eni.releasing import EniDeletion
from ipamd.eni.subnets import EniTarget
from ipamd.eni.sync_result import EniSyncResult
from ipamd.eni.tags import EniTags, description
from ipamd.model.absence import Absences
from ipamd.model.cloud import ConnectionTracking, DescribedEni, EniRequest, InstanceIdentity
from ipamd.model.cloud_evidence import MIN_LOOK_COUNT
from ipamd.model.eni import Eni
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    DeviceIndexTakenError,
    EniLimitError,
    InvariantError,
    IpamError,
    ThrottledError,
    log_text,
)
from ipamd.model.growth import CreateEni
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.intent import Intent, IntentKind
from ipamd.ports import Ec2

log = logging.getLogger(__name__)


# Compare with EC2 after it refused: what others attached or filled meanwhile is taken into account, and the pool plans anew.


class Adoption:
    """One Describe per refused action (I13). Used by the provisioner's thread."""

    def __init__(self, context: ServiceContext, *, enis: EniService) -> None:
        self._datastore = context.datastore
        self._enis = enis
        self._asked_by = ""

    def adopt_changes(self, identity: InstanceIdentity) -> bool:
        """After a refused allocation: somebody else filled the ENI, or detached it.

        Returns: whether the datastore changed.
        """
        before = self._datastore.enis(), self._datastore.counts().total
        return self.adopt_enis(identity) or before != (self._datastore.enis(), self._datastore.counts().total)

    def adopt_once(self, identity: InstanceIdentity, *, by: str) -> bool:
        """As `adopt_enis`, but not a second time in a row for the same creation, whose ID is `by`."""
        is_asked, self._asked_by = by == self._asked_by, by
        return not is_asked and self.adopt_enis(identity)

    def adopt_enis(self, identity: InstanceIdentity) -> bool:
        """After a refusal, ask EC2 what is attached to the instance. ENIs attached by another tool are adopted or counted; the attach
        is never retried for ever (amazon-vpc-cni-k8s issue 3833).

        Returns: whether there was an ENI that the datastore did not know.
        """
        try:
            outcome = self._enis.sync_with_ec2(identity)
        except IpamError as error:
            log.warning("the ENIs attached to the instance could not be listed: %s", log_text(error))
            return False
        if outcome.adopted:
            log.warning("ENIs attached by another tool were adopted: %s", ", ".join(sorted(outcome.adopted)))
        self._enis.set_up_adopted(outcome)
        return bool(outcome.adopted)


MOVES_LEFT = "moves_left"
"""Key in an intent's payload: how often the ENI may be given another device index, if its own is taken."""

MOVES_MAX = 3
"""Then, or when no place is left, it is deleted and the pool plans anew, with the places that EC2 refused. Ours: an EC2 that refuses
every place (an error of its own did so on types with several network cards, cilium issue 42512) is not asked for each of them."""

UNANSWERED_MAX_S = 900.0
"""Age of an intent from which an ENI whose attachment EC2 does not answer for is given up and deleted; before, it is asked about
again, because it may well be attached. Ours: longer than a disturbance of EC2 usually lasts."""


CONNECTION_TRACKING = "connection_tracking"
"""Key in an intent's payload: the timeouts that the creation asks for, so that its repetition asks for the same."""

TRACKING = "connection tracking"
"""Condition: EC2 makes no ENI with the primary ENI's timeouts of connection tracking."""


class EniCreation:
    """Creates ENIs through their intents; used by the provisioner's thread."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        enis: EniService,
        intents: IntentLog,
        tags: Callable[[], EniTags],
        deletion: EniDeletion,
    ) -> None:
        self._datastore = context.datastore
        self._clock = context.clock
        self._failpoint = context.failpoint
        self._ec2 = ec2
        self._enis = enis
        self._intents = intents
        self._tags = tags
        self._deletion = deletion
        self._demand = context.demand
        self._health = context.health
        self._adoption = Adoption(context, enis=enis)
        self._known: dict[str, DescribedEni] = {}  # how far each intent came, as long as EC2 has answered for every step
        self._absences: Absences[str] = Absences(gap_s=GONE_AFTER_S)  # of what an intent made, by the intent's ID

    def begin(self, action: CreateEni, identity: InstanceIdentity, target: EniTarget) -> Eni | None:
        """Create and attach an ENI. The intent holds its subnet: a replay asks for the same.

        Returns: what was recorded; None if others' ENIs were found instead. Raises: CloudError."""
        tracking = self._enis.connection_tracking
        try:
            eni = self._create(action, identity, target, tracking)
        except CloudError as error:
            if not tracking or not _may_be_for_a_parameter(error):
                raise
            eni = self._create(action, identity, target, ())
            sentence = f"connection tracking: new ENIs have EC2's timeouts, not the primary ENI's: {log_text(error)}"
            self._health.report(TRACKING, sentence, error=error)
        else:
            self._health.report(TRACKING, "")
        return eni

    def _create(
        self, action: CreateEni, identity: InstanceIdentity, target: EniTarget, tracking: ConnectionTracking
    ) -> Eni | None:
        token = self._intents.new_token()
        tags = self._tags().of_new_eni(identity, created_at=self._clock.now(), token=token)
        intent = self._intents.open(
            IntentKind.CREATE_ENI,
            {
                "subnet_id": target.subnet_id,
                "device_index": str(action.device_index),
                MOVES_LEFT: str(min(action.other_place_count, MOVES_MAX)),
                "address_count": str(action.address_count),
                "prefix_count": str(action.prefix_count),
                "tags": json.dumps(tags, sort_keys=True),
                "security_group_ids": ",".join(target.security_group_ids),
                CONNECTION_TRACKING: json.dumps(dict(tracking)),
            },
            token=token,
        )
        try:
            described = self._request(intent, identity)
        except CloudError as error:
            self._intents.close_if_refused(intent, error)  # nothing came before this call: a definite refusal is believed
            raise
        return self._finish(intent, described, identity)

    def resume(self, intent: Intent, identity: InstanceIdentity) -> Eni | None:
        """Continue a creation from its last completed step.

        Returns: what was recorded; None if the intent was closed without an ENI. Raises: CloudError; the intent stays open.
        """
        described: DescribedEni | None
        if (known := self._known.get(intent.intent_id)) is not None:
            described = known  # EC2 throttled the next step and did nothing: it need not be asked where things stand
        elif "eni_id" in intent.payload:
            described = self._described(intent, EniId(intent.payload["eni_id"]))
        elif REFUSED in intent.payload:
            described = self._searched(intent)
        else:
            try:
                described = self._request(intent, identity)
            except ThrottledError:
                raise
            except CloudError as error:
                if error.may_have_happened:
                    raise
                # It says nothing about the call that is repeated. It would be refused for ever: from now on search, do not repeat.
                described = self._searched(self._intents.mark(intent, **{REFUSED: error.cause}))
        return self._finish(intent, described, identity) if described is not None else None

    def _request(self, intent: Intent, identity: InstanceIdentity) -> DescribedEni:
        payload = intent.payload
        return self._ec2.create_eni(
            EniRequest(
                subnet_id=SubnetId(payload["subnet_id"]),
                security_group_ids=tuple(payload["security_group_ids"].split(",")),
                description=description(identity),
                tags=json.loads(payload["tags"]),
                client_token=intent.client_token,
                address_count=int(payload["address_count"]),
                prefix_count=int(payload["prefix_count"]),
                is_urgent=self._demand.waiting()[0] > 0,
                connection_tracking=tuple(json.loads(payload.get(CONNECTION_TRACKING, "{}")).items()),
            )
        )

    def _described(self, intent: Intent, eni_id: EniId) -> DescribedEni | None:
        try:
            described = self._ec2.describe_eni(eni_id)
        except CloudNotFoundError:
            if self._intents.is_too_new_to_be_gone(intent) or not self._is_absent(intent):
                raise
            self._intents.close(intent, "the ENI is gone")
            return None
        self._absences.forget(intent.intent_id)
        return described

    def _searched(self, intent: Intent) -> DescribedEni | None:
        """Search for what the intent's creation made, by the tag that carries its token."""
        found = self._ec2.find_by_token(intent.client_token)
        if found:
            self._absences.forget(intent.intent_id)
            return found[0]
        refused = intent.payload[REFUSED]
        if self._is_absent(intent):
            self._intents.close(intent, f"EC2 has made no ENI for it; refused: {refused}")
            return None
        raise CloudError(
            f"whether creation {intent.client_token} made an ENI is not known yet",
            details=f"EC2 shows none and is asked again; the repeated call was refused: {refused}",
        )

    def _is_absent(self, intent: Intent) -> bool:
        """Count a look without the ENI. Returns: whether two looks apart in time had none; one may lag behind Create (I11)."""
        self._absences.look_for(intent.intent_id, now_s=self._clock.monotonic())
        if self._absences.count(intent.intent_id) < MIN_LOOK_COUNT:
            return False
        self._absences.forget(intent.intent_id)
        return True

    def _finish(self, intent: Intent, described: DescribedEni, identity: InstanceIdentity) -> Eni | None:
        """Attach and record an ENI that exists; every step may be repeated."""
        self._failpoint("growth.created")
        intent = self._intents.mark(intent, eni_id=described.eni_id)
        self._failpoint("growth.named")
        try:
            described = self._attached(intent, described, identity)
        except ThrottledError as error:
            if error.may_have_happened:
                self._known.pop(intent.intent_id, None)
            raise  # nothing is wrong with the ENI: the intent stays open and is continued later
        except CloudError as error:
            self._known.pop(intent.intent_id, None)
            if isinstance(error, CloudNotFoundError) and self._intents.is_too_new_to_be_gone(intent):
                raise  # EC2 does not show the new ENI yet: the same
            if error.may_have_happened and self._intents.age_s(intent) < UNANSWERED_MAX_S:
                raise  # EC2 did not answer: the ENI may well be attached
            if self._datastore.eni(described.eni_id) is not None:
                raise  # it is recorded, and sandboxes may use it: it must not be deleted, however EC2 answers (I2)
            if isinstance(error, DeviceIndexTakenError):
                return self._finish_elsewhere(intent, described, identity, error)
            self._deletion.give_up(intent, described.eni_id, error)
            if self._adoption.adopt_enis(identity):
                return None  # the pool plans again with what is attached already
            raise
        self._known.pop(intent.intent_id, None)
        self._failpoint("growth.attached")
        eni = self._store(described, identity)
        self._failpoint("growth.stored")
        outcome = f"attached {described.eni_id} as device {described.device_index}"
        self._intents.close(
            intent, outcome if eni is not None else f"{outcome}; it contradicts what is recorded and is left alone"
        )
        return eni

    def _finish_elsewhere(
        self, intent: Intent, described: DescribedEni, identity: InstanceIdentity, error: DeviceIndexTakenError
    ) -> Eni | None:
        """Attach an ENI whose place is taken at the next one, unless EC2 shows now what was not known: another plan may be right then.

        Returns, raises: as `_finish`.
        """
        left = intent.payload.get(MOVES_LEFT, "0")
        left_count = int(left) if left.isdecimal() else 0
        has_news = self._adoption.adopt_once(identity, by=intent.intent_id)
        if self._datastore.eni(described.eni_id) is not None or described.eni_id in self._enis.occupied():
            raise error  # it was this ENI that has the place: it is taken into use at a next try
        self._enis.places.refuse((0, int(intent.payload["device_index"])))
        if not has_news and left_count:
            return self._finish(self._moved(intent, left_count - 1), described, identity)
        self._deletion.give_up(intent, described.eni_id, error)
        if has_news:
            return None
        raise error

    def _moved(self, intent: Intent, left_count: int) -> Intent:
        """Give a creation the next device index that nothing known has: the ENI is wanted, and only its place was wrong."""
        asked = [one.payload.get("device_index", "") for one in self._intents.all_open() if one.kind is IntentKind.CREATE_ENI]
        index = self._enis.places.free_index(beside={int(index) for index in asked if index.isdecimal()})
        said = "EC2 has another ENI as device %s, which it does not show: ENI %s is attached as device %d"
        log.warning(said, intent.payload["device_index"], intent.payload["eni_id"], index)
        return self._intents.mark(intent, device_index=str(index), **{MOVES_LEFT: str(left_count)})

    def _attached(self, intent: Intent, described: DescribedEni, identity: InstanceIdentity) -> DescribedEni:
        """Attach, have EC2 delete it with the instance, and verify by Describe; steps already done are skipped.

        `described` is not older than this process's last step, so one that shows the ENI attached verifies it."""
        self._known[intent.intent_id] = described
        if not described.attachment_id:
            attachment_id = self._ec2.attach_eni(
                described.eni_id,
                instance_id=identity.instance_id,
                device_index=int(intent.payload["device_index"]),
                network_card=0,
            )
            self._enis.places.took((0, int(intent.payload["device_index"])))
            described = self._known[intent.intent_id] = replace(described, attachment_id=attachment_id)
            self._failpoint("growth.attach-asked")
        if described.instance_id not in ("", identity.instance_id):
            raise EniLimitError(f"ENI {described.eni_id} is attached to {described.instance_id}, not to this instance")
        if not described.delete_on_termination:
            self._ec2.set_delete_on_termination(described.eni_id, attachment_id=described.attachment_id)
            described = self._known[intent.intent_id] = replace(described, delete_on_termination=True)
        self._enis.routing.await_link(described.mac)
        if described.attachment_status == "attached":
            return described
        attached = self._ec2.describe_attached_eni(described.eni_id)
        # EC2 may show a new ENI attached before its addresses (amazon-vpc-cni-k8s issues 1148, 1174); its answer to Create named them.
        return replace(
            attached,
            secondary_addresses=attached.secondary_addresses | described.secondary_addresses,
            prefixes=attached.prefixes | described.prefixes,
        )

    def _store(self, described: DescribedEni, identity: InstanceIdentity) -> Eni | None:
        """Record the ENI.

        Returns: None if it contradicts a record (its primary address is a sandbox's, lost): then it takes its place, ends with the
            instance, and is recorded by a later comparison; an open intent would pass for its addresses meanwhile.

        Raises: InvariantError if EC2's answer does not show it in its place.
        """
        eni = replace(self._enis.eni_of(described, identity), created_by_us=True)
        outcome = EniSyncResult()
        try:
            self._enis.record(eni, described, outcome)
        except InvariantError as error:
            log.warning("ENI %s contradicts what is recorded, EC2 is asked for all: %s", eni.eni_id, log_text(error))
            self._enis.sync_with_ec2(identity)
            if self._datastore.eni(eni.eni_id) is None and eni.eni_id not in self._enis.occupied():
                raise
            return self._datastore.eni(eni.eni_id)
        else:
            if outcome.kept:
                self._enis.sync_with_ec2(identity)
        return eni


def _may_be_for_a_parameter(error: CloudError) -> bool:
    """Whether a creation may have been refused because of a parameter: an older EC2 does not know it, a policy may deny it."""
    is_of_parameter = type(error) is CloudError and error.code.startswith(("InvalidParameter", "UnknownParameter", "Unsupported"))
    return (is_of_parameter or isinstance(error, CloudDeniedError)) and not error.may_have_happened
