"""Define what follows each answer of EC2 to an operation: one table of states, for the first run and for recovery after a restart.

Each row has the call, the failpoint after it, the next state, and the reaction to each kind of failure. `ipamd/eni/steps.py` walks the
table, and nothing else decides what an answer of EC2 means. Rejected: a state machine for each operation, of which three deleted an
ENI, each with its own treatment of "not found". Guards I9: an intent is on disk before the first call, and is closed after the answer
is stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from enum import Enum, auto

from ipamd.core.backoffs import soonest_s
from ipamd.core.context import Service
from ipamd.model.cloud import INTENT_TAG, DescribedEni
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.errors import CloudDeniedError, CloudError, CloudNotFoundError, ThrottledError
from ipamd.model.intent import OPENED_AT, SETTLED_AT, Assign, Create, Delete, DeleteReason, Intent, Operation, Unassign, encoded
from ipamd.model.record import dataclass, replace
from ipamd.ports.datastore import UnitOfWork

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
    "growth.detached",
    "growth.deleted",
    "growth.marked",
    "release.intent-opened",
    "release.unassigned",
    "release.detached",
    "release.deleted",
    "release.torn-down",
    "release.stored",
    "leaked.deleted",
)
"""One failpoint between every two effects. `growth.named`: the ID of the new ENI was stored in the intent."""

GONE_AFTER_S = 60.0
"""EC2's NotFound for the ENI of an intent is believed only if the intent is at least this old. Before that, Describe may lag behind
Create. Ours: twice the time for which the adapter repeats a call after NotFound (cloud/calls.py, FRESH_S). A crash ends these
repetitions, so the age of the intent must take their place."""


class State(Enum):
    """The progress of an operation."""

    ASKED = auto()  # its intent is on disk, and no call was made yet
    UNANSWERED = auto()  # the call may have taken effect: its answer was lost, or the process ended before the answer
    UNREPEATABLE = auto()  # the call may have taken effect, and cannot be repeated
    FOUND = auto()  # after a restart: the intent has the ID of the ENI, but the progress is not known
    MADE = auto()  # EC2 has created the ENI
    NAMED = auto()  # the intent has the ID of the ENI
    ATTACHED = auto()
    ENDING = auto()  # DeleteOnTermination is set: EC2 will delete the ENI when the instance is terminated
    SHOWN = auto()  # EC2 has shown the result
    RECORDED = auto()  # the datastore has the result
    WITHHELD = auto()  # no sandbox can get the addresses that are to be released
    DETACHED = auto()
    DELETED = auto()
    SETTLED = auto()  # EC2 has released the ENI or addresses; the datastore still has the rows
    DONE = auto()


class Call(Enum):
    """The action of a state; `OperationRunner` has a method for each.

    ASSIGN and UNASSIGN are EC2's names (AssignPrivateIpAddresses); elsewhere we say that addresses are allocated and released.
    """

    LOOK = auto()  # find out from EC2 and the rows whether an ENI that is to be deleted must be detached first, or kept
    DETACH = auto()
    DELETE = auto()
    TEAR_DOWN = auto()  # remove the host's routing of a deleted ENI
    CLOSE = auto()  # close the intent
    CREATE = auto()
    SEARCH = auto()  # find the ENI that a creation may have made, by the tag with its token
    DESCRIBE = auto()  # have EC2 describe the ENI whose ID the intent has
    NAME = auto()  # store the ID of the new ENI in the intent
    ATTACH = auto()
    SET_DELETE_ON_TERMINATION = auto()
    SHOW = auto()  # have Describe confirm that the ENI is attached
    RECORD = auto()  # store the ENI and its addresses
    ASSIGN = auto()  # have EC2 allocate addresses or prefixes on an ENI
    ADD = auto()  # store these addresses
    READ = auto()  # read the addresses of an ENI from EC2, because the answer to ASSIGN was lost
    UNASSIGN = auto()  # have EC2 release addresses and prefixes
    FINISH = auto()  # remove the rows of the addresses and prefixes that EC2 has released


class OnFailure(Enum):
    """The reaction to a failed call."""

    WAIT = auto()  # keep the intent open, and retry after a pause
    CLOSE = auto()  # close the intent: this was the first call, and it had no effect
    SEARCH = auto()  # search for the ENI: the refusal of a repeated call does not show whether the first one created it
    GIVE_UP = auto()  # the new ENI cannot be attached: choose another device index for it, or delete it
    UNDO = auto()  # let sandboxes use the addresses again: nothing was released
    GONE = auto()  # go on: the object was deleted already


@dataclass(frozen=True, slots=True)
class StateRule:
    """One row of the table: the action of a state, the next state, and the reactions to failures.

    `call`: the action.
    `then`: the next state, if the action succeeds and names no other state.
    `failpoint`: the point after the action at which a test may kill the daemon.
    `refused`: the reaction to a definite error of EC2, including a denial.
    `missing`: the reaction to NotFound.
    `throttled`: the reaction to a call that EC2 throttled.
    `silence`: the reaction to a call that may have taken effect.
    """

    call: Call
    then: State
    failpoint: str = ""
    refused: OnFailure = OnFailure.WAIT
    missing: OnFailure = OnFailure.WAIT
    throttled: OnFailure = OnFailure.WAIT
    silence: OnFailure = OnFailure.WAIT

    def on(self, error: CloudError) -> OnFailure:
        """Return the reaction of this rule to an error of its call."""
        if isinstance(error, CloudNotFoundError):
            return self.missing
        if isinstance(error, ThrottledError):
            return self.throttled
        if error.may_have_happened:
            return self.silence
        return self.refused


def _first(call: Call, then: State, failpoint: str) -> StateRule:
    """Make the row of the first call of an operation. A definite refusal shows that nothing was done, so the intent is closed."""
    return StateRule(call, then, failpoint, refused=OnFailure.CLOSE, missing=OnFailure.CLOSE, throttled=OnFailure.CLOSE)


def _growing(call: Call, then: State, failpoint: str = "") -> StateRule:
    """Make the row of a call after the creation of an ENI. If the call fails, except by throttling, the ENI is given up, so that it
    does not leak.
    """
    return StateRule(call, then, failpoint, refused=OnFailure.GIVE_UP, missing=OnFailure.GIVE_UP, silence=OnFailure.GIVE_UP)


def _undoable(call: Call, then: State, failpoint: str = "", *, missing: OnFailure = OnFailure.GONE) -> StateRule:
    """Make the row of a call before which a release has had no effect: if EC2 refuses the call, the release is undone."""
    return StateRule(call, then, failpoint, refused=OnFailure.UNDO, missing=missing, throttled=OnFailure.UNDO)


_UNUSED = {
    State.WITHHELD: StateRule(Call.LOOK, State.ATTACHED, missing=OnFailure.GONE),
    State.ATTACHED: StateRule(Call.DETACH, State.DETACHED, "growth.detached", missing=OnFailure.GONE),
    State.DETACHED: StateRule(Call.DELETE, State.DELETED, "growth.deleted", missing=OnFailure.GONE),
    State.DELETED: StateRule(Call.TEAR_DOWN, State.SETTLED),
    State.SETTLED: StateRule(Call.CLOSE, State.DONE),
}
"""The deletion of an ENI that no row names: no row is removed at the end, and a refusal undoes nothing."""

TABLE: Mapping[type[Operation] | DeleteReason, Mapping[State, StateRule]] = {
    Create: {
        State.ASKED: _first(Call.CREATE, State.MADE, "growth.created"),
        State.UNANSWERED: StateRule(
            Call.CREATE, State.MADE, "growth.created", refused=OnFailure.SEARCH, missing=OnFailure.SEARCH
        ),
        State.UNREPEATABLE: StateRule(Call.SEARCH, State.MADE, "growth.created"),
        State.FOUND: StateRule(Call.DESCRIBE, State.MADE, "growth.created"),
        State.MADE: StateRule(Call.NAME, State.NAMED, "growth.named"),
        State.NAMED: _growing(Call.ATTACH, State.ATTACHED, "growth.attach-asked"),
        State.ATTACHED: _growing(Call.SET_DELETE_ON_TERMINATION, State.ENDING),
        State.ENDING: _growing(Call.SHOW, State.SHOWN, "growth.attached"),
        State.SHOWN: StateRule(Call.RECORD, State.RECORDED, "growth.stored", refused=OnFailure.GIVE_UP),
        State.RECORDED: StateRule(Call.CLOSE, State.DONE),
    },
    Assign: {
        State.ASKED: _first(Call.ASSIGN, State.SHOWN, "growth.allocated"),
        State.SHOWN: StateRule(Call.ADD, State.RECORDED),
        State.UNANSWERED: StateRule(Call.READ, State.RECORDED),
        State.RECORDED: StateRule(Call.CLOSE, State.DONE),
    },
    Unassign: {
        State.WITHHELD: _undoable(Call.UNASSIGN, State.SETTLED, "release.unassigned", missing=OnFailure.UNDO),
        State.SETTLED: StateRule(Call.FINISH, State.DONE, "release.stored"),
    },
    DeleteReason.RELEASED: {
        State.WITHHELD: _undoable(Call.LOOK, State.ATTACHED),
        State.ATTACHED: _undoable(Call.DETACH, State.DETACHED, "release.detached"),
        State.DETACHED: StateRule(Call.DELETE, State.DELETED, "release.deleted", missing=OnFailure.GONE),
        State.DELETED: StateRule(Call.TEAR_DOWN, State.SETTLED, "release.torn-down"),
        State.SETTLED: StateRule(Call.FINISH, State.DONE, "release.stored"),
    },
    DeleteReason.UNATTACHED: _UNUSED,
    DeleteReason.USELESS: _UNUSED,
    DeleteReason.LEAKED: {
        **_UNUSED,
        State.DETACHED: StateRule(Call.DELETE, State.DELETED, "leaked.deleted", missing=OnFailure.GONE),
    },
}


def rows_of(operation: Operation) -> Mapping[State, StateRule]:
    """Return the part of TABLE for an operation: the rule of each of its states."""
    return TABLE[operation.reason if isinstance(operation, Delete) else type(operation)]


def state_of(operation: Operation, *, is_first: bool) -> State:
    """Return the state in which an operation begins (`is_first`), or is resumed after a failure or a restart."""
    match operation:
        case Unassign() | Delete():
            return State.WITHHELD
        case Create() if operation.eni_id:
            return State.FOUND
        case Create() if operation.refused:
            return State.UNREPEATABLE
    if is_first:
        return State.ASKED
    return State.UNANSWERED


def is_denied(error: BaseException | None, intent: Intent) -> bool:
    """Whether IAM denied an operation.

    A denied creation that may have taken effect does not count as denied: its first attempt may have created the ENI, and an ADD may
    wait for that ENI.
    """
    return isinstance(error, CloudDeniedError) and (intent.is_release or not error.may_have_happened)


class OperationLog(Service):
    """Opens, updates and closes intents. Every change is a transaction of its own, which is committed when the method returns."""

    def all_open(self) -> tuple[Intent, ...]:
        """Return the intents whose outcome at EC2 is not known, oldest first: the open ones without those that are settled."""
        return tuple(intent for intent in self._datastore.open_intents() if not intent.is_settled)

    def is_about(self, eni: DescribedEni) -> bool:
        """Whether an open intent is about this ENI. After an unanswered creation only the ENI's tag shows that."""
        tag = eni.tags.get(INTENT_TAG)
        return any(eni.eni_id == intent.eni_id or tag == intent.client_token for intent in self.all_open())

    def open(self, operation: Operation, *, token: str = "", also: Callable[[UnitOfWork], None] | None = None) -> Intent:
        """Open the intent of an operation.

        `token`: the token of the request to EC2; "": a new one is made.
        `also`: a further change in the same transaction.
        Raises: InvariantError if the operation releases an address that is not free; then nothing is stored.
        """
        token = token or new_token()
        kind, payload = encoded(operation)
        payload |= {OPENED_AT: repr(self._clock.monotonic())}
        intent = Intent(token, kind, self._clock.now(), payload, client_token=token)
        with self._datastore.transaction() as uow:
            uow.open_intent(intent)
            if also is not None:
                also(uow)
        is_release = intent.is_release and not (isinstance(operation, Delete) and operation.reason is DeleteReason.LEAKED)
        self._failpoint("release.intent-opened" if is_release else "growth.intent-opened")
        return intent

    def mark(self, intent: Intent, operation: Operation) -> Intent:
        """Store the progress of an operation. Returns: the intent as it is now."""
        marked = replace(intent, payload={**intent.payload, **encoded(operation)[1]})
        with self._datastore.transaction() as uow:
            uow.update_intent(marked)
        return marked

    def close(self, intent: Intent, outcome: str, *, also: Callable[[UnitOfWork], None] | None = None) -> None:
        """Close an intent, and record its outcome. `also`: a further change in the same transaction."""
        with self._datastore.transaction() as uow:
            uow.close_intent(intent.intent_id, outcome=outcome)
            if also is not None:
                also(uow)
        self._failpoint("growth.intent-closed")

    def finish(self, intent: Intent, forget: Callable[[UnitOfWork], None]) -> None:
        """Store that EC2 has released the objects of an intent; `forget` removes their rows. The intent stays until Describe cannot
        show them any more.
        """
        payload = {**intent.payload, SETTLED_AT: repr(self._clock.monotonic())}
        with self._datastore.transaction() as uow:
            forget(uow)
            uow.update_intent(replace(intent, payload=payload))

    def close_old(self) -> None:
        """Close the settled intents whose objects Describe cannot show any more. No EC2 call."""
        old = [intent for intent in self._datastore.open_intents() if intent.is_settled and self._finished_left_s(intent) <= 0]
        if old:
            with self._datastore.transaction() as uow:
                for intent in old:
                    uow.close_intent(intent.intent_id, outcome="released")

    def close_old_in_s(self) -> float | None:
        """Seconds until `close_old` has something to do; None if no intent is settled."""
        return soonest_s(
            max(self._finished_left_s(intent), 0.0) for intent in self._datastore.open_intents() if intent.is_settled
        )

    def age_s(self, intent: Intent) -> float:
        """Seconds since an intent was opened."""
        return self._clock.monotonic() - float(intent.payload[OPENED_AT])

    def opened_at_s(self, intent: Intent) -> float:
        """Return when an intent was opened, on the monotonic clock of this boot.

        It is 0.0 if the recorded time is missing, malformed or in the future. Then the intent counts as older than every sighting of
        amazon-vpc-cni-k8s. No intent is of an earlier boot, because a datastore of an earlier boot is not used.
        """
        try:
            opened_s = float(intent.payload[OPENED_AT])
        except (KeyError, ValueError):
            return 0.0
        if opened_s <= self._clock.monotonic():
            return opened_s
        return 0.0

    def _finished_left_s(self, intent: Intent) -> float:
        try:
            return float(intent.payload[SETTLED_AT]) + RECENT_S - self._clock.monotonic()
        except ValueError:
            return 0.0  # a malformed value: the intent may be closed now


def new_token() -> str:
    """Make a token that no other request has. EC2 takes up to 64 characters."""
    return str(uuid.uuid4())
