"""Many threads at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path

from ipamd.datastore.store import SqlDatastore
from ipamd.model.address import AddressState
from ipamd.model.errors import PoolEmptyError
from tests.unit.datastore.support import a_key, an_attachment, attach, fill, open_at

THREADS = 30
ROUNDS = 10


def test_no_address_twice(path: Path) -> None:
    """30 threads that attach and detach for all they can never hold one address at once, and all ends clean (I1)."""
    store = open_at(path).datastore
    fill(store, addresses=12, enis=2)
    holders: dict[object, int] = {}
    start = threading.Barrier(THREADS)

    def life(worker: int) -> int:
        start.wait(timeout=120)
        done = 0
        for number in range(ROUNDS):
            key = a_key(worker * 1000 + number)
            try:
                reserved = store.reserve(key)
            except PoolEmptyError:
                continue
            assert holders.setdefault(reserved.address, worker) == worker, f"{reserved.address} twice"
            with store.transaction() as unit:
                unit.confirm(an_attachment(reserved, key))
            assert store.attachment(key) is not None
            with store.transaction() as unit:
                unit.unassign(key, cooldown=timedelta(0), reason="DEL")
                unit.put_tombstone(key)
            del holders[reserved.address]
            with store.transaction() as unit:
                unit.free(reserved.address, reason="cooled")
            done += 1
        return done

    with ThreadPoolExecutor(THREADS) as pool:
        done = sum(pool.map(life, range(THREADS)))
    assert done >= ROUNDS
    assert store.counts().free == store.counts().total == 24
    assert store.attachments() == ()
    assert store.audit() == []
    store.close()


def test_reads_and_reserve_do_not_wait_for_the_disk(store: SqlDatastore) -> None:
    """While a unit of work is open, another thread reserves and reads: only changes wait (I10)."""
    attach(store, a_key(1))

    def look() -> tuple[object, ...]:
        reserved = store.reserve(a_key(2))
        return store.attachment(a_key(1)), store.counts().reserved, len(store.addresses()), store.address(reserved.address)

    with ThreadPoolExecutor(1) as pool, store.transaction() as unit:
        unit.unassign(a_key(1), cooldown=timedelta(0), reason="DEL")
        attachment, reserved_count, address_count, address = pool.submit(look).result(timeout=120)
    assert attachment is not None, "what is not committed is not seen"
    assert (reserved_count, address_count) == (1, 4)
    assert getattr(address, "state", None) is AddressState.RESERVED
    assert store.attachment(a_key(1)) is None
    assert store.audit() == []


def test_units_of_work_queue(store: SqlDatastore) -> None:
    """A second unit of work begins only when the first has ended: changes are serialised."""
    order: list[str] = []
    asked = threading.Event()

    def second() -> None:
        asked.set()
        with store.transaction() as unit:
            order.append("second")
            unit.put_tombstone(a_key(2))

    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as unit:
            waiting = pool.submit(second)
            assert asked.wait(timeout=120)
            unit.put_tombstone(a_key(1))
            order.append("first")
        waiting.result(timeout=120)
    assert order == ["first", "second"]
