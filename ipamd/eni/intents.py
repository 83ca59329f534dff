"""The log of intents: what is about to be asked of EC2, written before the call and closed after its answer is stored (I9).

A crash or a lost answer leaves an intent open; it is recovered beside further growth (`recovery.py`). Its token makes a replay
idempotent, and is on disk before EC2 has seen it.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace

from ipamd.core.backoff import soonest_s
from ipamd.core.context import ServiceContext
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.errors import CloudError, log_text
from ipamd.model.intent import SETTLED_AT, Intent, IntentKind
from ipamd.ports import UnitOfWork

GONE_AFTER_S = 60.0
"""Age of an intent from which EC2's NotFound of its ENI is believed; before, it is the lag of Describe behind Create. Ours: twice
the time that the adapter looks again (cloud/ec2.py, FRESH_S), which a restart forgets."""

OPENED_AT = "opened_at_monotonic_s"
"""Key in an intent's payload: when it was opened, on the monotonic clock, which continues across restarts and is not stepped."""

REFUSED = "refused"
"""Key in an intent's payload: what EC2 said when it refused to repeat the call. From then on it is searched for what the call made."""


def new_token() -> str:
    """Make a token that no other request has. EC2 takes up to 64 characters."""
    return str(uuid.uuid4())


class IntentLog:
    """Opens, marks and closes intents; every change is a transaction of its own."""

    def __init__(self, context: ServiceContext, *, new_token: Callable[[], str] = new_token) -> None:
        self._datastore = context.datastore
        self._clock = context.clock
        self._failpoint = context.failpoint
        self._new_token = new_token

    def all_open(self) -> tuple[Intent, ...]:
        """Intents whose outcome at EC2 is not known, oldest first."""
        return tuple(intent for intent in self._datastore.open_intents() if not intent.is_settled)

    def is_open(self, intent: Intent) -> bool:
        """Whether an intent is still open."""
        return any(one.intent_id == intent.intent_id for one in self.all_open())

    def new_token(self) -> str:
        """Make a token for `open`, for a request that must carry it elsewhere too."""
        return self._new_token()

    def open(
        self,
        kind: IntentKind,
        payload: Mapping[str, str],
        *,
        token: str = "",
        also: Callable[[UnitOfWork], None] | None = None,
        point: str = "growth.intent-opened",
    ) -> Intent:
        """Record what is about to be asked, under a new token unless one is given; on disk when this returns.

        `also`: a change in the same transaction. `point`: the failpoint behind it.
        Raises: InvariantError if it gives back what somebody has; then nothing is recorded.
        """
        token = token or self._new_token()
        payload = {**payload, OPENED_AT: repr(self._clock.monotonic())}
        intent = Intent(token, kind, self._clock.now(), payload, client_token=token)
        with self._datastore.transaction() as uow:
            uow.open_intent(intent)
            if also is not None:
                also(uow)
        self._failpoint(point)
        return intent

    def mark(self, intent: Intent, **learnt: str) -> Intent:
        """Add what was learnt on the way; returns the intent as it stands now."""
        intent = replace(intent, payload={**intent.payload, **learnt})
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

    def settle(self, intent: Intent, forget: Callable[[UnitOfWork], None]) -> None:
        """Store that EC2 took back what an intent names: `forget` removes the rows. It is kept while Describe may show it still."""
        payload = {**intent.payload, SETTLED_AT: repr(self._clock.monotonic())}
        with self._datastore.transaction() as uow:
            forget(uow)
            uow.update_intent(replace(intent, payload=payload))

    def close_old(self) -> None:
        """Close the settled intents of which Describe must have caught up; no EC2 call."""
        old = [intent for intent in self._datastore.open_intents() if intent.is_settled and self._settled_left_s(intent) <= 0]
        if old:
            with self._datastore.transaction() as uow:
                for intent in old:
                    uow.close_intent(intent.intent_id, outcome="given back")

    def close_old_in_s(self) -> float | None:
        """Seconds until `close_old` has something to do; None if no intent is settled."""
        return soonest_s(max(self._settled_left_s(intent), 0.0) for intent in self._datastore.open_intents() if intent.is_settled)

    def _settled_left_s(self, intent: Intent) -> float:
        try:
            return float(intent.payload[SETTLED_AT]) + RECENT_S - self._clock.monotonic()
        except ValueError:
            return 0.0  # another release wrote it: it only reminds, and goes

    def close_if_refused(self, intent: Intent, error: CloudError) -> None:
        """Close an intent whose first call EC2 refused, if that is sure to have changed nothing; else its outcome is unknown."""
        if not error.may_have_happened:
            self.close(intent, f"refused: {log_text(error)}")

    def is_too_new_to_be_gone(self, intent: Intent) -> bool:
        """Whether EC2 may answer NotFound only because of its eventual consistency, which proves nothing (I9, I11)."""
        return self.age_s(intent) < GONE_AFTER_S

    def age_s(self, intent: Intent) -> float:
        """Seconds since an intent was opened."""
        return self._clock.monotonic() - float(intent.payload[OPENED_AT])
