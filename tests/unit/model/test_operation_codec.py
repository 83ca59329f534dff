"""Operations are on disk as the release before wrote them: what it left open is read, and it reads what we leave open."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.model.ids import EniId, SubnetId
from ipamd.model.intent import Assign, Create, Delete, IntentKind, Operation, Unassign, Why, decoded, encoded

ENI = EniId("eni-1")
CREATION = {
    "subnet_id": "subnet-1",
    "device_index": "2",
    "moves_left": "1",
    "address_count": "9",
    "prefix_count": "0",
    "tags": '{"team": "net"}',
    "security_group_ids": "sg-1,sg-2",
}
CREATE = Create(SubnetId("subnet-1"), 2, 9, 0, {"team": "net"}, ("sg-1", "sg-2"), moves_left=1)
MADE = Create(SubnetId("subnet-1"), 2, 9, 0, {"team": "net"}, ("sg-1", "sg-2"), moves_left=1, eni_id=ENI)
UNREPEATABLE = Create(SubnetId("subnet-1"), 2, 9, 0, {"team": "net"}, ("sg-1", "sg-2"), moves_left=1, refused="denied")

FORMER: dict[str, tuple[IntentKind, dict[str, str], Operation]] = {
    "creation asked": (IntentKind.CREATE_ENI, CREATION, CREATE),
    "creation named": (IntentKind.CREATE_ENI, {**CREATION, "eni_id": "eni-1"}, MADE),
    "creation refused": (IntentKind.CREATE_ENI, {**CREATION, "refused": "denied"}, UNREPEATABLE),
    "creation given up": (
        IntentKind.CREATE_ENI,
        {**CREATION, "eni_id": "eni-1", "deleting": "asked"},
        Delete(ENI, Why.UNATTACHED, asked="asked", creation=MADE),
    ),
    "addresses": (IntentKind.ASSIGN, {"eni_id": "eni-1", "count": "3", "of": "addresses"}, Assign(ENI, 3)),
    "prefixes": (IntentKind.ASSIGN, {"eni_id": "eni-1", "count": "2", "of": "prefixes"}, Assign(ENI, 2, is_of_prefixes=True)),
    "release": (IntentKind.DELETE_ENI, {"eni_id": "eni-1", "release": "asked"}, Delete(ENI, Why.RELEASED)),
    "unassign": (
        IntentKind.UNASSIGN,
        {"eni_id": "eni-1", "addresses": "10.0.0.5,10.0.0.9", "prefixes": "10.0.1.0/28"},
        Unassign(ENI, frozenset({IPv4Address("10.0.0.5"), IPv4Address("10.0.0.9")}), frozenset({IPv4Network("10.0.1.0/28")})),
    ),
    "leaked": (IntentKind.DELETE_ENI, {"eni_id": "eni-1", "leaked": "asked"}, Delete(ENI, Why.LEAKED)),
    "bare deletion": (IntentKind.DELETE_ENI, {"eni_id": "eni-1"}, Delete(ENI, Why.UNATTACHED)),
}
"""What the release before this one wrote, by what it was about."""


@pytest.mark.parametrize(("kind", "payload", "operation"), FORMER.values(), ids=FORMER)
def test_what_the_release_before_wrote_is_read(kind: IntentKind, payload: dict[str, str], operation: Operation) -> None:
    """With keys that it added, and that nobody knows."""
    assert decoded(kind, {**payload, "opened_at_monotonic_s": "1.5", "another": "key"}) == operation


@pytest.mark.parametrize(("kind", "payload", "operation"), FORMER.values(), ids=FORMER)
def test_what_is_written_is_in_the_form_of_the_release_before(
    kind: IntentKind, payload: dict[str, str], operation: Operation
) -> None:
    """Every key that it needs has the value that it wrote; what is new it does not read."""
    written = encoded(operation)
    assert written[0] is kind
    assert payload.items() <= written[1].items()
    assert decoded(*written) == operation


@pytest.mark.parametrize("creation", [None, MADE])
def test_a_useless_eni_is_deleted_by_either_release(creation: Create | None) -> None:
    """The release before finds a deletion that it knows, of an ENI that is not recorded."""
    operation = Delete(ENI, Why.USELESS, asked="asked", creation=creation)
    kind, payload = encoded(operation)
    assert decoded(kind, payload) == operation
    assert payload["deleting"]
    assert not payload.keys() & {"release", "leaked"}


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
    ],
)
def test_what_is_malformed_is_refused(kind: IntentKind, payload: dict[str, str]) -> None:
    """One kind of error for all of it, so that its recovery can name it."""
    with pytest.raises(ValueError, match=r"."):
        decoded(kind, payload)
