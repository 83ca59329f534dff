"""Crashes at points that take minutes or rare answers to reach: on an owned clock, with a kill that unwinds nothing.

Here a crash is an exception that no code of ours catches, followed by a new process over the same disk, kernel and EC2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, veth_name
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.cni_request import SandboxNames
from ipamd.model.errors import CloudError, EniLimitError
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import EniId
from ipamd.model.pool_settings import RELEASE_HOLD_S, PoolSettings
from ipamd.model.sandbox import SandboxState
from ipamd.sandbox.judge import LIST_INTERVAL_S
from tests.fakes.cloud import INSTANCE
from tests.fakes.node import FakeNode
from tests.families import family_for, in_both, network_of
from tests.unit.service.test_leaked_enis import leak, pass_looks
from tests.unit.service.test_release import fill_and_empty, run_down


class KilledHere(BaseException):
    """The process is gone: not an Exception, so that no loop goes on after it."""


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """A node that serves."""
    made = FakeNode(tmp_path, network=network_of(family_for(request)))
    made.bring_up()
    yield made
    made.datastore.close()


def kill_at(wanted: str) -> Callable[[str], None]:
    """A failpoint that kills at one name."""

    def reached(name: str) -> None:
        if name == wanted:
            raise KilledHere(name)

    return reached


def vanish(node: FakeNode, name: str) -> None:
    """A sandbox dies and no DEL comes."""
    made = node.datastore.attachment(node.key(name))
    assert made is not None
    del node.wiring.netns[made.netns]
    node.wiring.wired.pop(made.host_veth, None)


def look_often(node: FakeNode) -> None:
    """Four lists, an interval apart."""
    for _ in range(4):
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(LIST_INTERVAL_S)


@in_both("node")
@pytest.mark.parametrize("name", ["reap.judged", "reap.done"])
def test_a_crash_while_reaping_frees_once(node: FakeNode, name: str) -> None:
    """Killed before or after the reap: afterwards the dead sandbox is freed exactly once, the live one never (I1, I2)."""
    live = node.add("live")
    node.runtime.run("live")
    dead = node.add("dead")
    vanish(node, "dead")
    node.clock.advance(3600)
    node.failpoint = kill_at(name)
    with pytest.raises(KilledHere):
        look_often(node)
    node.crash()
    node.bring_up()
    look_often(node)
    assert [a.key for a in node.datastore.attachments()] == [live.key]
    node.cool()
    row = node.datastore.address(dead.address)
    assert row is not None
    assert row.state is AddressState.FREE
    node.assert_sound()


@in_both("node")
@pytest.mark.parametrize("name", ["adopt.leftover-removed", "adopt.settled"])
def test_a_crash_while_settling_a_quarantine_settles_it_later(node: FakeNode, name: str) -> None:
    """Killed between removing a leftover and freeing its address: the next look finishes, nothing is given early (I1)."""
    made = node.add("gone")
    node.crash(keep_datastore=False)
    node.bring_up()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    look_often(node)
    node.clock.advance(3600)
    node.failpoint = kill_at(name)
    with pytest.raises(KilledHere):
        look_often(node)
    node.crash()
    node.bring_up()
    look_often(node)
    node.clock.advance(3600)  # a new process counts absences from its own lists
    look_often(node)
    node.cool()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE
    assert not node.wiring.wired
    node.assert_sound()


@in_both("node")
@pytest.mark.parametrize("name", ["attach.reserved", "attach.wired", "attach.committed"])
@pytest.mark.parametrize("later", ["same sandbox again", "its DEL", "nobody comes back"])
def test_whoever_comes_back_after_a_crash_in_add(node: FakeNode, name: str, later: str) -> None:
    """After kill -9 in an ADD: the same sandbox gets its address, its DEL frees it, and silence is reaped (I3, I5)."""
    node.failpoint = kill_at(name)
    # A real SIGKILL runs no handler: what the rollback would undo stays, as it does in the kernel.
    node.attacher._roll_back = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(KilledHere):
        node.add("a")
    node.crash()
    node.bring_up()
    promised = node.datastore.attachment(node.key("a"))
    assert (promised is not None) == (name == "attach.committed")
    assert len(node.wiring.wired) == (1 if promised else 0), "unpromised wiring is gone before anything is given"
    if later == "same sandbox again":
        again = node.add("a")
        assert promised is None or again == promised
        node.runtime.run("a")
    elif later == "its DEL":
        node.delete("a")
    elif promised is not None:
        vanish(node, "a")
        node.clock.advance(301)
        look_often(node)
        assert node.datastore.attachments() == ()
    node.assert_sound()


def refuse_attach_and_delete(node: FakeNode) -> None:
    """EC2 attaches an ENI and says that it refused to, shows it late, and refuses to delete it."""
    node.ec2.lose["attach_eni"] = [EniLimitError("the answer to a repetition")]
    node.ec2.fail["delete_eni"] = [CloudError("it is in use")]
    real, stale = node.ec2.describe_eni, []

    def describe(eni_id: EniId) -> DescribedEni:
        told = real(eni_id)
        if stale:
            return told
        stale.append(eni_id)
        return replace(told, attachment_id="", attachment_status="", instance_id="", device_index=-1)

    node.ec2.describe_eni = describe  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["growth.marked", "growth.intent-closed"])
def test_a_crash_while_an_eni_is_taken_in_after_all_keeps_it(node: FakeNode, name: str) -> None:
    """Killed before or after its intent is closed: the ENI stays, is known, and ends with its instance (I2, I9)."""
    node.add("a")
    refuse_attach_and_delete(node)
    node.failpoint = kill_at(name)
    with pytest.raises(KilledHere):
        node.pool.cycle()
    node.crash()
    node.bring_up()
    node.pool.cycle()
    assert set(node.ec2.enis) == {eni.eni_id for eni in node.datastore.enis()}
    assert [eni for eni in node.ec2.enis.values() if eni.instance_id != INSTANCE or not eni.delete_on_termination] == []
    assert node.datastore.open_intents() == ()
    node.assert_sound()


@pytest.mark.parametrize("family", [IPV4, IPV6], ids=lambda family: family.nft)
@pytest.mark.parametrize("later", ["successor again", "its DEL", "its DEL, then the successor", "nobody comes back"])
def test_a_crash_between_the_names_of_record_and_link(tmp_path: Path, family: Family, later: str) -> None:
    """Killed when the record has the sandbox's own name and the link still the pod's: whoever comes finds the link (I2, I4, I5)."""
    node = FakeNode(tmp_path, network=replace(network_of(family), pod_veth_names=True))
    node.bring_up()
    first = add_for_pod(node, "a")
    node.runtime.run("a", state=SandboxState.NOTREADY)
    node.failpoint = kill_at("rename.recorded")
    with pytest.raises(KilledHere):
        add_for_pod(node, "b")
    node.crash()
    node.bring_up()
    moved, own = node.datastore.attachment(first.key), veth_name(first.key, prefix="eni")
    assert moved is not None
    assert (moved.host_veth, moved.address) == (own, first.address)
    if "DEL" in later:
        assert node.delete("a")
        node.cool()
        assert not node.wiring.wired, "the link went although the record has another name"
    elif later == "nobody comes back":
        assert {name: spec.address for name, spec in node.wiring.wired.items()} == {own: first.address}
    if "successor" in later:
        second = add_for_pod(node, "b")
        assert second.host_veth == first.host_veth
        assert second.address != first.address
        wired = {name: spec.address for name, spec in node.wiring.wired.items()}
        assert wired == {second.host_veth: second.address} | ({} if "DEL" in later else {own: first.address})
    node.assert_sound()
    node.datastore.close()


RELEASES = (
    "release.intent-opened",
    "release.unassigned",
    "release.detached",
    "release.deleted",
    "release.torn-down",
    "release.stored",
    "datastore.before-commit",
    "datastore.after-commit",
)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", RELEASES)
def test_a_crash_while_giving_back_gives_nothing_twice(tmp_path: Path, name: str, count: int) -> None:
    """Killed between any two effects, for the first or a later time: the live sandbox keeps its address, ADDs right after the restart
    get only what EC2 has (I7), and in the end the pool is at its target with nothing left over at EC2 (I9)."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=5, minimum_ip_target=10))
    node.bring_up()
    live = node.add("live")
    fill_and_empty(node, 22)
    node.pool.cycle()
    node.clock.advance(RELEASE_HOLD_S + 1)
    node.failpoint = kill_at_nth(name, count)
    is_killed = False
    try:
        for _ in range(10):
            node.pool.cycle()
    except KilledHere:
        is_killed = True
        node.crash()
        node.bring_up()
    assert is_killed or count > 1
    for number in range(6):
        node.add(f"after-{number}")
        node.assert_sound()
    assert node.datastore.attachment(live.key) == live
    for number in range(6):
        node.delete(f"after-{number}")
    node.cool()
    for _ in range(3):
        run_down(node)
    assert node.datastore.counts().total == 10
    assert {eni.eni_id for eni in node.datastore.enis()} == set(node.ec2.enis)
    assert set(node.hostnet.enis) == {eni.eni_id for eni in node.datastore.enis() if not eni.is_primary}
    assert node.datastore.attachment(live.key) == live
    node.clock.advance(RECENT_S)
    node.pool.cycle()
    assert node.datastore.open_intents() == ()
    node.assert_sound()
    node.datastore.close()


def add_for_pod(node: FakeNode, sandbox: str) -> Attachment:
    """ADD for a sandbox of one and the same pod."""
    request = replace(node.request(sandbox), names=SandboxNames("default", "web-0", "uid"))
    return node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))


def kill_at_nth(wanted: str, count: int) -> Callable[[str], None]:
    """A failpoint that kills when one name is reached for the `count`th time."""
    left = [count]

    def reached(name: str) -> None:
        left[0] -= name == wanted
        if name == wanted and not left[0]:
            raise KilledHere(name)

    return reached


@pytest.mark.parametrize("name", ["leaked.deleted", "growth.intent-opened"])
def test_a_crash_while_a_leaked_eni_is_deleted_leaves_none(node: FakeNode, name: str) -> None:
    """Killed before or after EC2 deleted it: the next start finishes, and no intent stays open (I9)."""
    eni_id = leak(node)
    node.failpoint = kill_at(name)
    with pytest.raises(KilledHere):
        pass_looks(node)
    node.crash()
    node.bring_up()
    assert eni_id not in node.ec2.enis
    assert node.datastore.open_intents() == ()
    node.assert_sound()
