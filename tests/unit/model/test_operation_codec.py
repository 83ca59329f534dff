"""How operations are on disk: what an earlier process left open is read (tests/unit/datastore/test_migrations.py: of level 8)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.ids import EniId, SubnetId
from ipamd.model.intent import Assign, Create, Delete, DeleteReason, IntentKind, Operation, Unassign, decoded, encoded

ENI = EniId("eni-1")
TRACKING = (("tcpEstablishedTimeout", 60),)
CREATION = {
    "subnet_id": "subnet-1",
    "device_index": "2",
    "moves_left": "1",
    "address_count": "9",
    "prefix_count": "0",
    "tags": '{"team": "net"}',
    "security_group_ids": "sg-1,sg-2",
    "connection_tracking": '{"tcpEstablishedTimeout": 60}',
}
CREATE = Create(SubnetId("subnet-1"), 2, 9, 0, {"team": "net"}, ("sg-1", "sg-2"), TRACKING, moves_left=1)
MADE = Create(SubnetId("subnet-1"), 2, 9, 0, {"team": "net"}, ("sg-1", "sg-2"), TRACKING, moves_left=1, eni_id=ENI)
UNREPEATABLE = Create(SubnetId("subnet-1"), 2, 9, 0, {"team": "net"}, ("sg-1", "sg-2"), TRACKING, moves_left=1, refused="denied")

WRITTEN: dict[str, tuple[IntentKind, dict[str, str], Operation]] = {
    "creation asked": (IntentKind.CREATE_ENI, CREATION, CREATE),
    "creation named": (IntentKind.CREATE_ENI, {**CREATION, "eni_id": "eni-1"}, MADE),
    "creation refused": (IntentKind.CREATE_ENI, {**CREATION, "refused": "denied"}, UNREPEATABLE),
    "creation given up": (
        IntentKind.CREATE_ENI,
        {**CREATION, "eni_id": "eni-1", "why": "unattached", "deleting": "asked"},
        Delete(ENI, DeleteReason.UNATTACHED, deletion_state="asked", creation=MADE),
    ),
    "addresses": (IntentKind.ASSIGN, {"eni_id": "eni-1", "count": "3", "of": "addresses"}, Assign(ENI, 3)),
    "prefixes": (IntentKind.ASSIGN, {"eni_id": "eni-1", "count": "2", "of": "prefixes"}, Assign(ENI, 2, is_of_prefixes=True)),
    "release": (IntentKind.DELETE_ENI, {"eni_id": "eni-1", "why": "release"}, Delete(ENI, DeleteReason.RELEASED)),
    "unassign": (
        IntentKind.UNASSIGN,
        {"eni_id": "eni-1", "addresses": "10.0.0.5,10.0.0.9", "prefixes": "10.0.1.0/28"},
        Unassign(ENI, frozenset({IPv4Address("10.0.0.5"), IPv4Address("10.0.0.9")}), frozenset({IPv4Network("10.0.1.0/28")})),
    ),
    "useless": (
        IntentKind.DELETE_ENI,
        {"eni_id": "eni-1", "why": "useless", "deleting": "detached"},
        Delete(ENI, DeleteReason.USELESS, deletion_state="detached"),
    ),
    "leaked": (IntentKind.DELETE_ENI, {"eni_id": "eni-1", "why": "leaked"}, Delete(ENI, DeleteReason.LEAKED)),
    "bare deletion": (IntentKind.DELETE_ENI, {"eni_id": "eni-1", "why": "unattached"}, Delete(ENI, DeleteReason.UNATTACHED)),
}
"""What is on disk, by what it is about."""


@pytest.mark.parametrize(("kind", "payload", "operation"), WRITTEN.values(), ids=WRITTEN)
def test_operations_are_read_as_they_are_written(kind: IntentKind, payload: dict[str, str], operation: Operation) -> None:
    """Also beside keys that the log of operations adds, and keys that nobody knows."""
    assert encoded(operation) == (kind, payload)
    assert decoded(kind, {**payload, "opened_at_monotonic_s": "1.5", "another": "key"}) == operation


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (IntentKind.CREATE_ENI, {}),
        (IntentKind.CREATE_ENI, {**CREATION, "device_index": "one"}),
        (IntentKind.CREATE_ENI, {**CREATION, "tags": "{"}),
        (IntentKind.CREATE_ENI, {"deleting": "asked"}),
        (IntentKind.ASSIGN, {"eni_id": "eni-1", "count": "-1"}),
        (IntentKind.UNASSIGN, {"eni_id": "eni-1", "addresses": "x"}),
        (IntentKind.DELETE_ENI, {}),
        (IntentKind.DELETE_ENI, {"eni_id": "eni-1"}),
        (IntentKind.DELETE_ENI, {"eni_id": "eni-1", "why": "?"}),
    ],
)
def test_what_is_malformed_is_refused(kind: IntentKind, payload: dict[str, str]) -> None:
    """One kind of error for all of it, so that its recovery can name it."""
    with pytest.raises(ValueError, check=lambda error: str(error) != ""):
        decoded(kind, payload)
