"""Compare two ways to store the history: segments of JSON lines, as the daemon does, and one SQLite file through SQLAlchemy Core.

    python -m bench.history_store

The history does not delay ADD or DEL, because one thread writes it afterwards (docs/adr/0035). Measured are the thread's CPU time for
a record, alone and in a burst, the bytes on disk, one query, and the start of a process that could make the query. The records are
those of pods that come and go, two for each pod.
"""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

from ipamd.history.age import FileAges
from ipamd.history.encoding import encode
from ipamd.history.reading import read
from ipamd.history.segments import Appender
from ipamd.model.history import HistoryRecord
from ipamd.model.record import replace

COUNT = 100_000
BURST = 100
SINGLE_COUNT = 2_000
START = datetime(2026, 3, 4, tzinfo=UTC)
FIELDS = tuple(field.name for field in dataclasses.fields(HistoryRecord))


def records(count: int) -> Iterator[HistoryRecord]:
    """Yield records of pods that get and lose an address: 250 addresses, each of which is assigned many times."""
    for number in range(count // 2):
        began = START + timedelta(seconds=number)
        begin = HistoryRecord(
            began,
            "assigned",
            address=f"10.0.{number % 250}.7",
            container_id=f"{number:064x}",
            ifname="eth0",
            eni_id="eni-0123456789abcdef0",
            pod=f"default/web-{number % 997}-{number:05x}",
        )
        yield begin
        yield replace(begin, at=began + timedelta(seconds=300), event="unassigned", detail="DEL", since=began)


class Segments:
    """The daemon's way: segments of JSON lines."""

    name = "segments"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        ages = FileAges(directory, boot_id="boot")
        self._appender = Appender(
            directory, "history", days=365, bytes_max=1 << 30, head=bytes, ages=ages, monotonic=time.monotonic
        )

    def write(self, batch: Sequence[HistoryRecord]) -> None:
        """Append a batch, as the daemon's writer thread does."""
        self._appender.append(b"".join(map(encode, batch)), now_s=time.time())

    def ask(self, subject: str) -> int:
        """Return the number of records about a subject."""
        return len(read(self._directory, subject).records)

    def close(self) -> None:
        """Close the file."""
        self._appender.close()


class OneSqliteFile:
    """The alternative: one table with an index for each kind of subject. Each batch is a transaction, which also deletes old rows."""

    name = "SQLite"

    def __init__(self, directory: Path) -> None:
        from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, delete, func, insert, select

        self._engine = create_engine(f"sqlite:///{directory}/history.db")
        self._table = Table(
            "record",
            MetaData(),
            Column("sequence", Integer, primary_key=True),
            *(Column(name, Text, index=name in ("address", "container_id", "pod")) for name in FIELDS),
        )
        self._connection = self._engine.connect()
        self._connection.exec_driver_sql("PRAGMA journal_mode = WAL")
        self._connection.exec_driver_sql("PRAGMA synchronous = NORMAL")
        self._table.metadata.create_all(self._connection)
        self._connection.commit()
        self._insert, self._delete = insert(self._table), delete(self._table).where(self._table.c.sequence < 0)
        self._select, self._max = select(self._table), select(func.max(self._table.c.sequence))

    def write(self, batch: Sequence[HistoryRecord]) -> None:
        """Insert a batch, and run the statement that would remove old rows. Here it finds none."""
        rows = [{name: str(getattr(record, name)) for name in FIELDS} for record in batch]
        self._connection.execute(self._insert, rows)
        self._connection.execute(self._delete)
        self._connection.commit()

    def ask(self, subject: str) -> int:
        """Return how many records are about a subject."""
        return len(self._connection.execute(self._select.where(self._table.c.address == subject)).all())

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
        self._engine.dispose()


STORES: dict[str, Callable[[Path], Segments | OneSqliteFile]] = {store.name: store for store in (Segments, OneSqliteFile)}


def measure(name: str, directory: Path) -> None:
    """Write, ask and print the figures of one store."""
    store = STORES[name](directory)
    everything = list(records(COUNT))
    began_s = time.process_time()
    for first in range(0, COUNT, BURST):
        store.write(everything[first : first + BURST])
    burst_us = (time.process_time() - began_s) / COUNT * 1e6
    began_s = time.process_time()
    for record in everything[:SINGLE_COUNT]:
        store.write([record])
    single_us = (time.process_time() - began_s) / SINGLE_COUNT * 1e6
    began_s = time.process_time()
    count = store.ask("10.0.17.7")
    asked_ms = (time.process_time() - began_s) * 1e3
    store.close()
    size = sum(path.stat().st_size for path in directory.iterdir())
    print(
        f"{name}: {burst_us:.0f} us a record in bursts of {BURST}, {single_us:.0f} us alone, "
        f"{size / (COUNT + SINGLE_COUNT):.0f} bytes a record; {count} records of one address in {asked_ms:.0f} ms"
    )


START_OF = {
    "segments": "from ipamd.history.reading import read",
    "SQLite": "from sqlalchemy import create_engine",
    "SQLite, driver alone": "import sqlite3",
}
"""Way to store -> import that a process needs before it can read the history. `ipamctl history` is such a process, because it reads
the history without the daemon."""


def main() -> None:
    """Print the figures of both ways."""
    for name in STORES:
        with TemporaryDirectory() as directory:
            measure(name, Path(directory))
    for name, statement in START_OF.items():
        times_ms = []
        for _ in range(5):
            began_s = time.monotonic()
            subprocess.run([sys.executable, "-c", statement], check=True)
            times_ms.append((time.monotonic() - began_s) * 1e3)
        print(f"{name}: a process that imports it starts in {min(times_ms):.0f} ms")


if __name__ == "__main__":
    main()
