"""Recover what a crash or a lost answer left open, each intent by itself: one that stays open delays no other, and no growth.

Until its outcome is known an intent counts as if EC2 had done what was asked, so that it is not asked for twice (I9, I13).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from ipamd.core.backoff import Retry, soonest_s
from ipamd.core.lesson import ERROR_PAUSE_FIRST_S, ERROR_PAUSE_MAX_S, denial
from ipamd.core.odd_objects import OddObjects
from ipamd.eni.intents import REFUSED, IntentLog
from ipamd.eni.releasing import DELETING
from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.errors import CloudDeniedError, IpamError, ThrottledError, log_text
from ipamd.model.growth import GrowthState, PendingEni
from ipamd.model.ids import EniId
from ipamd.model.intent import Intent, IntentKind
from ipamd.ports import Clock, Datastore

RELEASES = (IntentKind.UNASSIGN, IntentKind.DELETE_ENI)
"""What gives back: no ADD waits for it."""

NUMBERS = {IntentKind.CREATE_ENI: ("device_index", "address_count", "prefix_count"), IntentKind.ASSIGN: ("count",)}
"""Decimal numbers in the payload of each kind."""

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Attempts:
    retry: Retry = field(default_factory=lambda: Retry(first_s=ERROR_PAUSE_FIRST_S, max_s=ERROR_PAUSE_MAX_S))
    error: IpamError | None = None


class IntentRecovery:
    """Tries open intents, each after its own pauses; those that IAM denied share one pause, after which one of them is tried, each in
    its turn. Used by the provisioner's thread. `denial`: what IAM denied of them, and of giving back."""

    def __init__(
        self, intents: IntentLog, *, datastore: Datastore, clock: Clock, odd: OddObjects, resume: Callable[[Intent], None]
    ) -> None:
        """`resume` finds out what EC2 did and finishes or undoes it. Raises: IpamError if that is not possible yet."""
        self._intents = intents
        self._datastore = datastore
        self._clock = clock
        self._odd = odd
        self._resume = resume
        self._attempts: dict[str, _Attempts] = {}  # those that were tried last come last
        self.denial = denial()

    def note(self, intent: Intent, error: IpamError | None) -> None:
        """Take note that an intent stays open after a try, and why."""
        attempts = self._attempts.pop(intent.intent_id, None) or _Attempts()
        self._attempts[intent.intent_id] = attempts
        attempts.error = error
        attempts.retry.put_off(now_s=self._clock.monotonic())
        if error is not None and self._is_denied(intent):
            self.denial.learn_once(error, now_s=self._clock.monotonic())

    def recover_due(self, *, without: Collection[IntentKind] = ()) -> list[IpamError]:
        """Try every open intent whose pause is over, but for some kinds. Returns: what failed."""
        problems = []
        turns = {intent_id: turn for turn, intent_id in enumerate(self._attempts)}
        for intent in sorted(self._intents.all_open(), key=lambda one: turns.get(one.intent_id, -1)):
            if intent.kind in without or not self._is_due(intent):
                continue
            was_denied = self._is_denied(intent)
            try:
                self._resume(intent)
            except IpamError as error:
                if not isinstance(error, ThrottledError):
                    log.warning("%s intent %s: %s", intent.kind, intent.intent_id, log_text(error))
                problems.append(error)
                self.note(intent, error)
            except Exception as error:  # noqa: BLE001  # top of the work on one intent, as another release may have left it
                self._odd.note(_name(intent), error)
                self.note(intent, None)
            else:
                if self._intents.is_open(intent):
                    self.note(intent, None)
                elif was_denied:
                    self.denial.forget()  # the others are tried at once
        return problems

    def has_due(self, *, without: Collection[IntentKind] = ()) -> bool:
        """Whether an open intent may be tried now, but for some kinds."""
        return any(intent.kind not in without and self._is_due(intent) for intent in self._intents.all_open())

    def next_retry_s(self) -> float | None:
        """Seconds until an open intent is due; None if none is open."""
        open_ids = {intent.intent_id for intent in self._intents.all_open()}
        self._attempts = {intent_id: one for intent_id, one in self._attempts.items() if intent_id in open_ids}
        return soonest_s(map(self._left_s, self._intents.all_open()))

    def pending(self) -> GrowthState:
        """What EC2 may have done: ENIs and slots that may be taken, with the addresses that may come."""
        enis: list[PendingEni] = []
        slots: dict[EniId, int] = {}
        address_count = 0
        self._odd.keep_only(map(_name, self._intents.all_open()))
        for intent in filter(_is_whole, self._intents.all_open()):
            payload = intent.payload
            if intent.kind is IntentKind.CREATE_ENI and self._datastore.eni(EniId(payload.get("eni_id", ""))) is None:
                enis.append(PendingEni(int(payload["device_index"]), _supply_count(intent)))
            elif intent.kind is IntentKind.ASSIGN:
                eni_id, count = EniId(payload["eni_id"]), int(payload["count"])
                slots[eni_id] = slots.get(eni_id, 0) + count
                address_count += count * (ADDRESSES_PER_PREFIX if payload.get("of") == "prefixes" else 1)
        return GrowthState(
            pending_enis=tuple(enis), pending_slots=slots, pending_address_count=address_count, pending=self._why()
        )

    def _is_due(self, intent: Intent) -> bool:
        return not self._left_s(intent)

    def _left_s(self, intent: Intent) -> float:
        """Seconds left of its pause."""
        now_s, attempts = self._clock.monotonic(), self._attempts.get(intent.intent_id)
        if self._is_denied(intent) or (attempts is None and _takes_away(intent)):
            return self.denial.left_s(now_s=now_s)
        return 0.0 if attempts is None else attempts.retry.left_s(now_s=now_s)

    def _is_denied(self, intent: Intent) -> bool:
        """Whether IAM denied it. An ADD may wait for what a creation has made perhaps, before the adapter's repetition was denied."""
        attempts = self._attempts.get(intent.intent_id)
        error = None if attempts is None else attempts.error
        return isinstance(error, CloudDeniedError) and (_takes_away(intent) or not error.may_have_happened)

    def _why(self) -> str:
        errors = [one.error for one in self._attempts.values() if one.error is not None]
        return f"EC2 is asked what became of the last call, which failed: {log_text(errors[-1])}" if errors else ""


def _name(intent: Intent) -> str:
    return f"{intent.kind} intent {intent.intent_id}"


def _takes_away(intent: Intent) -> bool:
    """Whether it gives back or deletes: what IAM denies of one it denies of all, as far as anybody knows."""
    return intent.kind in RELEASES or DELETING in intent.payload


def _is_whole(intent: Intent) -> bool:
    """Whether the payload says what was asked. One that does not counts for nothing, and its recovery says why."""
    is_named = intent.kind is not IntentKind.ASSIGN or "eni_id" in intent.payload
    return is_named and all(intent.payload.get(name, "").isdecimal() for name in NUMBERS.get(intent.kind, ()))


def _supply_count(intent: Intent) -> int:
    """Addresses that may come with an ENI: none if it is being deleted, or may never have been made."""
    if DELETING in intent.payload or REFUSED in intent.payload:
        return 0
    return int(intent.payload["address_count"]) + int(intent.payload["prefix_count"]) * ADDRESSES_PER_PREFIX
