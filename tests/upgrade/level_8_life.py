"""Leave what a node of schema level 8 has: a datastore with every kind of row, a spooled DEL, and aliases of links.

    python level_8_life.py DIRECTORY

Runs with the code of the commit in `test_level_8.py` on its path. The datastore is left as after kill -9, with its WAL. Prints as JSON
what that code understands of it.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from typing import Any

from ipamd.model.branch import encode_link_alias

import ipamd
from cni_plugin import request, spool
from cni_plugin._cni import System
from ipamd.model.attachment import BRANCH_TAG, EGRESS_TAG, IMPORTED_TAG, encode_alias
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.evidence import Absence, Doubts
from ipamd.model.family import IPV6
from ipamd.model.ids import EniId, PodName, SubnetId
from ipamd.model.intent import Assign, Create, Delete, Intent, Unassign, encoded
from ipamd.model.intent import Why as DeleteReason
from tests.unit.datastore.support import COOLDOWN, FakeClock, a_branch, a_key, an_attachment, attach, eni_id, fill, ip, open_at

CREATION = Create(SubnetId("subnet-1"), 2, 9, 0, {"team": "net"}, ("sg-1", "sg-2"), moves_left=1)
MADE = dataclasses.replace(CREATION, eni_id=EniId("eni-new"))
OPERATIONS = {
    "creation": CREATION,
    "creation named": MADE,
    "creation refused": dataclasses.replace(CREATION, refused="denied"),
    "creation undone": Delete(EniId("eni-new"), DeleteReason.UNATTACHED, asked="asked", creation=MADE),
    "useless": Delete(EniId("eni-new"), DeleteReason.USELESS, asked="asked", creation=MADE),
    "useless and detached": Delete(EniId("eni-a"), DeleteReason.USELESS, asked="detached"),
    "unattached": Delete(EniId("eni-b"), DeleteReason.UNATTACHED),
    "release": Delete(EniId("eni-c"), DeleteReason.RELEASED),
    "release, detached": Delete(EniId("eni-d"), DeleteReason.RELEASED, asked="detached"),
    "leaked": Delete(EniId("eni-e"), DeleteReason.LEAKED),
    "addresses": Assign(eni_id(0), 3),
    "prefixes": Assign(eni_id(1), 2, is_of_prefixes=True),
    "unassign": Unassign(eni_id(0), frozenset({ip("10.0.0.107")}), frozenset()),
}


def main(directory: Path) -> dict[str, Any]:
    """Write all of it; return what this code reads."""
    clock = FakeClock()
    store: Any = open_at(directory / "state.db", clock=clock).datastore
    fill(store, addresses=8, enis=2)
    _fill_tables(store, clock)
    answer = {
        "folder": str(Path(ipamd.__file__).parents[1]),
        "rows": {
            "enis": _rows(store.enis(), "eni_id"),
            "addresses": _rows(store.addresses(), "address"),
            "attachments": _rows(store.attachments(), "key"),
            "intents": {intent.intent_id: [str(intent.kind), _text(intent.operation)] for intent in store.open_intents()},
            "owed": sorted(map(_text, store.owed())),
            "doubts": _text(store.snapshot().doubts),
            "identity": _text(store.snapshot().identity),
        },
        "tombstones": [str(key) for key in store.snapshot().tombstones],
        "aliases": {
            "pool": encode_alias(a_key(1), ip("10.0.0.100")),
            "imported": encode_alias(a_key(1), ip("10.0.0.100"), tag=IMPORTED_TAG),
            "egress": encode_alias(a_key(1), ip("169.254.172.5"), tag=EGRESS_TAG),
            "branch": encode_alias(a_branch(3).key, a_branch(3).address, tag=BRANCH_TAG),
            "vlan": encode_link_alias(a_branch(3).address, EniId("eni-0123456789abcdef0"), a_branch(3).branch),
        },
        "audit": store.audit(),
    }
    _spool_a_del(directory)
    sys.stdout.write(json.dumps(answer))
    sys.stdout.flush()
    os._exit(0)  # as kill -9 leaves it


def _fill_tables(store: Any, clock: FakeClock) -> None:
    attach(store, a_key(1), egress=IPV6)
    for number in (2, 3, 4):
        attach(store, a_key(number))
    with store.transaction() as unit:
        unit.add_addresses(eni_id(1), list(IPv4Network("10.0.1.32/28")), prefix=IPv4Network("10.0.1.32/28"))
    with store.transaction() as unit:
        unit.adopt(an_attachment(store.address(ip("10.0.1.35")), a_key(5)))
        unit.unassign(a_key(2), cooldown=COOLDOWN, reason="DEL")
        unit.put_tombstone(a_key(2))
        unit.put_tombstone(a_key(9))
        unit.quarantine(ip("10.0.0.106"), reason="wired by nobody known")
        unit.lose(ip("10.0.0.102"), reason="not shown")
        unit.put_doubts(Doubts(plausible={eni_id(1): Absence(900.0, 950.0, 1)}))
        unit.owe(PodName("default", "web-0"))
        for vlan in (2, 3):
            unit.attach_branch(a_branch(vlan))
        unit.mark_branch(a_branch(3).key, contradiction="EC2 has not confirmed it")
        unit.record_identity(_identity())
        unit.record_marked()
        unit.mark_restored(detail="", was_lost=True)
        for name, operation in OPERATIONS.items():
            kind, payload = encoded(operation)
            payload |= {"opened_at_monotonic_s": "1000.0"}
            unit.open_intent(Intent(name, kind, clock.now(), payload, f"token of {name}"))


def _identity() -> InstanceIdentity:
    values: dict[str, Any] = {
        "instance_id": "i-1",
        "vpc_cidrs": (IPv4Network("10.0.0.0/16"),),
        "subnet_cidr": IPv4Network("10.0.0.0/16"),
        "primary_address": IPv4Address("10.0.0.4"),
        "security_group_ids": ("sg-1",),
    }
    names = [field.name for field in dataclasses.fields(InstanceIdentity) if field.default is dataclasses.MISSING]
    return InstanceIdentity(**{name: values.get(name, name) for name in names})


def _rows(rows: Any, key: str) -> dict[str, dict[str, str]]:
    return {
        str(getattr(row, key)): {field.name: _text(getattr(row, field.name)) for field in dataclasses.fields(row)} for row in rows
    }


def _text(value: object) -> str:
    """Return what a value holds, without the names of its classes."""
    if dataclasses.is_dataclass(value):
        return str({field.name: _text(getattr(value, field.name)) for field in dataclasses.fields(value)})
    if isinstance(value, dict):
        return str(sorted((str(key), _text(part)) for key, part in value.items()))
    if isinstance(value, frozenset | set | tuple | list):
        return str(sorted(map(_text, value)))
    return str(value)


def _spool_a_del(directory: Path) -> None:
    """Have the plugin keep the DEL of sandbox 4: no daemon listens."""
    os.environ.update(CNI_CONTAINERID=a_key(4).container_id, CNI_IFNAME="eth0", CNI_NETNS="", CNI_PATH="/x", CNI_ARGS="")
    system = System()
    config = json.dumps({"cniVersion": "1.1.0", "name": "vpc", "type": "vpc-cni"}).encode()
    message = request.encode(system, "DEL", config, plugin_version="0")
    directory.chmod(0o700)
    assert (
        spool.spool_or_connect(system, str(directory), message, try_connect=False, deadline_ms=system.monotonic_ms() + 1000) == -1
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
