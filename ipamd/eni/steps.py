"""Walk the table of operations (`operations.py`): make ENIs, allocate, release and delete, in steps that may be repeated.

If the outcome of a creation is not known, it is repeated with its token; if EC2 refuses the repetition, the ENI is searched for by the
tag that carries the token (docs/adr/0018-a-creation-is-searched-for.md). What is released nobody can have from before the call; it
is asked for again until EC2 confirms it, because nobody can know whether a lost answer was a yes. Guards I2, I9, I11.
"""

from __future__ import annotations

import logging
from collections import Counter

from ipamd.core.context import Service, ServiceContext
from ipamd.core.health import Health
from ipamd.eni.enis import EniService
from ipamd.eni.operations import GONE_AFTER_S, OperationLog, Row, State, Then, rows_of, state_of
from ipamd.model.address import Address, AddressState
from ipamd.model.cloud import DescribedEni, EniRequest, InstanceIdentity, all_addresses
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.eni import Eni, EniState, description
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
from ipamd.model.family import IpAddress, IpNetwork
from ipamd.model.ids import EniId
from ipamd.model.intent import DETACHED, Assign, Create, Delete, Intent, Operation, Unassign, Why
from ipamd.model.record import dataclass, field, replace
from ipamd.ports import Ec2, UnitOfWork

GIVING_BACK = "giving back"
"""Condition: EC2 refuses to take back what is in excess."""

MOVES_MAX = 3
"""Then, or when no place is left, an ENI whose device index is taken is deleted and the pool plans anew, with the places that EC2
refused. Ours: an EC2 that refuses every place (an error of its own did so on types with several network cards, cilium issue 42512) is
not asked for each of them."""

UNANSWERED_MAX_S = 900.0
"""Age of an intent from which an ENI whose attachment EC2 does not answer for is given up and deleted; before, it is asked about
again, because it may well be attached. Ours: longer than a disturbance of EC2 usually lasts."""

DETACHING_S = 3.0
"""A Delete is not sent sooner after a Detach: it would be refused, and costs a token of the account all the same. Ours: detaches take
2 to 5 s; amazon-vpc-cni-k8s sleeps 2 s (pkg/awsutils/awsutils.go, freeENI)."""

UNSEEN = "ENI not shown"
"""In the agenda, with an intent's ID: EC2 did not show what it made; it counts when EC2 does not show it after the pause either."""

OUTCOMES = {
    Why.UNATTACHED: "not attached: deleted",
    Why.USELESS: "nobody could be given what is on it: deleted",
    Why.LEAKED: "leaked: deleted",
}

log = logging.getLogger(__name__)


class InterruptedByAddError(CloudError):
    """An ADD waits: what is left to ask of EC2 is asked later."""


class UselessEniError(CloudError):
    """Nobody can be given what is on an ENI that was made: it is deleted."""


@dataclass(slots=True)
class Work:
    """One operation on its way. `eni`: what came of it. `found`: what the last call learnt, until it is recorded."""

    intent: Intent
    operation: Operation
    identity: InstanceIdentity | None
    is_first: bool = False
    described: DescribedEni | None = None
    eni: Eni | None = None
    outcome: str = ""
    addresses: frozenset[IpAddress] = frozenset()
    prefixes: frozenset[IpNetwork] = frozenset()
    conflicts: list[str] = field(default_factory=list)

    @property
    def create(self) -> Create:
        """The creation that it is."""
        assert isinstance(self.operation, Create)
        return self.operation

    @property
    def delete(self) -> Delete:
        """The deletion that it is."""
        assert isinstance(self.operation, Delete)
        return self.operation

    @property
    def seen(self) -> DescribedEni:
        """The ENI as EC2 showed it last."""
        assert self.described is not None
        return self.described

    @property
    def node(self) -> InstanceIdentity:
        """This node. Raises: CloudError while it is not known."""
        if self.identity is None:
            raise CloudError("this node is not known yet", details="instance metadata has not answered; it is asked again")
        return self.identity


class Steps(Service):
    """The engine. Used by one thread, the pool maintainer's. `counts`: what was released since the start, by kind."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, enis: EniService, operations: OperationLog) -> None:
        super().__init__(context)
        self._ec2 = ec2
        self._enis = enis
        self._log = operations
        self.counts: Counter[str] = Counter()
        self._throttled: dict[str, DescribedEni] = {}  # where EC2 throttled the next step, and did nothing: no Describe is needed
        self._adopted_for = ""

    def run(self, intent: Intent, *, identity: InstanceIdentity | None, is_first: bool = False) -> Work:
        """Walk the table from where the operation stands. Raises: CloudError; the intent stays open unless nothing happened;
        ValueError if it is malformed."""
        work = Work(intent, intent.operation, identity, is_first)
        state = state_of(work.operation, is_first=is_first)
        if (known := self._throttled.pop(intent.intent_id, None)) is not None:
            work.described, state = known, State.NAMED
        self._walk(work, state)
        return work

    def _walk(self, work: Work, state: State) -> None:
        while state is not State.DONE:
            row = rows_of(work.operation)[state]
            try:
                other: State | None = getattr(self, f"_{row.call}")(work)
            except CloudError as error:
                state = self._after(error, row, work)
                continue
            if other is None and row.failpoint:
                self._failpoint(row.failpoint)
            state = other or row.then

    def _after(self, error: CloudError, row: Row, work: Work) -> State:
        """Do what follows a failed call. Returns: the state to go on with. Raises: the error, if that is all for now."""
        match row.on(error):
            case Then.CLOSE if not error.may_have_happened:
                self._log.close(work.intent, f"refused: {log_text(error)}")
            case Then.SEARCH if not error.may_have_happened:
                self._mark(work, replace(work.create, refused=error.cause))
                return State.UNREPEATABLE
            case Then.UNDO:
                self._undo(work, error)
            case Then.GONE if not self._is_perhaps_unseen(work):
                log.info("gone already eni=%s error=%s", work.intent.eni_id, log_text(error))
                return State.DELETED
            case Then.GIVE_UP:
                return self._give_up(work, error)
        if (
            isinstance(error, ThrottledError)
            and not error.may_have_happened
            and isinstance(work.operation, Create)
            and work.described
        ):
            self._throttled[work.intent.intent_id] = work.described
        raise error

    def _mark(self, work: Work, operation: Operation) -> None:
        work.operation = operation
        work.intent = self._log.mark(work.intent, operation)

    # Creation

    def _create(self, work: Work) -> None:
        asked = work.create
        work.described = self._ec2.create_eni(
            EniRequest(
                subnet_id=asked.subnet_id,
                security_group_ids=asked.security_group_ids,
                description=description(work.node),
                tags=asked.tags,
                client_token=work.intent.client_token,
                address_count=asked.address_count,
                prefix_count=asked.prefix_count,
                ipv6_address_count=int(not (asked.address_count or asked.prefix_count)),
                is_urgent=self._demand.waiting()[0] > 0,
                connection_tracking=asked.connection_tracking,
            )
        )

    def _search(self, work: Work) -> State | None:
        """Search for what the creation made, by the tag that carries its token."""
        found = self._ec2.find_by_token(work.intent.client_token)
        if found:
            self._agenda.clear((UNSEEN, work.intent.intent_id))
            work.described = found[0]
            return None
        if self._is_absent(work.intent):
            self._log.close(work.intent, f"EC2 has made no ENI for it; refused: {work.create.refused}")
            return State.DONE
        raise CloudError(
            f"whether creation {work.intent.client_token} made an ENI is not known yet",
            details=f"EC2 shows none and is asked again; the repeated call was refused: {work.create.refused}",
        )

    def _describe(self, work: Work) -> State | None:
        try:
            work.described = self._ec2.describe_eni(work.intent.eni_id)
        except CloudNotFoundError:
            if self._log.age_s(work.intent) < GONE_AFTER_S or not self._is_absent(work.intent):
                raise
            self._log.close(work.intent, "the ENI is gone")
            return State.DONE
        self._agenda.clear((UNSEEN, work.intent.intent_id))
        return None

    def _is_absent(self, intent: Intent) -> bool:
        """Take a look that did not show the ENI. Returns: whether one was GONE_AFTER_S ago; one alone may lag behind Create (I11)."""
        key = (UNSEEN, intent.intent_id)
        if not self._agenda.keys(*key):
            self._agenda.put(key, in_s=GONE_AFTER_S)
        is_absent = self._agenda.is_due(key)
        if is_absent:
            self._agenda.clear(key)
        return is_absent

    def _name(self, work: Work) -> None:
        made = work.seen
        primary = () if made.primary_address is None else (made.primary_address,)
        # Nobody is given from now on what EC2 has put on a new ENI of ours, though rows of other ENIs have it still (I7).
        self._enis.lose_elsewhere(made.eni_id, made.secondary_addresses.union(primary), made.prefixes)
        self._mark(work, replace(work.create, eni_id=work.seen.eni_id))

    def _why_useless(self, made: DescribedEni) -> str:
        """Say why nobody could be given anything of a new ENI; "" if somebody can.

        EC2 gives an address that somebody took from a pod to whoever asks next: as the primary address of our own ENI it is nobody's
        to give (I6), and it is the pod's for as long as that lives (I2). So is that of an ENI which somebody deleted under its pods.
        """
        needed = {row.eni_id for row in self._datastore.addresses() if row.is_in_use} - {made.eni_id}
        for eni in self._datastore.enis():
            if eni.primary_address == made.primary_address and eni.eni_id in needed:
                return f"its primary address {eni.primary_address} is recorded as that of {eni.eni_id}, which sandboxes need"
        rows = (self._datastore.address(one) for one in all_addresses(made.secondary_addresses, made.prefixes))
        row = self._datastore.address(made.primary_address) if made.primary_address else None
        if row is not None and row.is_in_use:
            return f"its primary address {row.address} is that of {row.owner}, from which it was taken at EC2"
        if (made.secondary_addresses or made.prefixes) and all(row is not None and row.is_in_use for row in rows):
            return "every address of it is a sandbox's, on another ENI"
        return ""

    def _attach(self, work: Work) -> State | None:
        if not work.seen.attachment_id:
            if why := self._why_useless(work.seen):
                raise UselessEniError(f"ENI {work.seen.eni_id} is of no use, and is deleted", details=why)
            place = (0, work.create.device_index)
            attachment_id = self._ec2.attach_eni(
                work.seen.eni_id, instance_id=work.node.instance_id, device_index=place[1], network_card=place[0]
            )
            self._enis.book.took(place)
            work.described = replace(work.seen, attachment_id=attachment_id)
            return None
        if work.seen.instance_id not in ("", work.node.instance_id):
            raise EniLimitError(f"ENI {work.seen.eni_id} is attached to {work.seen.instance_id}, not to this instance")
        return State.ATTACHED

    def _set_delete_on_termination(self, work: Work) -> None:
        if not work.seen.delete_on_termination:
            self._ec2.set_delete_on_termination(work.seen.eni_id, attachment_id=work.seen.attachment_id)
            work.described = replace(work.seen, delete_on_termination=True)
        self._enis.routing.await_link(work.seen.mac)

    def _show(self, work: Work) -> None:
        """Verify by Describe; what is not older than this process's last step, and shows the ENI attached, verifies it."""
        if work.seen.attachment_status == "attached":
            return
        attached = self._ec2.describe_attached_eni(work.seen.eni_id)
        # EC2 may show a new ENI attached before its addresses (amazon-vpc-cni-k8s issues 1148, 1174); its answer to Create named them.
        work.described = replace(
            attached,
            secondary_addresses=attached.secondary_addresses | work.seen.secondary_addresses,
            prefixes=attached.prefixes | work.seen.prefixes,
        )

    def _record(self, work: Work) -> None:
        """Record the ENI. One that contradicts a record is of no use to anybody, and is deleted.

        Raises: UselessEniError then; InvariantError if EC2's answer does not show it in its place.
        """
        eni = replace(self._enis.eni_of(work.seen, work.node), created_by_us=True)
        work.eni, work.outcome = eni, f"attached {eni.eni_id} as device {eni.device_index}"
        try:
            contradictions = self._enis.record(eni, work.seen).kept
        except InvariantError as error:
            log.warning("an ENI contradicts what is recorded, EC2 is asked for all eni=%s error=%s", eni.eni_id, log_text(error))
            self._enis.sync_with_ec2(work.node)
            work.eni = self._datastore.eni(eni.eni_id)
            if work.eni is None and eni.eni_id not in self._enis.book.shown():
                raise
            if work.eni is None:
                raise UselessEniError(f"ENI {eni.eni_id} is of no use, and is deleted", details=log_text(error)) from error
        else:
            if contradictions:
                self._enis.sync_with_ec2(work.node)

    def _give_up(self, work: Work, error: CloudError) -> State:
        """An ENI could not be attached: it goes to the next place that nothing known has, unless EC2 shows now what was not known, or
        is deleted: another plan may be right then. Raises: the error, if it may be attached."""
        if isinstance(error, CloudNotFoundError) and self._is_perhaps_unseen(work):
            raise error  # EC2 does not show the new ENI yet: nothing is wrong with it
        if error.may_have_happened and self._log.age_s(work.intent) < UNANSWERED_MAX_S:
            raise error  # EC2 did not answer: the ENI may well be attached
        asked, eni_id, book = work.create, work.seen.eni_id, self._enis.book
        if self._datastore.eni(eni_id) is not None:
            raise error  # it is recorded, and sandboxes may use it: it must not be deleted, however EC2 answers (I2)
        is_taken, has_news = isinstance(error, DeviceIndexTakenError), False
        if is_taken:
            is_new, self._adopted_for = self._adopted_for != work.intent.intent_id, work.intent.intent_id
            has_news = is_new and self.adopt_enis(work.node)  # not a second time in a row for the same creation
            if self._datastore.eni(eni_id) is not None or eni_id in book.shown():
                raise error  # it is this ENI that has the place, and is taken into use at a next try
            book.refuse((0, asked.device_index))
            if asked.moves_left and not has_news:
                others = [one.payload.get("device_index", "") for one in self._log.all_open()]
                index = book.free_index(beside={int(other) for other in others if other.isdecimal()})
                log.warning(
                    "EC2 has another ENI there and does not show it taken=%d eni=%s index=%d", asked.device_index, eni_id, index
                )
                self._mark(work, replace(asked, device_index=index, moves_left=asked.moves_left - 1))
                return State.NAMED
        why = Why.USELESS if isinstance(error, UselessEniError) else Why.UNATTACHED
        log.warning("an ENI is deleted eni=%s why=%s error=%s", eni_id, why, log_text(error))
        work.operation, work.outcome = Delete(eni_id, why, creation=asked), f"{OUTCOMES[why]}: {log_text(error)}"
        try:
            self._walk(work, State.HELD)
        except IpamError as refused:  # the recovery of its intent deletes it
            log.warning("an ENI is deleted later eni=%s error=%s", eni_id, log_text(refused))
        if has_news or (not is_taken and why is Why.UNATTACHED and self.adopt_enis(work.node)):
            return State.DONE  # the pool plans again with what is attached already
        raise error

    # Allocation

    def _assign(self, work: Work) -> None:
        asked = work.operation
        assert isinstance(asked, Assign)
        if asked.is_of_prefixes:
            work.prefixes = self._ec2.assign_prefixes(asked.eni_id, count=asked.count)
        else:
            work.addresses = self._ec2.assign_addresses(asked.eni_id, count=asked.count)

    def _add(self, work: Work) -> None:
        asked = work.operation
        assert isinstance(asked, Assign)
        work.outcome = "allocated"
        work.conflicts = self._enis.add_addresses(
            asked.eni_id, work.addresses, work.prefixes, asked_count=asked.supply_count
        ).kept

    def _read(self, work: Work) -> State | None:
        """Recover an allocation whose answer was lost: read the ENI's addresses from EC2."""
        known = self._datastore.eni(work.intent.eni_id)
        if known is None:
            self._log.close(work.intent, "the ENI is not ours any more")
            return State.DONE
        try:
            described = self._ec2.describe_eni(known.eni_id)
        except CloudNotFoundError:
            self._log.close(work.intent, "the ENI does not exist any more")
            self.adopt_changes(work.node)
            return State.DONE
        added_count = self._enis.record(known, described).added_count
        # A second /80 is of no use to anybody: this look may lag behind the call.
        if self._enis.family.is_sparse and not (described.prefixes or self._is_absent(work.intent)):
            raise CloudError(
                f"whether EC2 has given {known.eni_id} a /80 is not known yet", details="it shows none, and is asked again"
            )
        self._agenda.clear((UNSEEN, work.intent.intent_id))
        work.outcome = f"read back: {added_count} addresses added"
        return None

    def _close(self, work: Work) -> None:
        if isinstance(work.operation, Delete):
            work.outcome = work.outcome or OUTCOMES[work.operation.why]
            log.warning("a deletion has ended eni=%s outcome=%s", work.operation.eni_id, work.outcome)
        self._log.close(work.intent, work.outcome)

    # Deletion and release

    def _look(self, work: Work) -> State | None:
        """See whether there is something to detach, and whether an ENI that failed has been taken into use after all (I2)."""
        why, eni_id = work.delete.why, work.delete.eni_id
        recorded = self._datastore.eni(eni_id)
        if recorded is not None and why in (Why.UNATTACHED, Why.USELESS):
            self._mark_attached(eni_id)
            self._log.close(work.intent, "attached and recorded after all: not deleted")
            return State.DONE
        if why is Why.RELEASED and any(row.state is not AddressState.FREE for row in self._rows(work)):
            self._restore(work, "a sandbox uses it after all: not deleted")
            return State.DONE
        work.described = described = self._ec2.describe_eni(eni_id)
        if why is Why.LEAKED and (described.attachment_id or recorded is not None):
            self._log.close(work.intent, "attached meanwhile: not deleted")
            return State.DONE
        is_detaching = why is Why.RELEASED and described.attachment_status == "detaching"
        if described.attachment_id and not is_detaching:
            return None
        if recorded is not None and not described.attachment_id:
            # Detached by an earlier try: whatever becomes of the Delete, its place on the instance is free. The intent covers it (I9).
            self._enis.routing.tear_down(recorded)
            with self._datastore.transaction() as uow:
                uow.remove_eni(eni_id, reason="detached, to be released")
            self._demand.trigger()
        return State.DETACHED

    def _mark_attached(self, eni_id: EniId) -> None:
        """Have EC2 delete it with the instance if the failed creation did not get that far: else it outlives the node (I9)."""
        try:
            described = self._ec2.describe_eni(eni_id)
            if described.attachment_id and not described.delete_on_termination:
                self._ec2.set_delete_on_termination(eni_id, attachment_id=described.attachment_id)
                self._failpoint("growth.marked")
        except CloudNotFoundError:
            pass  # nothing is left to mark; the next sync with EC2 forgets the ENI

    def _detach(self, work: Work) -> None:
        self._give_way(work)
        asked, before = work.delete, work.intent
        self._mark(work, replace(asked, asked=DETACHED))
        try:
            self._ec2.detach_eni(work.seen.attachment_id)
        except CloudError as error:
            if not error.may_have_happened:  # as if it had not been asked
                work.intent = before
                self._mark(work, asked)
            raise

    def _delete(self, work: Work) -> None:
        asked = work.delete
        if asked.why is Why.RELEASED:
            if work.seen.attachment_id and work.seen.attachment_status != "detaching":
                self._demand.coalesce(DETACHING_S)  # ends at once when an ADD waits
        else:
            self._mark(work, replace(asked, asked=asked.asked or "asked"))
        try:
            self._give_way(work)
            self._ec2.delete_eni(asked.eni_id)
        except CloudError as error:
            error.may_have_happened = True  # it is detached: there is no way back, it is deleted later
            raise

    def _tear_down(self, work: Work) -> None:
        eni_id = work.delete.eni_id
        self._enis.book.record_own([eni_id], on=eni_id, is_added=False)
        if (eni := self._datastore.eni(eni_id)) is not None:
            self._enis.routing.tear_down(eni)

    def _unassign(self, work: Work) -> State | None:
        """Release what is named and nobody has: single addresses, and prefixes of which nobody has any address."""
        asked = work.operation
        assert isinstance(asked, Unassign)
        rows = {row.address: row for row in self._rows(work)}
        taken = {address for address, row in rows.items() if not row.is_free}
        free = [prefix for prefix in asked.prefixes if not any(address in prefix for address in taken)]
        work.addresses = asked.addresses & (rows.keys() - taken)
        work.prefixes = frozenset(prefix for prefix in free if any(address in prefix for address in rows))
        if not work.addresses and not work.prefixes:
            self._log.close(work.intent, "nothing of it is left to release")
            return State.DONE
        self._ec2.unassign(asked.eni_id, addresses=sorted(work.addresses), prefixes=sorted(work.prefixes))
        return None

    def _settle(self, work: Work) -> None:
        eni_id = work.intent.eni_id
        if isinstance(work.operation, Delete):
            self._log.finish(work.intent, lambda uow: uow.remove_eni(eni_id, reason="released"))
            self.counts.update(enis=1)
            log.info("released eni=%s", eni_id)
            self._demand.trigger()  # its place is free
        else:
            gone = all_addresses(work.addresses, work.prefixes)
            self._enis.book.record_own(gone, on=eni_id, is_added=False)  # before the rows go: no comparison may add them again

            def forget(uow: UnitOfWork) -> None:
                still = [row.address for row in self._rows(work) if row.is_free and row.address in gone]
                uow.remove_addresses(still, reason="released")

            self._log.finish(work.intent, forget)
            self.counts.update(addresses=len(work.addresses), prefixes=len(work.prefixes))
            log.info("released eni=%s addresses=%s", eni_id, " ".join(map(str, [*work.addresses, *work.prefixes])))
        self._health.report(GIVING_BACK, "")

    def _give_way(self, work: Work) -> None:
        if work.delete.why is Why.RELEASED and self._demand.waiting()[0]:
            raise InterruptedByAddError(
                f"deleting ENI {work.delete.eni_id} goes on later", details="an ADD waits, and comes first"
            )

    def _undo(self, work: Work, error: CloudError) -> None:
        """Nothing was done before the first try. Of an earlier one nothing is known, but what Describe shows once it must have caught
        up with that: what it shows is sandboxes' again after a denial, what it does not show goes. Raises: CloudError.
        """
        if error.may_have_happened:
            return
        if not work.is_first:
            if not isinstance(error, CloudDeniedError) or self._log.age_s(work.intent) < RECENT_S:
                return
            try:
                described = self._ec2.describe_eni(work.intent.eni_id)
                is_attached = described.attachment_status == "attached"
                there = all_addresses(described.secondary_addresses, described.prefixes)
            except CloudNotFoundError:
                is_attached, there = False, frozenset()
            if isinstance(work.operation, Unassign):
                gone = [row.address for row in self._rows(work) if row.is_free and row.address not in there]
                with self._datastore.transaction() as uow:
                    uow.remove_addresses(gone, reason="released")
            elif not is_attached:
                return  # EC2 had begun: there is no way back
            report_refused(self._health, error)
        self._restore(work, f"not done: {log_text(error)}")

    def _restore(self, work: Work, outcome: str) -> None:
        """What was held may be given to sandboxes again."""
        eni = self._datastore.eni(work.intent.eni_id)
        if isinstance(work.operation, Delete) and eni is not None:
            back = replace(eni, state=EniState.ATTACHED, host_ready=False)
            self._log.close(work.intent, outcome, also=lambda uow: uow.put_eni(back))
            self._enis.routing.set_up_again(eni.eni_id)
        else:
            self._log.close(work.intent, outcome)
        self._demand.announce_supply()

    def _rows(self, work: Work) -> list[Address]:
        rows = [row for row in self._datastore.addresses() if row.eni_id == work.intent.eni_id]
        if isinstance(asked := work.operation, Unassign):
            named = all_addresses(asked.addresses, asked.prefixes)
            return [row for row in rows if row.address in named or row.prefix in asked.prefixes]
        return rows

    def _is_perhaps_unseen(self, work: Work) -> bool:
        """Whether NotFound may be the lag of Describe behind our Create."""
        is_old = isinstance(work.operation, Delete) and work.operation.why in (Why.RELEASED, Why.LEAKED)
        return not is_old and self._log.age_s(work.intent) < GONE_AFTER_S

    # Compare with EC2 after it refused: what others attached or filled meanwhile is taken into account, and the pool plans anew. One
    # Describe per refused action (I13).

    def adopt_changes(self, identity: InstanceIdentity) -> bool:
        """After a refused allocation: somebody else filled the ENI, or detached it. Returns: whether the datastore changed."""
        before = self._datastore.enis(), self._datastore.counts().total
        return self.adopt_enis(identity) or before != (self._datastore.enis(), self._datastore.counts().total)

    def adopt_enis(self, identity: InstanceIdentity) -> bool:
        """After a refusal, ask EC2 what is attached to the instance. ENIs attached by another tool are adopted or counted; the attach
        is never retried for ever (amazon-vpc-cni-k8s issue 3833).

        Returns: whether there was an ENI that the datastore did not know.
        """
        try:
            outcome = self._enis.sync_with_ec2(identity)
        except IpamError as error:
            log.warning("the ENIs attached to the instance could not be listed error=%s", log_text(error))
            return False
        if outcome.adopted:
            log.warning("ENIs attached by another tool were adopted enis=%s", ", ".join(sorted(outcome.adopted)))
        self._enis.set_up_adopted(outcome)
        return bool(outcome.adopted)


def report_refused(health: Health, error: IpamError) -> None:
    """Say that EC2 refused to take something back, and why, until it takes something."""
    is_begun = isinstance(error, CloudError) and error.may_have_happened
    what = "what was begun is kept from pods and asked for again" if is_begun else "what is in excess is kept"
    health.report(GIVING_BACK, f"giving back: {what}: {log_text(error)}", error=error)
