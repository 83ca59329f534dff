"""Run operations by the table of states (`operations.py`): create ENIs, allocate, release and delete, in steps that may be repeated.

If the outcome of a creation is not known, the call is repeated with its token. If EC2 refuses the repetition, the ENI is searched for
by the tag with the token (docs/adr/0018-a-creation-is-searched-for.md). An address that is to be released is withheld from sandboxes
before the call. The release is repeated until EC2 confirms it, because a lost answer may have been a success. Guards I2, I9, I11.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial

from ipamd.core.context import Service, ServiceContext
from ipamd.eni.differences import CloudDifference
from ipamd.eni.enis import EniService
from ipamd.eni.operations import GONE_AFTER_S, Call, OnFailure, OperationLog, State, StateRule, rows_of, state_of
from ipamd.eni.release_guard import FrozenError, ReleaseGuard
from ipamd.model.address import Address, AddressState
from ipamd.model.cloud import DescribedEni, EniRequest, InstanceIdentity, all_addresses
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.eni import Eni, EniState, operator_exclusion
from ipamd.model.eni_tags import description
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
from ipamd.model.intent import DETACHED, Assign, Create, Delete, DeleteReason, Intent, Operation, Unassign
from ipamd.model.record import dataclass, field, replace
from ipamd.ports.cloud import Ec2
from ipamd.ports.datastore import UnitOfWork

RELEASE_REFUSED = "release"
"""Condition: EC2 refuses to release surplus ENIs or addresses."""

ENIS, ADDRESSES = "ENIs", "addresses"
"""Parts of the condition `RELEASE_REFUSED`: EC2 may refuse to release ENIs and not addresses, or the reverse."""

MOVES_MAX = 3
"""How often a new ENI whose device index is taken is moved to another index. After that, or when no place is left, the ENI is deleted,
and the next plan leaves out the places that EC2 refused. Ours: if EC2 refuses every place (as happened on types with several network
cards, cilium issue 42512), not all of them are tried."""

UNANSWERED_MAX_S = 900.0
"""Delete an ENI if EC2 has not confirmed its attachment after this long. Until then EC2 is asked again, because the ENI may be
attached.
Ours: longer than a disturbance of EC2 usually lasts."""

DETACHING_S = 3.0
"""Least time between the Detach and the Delete of a released ENI. EC2 refuses a Delete that comes too early, and the refused call
counts against the account's limit. Ours: detaches take 2 to 5 s; amazon-vpc-cni-k8s sleeps 2 s (pkg/awsutils/awsutils.go, freeENI)."""

NOT_VISIBLE = "ENI not shown"
"""Back-off key, with an intent's ID: EC2 did not show the ENI, or the /80, of this intent. It counts as absent if an answer after the
pause does not show it either."""

OUTCOMES = {
    DeleteReason.UNATTACHED: "not attached: deleted",
    DeleteReason.USELESS: "none of its addresses could be assigned: deleted",
    DeleteReason.LEAKED: "leaked: deleted",
}

log = logging.getLogger(__name__)


class InterruptedByAddError(CloudError):
    """An ADD waits, so the remaining calls to EC2 are made later."""


class UselessEniError(CloudError):
    """No address of a new ENI can be assigned, so the ENI is deleted."""


@dataclass(slots=True)
class Work:
    """One running operation.

    `intent`: the intent as it is on disk now.
    `operation`: the operation of the intent, or the deletion that follows a failed creation.
    `identity`: this node's identity, None while it is not known.
    `is_first`: the intent was opened for this run, so no earlier run can have had an effect.
    `described`: the ENI as EC2 showed it last.
    `eni`: the ENI that was created and recorded.
    `outcome`: the text with which the intent is closed.
    `addresses`, `prefixes`: those that were allocated, or that are to be released.
    `conflicts`: allocated addresses that contradict a row.
    """

    intent: Intent
    operation: Operation
    identity: InstanceIdentity | None
    is_first: bool = False
    described: DescribedEni | None = None
    eni: Eni | None = None
    outcome: str = ""
    addresses: frozenset[IpAddress] = frozenset()
    prefixes: frozenset[IpNetwork] = frozenset()
    conflicts: list[CloudDifference] = field(default_factory=list)

    @property
    def create(self) -> Create:
        """The operation, which must be a creation."""
        assert isinstance(self.operation, Create)
        return self.operation

    @property
    def delete(self) -> Delete:
        """The operation, which must be a deletion."""
        assert isinstance(self.operation, Delete)
        return self.operation

    @property
    def seen(self) -> DescribedEni:
        """`described`, which must not be None."""
        assert self.described is not None
        return self.described

    @property
    def node(self) -> InstanceIdentity:
        """This node. Raises: CloudError while it is not known."""
        if self.identity is None:
            raise CloudError("this node is not known yet", details="instance metadata has not answered; it is read again")
        return self.identity


class OperationRunner(Service):
    """Runs operations. Used by one thread, the pool maintainer's.

    It has a private method for each `Call`, of the same name. Such a method returns the next state of the operation, or None for the
    one that the table names (`StateRule.then`).

    `counts`: released objects since the start, by kind.
    """

    def __init__(
        self, context: ServiceContext, *, ec2: Ec2, enis: EniService, operations: OperationLog, guard: ReleaseGuard
    ) -> None:
        super().__init__(context)
        self._guard = guard
        self._ec2 = ec2
        self._enis = enis
        self._log = operations
        self._refused = {part: context.health.claim(RELEASE_REFUSED, part=part) for part in (ENIS, ADDRESSES)}
        self.counts: Counter[str] = Counter()
        self._throttled: dict[str, DescribedEni] = {}
        """By intent ID: new ENIs for which EC2 throttled the next call. Their creation is resumed without a Describe."""
        self._adopted_for = ""
        """Intent ID of the creation for which attached ENIs were adopted last."""
        self._methods: Mapping[Call, Callable[[Work], State | None]] = {
            Call.LOOK: self._look,
            Call.DETACH: self._detach,
            Call.DELETE: self._delete,
            Call.TEAR_DOWN: self._tear_down,
            Call.CLOSE: self._close,
            Call.CREATE: self._create,
            Call.SEARCH: self._search,
            Call.DESCRIBE: self._describe,
            Call.NAME: self._name,
            Call.ATTACH: self._attach,
            Call.SET_DELETE_ON_TERMINATION: self._set_delete_on_termination,
            Call.SHOW: self._show,
            Call.RECORD: self._record,
            Call.ASSIGN: self._assign,
            Call.ADD: self._add,
            Call.READ: self._read,
            Call.UNASSIGN: self._unassign,
            Call.FINISH: self._finish,
        }

    def run(self, intent: Intent, *, identity: InstanceIdentity | None, is_first: bool = False) -> Work:
        """Run an operation from the state that it has reached.

        Raises: CloudError if the operation cannot go on now. Its intent is closed only if the operation had no effect in EC2 or was
            undone; otherwise it stays open, to be resumed. ValueError if the intent is malformed.
        """
        work = Work(intent, intent.operation, identity, is_first)
        state = state_of(work.operation, is_first=is_first)
        described = self._throttled.pop(intent.intent_id, None)
        if described is not None:
            work.described = described
            state = State.NAMED
        if state is State.UNANSWERED and isinstance(work.operation, Create) and self._guard.why_shared():
            # If the first call never reached EC2, the repeated one would create an ENI while another daemon may use this node's ENIs.
            state = State.UNREPEATABLE
        self._walk(work, state)
        return work

    def _walk(self, work: Work, state: State) -> None:
        while state is not State.DONE:
            row = rows_of(work.operation)[state]
            try:
                next_state = self._methods[row.call](work)
            except CloudError as error:
                state = self._after(error, row, work)
                continue
            if next_state is None and row.failpoint:
                self._failpoint(row.failpoint)
            state = next_state or row.then

    def _after(self, error: CloudError, row: StateRule, work: Work) -> State:
        """React to a failed call. Returns: the next state. Raises: the error, if the operation cannot go on now."""
        match row.on(error):
            case OnFailure.CLOSE if not error.may_have_happened:
                self._log.close(work.intent, f"refused: {log_text(error)}")
            case OnFailure.SEARCH if not error.may_have_happened:
                self._mark(work, replace(work.create, refused=str(error.cause)))
                return State.UNREPEATABLE
            case OnFailure.UNDO:
                self._undo(work, error)
            case OnFailure.GONE if not self._is_perhaps_unseen(work):
                log.info("ENI gone already eni=%s error=%s", work.intent.eni_id, log_text(error))
                return State.DELETED
            case OnFailure.GIVE_UP:
                return self._give_up(work, error)
        is_throttled = isinstance(error, ThrottledError) and not error.may_have_happened
        if is_throttled and isinstance(work.operation, Create) and work.described:
            self._throttled[work.intent.intent_id] = work.described
        raise error

    def _mark(self, work: Work, operation: Operation) -> None:
        work.operation = operation
        work.intent = self._log.mark(work.intent, operation)

    # Creation

    def _create(self, work: Work) -> None:
        self._guard.require_creation_allowed()
        creation = work.create
        work.described = self._ec2.create_eni(
            EniRequest(
                subnet_id=creation.subnet_id,
                security_group_ids=creation.security_group_ids,
                description=description(work.node),
                tags=creation.tags,
                client_token=work.intent.client_token,
                address_count=creation.address_count,
                prefix_count=creation.prefix_count,
                ipv6_address_count=int(not (creation.address_count or creation.prefix_count)),
                is_urgent=self._demand.waiting()[0] > 0,
                connection_tracking=creation.connection_tracking,
            )
        )

    def _search(self, work: Work) -> State | None:
        """Search for the ENI of a creation, by the tag that carries its token. If EC2 has created none, close the intent.

        Raises: CloudError while EC2 shows no ENI, but may still show one later.
        """
        why_not_repeated = "the call is not repeated: the pool is frozen"
        if work.create.refused:
            why_not_repeated = f"the repeated call was refused: {work.create.refused}"
        enis = self._ec2.find_by_token(work.intent.client_token)
        if enis:
            self._backoffs.clear((NOT_VISIBLE, work.intent.intent_id))
            work.described = enis[0]
            return None
        if self._is_absent(work.intent):
            self._log.close(work.intent, f"EC2 has created no ENI for it; {why_not_repeated}")
            return State.DONE
        raise CloudError(
            f"it is not known yet whether creation {work.intent.client_token} made an ENI",
            details=f"EC2 shows none and is asked again; {why_not_repeated}",
        )

    def _describe(self, work: Work) -> State | None:
        try:
            work.described = self._ec2.describe_eni(work.intent.eni_id)
        except CloudNotFoundError:
            if self._log.age_s(work.intent) < GONE_AFTER_S or not self._is_absent(work.intent):
                raise
            self._log.close(work.intent, "the ENI is gone")
            return State.DONE
        self._backoffs.clear((NOT_VISIBLE, work.intent.intent_id))
        return None

    def _is_absent(self, intent: Intent) -> bool:
        """Record that an answer did not show the ENI or /80 of an intent.

        Returns: whether an answer at least GONE_AFTER_S ago did not show it either. A single answer may lag behind our call (I11).
        """
        key = (NOT_VISIBLE, intent.intent_id)
        if not self._backoffs.keys(*key):
            self._backoffs.put(key, in_s=GONE_AFTER_S)
        is_absent = self._backoffs.is_due(key)
        if is_absent:
            self._backoffs.clear(key)
        return is_absent

    def _name(self, work: Work) -> None:
        created = work.seen
        primary = () if created.primary_address is None else (created.primary_address,)
        # These addresses are on our new ENI. If they have rows on other ENIs, they must not be assigned there any more (I7).
        self._enis.lose_elsewhere(created.eni_id, created.secondary_addresses.union(primary), created.prefixes)
        self._mark(work, replace(work.create, eni_id=work.seen.eni_id))

    def _why_useless(self, created: DescribedEni) -> str:
        """Return why no address of a new ENI can be assigned; "" if one can.

        If somebody takes an address from a running pod at EC2, EC2 may make it the primary address of the next ENI. A primary address
        must not be assigned (I6), but the pod keeps the address while it runs (I2). EC2 may also give the new ENI the primary address
        of an ENI that was deleted while pods used its addresses. That ENI stays recorded while pods use these, so the new one cannot
        be recorded.
        """
        needed = {row.eni_id for row in self._datastore.addresses() if row.is_in_use} - {created.eni_id}
        for eni in self._datastore.enis():
            if eni.primary_address == created.primary_address and eni.eni_id in needed:
                return f"its primary address {eni.primary_address} is recorded as that of {eni.eni_id}, which sandboxes need"
        row = self._datastore.address(created.primary_address) if created.primary_address else None
        if row is not None and row.is_in_use:
            return f"its primary address {row.address} is that of {row.owner}, from which it was taken at EC2"
        addresses = all_addresses(created.secondary_addresses, created.prefixes)
        if self._are_all_in_use(addresses):
            return "all its addresses are used by sandboxes, on other ENIs"
        return ""

    def _are_all_in_use(self, addresses: frozenset[IpAddress]) -> bool:
        """Whether there are addresses, and sandboxes use all of them."""
        for address in addresses:
            row = self._datastore.address(address)
            if row is None or not row.is_in_use:
                return False
        return bool(addresses)

    def _attach(self, work: Work) -> State | None:
        if not work.seen.attachment_id:
            reason = self._why_useless(work.seen)
            if reason:
                raise UselessEniError(f"ENI {work.seen.eni_id} is useless and is deleted", details=reason)
            self._guard.require_creation_allowed()
            place = (work.create.network_card, work.create.device_index)
            attachment_id = self._ec2.attach_eni(
                work.seen.eni_id, instance_id=work.node.instance_id, device_index=place[1], network_card=place[0]
            )
            self._enis.book.mark_free(place)
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
        """Verify by Describe that the ENI is attached, unless an answer in this run showed that already."""
        if work.seen.attachment_status == "attached":
            return
        attached = self._ec2.describe_attached_eni(work.seen.eni_id)
        # EC2 may show a new ENI attached before it shows its addresses (amazon-vpc-cni-k8s issues 1148, 1174). So the addresses in its
        # answer to Create are added.
        work.described = replace(
            attached,
            secondary_addresses=attached.secondary_addresses | work.seen.secondary_addresses,
            prefixes=attached.prefixes | work.seen.prefixes,
        )

    def _record(self, work: Work) -> None:
        """Record the ENI. An ENI that contradicts a row is useless, and is deleted.

        Raises: UselessEniError if it is useless; InvariantError if it contradicts a row and a comparison with EC2 does not show it on
            this instance.
        """
        eni = replace(self._enis.eni_of(work.seen, work.node), created_by_us=not work.seen.operator)
        work.eni, work.outcome = eni, f"attached {eni.eni_id} as device {eni.device_index}"
        try:
            contradictions = self._enis.record(eni, work.seen).contradictions
        except InvariantError as error:
            log.warning("ENI contradicts a row, comparing all with EC2 eni=%s error=%s", eni.eni_id, log_text(error))
            self._enis.sync_with_ec2(work.node)
            work.eni = self._datastore.eni(eni.eni_id)
            if work.eni is None and eni.eni_id not in self._enis.book.unrecorded_enis():
                raise
            if work.eni is None:
                raise UselessEniError(f"ENI {eni.eni_id} is useless and is deleted", details=log_text(error)) from error
        else:
            if contradictions:
                self._enis.sync_with_ec2(work.node)

    def _give_up(self, work: Work, error: CloudError) -> State:
        """Handle a new ENI whose attachment failed, or that is useless: move it to the next free place, or delete it.

        It is deleted if no place is left, if the error is not about its place, or if EC2 shows an ENI that was not recorded, because
        the pool may plan differently with that ENI.
        Raises: the error, unless the ENI was moved or an ENI was adopted.
        """
        self._require_unattached(work, error)
        creation, eni_id, book = work.create, work.seen.eni_id, self._enis.book
        has_news = False
        if isinstance(error, DeviceIndexTakenError):
            has_news = self._adopt_once(work)
            if self._datastore.eni(eni_id) is not None or eni_id in book.unrecorded_enis():
                raise error  # the ENI already occupies this index; the next attempt adopts it
            book.mark_taken((creation.network_card, creation.device_index))
            if creation.moves_left and not has_news:
                self._move_to_free_place(work)
                return State.NAMED
        self._delete_created(work, error)
        if not has_news and not isinstance(error, (DeviceIndexTakenError, UselessEniError)):
            has_news = self.adopt_enis(work.node)
        if has_news:
            return State.DONE  # the pool plans again with the ENIs that are attached already
        raise error

    def _require_unattached(self, work: Work, error: CloudError) -> None:
        """Check that a created ENI may be moved or deleted. Raises: the error, if the ENI may be attached or in use."""
        if isinstance(error, CloudNotFoundError) and self._is_perhaps_unseen(work):
            raise error  # EC2 does not show the new ENI yet
        if error.may_have_happened and self._log.age_s(work.intent) < UNANSWERED_MAX_S:
            raise error  # EC2 did not answer, and the ENI may be attached
        if self._datastore.eni(work.seen.eni_id) is not None:
            raise error  # it is recorded and sandboxes may use it, so it must not be deleted (I2)

    def _adopt_once(self, work: Work) -> bool:
        """Adopt ENIs that other software has attached (`adopt_enis`), but not twice in a row for the same creation. Returns: whether
        an ENI was adopted.
        """
        was_adopted_before = self._adopted_for == work.intent.intent_id
        self._adopted_for = work.intent.intent_id
        return not was_adopted_before and self.adopt_enis(work.node)

    def _move_to_free_place(self, work: Work) -> None:
        """Choose the next free device index for a created ENI, and record the choice."""
        creation = work.create
        requested = [intent.payload.get("device_index", "") for intent in self._log.all_open()]
        index = self._enis.book.free_index(
            card=creation.network_card, beside={int(text) for text in requested if text.isdecimal()}
        )
        log.warning(
            "device index taken by an ENI that EC2 does not show taken=%d eni=%s index=%d",
            creation.device_index,
            work.seen.eni_id,
            index,
        )
        self._mark(work, replace(creation, device_index=index, moves_left=creation.moves_left - 1))

    def _delete_created(self, work: Work, error: CloudError) -> None:
        """Delete an ENI that was created and could not be attached. Raises no IpamError: if the deletion fails, recovery
        finishes it.
        """
        eni_id = work.seen.eni_id
        reason = DeleteReason.USELESS if isinstance(error, UselessEniError) else DeleteReason.UNATTACHED
        log.warning("deleting an ENI eni=%s reason=%s error=%s", eni_id, reason, log_text(error))
        work.operation = Delete(eni_id, reason, creation=work.create)
        work.outcome = f"{OUTCOMES[reason]}: {log_text(error)}"
        try:
            self._walk(work, State.WITHHELD)
        except IpamError as deletion_error:  # the recovery of its intent deletes it
            log.warning("deleting an ENI failed, will retry eni=%s error=%s", eni_id, log_text(deletion_error))

    # Allocation

    def _assign(self, work: Work) -> None:
        allocation = work.operation
        assert isinstance(allocation, Assign)
        if allocation.is_of_prefixes:
            work.prefixes = self._ec2.assign_prefixes(allocation.eni_id, count=allocation.count)
        else:
            work.addresses = self._ec2.assign_addresses(allocation.eni_id, count=allocation.count)

    def _add(self, work: Work) -> None:
        allocation = work.operation
        assert isinstance(allocation, Assign)
        work.outcome = "allocated"
        result = self._enis.add_addresses(
            allocation.eni_id, work.addresses, work.prefixes, asked_count=allocation.expected_address_count
        )
        work.conflicts = result.contradictions

    def _read(self, work: Work) -> State | None:
        """Recover an allocation whose answer was lost: read the ENI's addresses from EC2. If the ENI is gone, close the intent."""
        eni = self._datastore.eni(work.intent.eni_id)
        if eni is None:
            self._log.close(work.intent, "the ENI is not ours any more")
            return State.DONE
        try:
            described = self._ec2.describe_eni(eni.eni_id)
        except CloudNotFoundError:
            self._log.close(work.intent, "the ENI does not exist any more")
            self.adopt_changes(work.node)
            return State.DONE
        added_count = self._enis.record(eni, described).added_count
        # A second /80 would be useless. So the allocation is not repeated while this answer may lag behind the call.
        if self._enis.family.is_sparse and not (described.prefixes or self._is_absent(work.intent)):
            raise CloudError(
                f"it is not known yet whether EC2 has assigned a /80 to {eni.eni_id}", details="it shows none, and is asked again"
            )
        self._backoffs.clear((NOT_VISIBLE, work.intent.intent_id))
        work.outcome = f"read back: {added_count} addresses added"
        return None

    def _close(self, work: Work) -> None:
        if isinstance(work.operation, Delete):
            work.outcome = work.outcome or OUTCOMES[work.operation.reason]
            log.warning("deletion ended eni=%s outcome=%s", work.operation.eni_id, work.outcome)
        self._log.close(work.intent, work.outcome)

    # Deletion and release

    def _look(self, work: Work) -> State | None:
        """Decide about an ENI that is to be deleted (I2).

        Returns: None if it must be detached first; DETACHED if it may be deleted now; DONE if it is kept, because it is in use or an
            AWS service manages it.
        """
        eni_id = work.delete.eni_id
        recorded = self._datastore.eni(eni_id)
        if self._keep_used(work, recorded):
            return State.DONE
        described = self._describe_leaving(work, recorded)
        work.described = described
        if self._keep_managed_or_attached(work, described, recorded):
            return State.DONE
        is_detaching = work.delete.reason is DeleteReason.RELEASED and described.attachment_status == "detaching"
        if described.attachment_id and not is_detaching:
            return None
        if recorded is not None and not described.attachment_id:
            # An earlier try detached the ENI. Its row is removed now, before the Delete, so that its place on the instance can be used
            # at once. The ENI does not leak, because the intent stays open until EC2 has deleted the ENI (I9).
            self._enis.routing.tear_down(recorded)
            with self._datastore.transaction() as uow:
                uow.remove_eni(eni_id, reason="detached, to be released")
            self._demand.trigger()
        return State.DETACHED

    def _keep_used(self, work: Work, recorded: Eni | None) -> bool:
        """Close the deletion of an ENI that is in use (I2). Returns: whether the ENI is in use."""
        reason, eni_id = work.delete.reason, work.delete.eni_id
        if recorded is not None and reason in (DeleteReason.UNATTACHED, DeleteReason.USELESS):
            self._ensure_delete_on_termination(eni_id)
            self._log.close(work.intent, "attached and recorded after all: not deleted")
            return True
        if reason is DeleteReason.RELEASED and any(row.state is not AddressState.FREE for row in self._rows(work)):
            self._restore(work, "a sandbox uses it after all: not deleted")
            return True
        return False

    def _keep_managed_or_attached(self, work: Work, described: DescribedEni, recorded: Eni | None) -> bool:
        """Close the deletion of an ENI that an AWS service manages now, or that seemed leaked but is attached. Returns: whether it was
        closed.
        """
        if described.operator:
            self._leave_to_operator(work, described)
            return True
        if work.delete.reason is DeleteReason.LEAKED and (described.attachment_id or recorded is not None):
            self._log.close(work.intent, "attached meanwhile: not deleted")
            return True
        return False

    def _describe_leaving(self, work: Work, recorded: Eni | None) -> DescribedEni:
        """Describe an ENI that is to be deleted. Raises: CloudError.

        If the answer shows a recorded ENI detached or not at all, it is believed only if we requested the detachment or the link is
        gone too, because a single answer may be stale, and sandboxes may use the ENI (I11).
        """
        is_doubted = work.delete.reason is DeleteReason.RELEASED and not work.delete.deletion_state and self._has_link(recorded)
        try:
            described = self._ec2.describe_eni(work.delete.eni_id)
        except CloudNotFoundError:
            if not is_doubted:
                raise
            described = None
        if described is None or (is_doubted and not described.attachment_id):
            raise CloudError(
                f"EC2 does not show ENI {work.delete.eni_id} attached", details="its link is on this node: EC2 is asked again"
            )
        return described

    def _has_link(self, recorded: Eni | None) -> bool:
        """Whether the kernel shows the link of a recorded ENI; False if it does not answer."""
        links = self._enis.routing.links()
        return recorded is not None and links is not None and recorded.mac in links

    def _leave_to_operator(self, work: Work, described: DescribedEni) -> None:
        """Keep an ENI that an AWS service manages now: we must not detach or delete it."""
        outcome = f"{operator_exclusion(described)}: not deleted"
        eni = self._datastore.eni(described.eni_id)
        if eni is None:
            self._log.close(work.intent, outcome)
            return
        state = EniState.ATTACHED if described.attachment_status == "attached" else eni.state
        left_eni = replace(
            eni,
            state=state,
            host_ready=False,
            managed=False,
            created_by_us=False,
            excluded=operator_exclusion(described),
        )
        self._log.close(work.intent, outcome, also=lambda uow: uow.put_eni(left_eni))

    def _ensure_delete_on_termination(self, eni_id: EniId) -> None:
        """Make EC2 delete the ENI with the instance, if the failed creation did not do that. Otherwise the ENI would outlive the node
        (I9).
        """
        try:
            described = self._ec2.describe_eni(eni_id)
            if described.attachment_id and not described.delete_on_termination and not described.operator:
                self._ec2.set_delete_on_termination(eni_id, attachment_id=described.attachment_id)
                self._failpoint("growth.marked")
        except CloudNotFoundError:
            pass  # the next comparison with EC2 removes the ENI

    def _detach(self, work: Work) -> State | None:
        self._yield_to_adds(work)
        deletion, intent_before = work.delete, work.intent
        if deletion.reason is DeleteReason.RELEASED:
            self._require_release_allowed(work)
        elif not self._guard.may_detach_unrecorded(work.intent, is_wired=lambda: self._is_wired(work.seen)):
            self._keep_attached(work)
            return State.DONE
        else:
            self._ec2.before_release = self._guard.require_unshared
        self._mark(work, replace(deletion, deletion_state=DETACHED))
        try:
            self._ec2.detach_eni(work.seen.attachment_id)
        except CloudError as error:
            if not error.may_have_happened:  # undo the mark
                work.intent = intent_before
                self._mark(work, deletion)
            raise
        return None

    def _require_release_allowed(self, work: Work) -> None:
        """Check that the release may be made now. The next call to EC2 repeats this check before each attempt. Raises: FrozenError."""
        self._ec2.before_release = partial(self._guard.require_release_allowed, work.intent)
        self._ec2.before_release()

    def _is_wired(self, eni: DescribedEni) -> bool:
        """Whether the kernel has wired an address of an ENI to a sandbox. Raises: KernelDumpError."""
        return not self._enis.wired_addresses().isdisjoint(all_addresses(eni.secondary_addresses, eni.prefixes))

    def _keep_attached(self, work: Work) -> None:
        """Record an ENI whose creation failed, instead of detaching it, because another daemon may assign its addresses (I2, I9, I20).

        Raises: FrozenError if it cannot be recorded, or if it is not known yet whether EC2 detaches it; then its intent stays open.
        """
        eni_id = work.delete.eni_id
        if work.delete.deletion_state == DETACHED:
            if not self._guard.has_settled(work.intent):
                raise FrozenError(f"ENI {eni_id} stays", details="EC2 was asked to detach it, and the outcome is not known yet")
            # EC2 did not detach the ENI. The mark is changed, because `adopt_enis` does not record an ENI with the mark DETACHED.
            self._mark(work, replace(work.delete, deletion_state="asked"))
        self.adopt_enis(work.node)
        if self._datastore.eni(eni_id) is None:
            raise FrozenError(f"ENI {eni_id} stays attached", details="it cannot be recorded, and another daemon may use it")
        self._ensure_delete_on_termination(eni_id)
        self._log.close(work.intent, "attached and recorded, as another daemon may use it: not deleted")

    def _delete(self, work: Work) -> None:
        deletion = work.delete
        if deletion.reason is DeleteReason.RELEASED:
            if work.seen.attachment_id and work.seen.attachment_status != "detaching":
                self._demand.coalesce(DETACHING_S)  # this wait ends at once when an ADD waits
        else:
            self._mark(work, replace(deletion, deletion_state=deletion.deletion_state or "asked"))
        try:
            self._yield_to_adds(work)
            self._ec2.delete_eni(deletion.eni_id)
        except CloudError as error:
            # A release has detached the ENI before this call, which cannot be undone. So the release counts as one that had an effect,
            # even if EC2 refuses the deletion (`report_refused`). The intent stays open, and a later try deletes the ENI.
            error.may_have_happened = True
            raise

    def _tear_down(self, work: Work) -> None:
        eni_id = work.delete.eni_id
        self._enis.book.record_own([eni_id], on=eni_id, is_added=False)
        eni = self._datastore.eni(eni_id)
        if eni is not None:
            self._enis.routing.tear_down(eni)

    def _unassign(self, work: Work) -> State | None:
        """Release those of the operation's addresses and prefixes that no sandbox uses. If there are none, or if the ENI is not for
        sandboxes any more, close the intent without a call.
        """
        release = work.operation
        assert isinstance(release, Unassign)
        eni = self._datastore.eni(release.eni_id)
        if eni is not None and not eni.managed:
            self._log.close(work.intent, f"not released: {eni.excluded or 'the ENI is not for sandboxes any more'}")
            return State.DONE
        work.addresses, work.prefixes = self._unused(work, release)
        if not work.addresses and not work.prefixes:
            self._log.close(work.intent, "nothing of it is left to release")
            return State.DONE
        self._require_release_allowed(work)
        self._ec2.unassign(release.eni_id, addresses=sorted(work.addresses), prefixes=sorted(work.prefixes))
        return None

    def _unused(self, work: Work, release: Unassign) -> tuple[frozenset[IpAddress], frozenset[IpNetwork]]:
        """Return the addresses of a release that are recorded and free, and its prefixes of which every recorded address is free."""
        rows = self._rows(work)
        taken = {row.address for row in rows if not row.is_free}
        recorded = {row.address for row in rows}
        prefixes = set()
        for prefix in release.prefixes:
            is_recorded = any(address in prefix for address in recorded)
            is_taken = any(address in prefix for address in taken)
            if is_recorded and not is_taken:
                prefixes.add(prefix)
        return release.addresses & (recorded - taken), frozenset(prefixes)

    def _finish(self, work: Work) -> None:
        eni_id = work.intent.eni_id
        if isinstance(work.operation, Delete):
            self._log.finish(work.intent, lambda uow: uow.remove_eni(eni_id, reason="released"))
            self.counts.update(enis=1)
            log.info("released eni=%s", eni_id)
            self._demand.trigger()  # its place on the instance is free
        else:
            gone = all_addresses(work.addresses, work.prefixes)
            # Recorded before the rows are removed, so that no comparison adds them again.
            self._enis.book.record_own(gone, on=eni_id, is_added=False)

            def forget(uow: UnitOfWork) -> None:
                still_free = [row.address for row in self._rows(work) if row.is_free and row.address in gone]
                uow.remove_addresses(still_free, reason="released")

            self._log.finish(work.intent, forget)
            self.counts.update(addresses=len(work.addresses), prefixes=len(work.prefixes))
            log.info("released eni=%s addresses=%s", eni_id, " ".join(map(str, [*work.addresses, *work.prefixes])))
        self.end_refusal(part_of(work))

    def _yield_to_adds(self, work: Work) -> None:
        if work.delete.reason is DeleteReason.RELEASED and self._demand.waiting()[0]:
            raise InterruptedByAddError(f"deleting ENI {work.delete.eni_id} is postponed", details="an ADD waits")

    def _undo(self, work: Work, error: CloudError) -> None:
        """Undo a release that EC2 refused, or that a freeze stopped: sandboxes may use its addresses again.

        If this was the first try, nothing was released. An earlier try may have released some addresses. Then the release is undone
        only after a denial or a freeze, and only if that try is so long ago that Describe shows its effect. Addresses that Describe
        does not show are then removed.

        Raises: CloudError.
        """
        if error.may_have_happened or not (work.is_first or self._is_settled(work, error)):
            return
        if not work.is_first:
            if not self._remove_released(work):
                return
            if not isinstance(error, FrozenError):  # the freeze is a condition of its own
                self.report_refused(error, of=part_of(work))
        self._restore(work, f"not done: {log_text(error)}")

    def _remove_released(self, work: Work) -> bool:
        """Remove the addresses that an earlier try released according to EC2. Returns: False if the release cannot be undone now.

        Raises: CloudError.
        """
        try:
            described = self._ec2.describe_eni(work.intent.eni_id)
            is_attached = described.attachment_status == "attached"
            present = all_addresses(described.secondary_addresses, described.prefixes)
        except CloudNotFoundError:
            if self._has_link(self._datastore.eni(work.intent.eni_id)):
                return False  # a single answer, which the ENI's link contradicts
            is_attached, present = False, frozenset()
        if not isinstance(work.operation, Unassign):
            return is_attached  # if the ENI is not attached, its deletion has begun and cannot be undone
        gone = [row.address for row in self._rows(work) if row.is_free and row.address not in present]
        with self._datastore.transaction() as uow:
            uow.remove_addresses(gone, reason="released")
        return True

    def _is_settled(self, work: Work, error: CloudError) -> bool:
        """Whether Describe surely shows the outcome of an earlier try by now. False after errors other than a freeze or a denial."""
        if isinstance(error, FrozenError):
            return self._guard.has_settled(work.intent)
        return isinstance(error, CloudDeniedError) and self._log.age_s(work.intent) >= RECENT_S

    def _restore(self, work: Work, outcome: str) -> None:
        """Close the intent of a release that will not be made: sandboxes may use its addresses again."""
        eni = self._datastore.eni(work.intent.eni_id)
        if isinstance(work.operation, Delete) and eni is not None:
            back = replace(eni, state=EniState.ATTACHED, host_ready=False)
            self._log.close(work.intent, outcome, also=lambda uow: uow.put_eni(back))
            self._enis.routing.set_up_again(eni.eni_id)
        else:
            self._log.close(work.intent, outcome)
        self._demand.announce_supply()

    def _rows(self, work: Work) -> list[Address]:
        """Return the rows of a release: of its addresses and prefixes, or of the whole ENI."""
        rows = [row for row in self._datastore.addresses() if row.eni_id == work.intent.eni_id]
        release = work.operation
        if not isinstance(release, Unassign):
            return rows
        addresses = all_addresses(release.addresses, release.prefixes)
        return [row for row in rows if row.address in addresses or row.prefix in release.prefixes]

    def _is_perhaps_unseen(self, work: Work) -> bool:
        """Whether NotFound may mean that Describe lags behind our Create."""
        is_old_eni = isinstance(work.operation, Delete) and work.operation.reason in (DeleteReason.RELEASED, DeleteReason.LEAKED)
        return not is_old_eni and self._log.age_s(work.intent) < GONE_AFTER_S

    # Comparisons after a refusal of EC2, so that the next plan takes ENIs and addresses of other programs into account. One Describe
    # per refused action (I13).

    def adopt_changes(self, identity: InstanceIdentity) -> bool:
        """Compare with EC2 after a refused allocation, because other software may have filled or detached the ENI. Returns: whether
        the datastore changed.
        """
        before = self._datastore.enis(), self._datastore.counts().total
        return self.adopt_enis(identity) or before != (self._datastore.enis(), self._datastore.counts().total)

    def adopt_enis(self, identity: InstanceIdentity) -> bool:
        """Compare with EC2 after a refusal. ENIs that another tool attached are adopted or counted, so that an attach is not
        retried for ever (amazon-vpc-cni-k8s issue 3833).

        Returns: whether an ENI was adopted.
        """
        try:
            outcome = self._enis.sync_with_ec2(identity)
        except IpamError as error:
            log.warning("listing attached ENIs failed error=%s", log_text(error))
            return False
        if outcome.adopted:
            log.warning("adopted ENIs of another tool enis=%s", ", ".join(sorted(outcome.adopted)))
        self._enis.set_up_adopted(outcome)
        return bool(outcome.adopted)

    def report_refused(self, error: IpamError, *, of: str) -> None:
        """Report that EC2 refused to release ENIs or addresses. `of`: ENIS or ADDRESSES. `end_refusal` ends the report."""
        is_begun = isinstance(error, CloudError) and error.may_have_happened
        code = ConditionCode.RELEASE_UNCERTAIN if is_begun else ConditionCode.RELEASE_REFUSED
        self._refused[of].report(problem(code, cause=log_text(error)), error=error)

    def end_refusal(self, *of: str) -> None:
        """End the reports about these kinds: EC2 has released objects again, or there is no surplus any more."""
        for part in of:
            self._refused[part].report(None)


def part_of(work: Work) -> str:
    """Return which part of the condition a release belongs to: ENIS or ADDRESSES."""
    if isinstance(work.operation, Unassign):
        return ADDRESSES
    return ENIS
