"""Run by test_crash: an endless stream of changes, each acknowledged on standard output after its transaction."""

# ruff: noqa: T201 - printing is how a change is acknowledged

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

from tests.unit.datastore.support import START, a_key, an_attachment, fill, open_at


def main(path: Path) -> None:
    """Attach, detach and cool for ever."""
    store = open_at(path).datastore
    fill(store, addresses=8)
    number = 0
    while True:
        key, at = a_key(number), START + timedelta(seconds=number)
        reserved = store.reserve(key)
        with store.transaction() as unit:
            unit.confirm(an_attachment(reserved, key, at=at))
        print("assigned", number, reserved.address, flush=True)
        if number >= 3:
            old = a_key(number - 3)
            with store.transaction() as unit:
                gone = unit.unassign(old, cooldown=timedelta(0), reason="DEL")
                unit.put_tombstone(old)
            print("unassigned", number - 3, gone.address, flush=True)
            with store.transaction() as unit:
                unit.free(gone.address, reason="cooled")
            print("cooled", number - 3, gone.address, flush=True)
        number += 1


if __name__ == "__main__":
    main(Path(sys.argv[1]))
