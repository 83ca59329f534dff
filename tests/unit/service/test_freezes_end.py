"""A freeze ends, whatever answered late, in part or not at all: an ENI that is gone is forgotten, one that is back is used again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.eni.book import DETACHED, FROZEN, RETURNED
from ipamd.eni.links import LINK_CALL_S, LINK_CALLS
from ipamd.eni.resync import EniSyncResult, ResyncReason
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import DescribedEni
from ipamd.model.conditions import ConditionCode
from ipamd.model.eni import EniState, InstanceLimits
from ipamd.model.errors import CloudDeniedError, CloudError, KernelDumpError
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import LinkEventKind
from ipamd.model.pool_settings import PoolSettings
from tests.conditions import problems
from tests.fakes.cloud import PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.external_changes import described, detach_by_hand, link_event, pass_time, settle
from tests.stories.stale_reads import run_sandboxes
from tests.unit.service.external_changes import SECOND, settled_node

STEP_S = 5.0


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and two sandboxes, long after its start. Its pool makes no ENI, so it asks EC2 nothing of its own."""
    with settled_node(tmp_path) as made:
        made.app.context.freeze.set(FreezeCause.OPERATOR, "of a test")
        yield made


def seconds_until(node: FakeNode, claim: Callable[[], bool], *, most_s: float = 1200.0) -> float:
    """Let time pass until a claim holds; returns how long that took, at most `most_s`."""
    passed_s = 0.0
    while not claim() and passed_s < most_s:
        pass_time(node, STEP_S)
        passed_s += STEP_S
    return passed_s


def is_forgotten(node: FakeNode) -> bool:
    """Whether the second ENI is neither recorded nor frozen."""
    return node.datastore.eni(SECOND) is None and not node.enis.routing.frozen()


def is_used(node: FakeNode) -> bool:
    """Whether the second ENI gives addresses."""
    eni = node.datastore.eni(SECOND)
    return eni is not None and eni.gives_addresses and not node.enis.routing.frozen()


def state(node: FakeNode) -> EniState:
    """The second ENI's, as recorded."""
    eni = node.datastore.eni(SECOND)
    assert eni is not None
    return eni.state


def run_on_second(node: FakeNode) -> Attachment:
    """Fill the primary ENI until a sandbox has an address of the second one; returns that sandbox."""
    for number in range(20):
        made = node.add(f"s{number}")
        if made.eni_id == SECOND:
            settle(node)
            return made
    raise AssertionError("no sandbox is on the second ENI")


def unplug(node: FakeNode) -> MacAddress:
    """The second ENI's link goes, and the ENI stays attached at EC2."""
    mac = node.ec2.enis[SECOND].mac
    node.hostnet.unplugged.add(mac)
    link_event(node, mac)
    return mac


def plug(node: FakeNode, mac: MacAddress) -> None:
    """Its link is back."""
    node.hostnet.unplugged.discard(mac)
    link_event(node, mac, LinkEventKind.SEEN)


def without_second(node: FakeNode) -> tuple[DescribedEni, ...]:
    """An answer of EC2 that lacks the second ENI."""
    return tuple(eni for eni in node.ec2.attached() if eni.eni_id != SECOND)


def test_an_answer_that_lags_behind_the_link_is_not_the_last_one(node: FakeNode) -> None:
    """EC2's answer still shows the ENI, and metadata is stuck: EC2 is asked again a minute later, and decides half a minute after."""
    node.metadata.freeze()
    node.ec2.answers = [node.ec2.attached()]
    link_event(node, detach_by_hand(node, SECOND).mac)
    assert seconds_until(node, lambda: is_forgotten(node)) <= 95.0


def test_a_link_that_stays_away_from_an_attached_eni_costs_a_call_an_hour(node: FakeNode) -> None:
    """I13: somebody moved the link into another namespace for good. 1, 5 and 21 minutes, then once an hour."""
    node.metadata.freeze()
    unplug(node)
    pass_time(node, 1.0)
    before = described(node)
    for _ in range(60):
        pass_time(node, 60.0)
    assert 2 <= described(node) - before <= 3
    before = described(node)
    for _ in range(8 * 60):
        pass_time(node, 60.0)
    assert 7 <= described(node) - before <= 8
    assert state(node) is EniState.ATTACHED
    assert node.enis.routing.frozen() == {SECOND: FROZEN}


def test_one_question_is_about_all_links_that_are_away(tmp_path: Path) -> None:
    """I13: several links went at different times, and the ENIs stay attached: their questions are asked together, not one by one."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("of a test", 8, 4)), settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    run_sandboxes(node, *(f"s{number}" for number in range(14)))
    settle(node)
    node.app.context.freeze.set(FreezeCause.OPERATOR, "of a test")
    node.metadata.freeze()
    macs = [eni.mac for eni in node.ec2.attached() if eni.eni_id != PRIMARY]
    assert len(macs) >= 4
    for mac in macs:
        node.hostnet.unplugged.add(mac)
        link_event(node, mac)
        pass_time(node, 40.0)
    for _ in range(2 * 60):
        pass_time(node, 60.0)
    before = described(node)
    for _ in range(4 * 60):
        pass_time(node, 60.0)
    assert described(node) - before <= 4
    node.datastore.close()


def test_a_doubt_about_another_eni_keeps_none_frozen(node: FakeNode) -> None:
    """Others detach an ENI of their own for hours, and metadata is silent: the link of ours is back, and EC2 shows our ENI."""
    other = EniId("eni-9")
    node.ec2.enis[other] = replace(
        node.ec2.enis[SECOND],
        eni_id=other,
        mac=MacAddress("02:00:00:00:00:99"),
        device_index=2,
        primary_address=IPv4Address("10.0.7.10"),
        secondary_addresses=frozenset(),
        attachment_status="detaching",
    )
    settle(node)
    mac = unplug(node)
    pass_time(node, 1.0)
    node.metadata.fail = [CloudError("silent")] * 10_000
    plug(node, mac)
    assert seconds_until(node, lambda: is_used(node)) <= 10.0


def test_an_answer_that_does_not_show_the_eni_thaws_nothing(node: FakeNode) -> None:
    """I7: the link is back, metadata is silent, and the answer since is without doubts about others, but lacks this ENI."""
    mac = unplug(node)
    pass_time(node, 1.0)
    node.metadata.fail = [CloudError("silent")] * 10_000
    node.ec2.answers = [without_second(node)]
    plug(node, mac)
    pass_time(node, 1.0)
    assert not node.ec2.answers
    assert set(node.enis.routing.frozen()) == {SECOND}
    assert seconds_until(node, lambda: is_used(node)) <= 40.0


def test_an_eni_that_was_believed_gone_is_used_again_if_its_link_says_otherwise(node: FakeNode) -> None:
    """Answers lag behind the return of the link, and metadata is stuck without the ENI: the link is reason enough to ask once more."""
    run_on_second(node)
    before = node.ec2.enis[SECOND]
    node.metadata.freeze()
    assert node.metadata.frozen is not None
    node.metadata.frozen.pop(before.mac)
    node.ec2.answers = [without_second(node)] * 3
    mac = unplug(node)
    pass_time(node, 1.0)
    plug(node, mac)
    seconds_until(node, lambda: state(node) is EniState.DETACHING)
    assert seconds_until(node, lambda: is_used(node)) <= 70.0


def test_an_eni_that_comes_back_after_a_restart_is_noticed_without_metadata(node: FakeNode) -> None:
    """The new process has not seen the link go. The row says that the ENI is gone, and its link is there: EC2 decides."""
    run_on_second(node)
    before = detach_by_hand(node, SECOND)
    link_event(node, before.mac)
    settle(node)
    node.crash()
    node.bring_up()
    settle(node)
    assert state(node) is EniState.DETACHING
    node.metadata.freeze()
    node.ec2.enis[SECOND] = before
    link_event(node, before.mac, LinkEventKind.SEEN)
    assert seconds_until(node, lambda: is_used(node)) <= 70.0


def test_a_restart_between_two_answers_delays_nothing(node: FakeNode) -> None:
    """Killed after the first answer: the next process counts on, and freezes what has no link."""
    run_on_second(node)
    link_event(node, detach_by_hand(node, SECOND).mac)
    node.pool.run_once()
    node.crash()
    node.bring_up()
    assert state(node) is EniState.ATTACHED
    assert seconds_until(node, lambda: state(node) is EniState.DETACHING) <= 40.0


def test_our_own_detachment_is_not_asked_about(node: FakeNode) -> None:
    """I13: the release of an ENI is stuck between Detach and Delete, with its link still there; its intent asks, not its link."""
    node.app.context.freeze.clear(FreezeCause.OPERATOR)
    node.ec2.fail["detach_eni"] = [CloudError("the answer was lost")] * 1000
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=1, release_hold_s=60))
    seconds_until(node, lambda: state(node) is EniState.DETACHING)
    assert state(node) is EniState.DETACHING
    for _ in range(60):
        pass_time(node, 60.0)
    assert state(node) is EniState.DETACHING
    assert node.app.pool.resyncs.counts[ResyncReason.LINK] == 0


def test_a_link_is_asked_about_although_a_long_pause_runs(node: FakeNode) -> None:
    """EC2 was away for twenty minutes, so the next question of another kind is a quarter of an hour away. EC2 answers again, and a
    link goes: that is asked a minute after the last try at the latest, and once more after half a minute.
    """
    node.ec2.fail["describe_enis"] = [CloudError("away")] * 1000
    node.app.pool.resyncs.request(ResyncReason.OTHER, "of a test")
    for _ in range(240):
        pass_time(node, STEP_S)
    node.ec2.fail.clear()
    link_event(node, detach_by_hand(node, SECOND).mac)
    assert seconds_until(node, lambda: is_forgotten(node)) <= 100.0


def test_a_link_that_changes_while_a_resync_fails_is_asked_about_as_soon(node: FakeNode) -> None:
    """The change comes during the call, after twenty minutes of failures: it does not wait for half an hour either."""
    look = node.app.pool.resyncs
    node.ec2.fail["describe_enis"] = [CloudError("away")] * 1000
    look.request(ResyncReason.OTHER, "of a test")
    for _ in range(240):
        pass_time(node, STEP_S)
    node.clock.advance(look.wait_s() or 0.0)

    def compare() -> EniSyncResult:
        look.request(ResyncReason.LINK, "of a test: a link is back")
        raise CloudError("away")

    assert look.run_due(compare) is None
    assert 0.0 < (look.wait_s() or 0.0) <= 60.0


def test_a_question_that_is_due_waits_for_links_that_can_be_read(node: FakeNode) -> None:
    """The list of links is unusable when EC2 is to be asked again: the loop sleeps, and asks once the list is usable."""
    node.metadata.freeze()
    unplug(node)
    pass_time(node, 1.0)
    before = described(node)
    node.hostnet.fail["links"] = [KernelDumpError("interrupted")] * 1000
    pass_time(node, 70.0)
    assert node.cloud_reconciler.pause_s() > 0.0
    assert described(node) == before
    node.hostnet.fail.clear()
    pass_time(node, node.cloud_reconciler.pause_s())
    assert described(node) == before + 1


def test_a_freeze_that_began_while_ec2_was_away_does_not_wait_as_long_again(node: FakeNode) -> None:
    """The pauses have doubled for twenty minutes; the link's own question comes 21 minutes after the link went."""
    node.ec2.fail["describe_enis"] = [CloudError("away")] * 1000
    link_event(node, detach_by_hand(node, SECOND).mac)
    for _ in range(240):
        pass_time(node, STEP_S)
    node.ec2.fail.clear()
    assert seconds_until(node, lambda: is_forgotten(node)) <= 110.0


def test_a_lasting_silence_costs_few_calls(node: FakeNode) -> None:
    """I13: EC2 denies the Describe for hours, and a link is away all the time: at most six calls an hour."""
    unplug(node)
    node.ec2.fail["describe_enis"] = [CloudError("denied")] * 10_000
    for _ in range(2 * 60):
        pass_time(node, 60.0)
    before = described(node)
    for _ in range(4 * 60):
        pass_time(node, 60.0)
    assert described(node) - before <= 4 * 6


@pytest.mark.parametrize("error", [None, CloudError("away"), CloudDeniedError("denied")], ids=["answers", "away", "denied"])
@pytest.mark.parametrize("every_s", [5.0, 60.0, 600.0])
def test_a_link_that_comes_and_goes_costs_few_calls(node: FakeNode, error: CloudError | None, every_s: float) -> None:
    """I13: whatever EC2 answers, and however often the link changes."""
    if error is not None:
        node.ec2.fail["describe_enis"] = [error] * 10_000
    mac = node.ec2.enis[SECOND].mac
    calls = [described(node)]
    for _ in range(3):
        for number in range(int(3600 / every_s)):
            if number % 2:
                plug(node, mac)
            else:
                unplug(node)
            for _ in range(max(int(every_s / 60), 1)):
                pass_time(node, min(every_s, 60.0))
        calls.append(described(node))
    assert calls[1] - calls[0] <= LINK_CALLS + 3600 / LINK_CALL_S + 11, "the eleven are the doubling pauses of the first hour"
    assert calls[3] - calls[1] <= 2 * (3600 / LINK_CALL_S + 2)


def test_a_link_that_settles_is_asked_about_once_more(node: FakeNode) -> None:
    """The last change came while no call was left, and metadata is silent: EC2 is asked when one is, and shows the ENI."""
    node.metadata.fail = [CloudError("silent")] * 10_000
    mac = node.ec2.enis[SECOND].mac
    for _ in range(20):
        unplug(node)
        pass_time(node, STEP_S)
        plug(node, mac)
        pass_time(node, STEP_S)
    assert not is_used(node)
    before = described(node)
    assert seconds_until(node, lambda: is_used(node)) <= LINK_CALL_S
    assert described(node) == before + 1
    assert node.cloud_reconciler.links.next_question_s() is None


def test_an_old_doubt_that_is_not_believed_does_not_postpone_a_new_one(tmp_path: Path) -> None:
    """EC2 has lacked most ENIs for hours and is asked once an hour; then it lacks another one: it is asked again within a minute."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("of a test", 8, 10)), settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    run_sandboxes(node, *(f"s{number}" for number in range(28)))
    settle(node)
    node.app.context.freeze.set(FreezeCause.OPERATOR, "of a test")
    node.metadata.freeze()
    node.ec2.hidden = {SECOND, EniId("eni-3")}
    node.ec2.enis[PRIMARY] = replace(node.ec2.enis[PRIMARY], secondary_addresses=frozenset())
    look = node.app.pool.resyncs
    look.request(ResyncReason.OTHER, "of a test")
    for _ in range(4 * 60):
        pass_time(node, 60.0)
    assert node.datastore.counts().lost == 0
    look.request(ResyncReason.OTHER, "of a test: nothing is new")
    node.pool.run_once()
    assert (look.wait_s() or 0.0) > 600.0
    node.ec2.hidden = node.ec2.hidden | {EniId("eni-4")}
    look.request(ResyncReason.METADATA, "of a test: an ENI is missing")
    node.pool.run_once()
    assert (look.wait_s() or 0.0) <= 60.0
    node.datastore.close()


def test_the_condition_says_how_far_it_is(node: FakeNode) -> None:
    """EC2 is asked; it has decided, and a sandbox keeps the ENI's record; the link is back; all is well."""

    def cause() -> object:
        pass_time(node, 1.0)
        (problem,) = problems(node.health, f"frozen {SECOND}")
        assert problem.code is ConditionCode.ENI_FROZEN
        assert node.enis.routing.frozen() == {SECOND: problem.fields["cause"]}
        return problem.fields["cause"]

    run_on_second(node)
    before = detach_by_hand(node, SECOND)
    link_event(node, before.mac)
    assert cause() == FROZEN
    settle(node)
    assert cause() == DETACHED
    node.ec2.fail["describe_enis"] = [CloudError("away")]
    node.ec2.enis[SECOND] = before
    link_event(node, before.mac, LinkEventKind.SEEN)
    assert cause() == RETURNED
    seconds_until(node, lambda: is_used(node))
    assert problems(node.health, f"frozen {SECOND}") == ()
