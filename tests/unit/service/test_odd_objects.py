"""One object that refuses is skipped and reported; all others are reaped, swept, repaired and resolved (I11)."""

from __future__ import annotations

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.errors import BusyError, DatastoreError, NetnsError, WiringError
from ipamd.pb import cni_pb2
from ipamd.sandbox.cooldown import DyingLink
from ipamd.sandbox.judge import LIST_INTERVAL_S
from tests.fakes.node import FakeNode


def vanish(node: FakeNode, made: Attachment) -> None:
    """A sandbox ends without a DEL."""
    node.wiring.netns.pop(made.netns, None)
    node.wiring.wired.pop(made.host_veth, None)


def refuse(node: FakeNode, monkeypatch: pytest.MonkeyPatch, method: str, name: str, error: Exception) -> list[bool]:
    """The kernel refuses one method for whatever carries `name` in its arguments, while the returned list is not empty."""
    real, switch = getattr(node.wiring, method), [True]

    def refusing(*args: object, **kwargs: object) -> object:
        if switch and name in repr((args, {key: value for key, value in kwargs.items() if key != "seen"})):
            raise error
        return real(*args, **kwargs)

    monkeypatch.setattr(node.wiring, method, refusing)
    return switch


def look_often(node: FakeNode) -> None:
    """Four lists, an interval apart."""
    for _ in range(4):
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(LIST_INTERVAL_S)


def told(node: FakeNode, word: str) -> list[str]:
    """Conditions that name something."""
    return [sentence for sentence in node.health.conditions() if word in sentence]


@pytest.mark.parametrize("error", [WiringError("no"), DatastoreError("no"), ValueError("odd")], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize("method", ["mark_for_deletion", "identify_netns"])
def test_one_sandbox_that_refuses_does_not_stop_reaping(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    """The odd one is kept and named; the others are reaped in the same pass; the name goes when it is reaped at last."""
    made = [node.add(name) for name in ("odd", "b", "c")]
    node.add("pod")
    node.runtime.run("pod")
    for one in made:
        vanish(node, one)
    node.clock.advance(600)
    named = made[0].netns if method == "identify_netns" else made[0].host_veth
    switch = refuse(node, monkeypatch, method, named, error)
    look_often(node)
    assert {a.key.container_id for a in node.datastore.attachments()} == {"odd", "pod"}
    if method == "mark_for_deletion" or isinstance(error, ValueError):
        assert len(told(node, "odd")) == 1
    switch.clear()
    look_often(node)
    assert {a.key.container_id for a in node.datastore.attachments()} == {"pod"}
    assert node.health.conditions() == []


def test_one_sandbox_that_refuses_does_not_stop_gc(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """GC frees the others, and answers with the error of the one."""
    made = [node.add(name) for name in ("odd", "b")]
    for one in made:
        vanish(node, one)
    node.clock.advance(600)
    refuse(node, monkeypatch, "mark_for_deletion", made[0].host_veth, WiringError("it says no"))
    with pytest.raises(WiringError):
        node.collector.collect(
            frozenset(), network_name="vpc-ipamd", deadline=Deadline.after(node.clock, 60), steps=StepTimer(node.clock)
        )
    assert [a.key.container_id for a in node.datastore.attachments()] == ["odd"]


def test_one_link_that_refuses_does_not_stop_sweeping(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that can neither be marked nor removed keeps its own address back, and no other link and no other address."""
    odd, fine = node.add("odd"), node.add("fine")
    node.delete("fine")
    node.delete("odd")
    node.cooldown._unmarked_links.add(odd.host_veth)
    switch = refuse(node, monkeypatch, "remove_leftover", odd.host_veth, WiringError("not a veth"))
    for _ in range(3):
        with pytest.raises(WiringError):
            node.cooldown.work()
    assert fine.host_veth not in node.wiring.dying
    assert node.cooldown.dying_count() == 1
    node.clock.advance(31)
    with pytest.raises(WiringError):
        node.cooldown.work()
    row = node.datastore.address(fine.address)
    assert row is not None
    assert row.state is AddressState.FREE
    assert len(told(node, odd.host_veth)) == 1
    switch.clear()
    node.cooldown.work()
    assert node.cooldown.dying_count() == 0
    assert node.health.conditions() == []


def test_a_link_that_is_removed_by_name_is_not_its_successors(node: FakeNode) -> None:
    """An ADD failed, its link could not even be marked, and the same sandbox was added again: the new link stays (I2)."""
    made = node.add("a")
    lost = node.add("b").address
    node.delete("b")
    node.cooldown.sweep()
    node.cooldown._dying[made.host_veth] = DyingLink(lost)
    node.cooldown._unmarked_links.add(made.host_veth)
    with node.locks.hold(made.key, "ADD", Deadline.after(node.clock, 60)), pytest.raises(BusyError):
        node.cooldown.sweep()
    assert made.host_veth in node.wiring.wired
    assert node.cooldown.sweep() == 1
    assert made.host_veth in node.wiring.wired
    assert node.cooldown.dying_count() == 0


def test_a_group_that_cannot_be_deleted_is_swept_link_by_link(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody put a device into the dying group that the kernel cannot delete: our links go all the same."""
    made = node.add("a")
    node.delete("a")
    refuse(node, monkeypatch, "sweep", "", WiringError("Operation not supported"))
    assert made.host_veth in node.wiring.dying
    assert node.cooldown.sweep() == 1
    assert not node.wiring.dying
    assert node.cooldown.dying_count() == 0


def test_one_sandbox_that_refuses_does_not_stop_repairs(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Routes of the others are put back, and the one is named until it is whole."""
    odd, fine = node.add("odd"), node.add("fine")
    for made in (odd, fine):
        del node.wiring.routes[made.address]
    switch = refuse(node, monkeypatch, "repair", odd.host_veth, WiringError("no"))
    node.host_reconciler.reconcile()
    node.host_reconciler.reconcile()
    assert fine.address in node.wiring.routes
    assert odd.address not in node.wiring.routes
    assert len(told(node, "odd")) == 1
    switch.clear()
    node.host_reconciler.reconcile()
    assert odd.address in node.wiring.routes
    assert node.health.conditions() == []


def test_one_quarantined_address_that_refuses_does_not_stop_the_others(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sandboxes wait to be adopted, one cannot be: the other is."""
    odd, fine = node.add("odd"), node.add("fine")
    node.runtime.is_down = True
    node.crash(keep_datastore=False)
    node.bring_up()
    node.runtime.is_down = False
    node.runtime.run("odd")
    node.runtime.run("fine")
    real = node.quarantine.adopt
    switch = [True]

    def adopt(veth, sandbox, survey):  # type: ignore[no-untyped-def]
        if switch and veth.key == odd.key:
            raise DatastoreError("this one not")
        return real(veth, sandbox, survey)

    monkeypatch.setattr(node.quarantine, "adopt", adopt)
    node.runtime_reconciler.reconcile_once()
    assert [a.key for a in node.datastore.attachments()] == [fine.key]
    assert len(told(node, str(odd.address))) == 1
    switch.clear()
    node.runtime_reconciler.reconcile_once()
    assert {a.key for a in node.datastore.attachments()} == {odd.key, fine.key}
    assert node.health.conditions() == []


def test_one_leftover_that_refuses_does_not_stop_the_start(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two dead ADDs left wiring; one cannot be removed: its address is given to nobody, and ADD is served (I5)."""
    kept = [node.add(name) for name in ("odd", "fine")]
    specs = [node.wiring.wired[made.host_veth] for made in kept]
    for name in ("odd", "fine"):
        node.delete(name)
    node.cool()
    for number, spec in enumerate(specs):
        lost = type(spec)(node.key(f"lost{number}"), spec.address, spec.route_table, f"enilost{number}", spec.netns, spec.mtu)
        node.wiring.wired[lost.host_veth] = lost
        node.wiring.routes[spec.address] = lost.host_veth
    node.crash()
    switch = refuse(node, monkeypatch, "remove_leftover", "enilost0", WiringError("no"))
    node.bring_up()
    assert set(node.wiring.wired) == {"enilost0"}
    given = {node.add(f"new{number}").address for number in range(8)}
    assert kept[0].address not in given
    assert len(told(node, str(kept[0].address))) == 1
    switch.clear()
    node.crash()
    node.bring_up()
    assert node.health.conditions() == []


def test_an_address_that_no_longer_refuses_is_no_condition(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An odd object that goes by itself takes its condition with it."""
    odd = node.add("odd")
    node.add("pod")
    node.runtime.run("pod")
    vanish(node, odd)
    node.clock.advance(600)
    refuse(node, monkeypatch, "mark_for_deletion", odd.host_veth, WiringError("no"))
    look_often(node)
    assert len(told(node, "odd")) == 1
    node.runtime.run("odd")
    look_often(node)
    assert node.health.conditions() == []


def test_a_namespace_that_could_not_be_opened_is_not_gone(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon has no descriptor left: that says nothing about the sandbox, whose address stays (I2, I11)."""
    made = node.add("a")
    node.add("pod")
    node.runtime.run("pod")
    node.wiring.wired.pop(made.host_veth)
    node.clock.advance(600)
    switch = refuse(node, monkeypatch, "identify_netns", made.netns, WiringError("Too many open files"))
    look_often(node)
    assert node.datastore.attachment(made.key) == made
    switch.clear()
    refuse(node, monkeypatch, "identify_netns", made.netns, NetnsError("gone"))
    look_often(node)
    assert node.datastore.attachment(made.key) is None


def test_one_spooled_del_that_refuses_stops_neither_the_others_nor_the_start(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its entry stays on disk and is named (I3); the others are carried out, and the start goes on."""
    odd, _ = node.add("odd"), node.add("fine")
    spool = node.run_dir / "spool"
    spool.mkdir(exist_ok=True, mode=0o700)
    for number, name in enumerate(("odd", "fine")):
        request = cni_pb2.ExecRequest(verb="DEL", container_id=name, ifname="eth0", protocol_min=1, protocol_max=1)
        (spool / f"del-{number}").write_bytes(request.SerializeToString())
    node.crash()
    switch = refuse(node, monkeypatch, "mark_for_deletion", odd.host_veth, WiringError("no"))
    replay = node.app.spooled_deletes.replay
    assert replay(deadline=Deadline.after(node.clock, 9)) == 1
    assert [a.key for a in node.datastore.attachments()] == [odd.key]
    assert node.spool.pending_count() == 1
    assert len(told(node, "odd")) == 1
    switch.clear()
    assert replay(deadline=Deadline.after(node.clock, 9)) == 1
    assert node.spool.pending_count() == 0
    assert node.health.conditions() == []
