"""Refused ADDs are kept and explained, and a pod that is refused for days is one entry with a count."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline
from ipamd.core.health import Phase
from ipamd.core.refused_adds import GOES_ON_S, RECORD_INTERVAL_S, SERIES_MAX, RefusedAdd, RefusedAdds
from ipamd.model.history import HistoryRecord, RecordedHistory
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.history_subject import HistorySubject
from ipamd.pb import cni_pb2
from ipamd.report.explain import explain
from tests.fakes.clock import FakeClock
from tests.fakes.node import FakeNode


class Told:
    """A history that remembers what it was told."""

    def __init__(self) -> None:
        self.records: list[HistoryRecord] = []

    def enqueue(self, records: object) -> None:
        """Take them."""
        self.records += records  # type: ignore[arg-type]  # the port's

    def read(self, subject: str) -> RecordedHistory:
        """Nothing is asked here."""
        raise AssertionError(subject)


def refusal(number: int = 0, *, pod: str = "default/a", cause: str = "", kind: str = "pool-empty") -> RefusedAdd:
    """The refusal of a sandbox of its own, as kubelet makes them."""
    container_id = f"{number:064x}"
    text = cause or f"no address for sandbox {container_id}/eth0; 27 addresses: {number} free"
    return RefusedAdd(container_id, "eth0", pod, 11, text, kind)


@pytest.fixture
def told() -> Told:
    """An empty one."""
    return Told()


@pytest.fixture
def clock() -> FakeClock:
    """A clock."""
    return FakeClock()


@pytest.fixture
def refused(told: Told, clock: FakeClock) -> RefusedAdds:
    """Nothing was refused yet."""
    return RefusedAdds(history=told, clock=clock)


def test_days_of_retries_are_a_few_records(refused: RefusedAdds, told: Told, clock: FakeClock) -> None:
    """A pod is retried every 10 s for three days, each time with another sandbox ID and other counts in the message."""
    for number in range(3 * 8640):
        refused.record_refusal(refusal(number))
        clock.advance(10)
    assert len(told.records) < 3 * 24 + 20
    (series,) = refused.records(HistorySubject("a"))
    assert series.count == 3 * 8640
    assert told.records[-1].count > series.count - RECORD_INTERVAL_S / 10 - 2
    assert series.since is not None
    assert (series.at - series.since).total_seconds() == 10 * (series.count - 1)


def test_it_tells_how_long_a_pod_has_been_refused(refused: RefusedAdds, clock: FakeClock) -> None:
    """One that is refused again and again, among others that are refused once each; one that comes again later is another."""
    assert refused.longest_s() == {}
    for number in range(100):
        refused.record_refusal(refusal(number, kind="branch-pending"))
        refused.record_refusal(refusal(number, pod=f"default/other-{number}", kind="branch-pending"))
        refused.record_refusal(refusal(number, pod=f"default/full-{number}"))
        clock.advance(12)
    assert refused.longest_s() == {"branch-pending": 99 * 12, "pool-empty": 0}
    clock.advance(GOES_ON_S)
    assert refused.longest_s() == {}
    refused.record_refusal(refusal(100, kind="branch-pending"))
    assert refused.longest_s() == {"branch-pending": 0}
    assert refused.records(HistorySubject("default/a"))[0].count == 101


def test_other_pods_and_other_causes_are_told_apart(refused: RefusedAdds) -> None:
    """By pod and by cause; without a pod's name by sandbox."""
    for one in (refusal(1), refusal(2), refusal(3, pod="default/b"), refusal(4, cause="the netns is gone"), refusal(5, pod="")):
        refused.record_refusal(one)
    assert sorted(one.count for one in refused.records(HistorySubject("default/a"))) == [1, 2]
    assert [one.count for one in refused.records(HistorySubject("b"))] == [1]
    assert [one.count for one in refused.records(HistorySubject(f"{5:064x}"))] == [1]


def test_series_are_bounded_and_none_is_lost(refused: RefusedAdds, told: Told) -> None:
    """The one that was silent longest makes room, and is told with its count."""
    for _ in range(3):
        refused.record_refusal(refusal(pod="default/first"))
    for number in range(SERIES_MAX):
        refused.record_refusal(refusal(pod=f"default/p{number}"))
    assert refused.records(HistorySubject("first")) == ()
    assert max(one.count for one in told.records if one.pod == "default/first") == 3


def test_at_the_end_everything_is_told(refused: RefusedAdds, told: Told) -> None:
    """SIGTERM."""
    for _ in range(3):
        refused.record_refusal(refusal())
    assert [one.count for one in told.records] == [1, 2]
    refused.record_all()
    assert [one.count for one in told.records] == [1, 2, 3]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A daemon without a kernel."""
    made = FakeNode(tmp_path)
    made.bring_up()
    yield made
    made.datastore.close()


def add(node: FakeNode, name: str) -> cni_pb2.ExecReply:
    """ADD by the envelope; its namespace does not exist."""
    request = cni_pb2.ExecRequest(
        protocol_min=1,
        protocol_max=1,
        verb="ADD",
        container_id=name,
        ifname="eth0",
        netns="/run/netns/none",
        args=f"K8S_POD_NAMESPACE=default;K8S_POD_NAME=pod-{name}",
        config=b'{"cniVersion":"1.0.0","name":"net","type":"vpc-cni"}',
    )
    return node.app.cni.execute(request, Deadline.after(node.clock, 30))


def test_a_refused_add_is_explained(node: FakeNode) -> None:
    """Who, when, how often, which code, why, what next: by the pod's name, though no address was ever given."""
    assert add(node, "x").error.code == 104
    node.clock.advance(5)
    add(node, "x")
    explained = explain(node.app.introspection.sources, HistoryQuestion("default/pod-x", 50))
    (sentence,) = explained.sentences
    assert sentence.startswith("ADD of default/pod-x was refused 2 times, from ")
    assert ": code 104: " in sentence
    (entry,) = [one for one in explained.past.records if one.event == "refused"]
    assert (entry.pod, entry.container_id, entry.code, entry.count) == ("default/pod-x", "x", 104, 2)


def test_what_is_left_to_the_successor_is_no_refusal(node: FakeNode) -> None:
    """A daemon that drains answers the plugin, not the runtime (I17)."""
    node.health.enter(Phase.DRAINING)
    assert add(node, "x").error.code == 11
    assert node.app.refused.records(HistorySubject("pod-x")) == ()
