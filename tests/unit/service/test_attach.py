"""ADD: all or nothing, once or the same again."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.health import Phase
from ipamd.model.address import AddressState
from ipamd.model.blocked import Blocked
from ipamd.model.errors import (
    AttachmentConflictError,
    DatastoreError,
    DeadlineError,
    NetnsError,
    NothingWiredError,
    PoolEmptyError,
    TombstonedError,
    WiringError,
)
from ipamd.model.refusals import RefusalCode
from tests.fakes.node import FakeNode
from tests.refusing import refused_with


def nothing_of(node: FakeNode, name: str) -> None:
    """Assert that no row, veth, route or reservation of a sandbox is left."""
    assert node.datastore.attachment(node.key(name)) is None
    assert not any(spec.key == node.key(name) for spec in node.wiring.wired.values())
    assert node.datastore.counts().reserved == 0
    node.assert_sound()


def test_an_add_is_wired_recorded_and_answered(node: FakeNode) -> None:
    """An ADD leaves a row, a route and a result that carry the same address (I1)."""
    made = node.add("a")
    assert node.datastore.attachment(made.key) == made
    assert node.wiring.routes[made.address] == made.host_veth
    assert json.loads(made.result)["ips"][0]["address"] == f"{made.address}/32"
    node.assert_sound()


def test_the_same_request_gets_the_same_answer(node: FakeNode) -> None:
    """A client that timed out and retries gets the stored result, and nothing is wired twice (I1)."""
    first = node.add("a")
    node.wiring.fail["wire"] = [WiringError("must not be called")]
    assert node.add("a") == first


def test_another_request_for_the_same_key_is_refused(node: FakeNode) -> None:
    """The same key from another namespace or configuration is a conflict that names the first one (I14)."""
    node.add("a")
    with refused_with(RefusalCode.ATTACHED_OTHERWISE, netns=node.datastore.attachments()[0].netns):
        node.add("a", netns=node.wiring.make_netns("/run/netns/other"))
    with pytest.raises(AttachmentConflictError):
        node.add("a", config="other")


def test_two_sandboxes_of_one_pod_are_two_attachments(node: FakeNode) -> None:
    """Nothing but the sandbox ID decides: two sandboxes with the same names get two addresses (docs/adr/0001)."""
    assert node.add("a1").address != node.add("a2").address


def test_an_add_after_its_del_is_refused(node: FakeNode) -> None:
    """A late ADD finds the tombstone, also when the DEL came first and knew nothing (I4)."""
    node.add("a")
    node.delete("a")
    node.delete("never-added")
    for name in ("a", "never-added"):
        with pytest.raises(TombstonedError):
            node.add(name)
        nothing_of(node, name)


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.RESTORING])
def test_an_add_before_serving_is_told_to_try_again(node: FakeNode, phase: Phase) -> None:
    """If the restore is not done in the caller's time ADD gets code 11 with the phase, and nothing happens (I14)."""
    node.health.enter(phase)
    with refused_with(RefusalCode.NOT_SERVING_YET, phase=phase):
        node.add("a", deadline_s=0.4)
    nothing_of(node, "a")


def test_a_wiring_failure_leaves_nothing(node: FakeNode) -> None:
    """When the kernel refuses, the address cools and no row is left (I5)."""
    node.wiring.fail["wire"] = [WiringError("refused")]
    with pytest.raises(WiringError):
        node.add("a")
    nothing_of(node, "a")
    assert node.datastore.counts().cooling == 1


def test_a_refused_link_cools_nothing(node: FakeNode) -> None:
    """An ADD that is repeated while the kernel refuses the link does not cool the pool empty (I5, I8)."""
    free = node.datastore.counts().free
    for _ in range(2 * free):
        node.wiring.fail["wire"] = [NothingWiredError("the pod has an interface eth0 already")]
        with pytest.raises(NothingWiredError):
            node.add("a")
    nothing_of(node, "a")
    assert (node.datastore.counts().free, node.datastore.counts().cooling) == (free, 0)


def test_a_refused_link_whose_rest_stays_cools(node: FakeNode) -> None:
    """If even the undo fails, somebody may have a link with the address: it cools (I4, I8)."""
    node.wiring.fail["wire"] = [NothingWiredError("refused")]
    node.wiring.fail["unwire"] = [WiringError("refused too")]
    with pytest.raises(NothingWiredError):
        node.add("a")
    assert node.datastore.counts().cooling == 1


def test_an_address_that_cannot_be_given_back_cools(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk refuses, no address is lost: it stays reserved, and cools once the disk writes."""
    real = node.datastore.transaction
    refusals = [DatastoreError("disk full"), DatastoreError("disk full")]

    def failing():
        if refusals:
            raise refusals.pop()
        return real()

    monkeypatch.setattr(node.datastore, "transaction", failing)
    node.wiring.fail["wire"] = [NothingWiredError("refused")]
    with pytest.raises(NothingWiredError):
        node.add("a")
    node.cooldown.work()
    assert (node.datastore.counts().reserved, node.datastore.counts().cooling) == (0, 1)
    nothing_of(node, "a")


def test_a_commit_failure_unwires(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the disk refuses the promise, the wiring is undone and the reservation is tried back until the disk writes (I5)."""
    real = node.datastore.transaction
    refusals = [DatastoreError("disk full"), DatastoreError("disk full")]

    def failing():
        if refusals:
            raise refusals.pop()
        return real()

    monkeypatch.setattr(node.datastore, "transaction", failing)
    with pytest.raises(DatastoreError):
        node.add("a")
    assert not node.wiring.wired
    assert node.datastore.counts().reserved == 1, "nothing could be written: the address is held back, not lost"
    node.cooldown.work()
    assert node.datastore.counts().reserved == 0
    nothing_of(node, "a")


def test_when_even_undoing_fails_the_address_waits_for_its_link(node: FakeNode) -> None:
    """An address is not assignable before the link that had it is gone, whatever the cooldown says (I4)."""
    node.wiring.before_wire = lambda spec: node.wiring.wired.__setitem__(spec.host_veth, spec)
    node.wiring.fail["wire"] = [WiringError("refused half-way")]
    node.wiring.fail["unwire"] = [WiringError("refused too")]
    with pytest.raises(WiringError):
        node.add("a")
    node.clock.advance(3600)
    node.cooldown.free_cooled()
    assert node.datastore.counts().cooling == 1, "its link is still dying"
    node.cooldown.sweep()
    node.cooldown.free_cooled()
    assert node.datastore.counts().cooling == 0


def test_a_link_that_cannot_even_be_marked_is_removed_by_name(node: FakeNode) -> None:
    """Undo and mark both refused: the link goes as soon as the kernel lets it, and its address is not given before (I4, I5)."""
    node.wiring.before_wire = lambda spec: node.wiring.wired.__setitem__(spec.host_veth, spec)
    for method in ("wire", "unwire", "mark_for_deletion"):
        node.wiring.fail[method] = [WiringError(f"{method} refused")]
    node.wiring.fail["remove_leftover"] = [WiringError("still refused")]
    with pytest.raises(WiringError):
        node.add("a")
    node.clock.advance(3600)
    with pytest.raises(WiringError):
        node.cooldown.work()
    assert node.wiring.wired
    assert node.datastore.counts().cooling == 1
    node.cooldown.work()
    assert not node.wiring.wired
    assert node.datastore.counts().cooling == 0


def test_a_caller_that_leaves_leaves_nothing(node: FakeNode) -> None:
    """An ADD whose caller is gone before the commit is rolled back (I5)."""
    gone = [False]
    node.wiring.before_wire = lambda _: gone.__setitem__(0, True)
    deadline = Deadline.after(node.clock, 60, is_cancelled=lambda: gone[0])
    with pytest.raises(DeadlineError):
        node.attacher.attach_sandbox(node.request("a"), deadline=deadline, steps=StepTimer(node.clock))
    nothing_of(node, "a")


def test_a_deadline_that_passes_while_wiring_leaves_nothing(node: FakeNode) -> None:
    """A slow kernel does not make a promise after the deadline (I5)."""
    node.wiring.before_wire = lambda _: node.clock.advance(61)
    with pytest.raises(DeadlineError):
        node.add("a")
    nothing_of(node, "a")


def test_a_namespace_that_is_missing_is_said_to_be(node: FakeNode) -> None:
    """ADD for a path without a namespace is a typed error before anything is reserved."""
    request = node.request("a")
    del node.wiring.netns[request.netns]
    with pytest.raises(NetnsError):
        node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 9), steps=StepTimer(node.clock))
    nothing_of(node, "a")


def test_a_full_node_refuses_with_cause_counts_and_next_step(node: FakeNode) -> None:
    """27 sandboxes fit on 3 x 10; the 28th is told why, with counts and what to do, and leaves nothing (I14)."""
    for number in range(27):
        node.add(f"s{number}")
        node.pool.cycle()
    generation_before = node.demand.waiting()[1]
    node.demand.publish(_status_after(node))
    with pytest.raises(PoolEmptyError) as refused:
        node.add("one-too-many")
    assert generation_before + 1 == node.demand.waiting()[1]
    text = str(refused.value)
    assert "3 of 3 ENIs" in text
    assert "27 assigned" in text
    assert "larger instance type" in text
    assert "ENABLE_PREFIX_DELEGATION=true" in text
    nothing_of(node, "one-too-many")


def test_prefix_mode_is_not_advised_where_it_is_on(node: FakeNode) -> None:
    """A node in prefix mode is not told to turn it on."""
    for number in range(27):
        node.add(f"s{number}")
        node.pool.cycle()
    node.pool.set_limits(node.ec2.limits, settings=replace(node.settings, prefix_delegation=True))
    node.demand.publish(_status_after(node))
    with pytest.raises(PoolEmptyError) as refused:
        node.add("one-too-many")
    assert "ENABLE_PREFIX_DELEGATION" not in str(refused.value)
    assert "larger instance type" in str(refused.value)


def test_an_add_waits_for_an_address_that_cools_in_time(node: FakeNode) -> None:
    """With the pool full and one address cooling, ADD waits for it rather than refusing."""
    for number in range(27):
        node.add(f"s{number}")
        node.pool.cycle()
    node.delete("s0")
    node.demand.publish(_status_after(node))
    real_wait = node.demand.wait

    def wait(**arguments: object) -> None:
        node.cool()
        real_wait(seen_announcement_count=-1, seen_status=node.demand.status, timeout_s=0)

    node.demand.wait = wait  # type: ignore[method-assign]
    assert node.add("waits").address is not None
    node.assert_sound()


def test_addresses_are_packed_onto_the_densest_eni(node: FakeNode) -> None:
    """New sandboxes go where most are, so that ENIs drain."""
    for number in range(12):
        node.add(f"s{number}")
        node.pool.cycle()
    by_eni: dict[str, int] = {}
    for row in node.datastore.addresses():
        by_eni[row.eni_id] = by_eni.get(row.eni_id, 0) + (row.state is AddressState.ASSIGNED)
    assert sorted(by_eni.values()) == [0, 3, 9]


def _status_after(node: FakeNode):
    """What the pool loop would say right after the next ADD has begun to wait."""
    node.pool.cycle()
    said = node.demand.status
    return replace(said, generation=said.generation + 1, kind=Blocked.GROWING)
