"""What becomes of an operation on EC2: one table of states, for the first run and for recovery after a restart alike.

Each row: the call, the failpoint behind it, the state that it leads to, and what follows each way of failing. `ipamd/eni/steps.py`
walks the table; nothing else decides what an answer of EC2 means. Rejected: a machine for each operation, because "delete an ENI"
was three of them, and each had its own view of "not found". Guards I9: an intent is on disk before the first call, and is closed after
the answer is stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from enum import Enum, auto

from ipamd.core.agenda import soonest_s
from ipamd.core.context import Service
from ipamd.model.cloud import INTENT_TAG, DescribedEni
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.errors import CloudDeniedError, CloudError, CloudNotFoundError, ThrottledError
from ipamd.model.intent import OPENED_AT, SETTLED_AT, Assign, Create, Delete, Intent, Operation, Unassign, Why, encoded
from ipamd.model.record import dataclass, replace
from ipamd.ports import UnitOfWork

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
"""Between every two effects; `named`: the intent knows the ENI."""

GONE_AFTER_S = 60.0
"""Age of an intent from which EC2's NotFound of its ENI is believed; before, it is the lag of Describe behind Create. Ours: twice
the time that the adapter looks again (cloud/ec2.py, FRESH_S), which a restart forgets."""


class State(Enum):
    """How far an operation has come."""

    ASKED = auto()  # its intent is on disk, and nothing came before this process's first call
    UNANSWERED = auto()  # EC2 may have done it: the answer was lost, or the process was
    UNREPEATABLE = auto()  # the same, and EC2 refuses to repeat the call
    FOUND = auto()  # the intent names the ENI; how far it came is not known
    MADE = auto()
    NAMED = auto()
    ATTACHED = auto()
    ENDING = auto()  # EC2 deletes it with the instance
    SHOWN = auto()
    RECORDED = auto()
    HELD = auto()  # nobody can have what is released
    DETACHED = auto()
    DELETED = auto()
    SETTLED = auto()
    DONE = auto()


class Then(Enum):
    """What follows a failed call."""

    WAIT = auto()  # the intent stays open, and is tried again after a pause
    CLOSE = auto()  # nothing came before this call, and it did nothing: the intent is closed
    SEARCH = auto()  # it says nothing about the call that is repeated: what that made is searched for
    GIVE_UP = auto()  # an ENI that cannot be attached: another place, or deleted
    UNDO = auto()  # nothing was released: sandboxes may have it again
    GONE = auto()  # what is to go is gone


@dataclass(frozen=True, slots=True)
class Row:
    """One state: what `Steps` does, by the name of its method, and what follows. A denial is a refusal; a call that may have happened
    is silence."""

    call: str
    then: State
    failpoint: str = ""
    refused: Then = Then.WAIT
    not_found: Then = Then.WAIT
    throttled: Then = Then.WAIT
    silence: Then = Then.WAIT

    def on(self, error: CloudError) -> Then:
        """What follows an error."""
        if isinstance(error, CloudNotFoundError):
            return self.not_found
        if isinstance(error, ThrottledError):
            return self.throttled
        return self.silence if error.may_have_happened else self.refused


def _first(call: str, then: State, failpoint: str) -> Row:
    """A first call: a definite refusal is believed."""
    return Row(call, then, failpoint, refused=Then.CLOSE, not_found=Then.CLOSE, throttled=Then.CLOSE)


def _growing(call: str, then: State, failpoint: str = "") -> Row:
    """A call about an ENI that was made, and must not leak."""
    return Row(call, then, failpoint, refused=Then.GIVE_UP, not_found=Then.GIVE_UP, silence=Then.GIVE_UP)


def _undoable(call: str, then: State, failpoint: str = "", *, not_found: Then = Then.GONE) -> Row:
    """A call before which nothing was released."""
    return Row(call, then, failpoint, refused=Then.UNDO, not_found=not_found, throttled=Then.UNDO)


_UNUSED = {
    State.HELD: Row("look", State.ATTACHED, not_found=Then.GONE),
    State.ATTACHED: Row("detach", State.DETACHED, "growth.detached", not_found=Then.GONE),
    State.DETACHED: Row("delete", State.DELETED, "growth.deleted", not_found=Then.GONE),
    State.DELETED: Row("tear_down", State.SETTLED),
    State.SETTLED: Row("close", State.DONE),
}

TABLE: Mapping[type[Operation] | Why, Mapping[State, Row]] = {
    Create: {
        State.ASKED: _first("create", State.MADE, "growth.created"),
        State.UNANSWERED: Row("create", State.MADE, "growth.created", refused=Then.SEARCH, not_found=Then.SEARCH),
        State.UNREPEATABLE: Row("search", State.MADE, "growth.created"),
        State.FOUND: Row("describe", State.MADE, "growth.created"),
        State.MADE: Row("name", State.NAMED, "growth.named"),
        State.NAMED: _growing("attach", State.ATTACHED, "growth.attach-asked"),
        State.ATTACHED: _growing("set_delete_on_termination", State.ENDING),
        State.ENDING: _growing("show", State.SHOWN, "growth.attached"),
        State.SHOWN: Row("record", State.RECORDED, "growth.stored", refused=Then.GIVE_UP),
        State.RECORDED: Row("close", State.DONE),
    },
    Assign: {
        State.ASKED: _first("assign", State.SHOWN, "growth.allocated"),
        State.SHOWN: Row("add", State.RECORDED),
        State.UNANSWERED: Row("read", State.RECORDED),
        State.RECORDED: Row("close", State.DONE),
    },
    Unassign: {
        State.HELD: _undoable("unassign", State.SETTLED, "release.unassigned", not_found=Then.UNDO),
        State.SETTLED: Row("settle", State.DONE, "release.stored"),
    },
    Why.RELEASED: {
        State.HELD: _undoable("look", State.ATTACHED),
        State.ATTACHED: _undoable("detach", State.DETACHED, "release.detached"),
        State.DETACHED: Row("delete", State.DELETED, "release.deleted", not_found=Then.GONE),
        State.DELETED: Row("tear_down", State.SETTLED, "release.torn-down"),
        State.SETTLED: Row("settle", State.DONE, "release.stored"),
    },
    Why.UNATTACHED: _UNUSED,
    Why.USELESS: _UNUSED,
    Why.LEAKED: {**_UNUSED, State.DETACHED: Row("delete", State.DELETED, "leaked.deleted", not_found=Then.GONE)},
}


def rows_of(operation: Operation) -> Mapping[State, Row]:
    """The rows of an operation."""
    return TABLE[operation.why if isinstance(operation, Delete) else type(operation)]


def state_of(operation: Operation, *, is_first: bool) -> State:
    """Where an operation begins, or where it is taken up again."""
    match operation:
        case Unassign() | Delete():
            return State.HELD
        case Create() if operation.eni_id:
            return State.FOUND
        case Create() if operation.refused:
            return State.UNREPEATABLE
    return State.ASKED if is_first else State.UNANSWERED


def is_denied(error: BaseException | None, intent: Intent) -> bool:
    """Whether IAM denied it. An ADD may wait for what a creation has made perhaps, before the adapter's repetition was denied."""
    return isinstance(error, CloudDeniedError) and (intent.is_release or not error.may_have_happened)


class OperationLog(Service):
    """Opens, marks and closes intents; every change is a transaction of its own, on disk when the method returns."""

    def all_open(self) -> tuple[Intent, ...]:
        """Intents whose outcome at EC2 is not known, oldest first."""
        return tuple(intent for intent in self._datastore.open_intents() if not intent.is_settled)

    def is_about(self, eni: DescribedEni) -> bool:
        """Whether an open intent makes or deletes an ENI; one whose creation was not answered is known by its tag."""
        return any(eni.eni_id == one.eni_id or eni.tags.get(INTENT_TAG) == one.client_token for one in self.all_open())

    def open(self, operation: Operation, *, token: str = "", also: Callable[[UnitOfWork], None] | None = None) -> Intent:
        """Record what is about to be asked, under a new token unless one is given. `also`: a change in the same transaction.

        Raises: InvariantError if it releases what somebody has; then nothing is recorded.
        """
        token = token or new_token()
        kind, payload = encoded(operation)
        payload |= {OPENED_AT: repr(self._clock.monotonic())}
        intent = Intent(token, kind, self._clock.now(), payload, client_token=token)
        with self._datastore.transaction() as uow:
            uow.open_intent(intent)
            if also is not None:
                also(uow)
        is_release = intent.is_release and not (isinstance(operation, Delete) and operation.why is Why.LEAKED)
        self._failpoint("release.intent-opened" if is_release else "growth.intent-opened")
        return intent

    def mark(self, intent: Intent, operation: Operation) -> Intent:
        """Record how far an operation has come; returns the intent as it stands now."""
        intent = replace(intent, payload={**intent.payload, **encoded(operation)[1]})
        with self._datastore.transaction() as uow:
            uow.update_intent(intent)
        return intent

    def close(self, intent: Intent, outcome: str, *, also: Callable[[UnitOfWork], None] | None = None) -> None:
        """Close an intent with its outcome, and with a change in the same transaction."""
        with self._datastore.transaction() as uow:
            uow.close_intent(intent.intent_id, outcome=outcome)
            if also is not None:
                also(uow)
        self._failpoint("growth.intent-closed")

    def finish(self, intent: Intent, forget: Callable[[UnitOfWork], None]) -> None:
        """Store that EC2 took back what an intent names: `forget` removes the rows. It is kept while Describe may show it still."""
        payload = {**intent.payload, SETTLED_AT: repr(self._clock.monotonic())}
        with self._datastore.transaction() as uow:
            forget(uow)
            uow.update_intent(replace(intent, payload=payload))

    def close_old(self) -> None:
        """Close the settled intents of which Describe must have caught up; no EC2 call."""
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

    def _finished_left_s(self, intent: Intent) -> float:
        try:
            return float(intent.payload[SETTLED_AT]) + RECENT_S - self._clock.monotonic()
        except ValueError:
            return 0.0  # another release wrote it: it only reminds, and goes


def new_token() -> str:
    """Make a token that no other request has. EC2 takes up to 64 characters."""
    return str(uuid.uuid4())
