"""What the daemon does when an answer of EC2 lacks ENIs, shows odd ones, or contradicts what is recorded of them (docs/adr/0017)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import LOOK_GAP_S, MASS_LOSS_AGE_S
from ipamd.model.conditions import ConditionCode
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import PoolEmptyError
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.metadata_evidence import ASK_AGAIN_S
from ipamd.model.pool_settings import PoolSettings
from tests.conditions import codes
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.stale_reads import give_the_threads_their_turn
from tests.unit.service.cloud_comparison import OTHER, fill, foreign

AN_HOUR_S = 3600


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
    assert ConditionCode.EC2_ANSWER_IMPLAUSIBLE in codes(node.health)
    node.enis.sync_with_ec2(IDENTITY)
    assert ConditionCode.EC2_ANSWER_IMPLAUSIBLE not in codes(node.health)


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
    assert list(node.enis.book.unrecorded_enis().values()) == [(0, 2)]
    give_the_threads_their_turn(node)
    for number in range(18):
        node.add(f"s{number}")
        node.pool.cycle()
    with pytest.raises(PoolEmptyError):
        node.add("one-too-many")
    assert [eni.device_index for eni in node.datastore.enis()] == [0, 1]
    assert node.ec2.enis[odd.eni_id] == odd
    is_unreadable = bool(odd.problem)
    assert (ConditionCode.EC2_DIFFERS in codes(node.health)) == is_unreadable
    node.crash()
    node.bring_up()
    assert list(node.enis.book.unrecorded_enis().values()) == [(0, 2)]


def test_an_eni_that_cannot_be_read_keeps_its_addresses(node: FakeNode) -> None:
    """What an entry does not tell is not gone: nothing of the ENI is held, lost or changed (I11)."""
    fill(node, 9)
    before = node.datastore.addresses(), node.datastore.enis()
    whole = node.ec2.enis[OTHER]
    node.ec2.enis[OTHER] = replace(whole, primary_address=None, secondary_addresses=frozenset(), problem="'10.0.0.300'")
    for _ in range(2):
        result = node.enis.sync_with_ec2(IDENTITY)
        assert (result.lost_count, result.again_s) == (0, ASK_AGAIN_S), "nothing else would notice that it can be read again"
        node.clock.advance(LOOK_GAP_S)
    assert (node.datastore.addresses(), node.datastore.enis(), node.datastore.counts().withheld) == (*before, 0)
    assert node.enis.book.unrecorded_enis() == {}


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
    assert node.datastore.counts().withheld == 2
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
    assert node.enis.sync_with_ec2(IDENTITY).again_s is not None
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
    assert ConditionCode.MASS_LOSS in codes(node.health)


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

    def tear_down(eni: Eni, *, remaining: Iterable[Eni] = ()) -> None:
        torn_down.append((eni.eni_id, {other.eni_id for other in remaining}))

    monkeypatch.setattr(node.hostnet, "teardown_eni", tear_down)
    node.delete(old.key.container_id)
    node.cool()
    node.host_reconciler.reconcile()
    assert torn_down == [(OTHER, {PRIMARY, successor.eni_id})]
