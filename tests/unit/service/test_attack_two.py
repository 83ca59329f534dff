from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.model.cloud import DescribedEni
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import DatastoreError, PoolEmptyError
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import INSTANCE, PRIMARY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.other_hands import detach_by_hand, link_event, pass_time, settle
from tests.stories.stale_reads import run_sandboxes

SECOND = EniId("eni-2")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    settle(made)
    yield made
    made.datastore.close()


def test_K2(node: FakeNode) -> None:
    node.metadata.freeze()
    node.ec2.fail["describe_enis"] = [ValueError("x")]
    link_event(node, detach_by_hand(node, SECOND).mac)
    with pytest.raises(ValueError):
        node.pool.run_once()
    for _ in range(30):
        pass_time(node, 60.0)
    assert node.datastore.eni(SECOND) is None


def test_II2(node: FakeNode) -> None:
    """metadata frozen with the stuck one"""
    foreign = DescribedEni(
        EniId("eni-9"),
        MacAddress("02:00:00:00:00:99"),
        SUBNET,
        IPv4Address("10.0.1.1"),
        status="in-use",
        attachment_id="attach-x",
        attachment_status="detaching",
        instance_id=INSTANCE,
        device_index=2,
    )
    node.ec2.enis[foreign.eni_id] = foreign
    for _ in range(600):
        pass_time(node, 60.0)
    node.metadata.freeze()
    link_event(node, detach_by_hand(node, SECOND).mac)
    n = 0
    for n in range(600):
        pass_time(node, 10.0)
        if node.datastore.eni(SECOND) is None:
            break
    print("forgotten after", n * 10)
    assert n * 10 <= 120


def test_view_15(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.24xlarge", 15, 10)))
    node.bring_up()
    run_sandboxes(node, *(f"s{n}" for n in range(9 * 14 + 1)))
    print(len(node.ec2.attached()))
    seen = 0
    for _ in range(400):
        node.clock.advance(10)
        node.cloud_reconciler.run_once()
        seen += node.cloud_reconciler.metadata.view() is not None
    node.datastore.close()
    assert seen > 200, seen


def test_freeze_disk(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.metadata.freeze()
    mac = detach_by_hand(node, SECOND).mac
    with monkeypatch.context() as patch:

        def boom(*a, **k):
            raise DatastoreError("disk full")

        patch.setattr(SqlUnitOfWork, "put_eni", boom)
        with pytest.raises(DatastoreError):
            link_event(node, mac)
    node.cloud_reconciler.run_once()
    eni = node.datastore.eni(SECOND)
    assert not eni.host_ready
    for _ in range(10):
        pass_time(node, 31)
    assert node.datastore.eni(SECOND) is None


def test_two_frozen(tmp_path: Path) -> None:
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2), ec2=FakeEc2(limits=InstanceLimits("m5.xlarge", 4, 4)))
    node.bring_up()
    for n in range(8):
        for _ in range(5):
            try:
                node.add(f"s{n}", deadline_s=0.2)
                break
            except PoolEmptyError:
                pass_time(node, 10)
        pass_time(node, 10)
    print([(s.eni.eni_id, s.counts) for s in node.datastore.stock().enis])
    settle(node)
    for e in ("eni-2", "eni-3"):
        node.hostnet.unplugged.add(node.ec2.enis[e].mac)
        link_event(node, node.ec2.enis[e].mac)
    for s in ("s4", "s5", "s7"):
        node.delete(s)
    node.cool()
    settle(node)
    got = 0
    for i in range(40):
        try:
            node.add(f"g{i}", deadline_s=0.2)
            got += 1
        except PoolEmptyError as e:
            last = e
        pass_time(node, 20)
    print(got, last, last.details, node.demand.status())
    print([(s.eni.eni_id, s.eni.host_ready, s.counts.free) for s in node.datastore.stock().enis])
    assert got >= 3


def test_restart_departed(node: FakeNode) -> None:
    """lost ENI with a sandbox, restart, the sandbox leaves: forgotten"""
    n = 0
    while node.add(f"f{n}").eni_id != SECOND:
        n += 1
    settle(node)
    link_event(node, detach_by_hand(node, SECOND).mac)
    settle(node)
    assert node.datastore.eni(SECOND).state is EniState.DETACHING
    node.crash()
    node.bring_up()
    settle(node)
    assert node.datastore.counts().lost == 1
    node.delete(f"f{n}")
    node.cool()
    settle(node)
    assert node.datastore.eni(SECOND) is None
    assert node.datastore.audit() == []
    node.assert_sound()


def test_restart_departed_gone_before(node: FakeNode) -> None:
    n = 0
    while node.add(f"f{n}").eni_id != SECOND:
        n += 1
    settle(node)
    link_event(node, detach_by_hand(node, SECOND).mac)
    settle(node)
    node.crash()
    node.delete(f"f{n}")
    node.ec2.fail["describe_enis"] = []
    node.bring_up()
    node.cool()
    settle(node)
    assert node.datastore.eni(SECOND) is None
    node.assert_sound()


def test_lost_cooling_restart(node: FakeNode) -> None:
    a = node.datastore.attachment(node.key("a")).address
    node.ec2.unassign(PRIMARY, addresses=[a], prefixes=[])
    node.delete("a")
    node.look_twice()
    print(node.datastore.address(a))
    node.crash()
    node.bring_up()
    node.cool()
    assert node.datastore.address(a) is None
    node.assert_sound()


def test_prefix_roundtrip(tmp_path: Path) -> None:
    """A /28 unassigned by hand and assigned again to another ENI, then back, with one sandbox in it."""
    node = FakeNode(
        tmp_path,
        settings=PoolSettings(prefix_delegation=True, warm_prefix_target=1),
        ec2=FakeEc2(limits=InstanceLimits("m5.xlarge", 4, 3)),
    )
    node.bring_up()
    made = run_sandboxes(node, *(f"s{n}" for n in range(40)))
    settle(node)
    print({e.eni_id: e.prefixes for e in node.ec2.enis.values()})
    src = PRIMARY
    p = sorted(node.ec2.enis[PRIMARY].prefixes)[0]
    names = [n for n, a in made.items() if a in p]
    for n in names[1:]:
        node.delete(n)
    node.cool()
    node.clock.advance(300)
    node.ec2.unassign(PRIMARY, addresses=[], prefixes=[p])
    other = node.ec2.enis[SECOND]
    node.ec2.enis[SECOND] = replace(other, prefixes=other.prefixes | {p})
    settle(node)
    assert node.datastore.audit() == []
    print(node.datastore.counts(), node.health.conditions())
    node.ec2.unassign(SECOND, addresses=[], prefixes=[p])
    node.ec2.enis[PRIMARY] = replace(node.ec2.enis[PRIMARY], prefixes=node.ec2.enis[PRIMARY].prefixes | {p})
    for _ in range(100):
        pass_time(node, 60)
    print(node.datastore.counts(), node.health.conditions())
    assert node.datastore.counts().lost == 0
    node.assert_sound()
    # and once more, leaves
    node.ec2.unassign(PRIMARY, addresses=[], prefixes=[p])
    node.ec2.enis[SECOND] = replace(node.ec2.enis[SECOND], prefixes=node.ec2.enis[SECOND].prefixes | {p})
    settle(node)
    node.delete(names[0])
    node.cool()
    for _ in range(100):
        pass_time(node, 60)
    assert node.datastore.audit() == []
    node.assert_sound()
    row = node.datastore.address(p[3])
    assert row is not None and row.eni_id == SECOND
    node.datastore.close()
