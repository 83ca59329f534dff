"""What a daemon does to its datastore, for any version of the code: run as a process with that version's folder on the path.

    python datastore_life.py FILE NUMBER [ADDRESS | del:CONTAINER_ID ...]

Opens FILE, attaches sandbox NUMBER, removes the addresses, does the DELs as of sandboxes that it does not know, audits, deletes its
sandbox, closes, and prints the audit and what was
recorded as JSON. Imports and names nothing that some version lacks.
"""

from __future__ import annotations

import inspect
import json
import sys
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ipamd
from ipamd.datastore.open import open_datastore
from ipamd.model.attachment import Attachment, NetnsIdentity
from ipamd.model.eni import Eni
from ipamd.model.ids import EniId, MacAddress, SubnetId, parse_key

BOOT = "11111111-2222-3333-4444-555555555555"


def main(path: Path, number: int, removed: list[IPv4Address], deleted: list[str]) -> dict[str, Any]:
    """Live for a moment."""
    at = datetime.now(UTC)
    clock = SimpleNamespace(now=lambda: at, monotonic=lambda: 9000.0 + number)
    opened = open_datastore(path, boot_id=BOOT, clock=clock, lock_wait_s=0.0)  # type: ignore[arg-type]
    store: Any = opened.datastore
    if not store.enis():
        fill(store, at)
    key = parse_key(f"{number:064x}", "eth0")
    reserved = told(store.reserve, key, now=at)
    attachment = Attachment(
        key=key,
        address=reserved.address,
        eni_id=reserved.eni_id,
        route_table=254,
        host_veth=f"eni{number}",
        netns="/run/netns/x",
        netns_identity=NetnsIdentity(4, 4026531840),
        fingerprint="f",
        result=b"{}",
        created_at=at,
    )
    with store.transaction() as unit:
        unit.confirm(attachment)
    with store.transaction() as unit:
        told(unit.remove_addresses, removed, reason="test", now=at)
        for container_id in deleted:
            told(unit.put_tombstone, parse_key(container_id, "eth0"), now=at, at=at)
    answer = {
        "folder": str(Path(ipamd.__file__).parents[1]),
        "outcome": str(opened.report.outcome),
        "audit": store.audit(),
        "reserved": str(reserved.address),
        "states": {str(row.address): str(row.state) for row in store.addresses()},
    }
    with store.transaction() as unit:  # what cools for the next one
        told(unit.unassign, key, cooldown=timedelta(seconds=30), reason="DEL", now=at, cooling_until=at + timedelta(seconds=30))
        told(unit.put_tombstone, key, now=at, at=at)
    store.close()
    return answer


def fill(store: Any, at: datetime) -> None:
    """One ENI with two free addresses."""
    eni = Eni(
        eni_id=EniId("eni-0"),
        mac=MacAddress("02:00:00:00:00:00"),
        device_index=0,
        network_card=0,
        subnet_id=SubnetId("subnet-1"),
        subnet_cidr=IPv4Network("10.0.0.0/16"),
        primary_address=IPv4Address("10.0.0.4"),
        is_primary=True,
        host_ready=True,
    )
    with store.transaction() as unit:
        unit.put_eni(eni)
        told(unit.add_addresses, eni.eni_id, [IPv4Address("10.0.0.100"), IPv4Address("10.0.0.101")], now=at)


def told(method: Any, *arguments: Any, **named: Any) -> Any:
    """Call with those of the named arguments that this version knows."""
    known = inspect.signature(method).parameters
    return method(*arguments, **{name: value for name, value in named.items() if name in known})


if __name__ == "__main__":
    others = sys.argv[3:]
    dels = [one.removeprefix("del:") for one in others if one.startswith("del:")]
    addresses = [IPv4Address(one) for one in others if not one.startswith("del:")]
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), int(sys.argv[2]), addresses, dels)))
