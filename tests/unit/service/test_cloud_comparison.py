"""What the daemon does with answers of EC2 that lag, are incomplete, odd, or contradict what is recorded (docs/adr/0017)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.model.absence import Doubts
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import LOOK_GAP_S, MASS_LOSS_AGE_S, RECENT_S
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import PoolEmptyError
from ipamd.model.ids import EniId, MacAddress, SubnetId
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import IDENTITY, INSTANCE, PRIMARY, SUBNET
from tests.fakes.node import COOLDOWN_S, FakeNode
from tests.stories.stale_reads import give_the_threads_their_turn

OTHER = EniId("eni-2")
AN_HOUR_S = 3600


def fill(node: FakeNode, count: int) -> list[Attachment]:
    """Run sandboxes until `count` of them have an address; long after our own calls when it returns."""
    give_the_threads_their_turn(node)
    made = []
    for number in range(count):
        made.append(node.add(f"s{number}"))
        node.runtime.run(f"s{number}")
        node.pool.cycle()
    node.clock.advance(RECENT_S)
    return made


def foreign(eni_id: str, device_index: int, **changes: object) -> DescribedEni:
    """An attached ENI that nobody of ours created."""
    values: dict[str, object] = {
        "eni_id": EniId(eni_id),
        "mac": MacAddress("02:00:00:00:ff:01"),
        "subnet_id": SUBNET,
        "primary_address": IPv4Address("10.0.15.250"),
        "status": "in-use",
        "attachment_id": f"attach-{eni_id}",
        "attachment_status": "attached",
        "instance_id": INSTANCE,
        "device_index": device_index,
    }
    return DescribedEni(**(values | changes))  # type: ignore[arg-type]


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
    assert (result.pending, result.again_s, result.lost_count, node.datastore.counts().held) == (True, LOOK_GAP_S, 0, 1)
    result = node.enis.sync_with_ec2(IDENTITY)
    assert (result.pending, node.datastore.counts().held) == (False, 0)
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
        assert node.datastore.counts().held == 1
        assert node.datastore.audit() == []
    node.clock.advance(LOOK_GAP_S)
    assert node.enis.sync_with_ec2(IDENTITY).removed_count == 1
    node.crash()
    assert node.datastore.counts().held == 0
    node.enis.sync_with_ec2(IDENTITY)
    assert (node.datastore.counts().held, node.datastore.doubts()) == (0, Doubts())
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
    assert (node.datastore.counts().held, node.datastore.doubts()) == (0, Doubts())
    assert node.datastore.address(free) is not None


@pytest.mark.parametrize("answer", ["empty", "without the primary ENI"])
def test_an_answer_without_the_primary_eni_changes_nothing(node: FakeNode, answer: str) -> None:
    """Repeated for an hour: no ENI is marked, none is created, no address is held; people are told (I11)."""
    fill(node, 3)
    before = node.datastore.enis(), node.datastore.addresses()
    told = () if answer == "empty" else (node.ec2.enis[OTHER],)
    created = node.ec2.calls["create_eni"]
    for _ in range(60):
        node.ec2.answers = [told]
        result = node.enis.sync_with_ec2(IDENTITY)
        assert result.implausible
        assert result.again_s is not None
        node.clock.advance(AN_HOUR_S / 60)
        node.pool.cycle()
    assert (node.datastore.enis(), node.datastore.addresses()) == before
    assert node.ec2.calls["create_eni"] == created
    assert any("not believed" in sentence for sentence in node.health.conditions())
    node.enis.sync_with_ec2(IDENTITY)
    assert not any("not believed" in sentence for sentence in node.health.conditions())


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


@pytest.mark.parametrize(
    "odd",
    [
        foreign("eni-efa", 2, primary_address=None, interface_type="efa-only"),
        foreign("eni-v6", 2, primary_address=None),
        foreign("eni-bad", 2, primary_address=None, mac="", subnet_id=SubnetId(""), problem="'MacAddress' is missing"),
        foreign("", 2, primary_address=None, problem="'NetworkInterfaceId' is missing"),
        foreign("eni-coming", 2, attachment_status="attaching"),
        foreign("eni-leaving", 2, attachment_status="detaching"),
    ],
    ids=lambda eni: eni.eni_id or "no ID",
)
def test_an_eni_that_gives_nothing_takes_its_place(tmp_path: Path, odd: DescribedEni) -> None:
    """It fails nothing, is not recorded and not touched, and its device is not used for another ENI, also after a restart."""
    node = FakeNode(tmp_path)
    node.ec2.enis[odd.eni_id] = odd
    node.bring_up()
    assert node.datastore.eni(odd.eni_id) is None
    assert list(node.enis.occupied().values()) == [(0, 2)]
    give_the_threads_their_turn(node)
    for number in range(18):
        node.add(f"s{number}")
        node.pool.cycle()
    with pytest.raises(PoolEmptyError):
        node.add("one-too-many")
    assert [eni.device_index for eni in node.datastore.enis()] == [0, 1]
    assert node.ec2.enis[odd.eni_id] == odd
    is_unreadable = bool(odd.problem)
    assert any("cannot be read" in sentence for sentence in node.health.conditions()) == is_unreadable
    node.crash()
    node.bring_up()
    assert list(node.enis.occupied().values()) == [(0, 2)]


def test_an_eni_that_cannot_be_read_keeps_its_addresses(node: FakeNode) -> None:
    """What an entry does not tell is not gone: nothing of the ENI is held, lost or changed (I11)."""
    fill(node, 9)
    before = node.datastore.addresses(), node.datastore.enis()
    whole = node.ec2.enis[OTHER]
    node.ec2.enis[OTHER] = replace(whole, primary_address=None, secondary_addresses=frozenset(), problem="'10.0.0.300'")
    assert node.look_twice().lost_count == 0
    assert (node.datastore.addresses(), node.datastore.enis(), node.datastore.counts().held) == (*before, 0)
    assert node.enis.occupied() == {}


def test_a_vanished_eni_is_no_supply_and_frees_its_place(tmp_path: Path) -> None:
    """Its free addresses go, its place is free, and the pool replaces it: an ADD is served, without a restart."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=3))
    node.bring_up()
    made = fill(node, 20)
    assert len(node.ec2.enis) == 3
    gone = EniId("eni-3")
    on_gone = [one for one in made if one.eni_id == gone]
    assert on_gone
    node.ec2.detach_eni(f"attach-{gone}")
    node.look_twice()
    lost = node.datastore.counts()
    assert (lost.lost, lost.lost_in_use) == (len(on_gone), len(on_gone))
    assert not [row for row in node.datastore.addresses() if row.eni_id == gone and row.state is AddressState.FREE]
    decided = node.pool.cycle()
    assert decided is not None
    served = node.add("served")
    assert served.eni_id not in (gone, PRIMARY, OTHER)
    assert {eni.device_index for eni in node.datastore.enis()} == {0, 1, 2}
    assert set(made) <= set(node.datastore.attachments())  # its sandboxes keep what they have (I2)


def test_the_pool_is_not_at_target_while_its_free_addresses_are_held(tmp_path: Path) -> None:
    """An ENI that EC2 did not show once gives nothing; whoever waits is served by growth."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    fill(node, 9)
    node.ec2.answers = [(node.ec2.enis[PRIMARY],)]
    node.enis.sync_with_ec2(IDENTITY)
    assert node.datastore.counts().held == 2
    with pytest.raises(PoolEmptyError):
        node.datastore.reserve(node.key("nobody"))
    node.pool.cycle()
    assert node.datastore.reserve(node.key("somebody")).address in {
        a for e in node.ec2.enis.values() for a in e.secondary_addresses
    }


def test_an_eni_that_is_being_detached_gives_nothing_and_takes_its_place(node: FakeNode) -> None:
    """EC2 shows it detaching: no ADD gets its addresses, its sandboxes keep theirs, no other ENI takes its device (I2, I7)."""
    made = fill(node, 10)
    on_other = [one for one in made if one.eni_id == OTHER]
    assert on_other
    attached = node.ec2.enis[OTHER]
    node.ec2.enis[OTHER] = replace(attached, attachment_status="detaching")
    assert node.enis.sync_with_ec2(IDENTITY).pending
    eni = node.datastore.eni(OTHER)
    assert eni is not None
    assert (eni.state, eni.host_ready) == (EniState.DETACHING, False)
    assert node.datastore.reserve(node.key("somebody")).eni_id != OTHER
    node.host_reconciler.reconcile()
    node.pool.cycle()
    assert sorted(eni.device_index for eni in node.datastore.enis()) == [0, 1, 2]
    assert node.datastore.counts().lost == 0
    node.ec2.enis[OTHER] = attached
    node.enis.sync_with_ec2(IDENTITY)
    eni = node.datastore.eni(OTHER)
    assert eni is not None
    assert (eni.state, eni.host_ready) == (EniState.ATTACHED, True)


def test_an_absent_eni_is_forgotten_when_its_last_sandbox_has_left(node: FakeNode) -> None:
    """Record and routing stay while a sandbox has an address of it, cooling included, and go without another look at EC2."""
    made = [one for one in fill(node, 10) if one.eni_id == OTHER]
    assert made
    del node.ec2.enis[OTHER]
    node.look_twice()
    node.host_reconciler.reconcile()
    assert OTHER in node.hostnet.enis
    for one in made:
        node.delete(one.key.container_id)
    node.host_reconciler.reconcile()
    assert node.datastore.eni(OTHER) is not None  # its addresses cool (I8)
    node.cool()
    calls = node.ec2.calls["describe_enis"]
    node.host_reconciler.reconcile()
    assert (node.datastore.eni(OTHER), OTHER in node.hostnet.enis) == (None, False)
    assert node.ec2.calls["describe_enis"] == calls


def test_one_contradiction_stops_nothing_else(node: FakeNode) -> None:
    """A sandbox's address comes back as the primary one of another ENI: kept and lost, said, and the rest is recorded (I2, I6)."""
    made = fill(node, 1)[0]
    unassign_by_hand(node, made.address)
    taker = foreign("eni-9", 2, primary_address=made.address)
    node.ec2.enis[taker.eni_id] = taker
    fresh = node.ec2.assign_addresses(OTHER, count=0) | {IPv4Address("10.0.15.1")}
    node.ec2.enis[OTHER] = replace(node.ec2.enis[OTHER], secondary_addresses=node.ec2.enis[OTHER].secondary_addresses | fresh)
    result = node.enis.sync_with_ec2(IDENTITY)
    assert any(str(made.address) in sentence and "eni-9" in sentence for sentence in result.kept)
    assert any(str(made.address) in sentence for sentence in node.health.conditions())
    assert all(node.datastore.address(address) is not None for address in fresh)
    assert node.enis.occupied() == {EniId("eni-9"): (0, 2)}
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
    assert any(str(made.address) in sentence for sentence in result.kept)
    assert node.datastore.address(IPv4Address("10.0.14.3")) is not None
    node.clock.advance(LOOK_GAP_S)
    node.enis.sync_with_ec2(IDENTITY)
    row = node.datastore.address(made.address)
    assert row is not None
    assert (row.is_lost, row.eni_id) == (True, source)
    assert node.datastore.audit() == []


def test_a_real_mass_loss_is_believed_with_the_kernel_and_said(tmp_path: Path) -> None:
    """Two of three ENIs were detached by hand and their links are gone: believed after ten minutes, and a condition."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    fill(node, 20)
    gone = [eni_id for eni_id in node.ec2.enis if eni_id != PRIMARY]
    assert len(gone) == 2
    for eni_id in gone:
        del node.ec2.enis[eni_id]
    for _ in range(int(MASS_LOSS_AGE_S / 60)):
        assert node.enis.sync_with_ec2(IDENTITY).implausible
        node.clock.advance(60)
    assert node.datastore.counts().lost == 0
    result = node.enis.sync_with_ec2(IDENTITY)
    assert result.implausible == ""
    assert {eni.eni_id for eni in node.datastore.enis() if eni.state is EniState.DETACHING} == set(gone)
    assert any("confirmed by kernel or metadata" in sentence for sentence in node.health.conditions())


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
        assert (result.implausible, result.lost_count, node.datastore.counts().held) == ("", 0, 0)
        assert result.again_s is not None
    assert {row.address for row in node.datastore.addresses()} == given
    assert node.enis.sync_with_ec2(IDENTITY).again_s is None


def test_a_successor_keeps_its_table_when_its_predecessor_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table is the device index + 1: whoever tears the old ENI down is told of the new one at its device (I2)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=3))
    node.bring_up()
    old = next(one for one in fill(node, 10) if one.eni_id == OTHER)
    node.ec2.detach_eni(f"attach-{OTHER}")
    node.look_twice()
    node.pool.cycle()
    before, successor = (
        node.datastore.eni(OTHER),
        next(eni for eni in node.datastore.enis() if eni.eni_id not in (PRIMARY, OTHER)),
    )
    assert before is not None
    assert successor.route_table == before.route_table
    torn_down: list[tuple[EniId, set[EniId]]] = []

    def tear_down(eni: Eni, *, keep: Iterable[Eni] = ()) -> None:
        torn_down.append((eni.eni_id, {other.eni_id for other in keep}))

    monkeypatch.setattr(node.hostnet, "teardown_eni", tear_down)
    node.delete(old.key.container_id)
    node.cool()
    node.host_reconciler.reconcile()
    assert torn_down == [(OTHER, {PRIMARY, successor.eni_id})]


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
    free = {row.eni_id for row in node.datastore.addresses(state=AddressState.FREE)}
    assert released.eni_id not in free, "each may have been released while the daemon did not know it"
    node.ec2.enis[released.eni_id] = eni
    node.clock.advance(COOLDOWN_S - 1)
    if shown_by == "Assign":
        node.enis.add_addresses(released.eni_id, frozenset({released.address}), frozenset())
    else:
        node.enis.sync_with_ec2(IDENTITY)
    row = node.datastore.address(released.address)
    assert row is not None
    assert row.state is AddressState.COOLING
    node.cool()
    row = node.datastore.address(released.address)
    assert row is not None
    assert row.state is AddressState.FREE
