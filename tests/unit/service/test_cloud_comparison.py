"""What the daemon does with answers of EC2 that lag, are incomplete, odd, or contradict what is recorded (docs/adr/0017)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.model.absences import Doubts
from ipamd.model.address import AddressState
from ipamd.model.cloud_evidence import LOOK_GAP_S, RECENT_S
from ipamd.model.ids import EniId
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import COOLDOWN_S, FakeNode
from tests.unit.service.cloud_comparison import OTHER, fill, foreign


def unassign_by_hand(node: FakeNode, address: IPv4Address) -> None:
    """Another hand takes an address from its ENI."""
    eni_id = next(eni.eni_id for eni in node.ec2.enis.values() if address in eni.secondary_addresses)
    node.ec2.unassign(eni_id, addresses=[address], prefixes=[])


def test_an_address_that_ec2_took_from_a_sandbox_is_not_given_again(tmp_path: Path) -> None:
    """I7, and I1 across nodes: lost while its sandbox runs, gone after DEL and cooldown; another node may have it by then."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    made = fill(node, 2)[0]
    unassign_by_hand(node, made.address)
    result = node.look_twice()
    row = node.datastore.address(made.address)
    assert row is not None
    assert (row.is_lost, row.state, row.owner, result.lost_count) == (True, AddressState.ASSIGNED, made.key, 1)
    assert any(str(made.address) in str(kept) for kept in result.contradictions)
    assert any("lost" in sentence for sentence in node.health.conditions())
    node.delete("s0")
    node.cool()
    assert node.datastore.address(made.address) is None
    given = {node.add(f"t{number}").address for number in range(3) if node.pool.cycle() is not None}
    assert len(given) == 3
    assert made.address not in given
    node.host_reconciler.reconcile()
    assert not any("lost" in sentence for sentence in node.health.conditions())
    node.assert_sound()


def test_a_free_address_is_held_after_one_look_and_forgotten_after_two(node: FakeNode) -> None:
    """Nobody gets what EC2 did not show once; if it shows it again it is free as before (I7, I11)."""
    fill(node, 1)
    free = next(row.address for row in node.datastore.addresses() if row.state is AddressState.FREE)
    lagging = replace(node.ec2.enis[PRIMARY], secondary_addresses=node.ec2.enis[PRIMARY].secondary_addresses - {free})
    node.ec2.answers = [(lagging, node.ec2.enis[OTHER])]
    result = node.enis.sync_with_ec2(IDENTITY)
    assert (result.again_s, result.lost_count, node.datastore.counts().withheld) == (LOOK_GAP_S, 0, 1)
    result = node.enis.sync_with_ec2(IDENTITY)
    assert (result.again_s, node.datastore.counts().withheld) == (None, 0)
    unassign_by_hand(node, free)
    assert node.look_twice().removed_count == 1
    assert node.datastore.address(free) is None
    node.assert_sound()


def test_a_restart_forgets_no_doubt(node: FakeNode) -> None:
    """A daemon that restarts again and again gives nothing that EC2 did not show once, and takes its second look too (I7)."""
    fill(node, 1)
    free = next(row.address for row in node.datastore.addresses() if row.state is AddressState.FREE)
    unassign_by_hand(node, free)
    node.enis.sync_with_ec2(IDENTITY)
    for _ in range(2):
        node.crash()  # EC2 has not answered the next process yet
        assert node.datastore.counts().withheld == 1
        assert node.datastore.audit() == []
    node.clock.advance(LOOK_GAP_S)
    assert node.enis.sync_with_ec2(IDENTITY).removed_count == 1
    node.crash()
    assert node.datastore.counts().withheld == 0
    node.enis.sync_with_ec2(IDENTITY)
    assert (node.datastore.counts().withheld, node.datastore.doubts()) == (0, Doubts())
    assert node.datastore.address(free) is None


def test_what_is_shown_again_after_a_restart_is_free_again(node: FakeNode) -> None:
    """The doubt ends with the answer that shows it, whichever process began it."""
    fill(node, 1)
    free = next(row.address for row in node.datastore.addresses() if row.state is AddressState.FREE)
    lagging = replace(node.ec2.enis[PRIMARY], secondary_addresses=node.ec2.enis[PRIMARY].secondary_addresses - {free})
    node.ec2.answers = [(lagging, node.ec2.enis[OTHER])]
    node.enis.sync_with_ec2(IDENTITY)
    node.crash()
    node.clock.advance(LOOK_GAP_S)
    node.enis.sync_with_ec2(IDENTITY)
    assert (node.datastore.counts().withheld, node.datastore.doubts()) == (0, Doubts())
    assert node.datastore.address(free) is not None


def test_a_cooling_address_keeps_cooling_through_lag(node: FakeNode) -> None:
    """Two answers that lack it make it lost, not free; shown again it still cools to the end that it had (I8)."""
    made = fill(node, 1)[0]
    node.delete("s0")
    lagging = replace(node.ec2.enis[PRIMARY], secondary_addresses=node.ec2.enis[PRIMARY].secondary_addresses - {made.address})
    rest = tuple(eni for eni in node.ec2.enis.values() if eni.eni_id != PRIMARY)
    before = node.datastore.address(made.address)
    assert before is not None
    node.ec2.answers = [(lagging, *rest), (lagging, *rest)]
    node.enis.sync_with_ec2(IDENTITY)
    node.clock.advance(LOOK_GAP_S - 1)
    node.enis.sync_with_ec2(IDENTITY)  # too soon to count
    node.enis.sync_with_ec2(IDENTITY)  # it is shown again
    row = node.datastore.address(made.address)
    assert row is not None
    assert (row.state, row.cooldown_deadline_s) == (AddressState.COOLING, before.cooldown_deadline_s)
    assert made.address not in {row.address for row in node.datastore.addresses() if row.state is AddressState.FREE}


def test_a_lost_cooling_address_that_is_shown_again_still_cools(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost and healed within its cooldown: its end is the one that its DEL set (I8)."""
    monkeypatch.setattr("ipamd.model.cloud_evidence.LOOK_GAP_S", 1.0)
    node.enis._evidence._believed._gap_s = 1.0  # a cooldown of 30 s is as long as the real gap
    made = fill(node, 1)[0]
    node.delete("s0")
    before = node.datastore.address(made.address)
    lagging = replace(node.ec2.enis[PRIMARY], secondary_addresses=node.ec2.enis[PRIMARY].secondary_addresses - {made.address})
    node.ec2.answers = [(lagging, node.ec2.enis[OTHER])] * 2
    node.enis.sync_with_ec2(IDENTITY)
    node.clock.advance(1)
    assert node.enis.sync_with_ec2(IDENTITY).lost_count == 1
    assert node.enis.sync_with_ec2(IDENTITY).healed_count == 1
    assert node.datastore.address(made.address) == before
    node.cool()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE


def test_one_contradiction_stops_nothing_else(node: FakeNode) -> None:
    """A sandbox's address comes back as the primary one of another ENI: kept and lost, said, and the rest is recorded (I2, I6)."""
    made = fill(node, 1)[0]
    unassign_by_hand(node, made.address)
    taker = foreign("eni-9", 2, primary_address=made.address)
    node.ec2.enis[taker.eni_id] = taker
    fresh = node.ec2.assign_addresses(OTHER, count=0) | {IPv4Address("10.0.15.1")}
    node.ec2.enis[OTHER] = replace(node.ec2.enis[OTHER], secondary_addresses=node.ec2.enis[OTHER].secondary_addresses | fresh)
    result = node.enis.sync_with_ec2(IDENTITY)
    assert any(str(made.address) in str(kept) and "eni-9" in str(kept) for kept in result.contradictions)
    assert any(str(made.address) in sentence for sentence in node.health.conditions())
    assert all(node.datastore.address(address) is not None for address in fresh)
    assert node.enis.book.unrecorded_enis() == {EniId("eni-9"): (0, 2)}
    for _ in range(2):
        node.clock.advance(RECENT_S)
        assert node.enis.sync_with_ec2(IDENTITY).again_s is not None, "it is looked at again while the contradiction lasts"
    row = node.datastore.address(made.address)
    assert row is not None
    assert (row.is_lost, row.owner) == (True, made.key)
    node.delete("s0")
    node.cool()
    node.enis.sync_with_ec2(IDENTITY)
    assert node.datastore.eni(EniId("eni-9")) is not None
    assert node.datastore.address(made.address) is None
    assert not any(str(made.address) in sentence for sentence in node.health.conditions())


def test_a_prefix_that_moved_is_left_where_sandboxes_use_it(tmp_path: Path) -> None:
    """A /28 is on another ENI now: its free addresses go after two looks, a used one is lost, and all else is compared."""
    node = FakeNode(tmp_path, settings=PoolSettings(prefix_delegation=True, warm_prefix_target=1))
    node.bring_up()
    made = fill(node, 1)[0]
    prefix = next(prefix for eni in node.ec2.enis.values() for prefix in eni.prefixes if made.address in prefix)
    source = made.eni_id
    node.ec2.unassign(source, addresses=[], prefixes=[prefix])
    node.ec2.enis[EniId("eni-9")] = foreign("eni-9", 2, prefixes=frozenset({prefix, IPv4Network("10.0.14.0/28")}))
    node.clock.advance(RECENT_S)
    result = node.enis.sync_with_ec2(IDENTITY)
    assert any(str(made.address) in str(kept) for kept in result.contradictions)
    assert node.datastore.address(IPv4Address("10.0.14.3")) is not None
    node.clock.advance(LOOK_GAP_S)
    node.enis.sync_with_ec2(IDENTITY)
    row = node.datastore.address(made.address)
    assert row is not None
    assert (row.is_lost, row.eni_id) == (True, source)
    assert node.datastore.audit() == []


def test_our_own_allocation_is_not_taken_away_by_lag(tmp_path: Path) -> None:
    """EC2 does not show what it gave us for five minutes: the addresses stay free and are given."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=3))
    before = tuple(node.ec2.enis.values())
    node.bring_up()
    given = {row.address for row in node.datastore.addresses()}
    for _ in range(9):
        node.clock.advance(RECENT_S / 10)
        node.ec2.answers = [before]
        result = node.enis.sync_with_ec2(IDENTITY)
        assert (result.implausible, result.lost_count, node.datastore.counts().withheld) == ("", 0, 0)
        assert result.again_s is not None
    assert {row.address for row in node.datastore.addresses()} == given
    assert node.enis.sync_with_ec2(IDENTITY).again_s is None


@pytest.mark.parametrize("shown_by", ["Assign", "a later Describe"])
def test_what_was_released_before_the_datastore_was_lost_cools_wherever_it_turns_up(node: FakeNode, shown_by: str) -> None:
    """I8: the first Describe lacked it; then an answer to Assign, which may name old addresses too, or a later Describe shows it."""
    node.add("s")
    released = node.datastore.attachments()[0]
    node.delete("s")
    node.crash(keep_datastore=False)
    eni = node.ec2.enis[released.eni_id]
    node.ec2.enis[released.eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses - {released.address})
    node.clock.advance(2 * COOLDOWN_S)  # EC2 did not answer before
    node.bring_up()
    free = {row.address for row in node.datastore.addresses(state=AddressState.FREE)}
    assert not free & eni.secondary_addresses, "each may have been released while the daemon did not know it"
    node.ec2.enis[released.eni_id] = eni
    node.clock.advance(COOLDOWN_S - 1)
    if shown_by == "Assign":
        new = IPv4Address("10.0.7.1")
        node.enis.add_addresses(released.eni_id, frozenset({released.address, new}), frozenset(), asked_count=1)
    else:
        node.enis.sync_with_ec2(IDENTITY)
    row = node.datastore.address(released.address)
    assert row is not None
    assert row.state is AddressState.COOLING
    node.cool()
    row = node.datastore.address(released.address)
    assert row is not None
    assert row.state is AddressState.FREE


@pytest.mark.parametrize("starts", [1, 3])
def test_what_is_released_while_no_daemon_runs_cools_if_no_row_told_of_it(node: FakeNode, starts: int) -> None:
    """I8: after the loss EC2 did not show a live sandbox's address. The daemon restarts, and it ends meanwhile: when EC2 shows
    the address again, nothing tells whose it was.
    """
    node.runtime.run("s")
    node.add("s")
    held = node.datastore.attachments()[0]
    node.crash(keep_datastore=False)
    eni = node.ec2.enis[held.eni_id]
    node.ec2.enis[held.eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses - {held.address})
    node.bring_up()
    assert node.quarantine.unplaced(is_of_pool=True) == {held.host_veth}
    for _ in range(starts):
        node.clock.advance(10 * COOLDOWN_S)
        node.crash()
    del node.runtime.listed["s"]
    del node.wiring.wired[held.host_veth], node.wiring.routes[held.address]
    node.ec2.enis[held.eni_id] = eni
    node.bring_up()
    row = node.datastore.address(held.address)
    assert row is not None
    assert row.state is AddressState.COOLING
    node.cool()
    assert node.datastore.addresses(state=AddressState.COOLING) == ()
