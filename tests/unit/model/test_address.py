"""The transition table: exactly the arrows in the head of ipamd/model/address.py, everything else raises (I1, I8)."""

from __future__ import annotations

from datetime import UTC, datetime
from ipaddress import IPv4Address

import pytest

from ipamd.model.address import TRANSITIONS, Address, AddressEvent, AddressState
from ipamd.model.errors import IllegalTransitionError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import EniId
from tests.errors import failed

ARROWS = """
    free reserve reserved
    reserved confirm assigned
    assigned unassign cooling
    cooling cooled free
    reserved abort cooling
    reserved return free
    free disagree quarantined
    reserved disagree quarantined
    cooling disagree quarantined
    quarantined resolve cooling
    free adopt assigned
    cooling adopt assigned
    quarantined adopt assigned
"""
TABLE = {(before, event): after for before, event, after in (line.split() for line in ARROWS.strip().splitlines())}


@pytest.mark.parametrize("state", AddressState)
@pytest.mark.parametrize("event", AddressEvent)
def test_every_pair(state: AddressState, event: AddressEvent) -> None:
    """Each of the 45 pairs does what the table says, or raises and names both."""
    address = Address(IPv4Address("10.0.0.4"), EniId("eni-1"), state, datetime(2026, 1, 1, tzinfo=UTC))
    if (state, event) in TABLE:
        assert address.after(event) == TABLE[state, event]
    else:
        with pytest.raises(
            IllegalTransitionError, check=failed(FailureCode.ILLEGAL_TRANSITION, address="10.0.0.4", event=event, state=state)
        ) as refusal:
            address.after(event)
        assert "nothing was changed" in refusal.value.details


def test_assigned_only_cools() -> None:
    """A live sandbox's address has one way out, and it leads to cooling (I2, I8)."""
    assert {after for (before, _), after in TRANSITIONS.items() if before is AddressState.ASSIGNED} == {AddressState.COOLING}


def test_every_state_is_reached_and_left() -> None:
    """No state is a trap and none is dead."""
    assert {before for before, _ in TRANSITIONS} == set(AddressState) == set(TRANSITIONS.values())
