"""Give addresses, prefixes and ENIs back to EC2, through their intents, so that nothing is given to a sandbox that EC2 takes back.

First nobody can have it: the intent that names it is on disk, and the datastore holds what it names, also after a crash. Then EC2 is
asked; then the rows go. What is asked is asked again until EC2 confirms it, because nobody can know whether a lost answer was a yes.
The intent stays, settled, for as long as Describe may show what is gone: then it is no new address to a restarted daemon either.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from ipamd.core.context import ServiceContext
from ipamd.core.health import Health
from ipamd.eni.enis import EniService
from ipamd.eni.intents import IntentLog
from ipamd.eni.own_changes import RecentChanges
from ipamd.model.address import Address
from ipamd.model.cloud import all_addresses
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.eni import EniState
from ipamd.model.errors import CloudDeniedError, CloudError, CloudNotFoundError, InvariantError, IpamError, log_text
from ipamd.model.growth import Release, ReleaseAddresses
from ipamd.model.ids import EniId
from ipamd.model.intent import Intent, IntentKind, named, names_of
from ipamd.ports import Ec2, UnitOfWork

log = logging.getLogger(__name__)


FAILPOINTS = (
    "release.intent-opened",
    "release.unassigned",
    "release.detached",
    "release.deleted",
    "release.torn-down",
    "release.stored",
    "growth.detached",
    "growth.deleted",
    "growth.marked",
)
"""Between every two effects of a release, and of the deletion of an ENI that could not be attached."""

CONDITION = "giving back"
"""Condition: EC2 refuses to take back what is in excess."""

RELEASE = "release"
"""Mark in the payload of an intent that deletes an ENI which served: not one whose creation failed."""

DETACHING_S = 3.0
"""A Delete is not sent sooner after a Detach: it would be refused, and costs a token of the account all the same. Ours: detaches take
2 to 5 s; amazon-vpc-cni-k8s sleeps 2 s (pkg/awsutils/awsutils.go, freeENI)."""


class Releasing:
    """Gives back through intents; used by the provisioner's thread. `counts`: what was given back since the start, by kind."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, enis: EniService, intents: IntentLog) -> None:
        self._datastore = context.datastore
        self._health = context.health
        self._demand = context.demand
        self._clock = context.clock
        self._failpoint = context.failpoint
        self._ec2 = ec2
        self._enis = enis
        self._intents = intents
        self._counts: Counter[str] = Counter()

    def begin(self, action: Release) -> bool:
        """Give back what a plan names, unless somebody has come for it: an ADD that waits, or one that was faster.

        Returns: whether EC2 was asked. Raises: CloudError; what may have happened stays an open intent, anything else is undone.
        """
        if self._demand.waiting()[0]:
            return False
        try:
            intent = self._open(action)
        except InvariantError as error:
            log.info("nothing is given back: %s", log_text(error))  # an ADD, or a comparison with EC2, was faster than the plan
            return False
        if intent is None:
            return False
        try:
            self._give_back(intent)
        except CloudError as error:
            if not error.may_have_happened:
                self._undo(intent, f"not done: {log_text(error)}")
            if not isinstance(error, _Interrupted):
                raise
        return True

    def resume(self, intent: Intent) -> None:
        """Continue what a crash or a lost answer left open. Raises: CloudError; the intent stays open, and holds what it names, unless
        IAM denied the call and EC2 had done nothing.

        What a sandbox has by now, because a look at the kernel found it there, is no longer asked for (I2).
        """
        if intent.kind is IntentKind.DELETE_ENI and any(row.is_in_use for row in self._rows(intent)):
            self._undo(intent, "a sandbox uses it after all: not deleted")
            return
        try:
            self._give_back(intent)
        except _Interrupted as error:
            log.info("%s", log_text(error))
        except CloudDeniedError as error:
            # Of an earlier try nothing is known, but what Describe shows once it must have caught up with that.
            if not error.may_have_happened and self._intents.age_s(intent) >= RECENT_S:
                self._undo_denied(intent, error)
            raise

    def counts(self) -> Mapping[str, int]:
        """Addresses, prefixes and ENIs that were given back since the start."""
        return dict(self._counts)

    def _open(self, action: Release) -> Intent | None:
        if isinstance(action, ReleaseAddresses):
            payload = {"eni_id": str(action.eni_id), **names_of(action.addresses, action.prefixes)}
            return self._intents.open(IntentKind.UNASSIGN, payload, point="release.intent-opened")
        eni = self._datastore.eni(action.eni_id)
        if eni is None or eni.is_primary or not eni.created_by_us or eni.state is not EniState.ATTACHED:
            return None
        leaving = replace(eni, state=EniState.DETACHING, host_ready=False)
        payload = {"eni_id": str(action.eni_id), RELEASE: "asked"}
        point = "release.intent-opened"
        return self._intents.open(IntentKind.DELETE_ENI, payload, also=lambda uow: uow.put_eni(leaving), point=point)

    def _give_back(self, intent: Intent) -> None:
        if intent.kind is IntentKind.UNASSIGN:
            self._unassign(intent)
        else:
            self._delete(intent)

    def _unassign(self, intent: Intent) -> None:
        eni_id = EniId(intent.payload["eni_id"])
        rows = self._rows(intent)
        addresses, prefixes = _still_free(intent, rows)
        if not addresses and not prefixes:
            self._intents.close(intent, "nothing of it is left to give back")
            return
        self._ec2.unassign(eni_id, addresses=addresses, prefixes=prefixes)
        self._failpoint("release.unassigned")
        gone = all_addresses(addresses, prefixes)
        self._enis.recent_changes.note_removed(addresses=gone, on=eni_id)  # before the rows go: no comparison may add them again

        def forget(uow: UnitOfWork) -> None:
            still = [row.address for row in self._rows(intent) if row.is_free and row.address in gone]
            uow.remove_addresses(still, reason="given back to EC2")

        self._settle(intent, forget)
        self._counts.update(addresses=len(addresses), prefixes=len(prefixes))
        log.info("given back to EC2: %s", ReleaseAddresses(eni_id, addresses, prefixes))

    def _delete(self, intent: Intent) -> None:
        eni_id = EniId(intent.payload["eni_id"])
        try:
            self._detach_and_delete(eni_id)
        except CloudNotFoundError as error:
            log.info("ENI %s is gone already: %s", eni_id, log_text(error))
        self._enis.recent_changes.note_removed(enis=[eni_id])
        if (eni := self._datastore.eni(eni_id)) is not None:
            self._enis.routing.tear_down(eni)
        self._failpoint("release.torn-down")
        self._settle(intent, lambda uow: uow.remove_eni(eni_id, reason="given back to EC2"))
        self._counts.update(enis=1)
        log.info("given back to EC2: ENI %s", eni_id)
        self._demand.trigger()  # its place is free

    def _detach_and_delete(self, eni_id: EniId) -> None:
        """Each call gives way to an ADD that waits: the rest is done when none does."""
        described = self._ec2.describe_eni(eni_id)
        is_attached = bool(described.attachment_id) and described.attachment_status != "detaching"
        if is_attached:
            self._give_way(eni_id)
            self._ec2.detach_eni(described.attachment_id)
            self._failpoint("release.detached")
            self._demand.coalesce(DETACHING_S)  # ends at once when an ADD waits
        elif not described.attachment_id and (eni := self._datastore.eni(eni_id)) is not None:
            # Detached by an earlier try: whatever becomes of the Delete, its place on the instance is free. The intent covers it (I9).
            self._enis.routing.tear_down(eni)
            with self._datastore.transaction() as uow:
                uow.remove_eni(eni_id, reason="detached, to be given back to EC2")
            self._demand.trigger()
        try:
            self._give_way(eni_id)
            self._ec2.delete_eni(eni_id)
        except CloudError as error:
            error.may_have_happened = True  # it is detached: there is no way back, it is deleted later
            raise
        self._failpoint("release.deleted")

    def _give_way(self, eni_id: EniId) -> None:
        if self._demand.waiting()[0]:
            raise _Interrupted(f"deleting ENI {eni_id} goes on later", details="an ADD waits, and comes first")

    def _settle(self, intent: Intent, forget: Callable[[UnitOfWork], None]) -> None:
        self._intents.settle(intent, forget)
        self._failpoint("release.stored")
        self._health.clear_condition(CONDITION)

    def _undo(self, intent: Intent, outcome: str) -> None:
        """Nothing was given back: it may be given to sandboxes again."""
        eni_id = EniId(intent.payload["eni_id"])
        eni = self._datastore.eni(eni_id)
        if intent.kind is IntentKind.DELETE_ENI and eni is not None:
            back = replace(eni, state=EniState.ATTACHED, host_ready=False)
            self._intents.close(intent, outcome, also=lambda uow: uow.put_eni(back))
            self._enis.routing.set_up_again(eni_id)
        else:
            self._intents.close(intent, outcome)
        self._demand.announce_supply()

    def _undo_denied(self, intent: Intent, error: CloudDeniedError) -> None:
        """Give what EC2 still shows to sandboxes again; what it does not show goes. Raises: CloudError if EC2 does not say."""
        try:
            described = self._ec2.describe_eni(EniId(intent.payload["eni_id"]))
            is_attached = described.attachment_status == "attached"
            there = all_addresses(described.secondary_addresses, described.prefixes)
        except CloudNotFoundError:
            is_attached, there = False, frozenset()
        if intent.kind is IntentKind.UNASSIGN:
            gone = [row.address for row in self._rows(intent) if row.is_free and row.address not in there]
            with self._datastore.transaction() as uow:
                uow.remove_addresses(gone, reason="given back to EC2")
        elif not is_attached:
            return  # EC2 had begun: there is no way back
        self._undo(intent, f"not done: {log_text(error)}")
        tell_refused(self._health, error)

    def _rows(self, intent: Intent) -> list[Address]:
        eni_id = EniId(intent.payload["eni_id"])
        if intent.kind is IntentKind.DELETE_ENI:
            return [row for row in self._datastore.addresses() if row.eni_id == eni_id]
        found = (self._datastore.address(address) for address in all_addresses(*named(intent)))
        return [row for row in found if row is not None and row.eni_id == eni_id]


def tell_refused(health: Health, error: IpamError) -> None:
    """Say that EC2 refused to take something back, and why, until it takes something."""
    is_begun = isinstance(error, CloudError) and error.may_have_happened
    what = "what was begun is kept from pods and asked for again" if is_begun else "what is in excess is kept"
    health.record_error(CONDITION, error)
    health.set_condition(CONDITION, f"giving back: {what}: {log_text(error)}")


class _Interrupted(CloudError):
    """An ADD waits: what is left to ask of EC2 is asked later."""


def _still_free(intent: Intent, rows: Iterable[Address]) -> tuple[tuple[IPv4Address, ...], tuple[IPv4Network, ...]]:
    """What an intent names and nobody has: single addresses, and prefixes of which nobody has any address."""
    addresses, prefixes = named(intent)
    known = {row.address: row for row in rows}
    taken = [address for address, row in known.items() if not row.is_free]
    singles = sorted(address for address in addresses if address in known and address not in taken)
    whole = [prefix for prefix in sorted(prefixes) if any(address in known for address in prefix)]
    return tuple(singles), tuple(prefix for prefix in whole if not any(address in prefix for address in taken))


# Delete an ENI whose creation failed: none is leaked (I9), and none that sandboxes use is deleted (I2).
#
# EC2 refuses to delete an attached ENI, may show an attachment late, and may not show a new ENI at all. So the intent stays open
# until the ENI is known to be deleted, or is recorded because it was attached after all.


DELETING = "deleting"
"""Mark in an intent's payload: EC2 has shown the ENI, and was asked to delete it."""


class EniDeletion:
    """Deletes ENIs of ours, through their intents; used by the provisioner's thread."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, intents: IntentLog, recent_changes: RecentChanges) -> None:
        self._recent_changes = recent_changes
        self._datastore = context.datastore
        self._failpoint = context.failpoint
        self._ec2 = ec2
        self._intents = intents

    def resume(self, intent: Intent, eni_id: EniId) -> None:
        """Continue a deletion that EC2 refused, unless the ENI was attached after all and has been recorded since (I2).

        Raises: CloudError if EC2 still refuses; the intent stays open.
        """
        if self._datastore.eni(eni_id) is not None:
            self._mark_attached(eni_id)
            self._intents.close(intent, "attached and recorded after all: not deleted")
            return
        self.delete(intent, eni_id, outcome="deleted after all")

    def give_up(self, intent: Intent, eni_id: EniId, error: CloudError) -> None:
        """Delete an ENI that could not be attached; what EC2 refuses now is done by the recovery of its intent."""
        log.warning("ENI %s could not be attached and is deleted: %s", eni_id, log_text(error))
        try:
            self.delete(intent, eni_id, outcome=f"not attached: {log_text(error)}")
        except IpamError as refused:
            log.warning("ENI %s is deleted later: %s", eni_id, log_text(refused))

    def delete(self, intent: Intent, eni_id: EniId, *, outcome: str) -> None:
        """Detach and delete an ENI of ours. Raises: CloudError; the intent stays open and is tried again."""
        try:
            attachment_id = self._ec2.describe_eni(eni_id).attachment_id
            if attachment_id:
                self._ec2.detach_eni(attachment_id)
                self._failpoint("growth.detached")
            intent = self._intents.mark(intent, eni_id=eni_id, **{DELETING: "asked"})
            self._ec2.delete_eni(eni_id)
            self._recent_changes.note_removed(enis=[eni_id])
            self._failpoint("growth.deleted")
        except CloudNotFoundError as error:
            # After we asked to delete it, NotFound means that it is deleted; before, EC2 may only not show it yet.
            if DELETING not in intent.payload and self._intents.is_too_new_to_be_gone(intent):
                log.info("ENI %s is not visible yet and is described again: %s", eni_id, log_text(error))
                raise
            outcome = f"{outcome} (it was gone already)"
        self._intents.close(intent, outcome)

    def _mark_attached(self, eni_id: EniId) -> None:
        """Have EC2 delete it with the instance if the failed creation did not get that far: else it outlives the node (I9)."""
        try:
            described = self._ec2.describe_eni(eni_id)
        except CloudNotFoundError:
            return  # nothing is left to mark; the next sync with EC2 forgets the ENI
        if described.attachment_id and not described.delete_on_termination:
            self._ec2.set_delete_on_termination(eni_id, attachment_id=described.attachment_id)
            self._failpoint("growth.marked")
