"""Two threads on one sandbox, a clock that is set in between, and loops in which one refusal must not stop the rest."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.errors import DatastoreError, InvariantError, WiringError
from ipamd.model.ids import AttachmentKey
from ipamd.pb import cni_pb2
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode


def before_next_transaction(node: FakeNode, act: Callable[[], object]) -> None:
    """Let another thread's work come between a look at memory and the transaction that follows it, once."""
    real = node.datastore.transaction
    left = [act]

    def transaction() -> AbstractContextManager[Any]:
        if left:
            left.pop()()
        return real()

    node.datastore.transaction = transaction  # type: ignore[method-assign]


def test_a_del_that_meets_the_adoption_of_its_sandbox_is_final(node: FakeNode) -> None:
    """Adopted between DEL's look and DEL's tombstone: the row goes too, or DEL would have leaked it (I3, I4)."""
    made = node.add("a")
    node.runtime.run("a")
    node.crash(keep_datastore=False)
    node.node_info.learn_identity()
    node.enis.sync_with_ec2(IDENTITY)
    survey = node.wiring.survey()

    def adopt() -> None:
        assert node.quarantine.adopt(survey.veths[0], node.runtime.listed["a"], survey) == ""

    before_next_transaction(node, adopt)
    node.delete("a")
    assert node.datastore.attachment(made.key) is None
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.COOLING
    assert made.address not in node.wiring.routes
    assert node.datastore.audit() == []


def test_what_cannot_be_undone_does_not_hold_up_what_has_cooled(node: FakeNode) -> None:
    """An abort that the datastore refuses for ever: the other addresses become free all the same (I8)."""
    made = node.add("a")
    node.delete("a")
    node.cooldown._pending_rollbacks[node.datastore.addresses()[-1].address] = "an abort of what is not reserved"
    node.cooldown.sweep()
    node.clock.advance(3600)
    with pytest.raises(DatastoreError):
        node.cooldown.work()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE


def test_links_that_cannot_be_swept_do_not_hold_up_what_has_cooled(node: FakeNode) -> None:
    """The kernel refuses to delete one link: addresses whose link is gone become free all the same."""
    made = node.add("a")
    node.delete("a")
    node.cooldown.sweep()
    node.add("b")
    node.delete("b")
    node.clock.advance(3600)
    node.wiring.fail["sweep"] = node.wiring.fail["remove_leftover"] = [WiringError("refused"), WiringError("refused")]
    with pytest.raises(WiringError):
        node.cooldown.work()
    assert node.datastore.counts().cooling == 1
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE


def spool_del(node: FakeNode, name: str, number: int) -> None:
    """What the plugin leaves while the daemon is away."""
    directory = node.run_dir / "spool"
    directory.mkdir(exist_ok=True)
    request = cni_pb2.ExecRequest(verb="DEL", container_id=name, ifname="eth0")
    (directory / f"del-{name}-{1000000 + number}").write_bytes(request.SerializeToString())


@pytest.mark.parametrize("refusal", [InvariantError("memory and disk differ"), WiringError("the kernel refused")])
def test_a_spooled_del_that_is_refused_stays_and_the_others_are_done(
    node: FakeNode, refusal: DatastoreError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not damaged, so that it is not set aside (I3); and it does not stand before those behind it."""
    for number, name in enumerate(("a", "b")):
        node.add(name)
        spool_del(node, name, number)
    real, refusals = node.detacher.detach_sandbox, {node.key("a"): refusal}

    def refuse_once(key: AttachmentKey, **options: Any) -> bool:
        if key in refusals:
            raise refusals.pop(key)
        return real(key, **options)

    monkeypatch.setattr(node.detacher, "detach_sandbox", refuse_once)
    assert node.app.spooled_deletes.replay(deadline=Deadline.after(node.clock, 9)) == 1
    assert [a.key.container_id for a in node.datastore.attachments()] == ["a"]
    assert node.spool.pending_count() == 1
    assert node.app.spooled_deletes.replay(deadline=Deadline.after(node.clock, 9)) == 1
    assert node.datastore.attachments() == ()


def test_an_undoing_that_fails_unexpectedly_does_not_lose_the_address(node: FakeNode) -> None:
    """No descriptor left, say: the address cools and waits for its link, it does not stay reserved until a restart (I5)."""
    node.wiring.fail["wire"] = [WiringError("refused")]

    def unwire(spec: object) -> None:
        raise OSError(24, "Too many open files")

    node.wiring.unwire = unwire  # type: ignore[method-assign]
    with pytest.raises((WiringError, OSError)):
        node.add("a")
    assert node.datastore.counts().reserved == 0
    assert node.datastore.counts().cooling == 1


def test_host_routing_of_an_eni_that_was_forgotten_meanwhile_does_not_bring_it_back(node: FakeNode) -> None:
    """A slow setup ends after EC2 said that the ENI is gone: it stays forgotten (I7)."""
    node.add("a")
    node.pool.cycle()
    other = next(eni for eni in node.datastore.enis() if not eni.is_primary)
    with node.datastore.transaction() as uow:
        uow.put_eni(other.__class__(**{**{f: getattr(other, f) for f in other.__slots__}, "host_ready": False}))
    stale = next(eni for eni in node.datastore.enis() if not eni.is_primary)
    del node.ec2.enis[other.eni_id]
    node.look_twice()
    assert len(node.datastore.enis()) == 1
    node.enis.routing.set_up(stale)
    assert len(node.datastore.enis()) == 1


def test_a_leftover_is_not_removed_from_under_a_new_add_of_its_key(node: FakeNode) -> None:
    """Quarantined for an hour, and then the same sandbox is added again: settling the old address leaves the new link (I2)."""
    made = node.add("a")
    node.crash(keep_datastore=False)
    node.bring_up()
    node.wiring.make_netns(made.netns)
    real_hold = node.locks.hold
    node.runtime_reconciler.reconcile_once()
    node.clock.advance(3700)
    renewed: list[Attachment] = []

    def hold(key: AttachmentKey, operation: str, deadline: Deadline) -> AbstractContextManager[None]:
        if operation == "RESOLVE" and not renewed:
            renewed.append(node.add("a"))
        return real_hold(key, operation, deadline)

    node.locks.hold = hold  # type: ignore[method-assign]
    node.runtime_reconciler.reconcile_once()
    assert renewed
    assert node.datastore.attachment(made.key) is not None
    assert renewed[0].host_veth in node.wiring.wired


def test_gc_after_a_clock_step_keeps_a_young_attachment(node: FakeNode) -> None:
    """NTP sets the clock forward an hour while a sandbox is being created: GC's list is still older than it (I2)."""
    made = node.add("young")
    node.clock.step_wall(3600)
    outcome = node.collector.collect(
        frozenset(), network_name="vpc-ipamd", deadline=Deadline.after(node.clock, 30), steps=StepTimer(node.clock)
    )
    assert outcome.freed == ()
    assert node.datastore.attachment(made.key) is not None
