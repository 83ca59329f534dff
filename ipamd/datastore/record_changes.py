"""Changes to what is recorded besides addresses: tombstones, intents, the mark of a finished restore, notes in the ledger."""

from __future__ import annotations

from datetime import timedelta
from ipaddress import IPv4Address

from ipamd.datastore import schema
from ipamd.datastore import statements as sql
from ipamd.datastore.changes import Changes, change
from ipamd.datastore.rows import Params, intent_params, key_params, time_text
from ipamd.model.cloud import all_addresses
from ipamd.model.errors import InvariantError
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.intent import Intent, IntentKind, named
from ipamd.model.ledger import LedgerEvent
from ipamd.model.tombstone import Tombstone


class RecordChanges(Changes):
    """The part of `SqlUnitOfWork` that records what was done and what is about to be asked of EC2."""

    @change
    def put_tombstone(self, key: AttachmentKey) -> None:
        """Replaces an earlier tombstone of the key."""
        params: Params = {**key_params(key), "at": time_text(self._now), "at_monotonic_s": self._now_s}
        self._disk.write(sql.UPSERT_TOMBSTONE, params, subject=f"recording DEL of {key}")
        self._view.staged.tombstones[key] = Tombstone(self._now, self._now_s)
        self._log(LedgerEvent.TOMBSTONED, key=key)

    @change
    def drop_tombstones(self, *, older_than: timedelta) -> int:
        """Writes no ledger row: the row of the DEL itself stays."""
        before_s = self._now_s - older_than.total_seconds()
        old: list[AttachmentKey] = []
        for key, found in self._view.tombstones().items():
            if found.at_monotonic_s is None:  # the release before wrote it: its age counts from now
                dated: Params = {"now_s": self._now_s, "key_container_id": key.container_id, "key_ifname": key.ifname}
                self._disk.write(sql.DATE_TOMBSTONE, dated, subject=f"dating the tombstone of {key}")
                self._view.staged.tombstones[key] = Tombstone(found.at, self._now_s)
            elif found.at_monotonic_s < before_s:
                old.append(key)
        if old:
            self._disk.write(sql.DELETE_TOMBSTONES, {"before_s": before_s}, subject="dropping old tombstones")
        self._view.staged.tombstones.update(dict.fromkeys(old))
        return len(old)

    @change
    def open_intent(self, intent: Intent) -> None:
        """Raises: InvariantError if it is open already, or gives back what is not free."""
        if self._view.intent(intent.intent_id) is not None:
            raise InvariantError(f"intent {intent.intent_id} is open already", details="I9: each has its own ID")
        self._refuse_what_is_not_free(intent)
        self._disk.write(sql.INSERT_INTENT, intent_params(intent), subject=f"opening intent {intent.intent_id}")
        self._view.staged.intents[intent.intent_id] = intent
        self._log(LedgerEvent.INTENT_OPENED, at=intent.opened_at, detail=_told(intent))

    @change
    def update_intent(self, intent: Intent) -> None:
        """Raises: InvariantError if it is not open."""
        self._known_intent(intent.intent_id)
        params = intent_params(intent)
        params["key_intent_id"] = params.pop("intent_id")
        self._disk.write(sql.UPDATE_INTENT, params, subject=f"updating intent {intent.intent_id}")
        self._view.staged.intents[intent.intent_id] = intent
        self._log(LedgerEvent.INTENT_OPENED, detail=f"now {_told(intent)}")

    @change
    def close_intent(self, intent_id: str, *, outcome: str) -> None:
        """Raises: InvariantError if it is not open."""
        intent = self._known_intent(intent_id)
        self._disk.write(sql.DELETE_INTENT, {"key_intent_id": intent_id}, subject=f"closing intent {intent_id}")
        self._view.staged.intents[intent_id] = None
        eni_id = EniId(intent.payload.get("eni_id", ""))
        self._log(LedgerEvent.INTENT_CLOSED, eni_id=eni_id, detail=f"{intent.kind} {intent_id}: {outcome}")

    @change
    def mark_restored(self, *, detail: str) -> None:
        params: Params = {"name": schema.RESTORED_AT, "value": time_text(self._now)}
        self._disk.write(sql.UPSERT_META, params, subject="marking the restore")
        self._log(LedgerEvent.RESTORED, detail=detail)

    @change
    def note(
        self,
        event: LedgerEvent,
        *,
        address: IPv4Address | None = None,
        key: AttachmentKey | None = None,
        eni_id: EniId | None = None,
        detail: str = "",
    ) -> None:
        self._log(event, address=address, key=key, eni_id=eni_id, detail=detail)

    def _refuse_what_is_not_free(self, intent: Intent) -> None:
        """Reading claims the rows: no reservation comes between this check and the hold that begins with the intent."""
        eni_id = EniId(intent.payload.get("eni_id", ""))
        if intent.kind is IntentKind.UNASSIGN:
            rows = [(address, self._view.address(address)) for address in sorted(all_addresses(*named(intent)))]
        elif intent.kind is IntentKind.DELETE_ENI:
            rows = [(row.address, row) for row in self._view.addresses_of(eni_id)]
        else:
            return
        for address, row in rows:
            if row is None or not row.is_free or row.eni_id != eni_id:
                what = "not known" if row is None else f"{row.state} on {row.eni_id}" if row.is_free else str(row.state)
                raise InvariantError(f"{address} of {eni_id} cannot be given back: it is {what}", details="I2")

    def _known_intent(self, intent_id: str) -> Intent:
        intent = self._view.intent(intent_id)
        if intent is None:
            raise InvariantError(f"intent {intent_id} is not open", details="I9")
        return intent


def _told(intent: Intent) -> str:
    payload = ", ".join(f"{name}={value}" for name, value in sorted(intent.payload.items()))
    return f"{intent.kind} {intent.intent_id}: {payload}"
