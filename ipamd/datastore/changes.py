"""What all changes of a unit of work share: the guard, the compare-and-set, the ledger row and the time.

Every change is checked against the transition table and the view, then written with a compare-and-set on the state it was
checked against; the constraints of `schema` stand behind both. The first refusal fails the whole unit, so that a
caller that catches the error cannot commit half of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from ipaddress import IPv4Address
from typing import Concatenate, ParamSpec, TypeVar

from ipamd.datastore import statements as sql
from ipamd.datastore.disk import Disk
from ipamd.datastore.ledger import ledger_params
from ipamd.datastore.rows import Params
from ipamd.datastore.view import View
from ipamd.model.address import Address
from ipamd.model.attachment import Attachment
from ipamd.model.errors import DatastoreError, InvariantError
from ipamd.model.history import UNKEPT, HistoryRecord
from ipamd.model.ids import AttachmentKey, EniId
from ipamd.model.ledger import LedgerEvent
from ipamd.ports import Clock


class Changes:
    """One transaction, as its changes see it.

    `failure` is the error that failed the unit; from then on every change raises it.
    `recorded` is what the history is told once it is committed.
    """

    def __init__(self, *, disk: Disk, view: View, clock: Clock) -> None:
        self._disk = disk
        self._view = view
        self._clock = clock
        # One time for all changes of a unit, taken once the transaction is ours: waiting for it is not part of a cooldown.
        self._now = clock.now()
        self._now_s = clock.monotonic()
        self._ledger_rows: list[Params] = []
        self.recorded: list[HistoryRecord] = []
        self.failure: DatastoreError | None = None

    def raise_if_failed(self) -> None:
        """Raise the error that failed this unit, if there is one."""
        if self.failure is not None:
            raise self.failure

    def _log(
        self,
        event: LedgerEvent,
        *,
        at: datetime | None = None,
        address: IPv4Address | None = None,
        key: AttachmentKey | None = None,
        eni_id: EniId | None = None,
        detail: str = "",
        of: Attachment | None = None,
    ) -> None:
        """Write a row to the ledger, and remember it for the history; `of` is the attachment that the event is about."""
        self._ledger_rows.append(ledger_params(event, at=at or self._now, address=address, key=key, eni_id=eni_id, detail=detail))
        if event in UNKEPT:
            return
        pod, since = (of.sandbox_name, of.created_at) if of is not None else ("", None)
        self.recorded.append(
            HistoryRecord(
                at or self._now,
                event.value,
                address=str(address or ""),
                container_id=key.container_id if key else "",
                ifname=key.ifname if key else "",
                eni_id=eni_id or "",
                detail="" if detail == pod else detail,
                pod=pod,
                since=since,
            )
        )

    def _expect_one(self, statement: sql.Statement, params: Params, address: Address) -> None:
        subject = f"changing address {address.address}"
        if self._disk.write(statement, params, subject=subject) != 1:
            raise InvariantError(
                f"address {address.address} is {address.state} in memory but not on disk",
                details="nothing was changed; `ipamctl audit` compares them all; restarting ipamd reads the disk again",
            )

    def _forget(self, addresses: Iterable[Address], *, reason: str) -> None:
        """Remove rows; the caller has made sure that no sandbox has one of them (I2)."""
        prefixes = set()
        for address in addresses:
            params: Params = {"key_address": str(address.address), "key_state": address.state.value}
            self._expect_one(sql.DELETE_ADDRESS, params, address)
            self._view.staged.addresses[address.address] = None
            self._log(LedgerEvent.REMOVED, address=address.address, eni_id=address.eni_id, detail=reason)
            prefixes |= {str(address.prefix)} if address.prefix is not None else set()
        # A prefix row goes with the last of its addresses: the statement leaves one that still has some.
        for prefix in sorted(prefixes):
            self._disk.write(sql.DELETE_EMPTY_PREFIX, {"key_prefix": prefix}, subject=f"forgetting prefix {prefix}")


C = TypeVar("C", bound=Changes)
P = ParamSpec("P")
R = TypeVar("R")


def change(method: Callable[Concatenate[C, P], R]) -> Callable[Concatenate[C, P], R]:
    """Make a method fail the whole unit when it refuses, also if the caller swallows the error."""

    @wraps(method)
    def guarded(self: C, /, *args: P.args, **kwargs: P.kwargs) -> R:
        self.raise_if_failed()
        try:
            return method(self, *args, **kwargs)
        except DatastoreError as error:
            self.failure = error
            raise
        except ValueError as error:
            self.failure = InvariantError(f"{method.__name__}: a value has no place in the datastore", details=str(error))
            raise self.failure from error

    return guarded
