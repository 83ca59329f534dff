"""ENIs that lose their link, or get it back: frozen at once, and forgotten only after EC2 was asked."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from ipamd.eni.resync import ResyncReason
from ipamd.model.conditions import ConditionCode
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import CloudError, KernelDumpError, PoolEmptyError, WiringError
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId
from ipamd.model.kernel import LinkEventKind
from ipamd.model.pool_settings import PoolSettings
from tests.conditions import codes
from tests.fakes.cloud import PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.external_changes import TURN_MAX_S, described, detach_by_hand, link_event, pass_time, settle
from tests.stories.stale_reads import ec2_tells, run_sandboxes
from tests.unit.service.external_changes import SECOND, settled_node


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and two sandboxes, long after its start."""
    with settled_node(tmp_path) as made:
        yield made


def test_a_link_that_goes_freezes_its_eni_at_once(node: FakeNode) -> None:
    """I7: from the notification on no sandbox gets an address of the ENI, those that have one keep it; EC2 is looked at once."""
    mac = detach_by_hand(node, SECOND).mac
    before = described(node)
    link_event(node, mac)
    taken = {node.add(f"new-{number}").eni_id for number in range(7)}
    assert taken == {PRIMARY}
    assert ConditionCode.ENI_FROZEN in codes(node.health)
    with pytest.raises(PoolEmptyError):
        node.add("one-too-many", deadline_s=0.5)
    assert described(node) == before, "the notification itself asks nobody"
    node.pool.run_once()
    assert described(node) - before == 1


def test_an_eni_detached_by_hand_is_forgotten_after_two_looks_and_replaced(node: FakeNode) -> None:
    """Two looks half a minute apart, then the ENI is gone here too and the pool has regrown on another."""
    link_event(node, detach_by_hand(node, SECOND).mac)
    node.pool.run_once()
    assert node.datastore.eni(SECOND) is not None, "one look proves nothing (I11)"
    pass_time(node, 31.0)
    pass_time(node, 1.0)
    pass_time(node, 1.0)
    assert node.datastore.eni(SECOND) is None
    assert {eni.eni_id for eni in node.datastore.enis()} == {PRIMARY, EniId("eni-3")}
    assert node.datastore.counts().free >= 9
    assert ConditionCode.ENI_FROZEN not in codes(node.health)
    before = described(node)
    settle(node)
    assert described(node) == before, "and it is quiet again"
    assert node.health.conditions() == []
    node.assert_sound()


def test_several_enis_detached_at_once_are_replaced_before_that_is_believed(tmp_path: Path) -> None:
    """Two of three: EC2's answer is not believed for ten minutes, but their links are gone: ADDs have a new ENI after one minute, and
    nothing is asked for on those that are gone."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("of a test", 8, 10)), settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    run_sandboxes(node, *(f"s{number}" for number in range(19)))
    settle(node)
    gone = [SECOND, EniId("eni-3")]
    assert set(node.ec2.enis) == {PRIMARY, *gone}
    for eni_id in gone:
        link_event(node, detach_by_hand(node, eni_id).mac)
    before = {eni_id: node.ec2.enis[eni_id].secondary_addresses for eni_id in gone}
    node.demand.join()
    for _ in range(14):
        pass_time(node, 5.0)
    assert node.datastore.counts().lost == 0, "nothing is concluded yet"
    assert node.add("served").eni_id == EniId("eni-4")
    for _ in range(300):
        pass_time(node, 5.0)
    assert {eni_id: node.ec2.enis[eni_id].secondary_addresses for eni_id in gone} == before
    assert node.ec2.calls["create_eni"] == 3, "one is enough for all of them"
    node.datastore.close()


def test_a_new_eni_that_loses_its_link_is_not_waited_for(tmp_path: Path) -> None:
    """Describe may lag behind our attach for minutes, but not if the link was there and is gone: two looks are enough."""
    node = FakeNode(tmp_path)
    node.bring_up()
    run_sandboxes(node, "a")
    link_event(node, detach_by_hand(node, SECOND).mac)
    node.pool.run_once()
    pass_time(node, 31.0)
    pass_time(node, 1.0)
    assert node.datastore.eni(SECOND) is None
    node.datastore.close()


@pytest.mark.parametrize("is_seen_by_the_list_first", [False, True])
def test_an_eni_that_is_taken_while_it_is_set_up_is_not_waited_for(tmp_path: Path, is_seen_by_the_list_first: bool) -> None:
    """Its host routing failed because its link went: the kernel's notification says that it was there, so two looks are enough."""
    node = FakeNode(tmp_path)
    node.bring_up()
    node.hostnet.fail["setup_eni"] = [WiringError("No such device")] * 50
    run_sandboxes(node, "a")
    eni = node.datastore.eni(SECOND)
    assert eni is not None
    assert not eni.host_ready
    mac = detach_by_hand(node, SECOND).mac
    if is_seen_by_the_list_first:
        node.hostnet.unplugged.add(mac)
        node.cloud_reconciler.links.compare()
        node.pool.run_once()
    node.hostnet.fail.clear()
    link_event(node, mac)
    node.pool.run_once()
    pass_time(node, 31.0)
    pass_time(node, 1.0)
    assert node.datastore.eni(SECOND) is None
    node.datastore.close()


def test_a_link_that_never_came_is_waited_for(tmp_path: Path) -> None:
    """Nobody has seen the link: that EC2 does not show the new ENI may be lag for some minutes."""
    node = FakeNode(tmp_path)
    node.bring_up()
    node.hostnet.fail["setup_eni"] = [WiringError("No such device")] * 50
    run_sandboxes(node, "a")
    node.hostnet.unplugged.add(detach_by_hand(node, SECOND).mac)
    node.cloud_reconciler.links.compare()
    node.pool.run_once()
    pass_time(node, 31.0)
    pass_time(node, 1.0)
    assert node.datastore.eni(SECOND) is not None
    for _ in range(12):
        pass_time(node, 31.0)
    assert node.datastore.eni(SECOND) is None
    node.datastore.close()


def others_shown(node: FakeNode) -> AbstractContextManager[None]:
    """Describe lags behind the attach of the second ENI."""
    return ec2_tells(node.ec2, [one for one in node.ec2.attached() if one.eni_id != SECOND])


def test_an_event_about_a_link_that_is_there_proves_nothing(tmp_path: Path) -> None:
    """It is back already, or another link had its address: the list decides, and Describe may lag behind the attach as before."""
    node = FakeNode(tmp_path)
    node.bring_up()
    run_sandboxes(node, "a")
    with others_shown(node):
        link_event(node, node.ec2.enis[SECOND].mac)
        for _ in range(3):
            node.app.pool.resyncs.request(ResyncReason.METADATA, "of a test")
            node.pool.run_once()
            node.clock.advance(31.0)
    eni = node.datastore.eni(SECOND)
    assert eni is not None
    assert eni.host_ready
    assert not node.enis.routing.frozen()
    node.assert_sound()
    node.datastore.close()


@pytest.mark.parametrize("was_set_up", [True, False])
def test_a_link_that_comes_back_may_be_of_an_eni_that_describe_does_not_show_yet(tmp_path: Path, was_set_up: bool) -> None:
    """A driver's reset a few seconds after the attach: the ENI is kept, because EC2's silence may be lag again."""
    node = FakeNode(tmp_path)
    node.bring_up()
    node.hostnet.fail["setup_eni"] = [] if was_set_up else [WiringError("No such device")] * 5
    run_sandboxes(node, "a")
    node.app.context.freeze.set(FreezeCause.OPERATOR, "of a test: the ENI must not be released for want of pods")
    mac = node.ec2.enis[SECOND].mac
    with others_shown(node):
        node.hostnet.unplugged.add(mac)
        link_event(node, mac)
        node.pool.run_once()
        node.clock.advance(5.0)
        node.hostnet.unplugged.clear()
        node.hostnet.fail.clear()
        link_event(node, mac, LinkEventKind.SEEN)
        for _ in range(10):
            pass_time(node, 8.0)
    eni = node.datastore.eni(SECOND)
    assert eni is not None
    assert eni.state is EniState.ATTACHED
    pass_time(node, 31.0)
    eni = node.datastore.eni(SECOND)
    assert eni is not None
    assert eni.host_ready
    node.assert_sound()
    node.datastore.close()


def test_a_link_that_comes_back_thaws_after_ec2_was_asked(node: FakeNode) -> None:
    """A link that goes and returns (a driver, a namespace): frozen meanwhile, set up again once EC2 has shown the ENI since."""
    mac = node.ec2.enis[SECOND].mac
    node.hostnet.unplugged.add(mac)
    link_event(node, mac)
    node.pool.run_once()
    pass_time(node, 31.0)
    assert node.enis.routing.frozen(), "EC2 still shows the ENI, and its link is away"
    node.hostnet.enis.pop(SECOND, None)
    node.hostnet.unplugged.clear()
    link_event(node, mac, LinkEventKind.SEEN)
    node.cloud_reconciler.run_once()
    assert node.enis.routing.frozen(), "nobody has shown the ENI since"
    pass_time(node, 1.0)
    assert not node.enis.routing.frozen()
    assert SECOND in node.hostnet.enis, "its routing was set up again"
    eni = node.datastore.eni(SECOND)
    assert eni is not None
    assert eni.host_ready
    assert node.health.conditions() == []


def test_metadata_thaws_when_ec2_does_not_answer(node: FakeNode) -> None:
    """EC2 is throttled for an hour: the link is back and metadata shows the ENI, so its addresses are given again."""
    mac = node.ec2.enis[SECOND].mac
    node.hostnet.unplugged.add(mac)
    node.ec2.fail["describe_enis"] = [CloudError("throttled")] * 50
    link_event(node, mac)
    node.pool.run_once()
    node.hostnet.unplugged.clear()
    link_event(node, mac, LinkEventKind.SEEN)
    pass_time(node, 1.0)
    assert node.enis.routing.frozen()
    pass_time(node, TURN_MAX_S)
    assert not node.enis.routing.frozen()
    assert ConditionCode.RESYNC_UNANSWERED in codes(node.health)


def test_a_look_that_ec2_refuses_stays_due(node: FakeNode) -> None:
    """With pauses that double, until EC2 answers; then the condition goes."""
    node.ec2.fail["describe_enis"] = [CloudError("throttled")] * 4
    before = described(node)
    link_event(node, detach_by_hand(node, SECOND).mac)
    node.pool.run_once()
    for _ in range(60):
        pass_time(node, 1.0)
    assert described(node) - before in range(5, 8), "after 1, 2, 4 and 8 s, and the second look"
    assert ConditionCode.RESYNC_UNANSWERED not in codes(node.health)


def test_a_lost_notification_is_made_up_for(node: FakeNode) -> None:
    """I11: MISSED compares everything, and so does the clock if no notification comes at all."""
    mac = node.ec2.enis[SECOND].mac
    node.hostnet.unplugged.add(mac)
    link_event(node, "", LinkEventKind.MISSED)
    assert set(node.enis.routing.frozen()) == {SECOND}
    node.hostnet.unplugged.clear()
    pass_time(node, 30.0)
    assert not node.enis.routing.frozen()
    node.hostnet.unplugged.add(mac)
    pass_time(node, 30.0)
    assert set(node.enis.routing.frozen()) == {SECOND}


def test_an_interrupted_list_of_links_is_no_evidence(node: FakeNode) -> None:
    """I11: without a list the notification freezes its own ENI and no other."""
    node.hostnet.fail["links"] = [KernelDumpError("interrupted")] * 2
    node.cloud_reconciler.links.compare()
    assert not node.enis.routing.frozen()
    link_event(node, node.ec2.enis[SECOND].mac)
    assert set(node.enis.routing.frozen()) == {SECOND}
    node.hostnet.fail["links"] = [KernelDumpError("interrupted")]
    link_event(node, node.ec2.enis[PRIMARY].mac, LinkEventKind.SEEN)
    assert set(node.enis.routing.frozen()) == {SECOND}


def test_a_list_without_the_primary_enis_link_is_not_believed(node: FakeNode) -> None:
    """I11: a list of another namespace freezes nothing; an ENI's own notification still does."""
    node.hostnet.unplugged = {eni.mac for eni in node.ec2.attached()}
    pass_time(node, 30.0)
    assert not node.enis.routing.frozen()
    link_event(node, node.ec2.enis[SECOND].mac)
    assert set(node.enis.routing.frozen()) == {SECOND}


def test_links_of_others_are_of_no_concern(node: FakeNode) -> None:
    """A link that is no recorded ENI's comes and goes without a dump."""
    node.hostnet.fail["links"] = [KernelDumpError("must not be asked")]
    link_event(node, "02:00:00:00:00:77")
    assert node.hostnet.fail["links"]
