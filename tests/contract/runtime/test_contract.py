"""The contract of the port `Runtime`, kept by the fake and by the real adapter alike."""

from __future__ import annotations

import pytest

from ipamd.model.errors import EventsUnsupportedError, RuntimeUnreachableError
from ipamd.model.sandbox import EventKind, SandboxState
from tests.contract.runtime.conftest import Listener, Stage
from tests.rig import wait_until


def test_a_list_is_whole_and_tells_the_state(stage: Stage) -> None:
    """Every sandbox in any state, with the names that people know it by."""
    assert stage.runtime.sandboxes() == ()
    stage.run("a", SandboxState.READY)
    stage.run("b", SandboxState.NOTREADY)
    listed = stage.runtime.sandboxes()
    assert [(each.container_id, each.state) for each in listed] == [("a", SandboxState.READY), ("b", SandboxState.NOTREADY)]
    assert (listed[0].pod_namespace, listed[0].pod_name, listed[0].pod_uid) == ("default", "pod-a", "uid")
    stage.remove("a")
    assert [each.container_id for each in stage.runtime.sandboxes()] == ["b"]


def test_the_runtime_tells_who_it_is(stage: Stage) -> None:
    """Name, version and socket are for `ipamctl status`."""
    info = stage.runtime.info()
    assert info.name == "fake"
    assert info.socket


def test_the_stream_says_first_that_it_is_open(stage: Stage) -> None:
    """SUBSCRIBED comes before anything happens: it is what the first list waits for; then events come in their order."""
    listener = Listener(stage.runtime)
    listener.wait_open()
    assert len(listener.heard) == 1
    for kind in (EventKind.CREATED, EventKind.STARTED, EventKind.STOPPED, EventKind.DELETED):
        stage.emit("a", kind)
    heard = listener.wait_heard(4)
    assert [each.kind for each in heard] == [EventKind.CREATED, EventKind.STARTED, EventKind.STOPPED, EventKind.DELETED]
    assert [(each.container_id, each.sandbox_id) for each in heard] == [("a", "a"), ("a", "a"), ("a", "a"), ("a", "")]
    stage.runtime.cancel_events()
    listener.wait_end()


def test_a_stream_that_ends_is_an_error(stage: Stage) -> None:
    """It should last for ever: a clean end is no less a break; and it can be opened again."""
    listener = Listener(stage.runtime)
    listener.wait_open()
    stage.break_stream()
    error = listener.wait_end()
    assert isinstance(error, RuntimeUnreachableError)
    assert not isinstance(error, EventsUnsupportedError)
    again = Listener(stage.runtime)
    again.wait_open()
    stage.runtime.cancel_events()
    again.wait_end()


def test_a_runtime_without_events_says_so(stage: Stage) -> None:
    """No stream is told apart from a broken one: re-listing takes its place, and it is not asked for all the time."""
    stage.forget_events()
    error = Listener(stage.runtime).wait_end()
    assert isinstance(error, EventsUnsupportedError)
    assert stage.runtime.sandboxes() == ()


def test_a_runtime_that_is_away_is_an_error_and_no_empty_list(stage: Stage) -> None:
    """Silence is not evidence (I11); and when it is back, the same object lists again, without being told."""
    stage.run("a", SandboxState.READY)
    assert len(stage.runtime.sandboxes()) == 1
    listener = Listener(stage.runtime)
    listener.wait_open()
    stage.stop()
    assert isinstance(listener.wait_end(), RuntimeUnreachableError)
    for call in (stage.runtime.sandboxes, stage.runtime.info, lambda: next(iter(stage.runtime.events()))):
        with pytest.raises(RuntimeUnreachableError):
            call()
    stage.start()

    def lists_again() -> bool:
        try:
            return [each.container_id for each in stage.runtime.sandboxes()] == ["a"]
        except RuntimeUnreachableError:
            return False

    wait_until(lists_again, what="listing again")
    again = Listener(stage.runtime)
    again.wait_open()
    stage.runtime.cancel_events()
    again.wait_end()


def test_a_stream_is_cancelled_from_another_thread(stage: Stage) -> None:
    """The daemon ends while the stream is silent; cancelling nothing is fine too."""
    stage.runtime.cancel_events()
    listener = Listener(stage.runtime)
    listener.wait_open()
    stage.runtime.cancel_events()
    listener.wait_end()
    assert not listener.thread.is_alive()
