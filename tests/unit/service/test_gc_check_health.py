"""GC, CHECK, STATUS and the lock per sandbox."""

from __future__ import annotations

import threading
import time

import pytest

from ipamd.core import health as health_module
from ipamd.core.deadline import Deadline
from ipamd.core.health import STATUS_GRACE_S, Health, Phase, StageReport, StageState
from ipamd.core.key_locks import KeyLocks
from ipamd.host import network as host_network
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import CheckFailedError, TryAgainError, UnknownAttachmentError
from ipamd.model.refusals import RefusalCode
from ipamd.model.repairs import NODE
from ipamd.model.routing_difference import routing_difference
from tests.conditions import failed
from tests.fakes.clock import FakeClock
from tests.fakes.node import FakeNode
from tests.loops import running
from tests.patience import PATIENCE_S
from tests.refusing import refused_with


def test_check_tells_every_difference(node: FakeNode) -> None:
    """CHECK of a sound sandbox is silent, of a damaged one it says what is missing, of an unknown one code 3."""
    made = node.add("a")
    deadline = Deadline.after(node.clock, 9)
    node.checker.check_sandbox(node.request("a"), deadline=deadline)
    del node.wiring.wired[made.host_veth]
    with pytest.raises(CheckFailedError) as caught:
        node.checker.check_sandbox(node.request("a"), deadline=deadline)
    assert caught.value.differences == (DifferenceCode.VETH_MISSING,)
    with pytest.raises(UnknownAttachmentError):
        node.checker.check_sandbox(node.request("b"), deadline=deadline)


def test_check_names_faults_of_the_host(node: FakeNode) -> None:
    """What of node or ENI keeps packets from the sandbox is told; what only contradicts a setting is not CHECK's business."""
    made = node.add("a")
    deadline = Deadline.after(node.clock, 9)
    node.hostnet.node_differences.append(routing_difference(DifferenceCode.TABLE_LEFT, NODE, table="ip aws-cni"))
    node.checker.check_sandbox(node.request("a"), deadline=deadline)
    node.hostnet.node_differences.append(routing_difference(DifferenceCode.RULE_REFUSES, NODE, priority=9))
    node.hostnet.unplugged.add(next(eni.mac for eni in node.datastore.enis() if eni.eni_id == made.eni_id))
    with pytest.raises(CheckFailedError) as caught:
        node.checker.check_sandbox(node.request("a"), deadline=deadline)
    assert caught.value.differences == (DifferenceCode.ENI_LINK_MISSING, DifferenceCode.RULE_REFUSES)


def test_an_add_waits_for_the_end_of_a_start() -> None:
    """A pod that comes during a restart needs no second try (I17)."""
    clock = FakeClock()
    health = Health(clock, ())
    health.enter(Phase.RESTORING)
    waiting = threading.Thread(target=health.wait_until_serving_adds, args=(Deadline.after(clock, 60),))
    waiting.start()
    waiting.join(0.1)
    assert waiting.is_alive()
    health.enter(Phase.SERVING)
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()


def test_adds_that_waited_go_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an absence they do not all go at once: each a turn after the one before, and the last ones after a bounded time. An ADD
    that did not wait has no turn."""
    monkeypatch.setattr(health_module, "TURNS_S", 10 * health_module.TURN_S)
    clock = FakeClock()
    health = Health(clock, ())
    health.enter(Phase.RESTORING)
    gone: list[float] = []
    asked = threading.Semaphore(0)

    def add() -> None:
        # asked for the first time with the lock held that the wait releases
        health.wait_until_serving_adds(Deadline.after(clock, 60, is_cancelled=lambda: bool(asked.release())))
        gone.append(time.monotonic())

    waiting = [threading.Thread(target=add) for _ in range(15)]
    for each in waiting:
        each.start()
    for _ in waiting:
        assert asked.acquire(timeout=PATIENCE_S)
    began = time.monotonic()
    health.enter(Phase.SERVING)
    add()
    assert gone[0] == min(gone)
    for each in waiting:
        each.join(PATIENCE_S)
    turns = sorted(gone[1:])
    assert len(turns) == 15
    for number, turn in enumerate(turns):
        assert turn - began >= min(number, 10) * health_module.TURN_S


@pytest.mark.parametrize("end", ["deadline", "draining", "stopped for good", "the caller leaves"])
def test_an_add_waits_no_longer_than_it_helps(end: str) -> None:
    """It is refused with what is missing when its time is up, when the daemon exits, and when the start cannot end (I14)."""
    clock = FakeClock()
    health = Health(clock, ())
    health.enter(Phase.RESTORING)
    if end == "draining":
        health.enter(Phase.DRAINING)
    if end == "stopped for good":
        health.report("start", failed("it stopped"))
    deadline = Deadline.after(clock, 0.4 if end == "deadline" else 60, is_cancelled=lambda: end == "the caller leaves")
    with pytest.raises(TryAgainError):
        health.wait_until_serving_adds(deadline)


def test_status_fails_only_beyond_its_grace() -> None:
    """STATUS is silent while a restart takes its second or two, and fails when restoring hangs."""
    clock = FakeClock()
    health = Health(clock, ())
    health.enter(Phase.RESTORING)
    health.require_status()
    clock.advance(STATUS_GRACE_S + 1)
    with refused_with(RefusalCode.STATUS_NOT_SERVING, phase="restoring"):
        health.require_status()
    health.enter(Phase.SERVING)
    health.require_status()


def test_a_running_stage_shows_its_time_and_its_detail_so_far() -> None:
    """A start that hangs says at what, and for how long."""
    clock = FakeClock()
    health = Health(clock, ("ec2",))
    with health.stage("ec2") as stage:
        stage.detail = "EC2 is being asked"
        clock.advance(2.5)
        assert health.stages() == [StageReport("ec2", StageState.RUNNING, 2500.0, "EC2 is being asked")]
        stage.detail = "3 ENIs"
    assert health.stages() == [StageReport("ec2", StageState.DONE, 2500.0, "3 ENIs")]


def test_a_full_pool_does_not_fail_status(node: FakeNode) -> None:
    """A failing STATUS evicts every pod of the node: a full pool is reported by ADD, not here."""
    for number in range(27):
        node.add(f"s{number}")
        node.pool.cycle()
    node.health.require_status()


def test_operations_on_one_key_run_in_arrival_order() -> None:
    """A DEL does not overtake the ADD it follows, and nobody else is held up."""
    clock = FakeClock()
    locks = KeyLocks(clock)
    key, other = (FakeNodeKey(name) for name in ("a", "b"))
    order: list[int] = []
    inside, go_on = threading.Event(), threading.Event()

    def first() -> None:
        with locks.hold(key, "ADD", Deadline.after(clock, 30)):
            inside.set()
            go_on.wait(10)
            order.append(0)

    threads = [threading.Thread(target=first)]
    threads[0].start()
    assert inside.wait(10)
    for number in range(1, 5):

        def later(number: int = number) -> None:
            with locks.hold(key, "DEL", Deadline.after(clock, 30)):
                order.append(number)

        threads.append(threading.Thread(target=later))
        threads[-1].start()
        while locks.holders()[0].waiting_count < number:
            threads[-1].join(0.001)
    with locks.hold(other, "ADD", Deadline.after(clock, 0.1)):
        assert order == []
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert order == [0, 1, 2, 3, 4]
    assert locks.holders() == []


def test_a_key_that_is_held_too_long_names_its_holder() -> None:
    """Who waits until the deadline is told who holds the key, and leaves the queue whole (I14)."""
    clock = FakeClock()
    locks = KeyLocks(clock)
    key = FakeNodeKey("a")
    with locks.hold(key, "ADD", Deadline.after(clock, 30)):
        with (
            refused_with(RefusalCode.SANDBOX_BUSY, holder="ADD", operation="DEL"),
            locks.hold(key, "DEL", Deadline.after(clock, 0.0)),
        ):
            raise AssertionError("must not get in")
        assert locks.holders()[0].waiting_count == 0
    with locks.hold(key, "DEL", Deadline.after(clock, 0.1)):
        assert locks.holders()[0].operation == "DEL"


def FakeNodeKey(name: str):
    """A key."""
    from ipamd.model.ids import parse_key

    return parse_key(name, "eth0")


def test_the_reconciler_puts_routes_of_sandboxes_back(node: FakeNode) -> None:
    """What something else on the node deleted is repaired within an audit, and the ledger says so (docs/datastore.md, Sources)."""
    made = node.add("a")
    del node.wiring.routes[made.address]
    del node.wiring.rules[made.address]
    assert {one.object.subject for one in node.host_reconciler.reconcile()} == {str(made.address)}
    assert node.wiring.routes[made.address] == made.host_veth
    assert node.host_reconciler.reconcile() == []


def test_the_reconciler_never_undoes_a_del(node: FakeNode) -> None:
    """A DEL between the audit's look and its repair wins: nothing of the sandbox comes back (I4)."""
    made = node.add("a")
    del node.wiring.routes[made.address]
    real_hold = node.locks.hold

    def hold(key, operation, deadline):
        if operation == "REPAIR":
            node.locks.hold = real_hold  # type: ignore[method-assign]
            node.delete("a")
        return real_hold(key, operation, deadline)

    node.locks.hold = hold  # type: ignore[method-assign]
    node.host_reconciler.reconcile()
    assert made.address not in node.wiring.routes


def test_check_goes_by_the_mtu_that_was_wired(node: FakeNode) -> None:
    """POD_MTU was changed since: a sandbox is compared with what it was promised, not with today's settings."""
    node.add("a")
    seen: list[int] = []
    real = node.wiring.check
    node.wiring.check = lambda spec: (seen.append(spec.mtu), real(spec))[1]  # type: ignore[method-assign]
    node.attacher._pool._mtu = lambda: 1500
    node.checker.check_sandbox(node.request("a"), deadline=Deadline.after(node.clock, 9))
    assert seen == [9001]


def test_one_busy_sandbox_does_not_hold_up_the_repair_of_others(node: FakeNode) -> None:
    """A sandbox in work is left to the next audit; the others are repaired now."""
    first, second = node.add("a"), node.add("b")
    for made in (first, second):
        del node.wiring.routes[made.address]
    with node.locks.hold(first.key, "ADD", Deadline.after(node.clock, 60)):
        node.clock.advance(1)
        node.host_reconciler.reconcile()
    assert first.address not in node.wiring.routes
    assert second.address in node.wiring.routes


def test_what_cannot_be_repaired_is_said_once(node: FakeNode) -> None:
    """A host veth that is gone for good does not fill the ledger every 30 s."""
    made = node.add("a")
    node.wiring.wired.clear()
    node.wiring.routes.clear()
    for _ in range(3):
        node.host_reconciler.reconcile()
    told = [e for e in node.datastore.history(made.key.container_id, limit=99) if e.event == "repaired"]
    assert len(told) <= 1


def test_what_was_taken_while_the_daemon_was_away_is_repaired_soon_after_its_start(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first audit does not wait for the interval: a daemon that is restarted again and again repairs all the same."""
    made = node.add("a")
    del node.wiring.routes[made.address]
    repaired = threading.Event()
    repair = node.wiring.repair
    monkeypatch.setattr(node.wiring, "repair", lambda specs, **named: (repair(specs, **named), repaired.set())[0])
    monkeypatch.setattr(host_network, "FIRST_RECONCILE_S", 0.0)
    with running(node.host_reconciler.loop):
        assert repaired.wait(PATIENCE_S)
    assert node.wiring.routes[made.address] == made.host_veth
