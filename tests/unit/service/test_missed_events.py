"""`ipamd_cri_missed_events_total`: changes that a list found and no event announced, and nothing else."""

from __future__ import annotations

import pytest

from ipamd.model.sandbox import EventKind, SandboxEvent
from ipamd.sandbox.missed_events import ANNOUNCED_LIMIT_COUNT, LATE_EVENT_S, MissedEventDetector
from tests.fakes.clock import FakeClock

CREATED = SandboxEvent("a", "a", EventKind.CREATED)
STARTED = SandboxEvent("a", "a", EventKind.STARTED)
STOPPED = SandboxEvent("a", "a", EventKind.STOPPED)
DELETED = SandboxEvent("a", "", EventKind.DELETED)


class Story:
    """Lists and events in the order in which they come."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.detector = MissedEventDetector(self.clock)

    def list(self, *sandbox_ids: str) -> None:
        """A complete list."""
        self.detector.on_list(frozenset(sandbox_ids), stream=self.detector.before_list())

    def hear(self, *events: SandboxEvent) -> None:
        """Events arrive."""
        for event in events:
            self.detector.on_event(event)

    def missed(self, *sandbox_ids: str) -> int:
        """What is counted once late events have had their time, and one more list has come."""
        self.clock.advance(LATE_EVENT_S)
        self.list(*sandbox_ids)
        return self.detector.missed_count


@pytest.fixture
def story() -> Story:
    """A stream is open, and a list without sandboxes has come."""
    made = Story()
    made.detector.on_open()
    made.list()
    return made


def test_what_was_announced_is_not_missed(story: Story) -> None:
    """A sandbox came and went, each with its events before the list."""
    story.hear(CREATED, STARTED)
    story.list("a")
    story.hear(STOPPED, DELETED)
    story.list()
    assert story.missed() == 0


def test_every_unannounced_change_is_missed_once(story: Story) -> None:
    """Two came and one of them went, in silence; further lists count nothing again."""
    story.list("a", "b")
    story.list("a")
    assert story.missed("a") == 3
    assert story.missed("a") == 3


def test_an_event_may_come_after_its_list(story: Story) -> None:
    """The list was quicker than the stream; within the grace that is no miss."""
    story.list("a")
    story.clock.advance(LATE_EVENT_S - 0.1)
    story.hear(STARTED)
    assert story.missed("a") == 0


def test_an_event_may_come_before_its_change_is_listed(story: Story) -> None:
    """DELETED, a list which still names it, then one without it."""
    story.hear(CREATED)
    story.list("a")
    story.hear(DELETED)
    story.list("a")
    story.list()
    assert story.missed() == 0


def test_coming_does_not_announce_going(story: Story) -> None:
    """CREATED, twice and late once more, is no DELETED: its going was missed."""
    story.hear(CREATED)
    story.list("a")
    story.hear(CREATED, STARTED)
    story.list()
    assert story.missed() == 1


def test_doubled_and_reordered_events_announce_all_the_same(story: Story) -> None:
    """STARTED before CREATED, DELETED before STOPPED, each twice."""
    story.hear(STARTED, CREATED, STARTED, CREATED)
    story.list("a")
    story.hear(DELETED, STOPPED, DELETED, STOPPED)
    story.list()
    assert story.missed() == 0


def test_a_containers_event_announces_its_sandbox(story: Story) -> None:
    """containerd 1.7 shares events among subscribers: that of the sandbox may go elsewhere, its container's names it too."""
    story.hear(SandboxEvent("app", "a", EventKind.STARTED))
    story.list("a")
    assert story.missed("a") == 0


def test_a_container_that_goes_does_not_take_its_sandbox_along(story: Story) -> None:
    """DELETED names a container here, and its sandbox is there; that the sandbox went was not announced."""
    story.hear(CREATED)
    story.list("a")
    story.hear(SandboxEvent("app", "a", EventKind.DELETED))
    story.list()
    assert story.missed() == 1


def test_a_sandboxs_own_delete_may_still_name_it(story: Story) -> None:
    """containerd leaves the sandbox out of DELETED, other runtimes need not."""
    story.hear(CREATED)
    story.list("a")
    story.hear(SandboxEvent("a", "a", EventKind.DELETED))
    story.list()
    assert story.missed() == 0


def test_old_events_of_a_new_stream_announce_nothing_new(story: Story) -> None:
    """containerd sends what it has buffered before: harmless."""
    story.hear(*[SandboxEvent(f"old{n}", f"old{n}", EventKind.STARTED) for n in range(1000)])
    story.list("a")
    assert story.missed("a") == 1


def test_nothing_is_missed_without_a_stream() -> None:
    """Polling finds every change by itself: that is its purpose, not a miss."""
    story = Story()
    story.list()
    story.list("a")
    assert story.missed() == 0


def test_what_changed_around_a_break_is_not_missed(story: Story) -> None:
    """Between two streams nobody could announce; counting starts at the first list of the new one."""
    story.list("a")
    story.detector.on_close()
    assert not story.detector.is_open
    story.list("a", "b")
    story.detector.on_open()
    story.list("a", "b", "c")
    assert story.missed("a", "b", "c") == 0
    story.list("a", "b")
    assert story.missed("a", "b") == 1


def test_a_list_that_began_before_the_stream_is_no_base(story: Story) -> None:
    """It may be older than the subscription: what it lacks was not missed."""
    story.detector.on_close()
    began = story.detector.before_list()
    story.detector.on_open()
    story.detector.on_list(frozenset(), stream=began)
    story.list("a")
    assert story.missed("a") == 0


def test_memory_is_bounded(story: Story) -> None:
    """The oldest announcements go first; what is still remembered still counts."""
    story.hear(CREATED)
    for number in range(ANNOUNCED_LIMIT_COUNT):
        story.hear(SandboxEvent(f"s{number}", f"s{number}", EventKind.CREATED))
    assert len(story.detector._announced) == ANNOUNCED_LIMIT_COUNT
    story.list("a", "s7")
    assert story.missed("a", "s7") == 1
