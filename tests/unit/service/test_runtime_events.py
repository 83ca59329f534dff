"""Event stream and lists together: subscribe first, then list again and again; an event asks for a list, many events for one."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ipamd.core.backoffs import Schedule
from ipamd.model.conditions import ConditionCode
from ipamd.model.sandbox import EventKind, SandboxEvent
from ipamd.sandbox import event_stream
from ipamd.sandbox import runtime as runtime_module
from ipamd.sandbox.judge import LIST_INTERVAL_S
from ipamd.sandbox.runtime import RELIST_WITH_EVENTS_S, RELIST_WITHOUT_EVENTS_S
from tests.conditions import codes
from tests.fakes.node import FakeNode
from tests.loops import running
from tests.patience import PATIENCE_S
from tests.rig import wait_until


@contextmanager
def following(node: FakeNode) -> Iterator[None]:
    """Both threads of the runtime reconciler at work, as start-up runs them; they end when they are told to."""
    node.runtime_reconciler.begin()
    with running(node.runtime_reconciler.loop, node.runtime_reconciler.events):  # the lister first: it must wait by itself
        yield


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same pauses, twenty times shorter."""
    monkeypatch.setattr(runtime_module, "LIST_GAP_S", 0.05)
    monkeypatch.setattr(event_stream, "NODE", Schedule("node", 0.025, 0.5))


def quiet(node: FakeNode) -> None:
    """Return when the runtime reconciler has rested for longer than its gap: the next event finds it waiting for one."""
    deadline, seen, since = time.monotonic() + PATIENCE_S, -1, time.monotonic()
    while time.monotonic() - since < runtime_module.LIST_GAP_S + 0.3:
        assert time.monotonic() < deadline, "lists without an event"
        if node.runtime.list_count != seen:
            seen, since = node.runtime.list_count, time.monotonic()
        time.sleep(0.01)


def is_open(node: FakeNode) -> bool:
    """Whether the runtime reconciler says that a stream is open."""
    return node.runtime_reconciler.view().events


def test_the_first_list_comes_after_the_subscription(node: FakeNode) -> None:
    """What is created between list and subscription would be in neither (NRI #63)."""
    node.runtime.has_events = True
    opened_before_list: list[int] = []
    node.runtime.before_list = lambda: opened_before_list.append(node.runtime.subscription_count)
    with following(node):
        wait_until(lambda: bool(opened_before_list), what="first list")
        wait_until(lambda: is_open(node), what="stream open")
    assert opened_before_list[0] == 1
    assert node.runtime_reconciler.interval_s() == RELIST_WITHOUT_EVENTS_S, "closed again"


def test_a_runtime_without_events_is_polled(node: FakeNode) -> None:
    """UNIMPLEMENTED is no error and no reason to wait: the list comes at once, and every 10 s."""
    with following(node):
        wait_until(lambda: node.runtime_reconciler.view().reachable, what="first list")
        assert not is_open(node)
        assert node.runtime_reconciler.interval_s() == RELIST_WITHOUT_EVENTS_S
    assert node.health.conditions() == []


def test_events_is_true_only_while_the_stream_is_open(node: FakeNode, quick: None) -> None:
    """A stream that broke cleanly leaves polling behind, not the belief in events; then it is opened again."""
    node.runtime.has_events = True
    with following(node):
        wait_until(lambda: is_open(node) and node.runtime_reconciler.view().reachable, what="stream open")
        assert node.runtime_reconciler.interval_s() == RELIST_WITH_EVENTS_S
        node.runtime.has_events = False
        node.runtime.break_stream()
        wait_until(lambda: not is_open(node), what="stream known to be closed")
        assert node.runtime_reconciler.interval_s() == RELIST_WITHOUT_EVENTS_S


def test_a_stream_that_broke_is_opened_again(node: FakeNode, quick: None) -> None:
    """With a list before and after: what happened meanwhile was announced to nobody."""
    node.runtime.has_events = True
    with following(node):
        wait_until(lambda: is_open(node), what="stream open")
        before = node.runtime.list_count
        node.runtime.break_stream()
        wait_until(lambda: node.runtime.subscription_count == 2, what="stream opened again")
        wait_until(lambda: is_open(node) and node.runtime.list_count > before, what="a list after it")


def test_an_event_is_a_list_at_once(node: FakeNode) -> None:
    """After a quiet second the interval, a minute, is not waited for."""
    assert RELIST_WITH_EVENTS_S > PATIENCE_S
    node.runtime.has_events = True
    with following(node):
        wait_until(lambda: is_open(node) and node.runtime.list_count > 0, what="stream open")
        quiet(node)
        node.runtime.run("a")
        node.runtime.emit("a", EventKind.STARTED)
        wait_until(lambda: node.runtime_reconciler.view().sandbox_count == 1, what="listed")


def test_a_burst_of_events_is_a_few_lists(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crowded node lists once a gap, not once an event; and the last event is not lost in the crowd."""
    monkeypatch.setattr(runtime_module, "LIST_GAP_S", 0.2)
    node.runtime.has_events = True
    with following(node):
        wait_until(lambda: is_open(node) and node.runtime.list_count > 0, what="stream open")
        began, before = time.monotonic(), node.runtime.list_count
        for number in range(2000):
            node.runtime.emit(f"s{number}", EventKind.STARTED)
            if number % 200 == 0:
                time.sleep(0.05)
        node.runtime.run("last")
        node.runtime.emit("last", EventKind.STARTED)
        wait_until(lambda: node.runtime_reconciler.view().sandbox_count == 1, what="the last one listed")
        took = time.monotonic() - began
    assert node.runtime.list_count - before <= took / 0.2 + 2


def test_a_stream_that_dies_at_once_every_time_is_not_chased(node: FakeNode, quick: None) -> None:
    """Each death is a list, so the pause between subscriptions doubles."""
    node.runtime.has_events = True
    began = time.monotonic()
    with following(node):
        while node.runtime.subscription_count < 7:
            assert time.monotonic() - began < PATIENCE_S
            node.runtime.break_stream()
            time.sleep(0.002)
        took_s = time.monotonic() - began
    assert took_s >= 0.025 + 0.05 + 0.1 + 0.2 + 0.4 + 0.5, "six pauses lie between seven subscriptions"


def test_an_unknown_error_in_the_stream_ends_nothing(node: FakeNode, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread outlives what nobody foresaw, and the health says what it was."""
    asked: list[int] = []

    def broken() -> Iterator[SandboxEvent]:
        asked.append(1)
        raise ValueError("a field nobody knew")

    monkeypatch.setattr(node.runtime, "events", broken)
    with following(node):
        wait_until(lambda: len(asked) >= 3, what="asked again")
        wait_until(lambda: node.runtime.list_count > 0, what="listing meanwhile")
    error = node.health.last_error
    assert error is not None
    assert "a field nobody knew" in str(error)


def test_a_runtime_that_comes_back_is_known_within_seconds(node: FakeNode, quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it is away it is asked every 2 s; the first list that succeeds has the stream opened again at once; nothing is
    freed."""
    monkeypatch.setattr(runtime_module, "RELIST_UNREACHABLE_S", 0.1)
    monkeypatch.setattr(event_stream, "NODE", Schedule("node", 60.0, 60.0))  # the stream alone would come back late
    node.add("a")
    node.runtime.run("a")
    node.runtime.has_events = True
    with following(node):
        wait_until(lambda: is_open(node) and node.runtime_reconciler.view().reachable, what="following")
        node.runtime.is_down = True
        node.runtime.break_stream()
        wait_until(lambda: not node.runtime_reconciler.view().reachable, what="known to be away")
        assert node.runtime_reconciler.interval_s() == 0.1
        assert ConditionCode.RUNTIME_NOT_BELIEVED in codes(node.health)
        time.sleep(0.5)  # the stream's own pause has grown meanwhile
        node.runtime.is_down = False
        wait_until(lambda: node.runtime_reconciler.view().reachable and is_open(node), what="known to be back")
    assert node.datastore.attachment(node.key("a")) is not None
    assert node.health.conditions() == []


def test_a_runtime_upgraded_under_us_is_asked_for_events_again(node: FakeNode, quick: None) -> None:
    """containerd 1.6 goes down and 1.7 comes up on the same path: no restart of ours is needed."""
    with following(node):
        wait_until(lambda: node.runtime_reconciler.view().reachable, what="polling")
        node.runtime.is_down = True
        node.runtime_reconciler.list_soon()  # the next poll; nobody waits ten seconds here
        wait_until(lambda: not node.runtime_reconciler.view().reachable, what="known to be away")
        node.runtime.is_down, node.runtime.has_events = False, True
        wait_until(lambda: is_open(node), what="stream open")


@pytest.mark.parametrize("has_events", [False, True])
def test_stopping_needs_no_event(node: FakeNode, has_events: bool) -> None:
    """Both threads end while nothing happens, and also before they have begun."""
    node.runtime.has_events = has_events
    with following(node):
        wait_until(lambda: node.runtime.list_count > 0, what="first list")
    node.runtime_reconciler.events.run()
    node.runtime_reconciler.loop.run()


def test_no_event_frees_and_a_missing_one_keeps_nothing(node: FakeNode) -> None:
    """Stale, doubled, reordered and wrong events change no verdict; the lists alone decide (I2, I11)."""
    for name in ("alive", "dead", "silent"):
        node.add(name)
        node.runtime.run(name)
    detector = node.runtime_reconciler._stream.missed_events
    detector.on_open()
    node.runtime_reconciler.reconcile_once()
    for name in ("dead", "silent"):
        made = node.datastore.attachment(node.key(name))
        assert made is not None
        del node.wiring.netns[made.netns]
        del node.wiring.wired[made.host_veth]
        del node.runtime.listed[name]
    reaped = []
    for _ in range(40):
        for kind in (EventKind.DELETED, EventKind.DELETED, EventKind.CREATED, EventKind.STOPPED):
            detector.on_event(SandboxEvent("alive", "", kind))
            detector.on_event(SandboxEvent("dead", "dead", EventKind.STARTED))
        reaped += node.runtime_reconciler.reconcile_once()
        node.clock.advance(LIST_INTERVAL_S)
    assert sorted(key.container_id for key in reaped) == ["dead", "silent"]
    assert node.datastore.attachment(node.key("alive")) is not None


def test_a_nodes_first_sandboxes_raise_no_alarm(node: FakeNode) -> None:
    """ADD runs before a sandbox is listable: a list without any of the first three says nothing yet."""
    for number in range(3):
        node.add(f"s{number}")
    node.runtime_reconciler.reconcile_once()
    assert node.health.conditions() == []


def test_a_sandbox_in_creation_costs_no_row_and_no_dump(node: FakeNode) -> None:
    """One list without it proves nothing, so nothing is looked at and nothing written beside the ADDs of a burst."""
    node.add("a")
    rows = len(node.datastore.history("a", limit=100))
    node.wiring.fail["survey"] = []
    surveys: list[int] = []
    real = node.wiring.survey
    node.wiring.survey = lambda: (surveys.append(1), real())[1]  # type: ignore[method-assign]
    node.runtime_reconciler.reconcile_once()
    assert surveys == []
    assert len(node.datastore.history("a", limit=100)) == rows


def test_a_clock_set_forward_makes_no_absence_of_seconds_an_hour(node: FakeNode) -> None:
    """NTP sets the clock at boot while a slow RunPodSandbox is not listable yet: its namespace and veth are not a leak (I2)."""
    node.add("a")
    node.runtime_reconciler.reconcile_once()
    node.clock.advance(LIST_INTERVAL_S)
    node.clock.step_wall(2 * 3600)
    assert node.runtime_reconciler.reconcile_once() == []
    node.clock.advance(LIST_INTERVAL_S)
    assert node.runtime_reconciler.reconcile_once() == []
    assert len(node.wiring.wired) == 1


def test_a_slow_list_does_not_hold_up_the_stream(node: FakeNode) -> None:
    """containerd 2 waits for a subscriber whose queue of 100 is full, and the others with it: events are read all the same."""
    node.runtime.has_events = True
    listing, go_on = threading.Event(), threading.Event()

    def slow() -> None:
        listing.set()
        assert go_on.wait(PATIENCE_S)

    node.runtime.before_list = slow
    with following(node):
        assert listing.wait(PATIENCE_S)
        wait_until(lambda: is_open(node), what="stream open")
        for number in range(300):
            node.runtime.emit(f"c{number}", EventKind.CREATED)
        wait_until(lambda: node.runtime.waiting_count() == 0, what="every event read while the list is at work")
        go_on.set()
