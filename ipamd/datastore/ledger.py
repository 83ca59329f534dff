"""The ledger: what happened to every address, written in the transaction in which it happened.

Bounded, because `/run` is memory that counts as the daemon's: every `PRUNE_EVERY` rows the oldest ones beyond the limit are
deleted, in the transaction that writes the newest.
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import IPv4Address
from typing import Any

from sqlalchemy import Row, bindparam, delete, func, insert, or_, select

from ipamd.datastore import schema
from ipamd.datastore.disk import Disk
from ipamd.datastore.rows import Params, read_record
from ipamd.model.history import HistoryRecord
from ipamd.model.ledger import LedgerEvent

LEDGER_LIMIT = 20_000
"""Rows. Ours: four rows a sandbox make 5,000 sandboxes, in about 6 MB of tmpfs."""

PRUNE_EVERY = 500
"""Rows written between two prunings. Ours: one DELETE of 500 rows costs less than 2 ms."""

SANDBOXES_MAX = 20
"""Sandboxes of one pod that are told. Ours: a pod has one, and another each time it was made again."""

_INSERT = insert(schema.ledger)
_NEWEST = select(func.max(schema.ledger.c.sequence))
_PRUNE = delete(schema.ledger).where(schema.ledger.c.sequence <= bindparam("last"))
_HISTORY = (
    select(schema.ledger)
    .where(
        or_(
            schema.ledger.c.address == bindparam("subject"),
            # A range instead of LIKE: it uses the index, tells upper from lower case, and nothing needs escaping.
            schema.ledger.c.container_id.between(bindparam("subject"), bindparam("beyond")),
        )
    )
    .order_by(schema.ledger.c.sequence.desc())
    .limit(bindparam("row_limit"))
)
_LATEST = select(schema.ledger).order_by(schema.ledger.c.sequence.desc()).limit(bindparam("row_limit"))
_SANDBOXES_OF_POD = (
    select(schema.ledger.c.container_id)
    .distinct()
    .where(
        schema.ledger.c.event == LedgerEvent.ASSIGNED.value,
        or_(
            schema.ledger.c.detail == bindparam("subject"),
            func.substr(schema.ledger.c.detail, bindparam("from_end")) == bindparam("ending"),
        ),
    )
    .order_by(schema.ledger.c.sequence.desc())
    .limit(SANDBOXES_MAX)
)
_HIGHEST = "\U0010ffff"


class Ledger:
    """Writer and reader of the ledger. Used under the disk's lock only."""

    def __init__(self, disk: Disk, *, limit: int = LEDGER_LIMIT) -> None:
        self._disk = disk
        self._limit = limit
        self._unpruned_count = PRUNE_EVERY  # the first write prunes: the last process may have stopped just before

    def write(self, entries: list[Params]) -> None:
        """Append rows within the open transaction."""
        if not entries:
            return
        self._disk.write(_INSERT, entries, subject="writing the ledger")
        self._unpruned_count += len(entries)
        if self._unpruned_count >= PRUNE_EVERY:
            newest = self._disk.execute(_NEWEST, subject="pruning the ledger").scalar_one()
            self._disk.execute(_PRUNE, {"last": newest - self._limit}, subject="pruning the ledger")
            self._unpruned_count = 0

    def read(self, subject: str, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Find the last `limit` rows, oldest first, of an address, of a pod (`namespace/name` or name) that was given one, or of
        container IDs that begin with `subject`.
        """
        if not subject or limit <= 0:
            return ()
        subjects = (() if _is_address(subject) else self._sandboxes_of(subject)) or (subject,)
        found = {row.sequence: row for one in subjects for row in self._rows_of(one, limit=limit)}
        return tuple(read_record(found[sequence]) for sequence in sorted(found)[-limit:])

    def _sandboxes_of(self, pod: str) -> tuple[str, ...]:
        """Container IDs of a pod, newest first. Looks at every row of the ledger: some milliseconds."""
        params: Params = {"subject": pod, "ending": f"/{pod}", "from_end": -len(pod) - 1}
        return tuple(self._disk.execute(_SANDBOXES_OF_POD, params, subject=f"reading the history of {pod!r}").scalars())

    def _rows_of(self, subject: str, *, limit: int) -> Sequence[Row[Any]]:
        params: Params = {"subject": subject, "beyond": subject + _HIGHEST, "row_limit": limit}
        return self._disk.execute(_HISTORY, params, subject=f"reading the history of {subject!r}").all()

    def latest(self, *, limit: int) -> tuple[HistoryRecord, ...]:
        """Find the last `limit` rows, oldest first."""
        rows = self._disk.execute(_LATEST, {"row_limit": max(limit, 0)}, subject="reading the latest history").all()
        return tuple(read_record(row) for row in reversed(rows))


def _is_address(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True
