"""What a daemon of schema level 8 does to its datastore: run as a process with the folder of that code on the path.

    python datastore_life.py FILE NUMBER

Opens FILE, attaches sandbox NUMBER, audits, deletes its sandbox, closes, and prints the audit and what was recorded as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ipamd
from tests.unit.datastore.support import COOLDOWN, FakeClock, a_key, attach, open_at


def main(path: Path, number: int) -> dict[str, Any]:
    """Live for a moment."""
    clock = FakeClock()
    clock.pause(9000.0)
    opened = open_at(path, clock=clock)
    store, key = opened.datastore, a_key(number)
    reserved = attach(store, key)
    answer = {
        "folder": str(Path(ipamd.__file__).parents[1]),
        "outcome": str(opened.report.outcome),
        "audit": store.audit(),
        "reserved": str(reserved.address),
    }
    with store.transaction() as unit:
        unit.unassign(key, cooldown=COOLDOWN, reason="DEL")
        unit.put_tombstone(key)
    store.close()
    return answer


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]))))
