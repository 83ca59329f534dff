from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.cloud import DescribedEni
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import CloudError, DatastoreError, IpamError, PoolEmptyError
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import LinkEventKind
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import IDENTITY, INSTANCE, PRIMARY, SUBNET, FakeEc2
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


def fill_primary_and_one_more(node: FakeNode) -> str:
    n = 0
    while True:
        n += 1
        if node.add(f"f{n}").eni_id == SECOND:
            return f"f{n}"


def reattach(node: FakeNode, eni: DescribedEni, index: int | None = None) -> None:
    node.ec2.enis[eni.eni_id] = replace(eni, device_index=eni.device_index if index is None else index)


def test_A_reattached_with_sandboxes(node: FakeNode) -> None:
    """Detached by hand, believed, attached again by hand while its sandboxes are there."""
    name = fill_primary_and_one_more(node)
    settle(node)
    before = detach_by_hand(node, SECOND)
    link_event(node, before.mac)
    settle(node)
    eni = node.datastore.eni(SECOND)
    assert eni is not None and eni.state is EniState.DETACHING
    reattach(node, before, 5)
    link_event(node, before.mac, LinkEventKind.SEEN)
    for _ in range(200):
        pass_time(node, 60.0)
    eni = node.datastore.eni(SECOND)
    assert eni is not None and eni.state is EniState.ATTACHED, eni


def test_A2_false_loss(node: FakeNode) -> None:
    """Two lagging answers, then EC2 shows all again; the link was there all the time."""
    fill_primary_and_one_more(node)
    settle(node)
    full = node.ec2.describe_enis(INSTANCE)
    node.ec2.answers = [tuple(e for e in full if e.eni_id != SECOND)] * 2
    node.enis.sync_with_ec2(IDENTITY)
    node.clock.advance(31)
    node.enis.sync_with_ec2(IDENTITY)
    eni = node.datastore.eni(SECOND)
    assert eni is not None and eni.state is EniState.DETACHING
    for _ in range(200):
        pass_time(node, 60.0)
    eni = node.datastore.eni(SECOND)
    assert eni is not None and eni.state is EniState.ATTACHED, eni


def test_B_other_index(node: FakeNode) -> None:
    name = fill_primary_and_one_more(node)
    settle(node)
    before = node.ec2.enis[SECOND]
    reattach(node, before, 5)
    node.enis.sync_with_ec2(IDENTITY)
    settle(node)
    eni = node.datastore.eni(SECOND)
    assert eni is not None
    assert eni.device_index == 5
    assert eni.host_ready
    assert node.hostnet.enis[SECOND].device_index == 5
    spec = node.wiring.wired[node.datastore.attachment(node.key(name)).host_veth]
    assert node.wiring.rules[spec.address] == eni.route_table, (node.wiring.rules[spec.address], eni.route_table)


def test_G_detaching_for_long(node: FakeNode) -> None:
    """EC2 says detaching for an hour: its free addresses are no supply."""
    settle(node)
    eni = node.ec2.enis[SECOND]
    node.ec2.enis[SECOND] = replace(eni, attachment_status="detaching")
    node.hostnet.unplugged.add(eni.mac)
    link_event(node, eni.mac)
    settle(node)
    for n in range(9):
        try:
            node.add(f"x{n}", deadline_s=0.3)
        except PoolEmptyError as e:
            print(n, e, e.details)
        pass_time(node, 5.0)
        print(n, node.demand.status().sentence, node.datastore.counts())
    assert len(node.datastore.attachments()) >= 11


def test_T_adoption_note(node: FakeNode) -> None:
    """A refused allocation's own Describe lags: what it lacked is held until somebody looks again."""
    settle(node)
    full = node.ec2.describe_enis(INSTANCE)
    victim = next(r.address for r in node.datastore.addresses() if r.eni_id == SECOND)
    node.ec2.answers = [tuple(replace(e, secondary_addresses=e.secondary_addresses - {victim}) for e in full)]
    node.provisioner._adoption.adopt_changes(IDENTITY)
    assert node.datastore.counts().held == 1
    for _ in range(300):
        pass_time(node, 60.0)
    assert node.datastore.counts().held == 0


def test_Q_foreign_detached(node: FakeNode) -> None:
    foreign = DescribedEni(
        EniId("eni-efa"),
        MacAddress("02:00:00:00:00:ee"),
        SUBNET,
        None,
        status="in-use",
        attachment_id="attach-x",
        attachment_status="attached",
        instance_id=INSTANCE,
        device_index=2,
        interface_type="efa-only",
    )
    node.ec2.enis[foreign.eni_id] = foreign
    settle(node)
    print(node.enis.occupied())
    assert node.enis.occupied()
    del node.ec2.enis[foreign.eni_id]
    for _ in range(300):
        pass_time(node, 60.0)
    assert not node.enis.occupied()


def test_P_subnet_once(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = DescribedEni(
        EniId("eni-9"),
        MacAddress("02:00:00:00:00:99"),
        "subnet-2",
        IPv4Address("10.0.1.1"),
        frozenset({IPv4Address("10.0.1.2")}),
        status="in-use",
        attachment_id="attach-x",
        attachment_status="attached",
        instance_id=INSTANCE,
        device_index=2,
    )
    node.ec2.enis[foreign.eni_id] = foreign
    real = node.ec2.subnet_cidr
    fails = [CloudError("throttled")]

    def sub(s):
        if fails:
            raise fails.pop()
        return real(s)

    monkeypatch.setattr(node.ec2, "subnet_cidr", sub)
    settle(node)
    for _ in range(300):
        pass_time(node, 60.0)
    assert node.datastore.eni(foreign.eni_id) is not None


def test_K_unexpected(node: FakeNode) -> None:
    settle(node)
    node.ec2.fail["describe_enis"] = [ValueError("x")]
    link_event(node, detach_by_hand(node, SECOND).mac)
    node.metadata.freeze()
    with pytest.raises(ValueError):
        node.pool.run_once()
    for _ in range(30):
        pass_time(node, 60.0)
    assert node.datastore.eni(SECOND) is None


def test_J_forget_disk_full(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    fill_primary_and_one_more(node)
    settle(node)
    detach_by_hand(node, SECOND)
    name = next(a.key.container_id for a in node.datastore.attachments() if a.eni_id == SECOND)
    settle(node)
    node.delete(name)
    node.cool()

    def boom(*a, **k) -> None:
        raise DatastoreError("disk full")

    a = node.datastore.attachment(node.key("a"))
    node.wiring.routes.pop(a.address)
    from ipamd.datastore.unit_of_work import SqlUnitOfWork

    monkeypatch.setattr(SqlUnitOfWork, "remove_eni", boom)
    assert node.datastore.eni(SECOND) is not None
    try:
        node.host_reconciler.reconcile()
    except IpamError as e:
        print(e)
    assert a.address in node.wiring.routes


def test_II_doubled_pause(node: FakeNode) -> None:
    """A foreign ENI is stuck in detaching; hours later another ENI is detached by hand."""
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
    link_event(node, detach_by_hand(node, SECOND).mac)
    n = 0
    for n in range(600):
        pass_time(node, 10.0)
        if node.datastore.eni(SECOND) is None:
            break
    print("forgotten after", n * 10)
    assert n * 10 <= 120


def test_W_freeze_race(node: FakeNode) -> None:
    """The link goes while the pool commits host_ready."""
    node.enis.routing._mark(SECOND, host_ready=False)
    eni = node.datastore.eni(SECOND)
    detach_by_hand(node, SECOND)
    done = threading.Event()
    threads: list[threading.Thread] = []

    def fp(name: str) -> None:
        if name == "datastore.before-commit" and not done.is_set():
            done.set()
            t = threading.Thread(target=node.enis.routing.freeze, args=(SECOND, "gone"))
            threads.append(t)
            t.start()
            t.join(0.2)

    node.failpoint = fp
    node.datastore._failpoint = fp
    node.enis.routing.set_up(eni)
    assert done.is_set()
    threads[0].join(5)
    eni = node.datastore.eni(SECOND)
    assert not eni.host_ready


@pytest.mark.parametrize("prefix", [False, True])
def test_H_frozen_fills(tmp_path: Path, prefix: bool) -> None:
    settings = PoolSettings(warm_ip_target=2, minimum_ip_target=4, max_pods=40, prefix_delegation=prefix)
    node = FakeNode(tmp_path, settings=settings, ec2=FakeEc2(limits=InstanceLimits("m5.xlarge", 4, 15)))
    node.bring_up()
    n = 0
    while True:
        n += 1
        try:
            att = node.add(f"f{n}")
        except PoolEmptyError:
            pass_time(node, 10)
            continue
        pass_time(node, 10)
        if att.eni_id != PRIMARY or n > 30:
            break
    print(n, {e.eni_id for e in node.datastore.enis()}, node.datastore.counts())
    settle(node)
    frozen = SECOND if node.datastore.eni(SECOND) else PRIMARY
    mac = node.ec2.enis[frozen].mac
    if frozen is PRIMARY:
        pytest.skip("one ENI")
    node.hostnet.unplugged.add(mac)
    link_event(node, mac)
    before = node.ec2.calls.copy()
    ok = len(node.datastore.attachments())
    for i in range(60):
        try:
            node.add(f"g{i}", deadline_s=0.2)
        except PoolEmptyError as e:
            last = e
        pass_time(node, 10)
    print({k: v - before[k] for k, v in node.ec2.calls.items()}, node.datastore.counts())
    print([(s.eni.eni_id, s.used_slot_count, s.counts.free) for s in node.datastore.stock().enis])
    print(node.demand.status())
    assert len(node.datastore.attachments()) >= 36, len(node.datastore.attachments())
    node.datastore.close()
