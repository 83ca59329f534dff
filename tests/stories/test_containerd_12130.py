"""containerd #12130: a plugin behind ours fails, and one pod fills the node.

ADD fails after ours has succeeded, because the binary of a chained plugin is gone, or because it fails. DEL begins at the end of the
chain, fails at the same plugin, and never comes to ours. containerd 2.1 ignores that and removes the namespace; 1.7 keeps the sandbox,
NotReady, with its namespace. Kubelet begins the next sandbox about 11 s later. Five minutes of age kept each address: 27 of 27 were
held after 331 s, the pool had made its ENIs, and the refusal advised a larger instance type.

What prevents it here: a missing binary refuses ADD before anything is taken (`ipamd/host/plugin_chain.py`); a sandbox that is proven
gone is reaped after two lists (`ipamd/model/evidence.py`); an ADD of the same pod only has them made early; a pod has two such
sandboxes at most, and what it holds is no demand for the pool (`ipamd/sandbox/repeated_adds.py`).

Bound: 40 attempts at 11 s hold two addresses at once, and make no ENI.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from ipamd.model.attachment import Attachment
from ipamd.model.errors import PoolEmptyError, UndeletedSandboxesError
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.refusals import RefusalCode
from ipamd.sandbox.runtime import RELIST_WITH_EVENTS_S, RELIST_WITHOUT_EVENTS_S
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate

ATTEMPTS, PAUSE_S, HELD_MAX = 40, 11.0, 3

Fails = Callable[[FakeNode, str], None]


def removed(node: FakeNode, name: str) -> None:
    """As containerd 2.1: no DEL, and the namespace goes, with its links."""
    made = node.datastore.attachment(node.key(name))
    assert made is not None
    node.vanish(made)


def kept(node: FakeNode, name: str) -> None:
    """As containerd 1.7: no DEL, and the sandbox stays, NotReady, with its namespace."""
    node.runtime.run(name)


def slow(node: FakeNode, name: str) -> None:
    """The plugin is still at work: the sandbox is not listed, and its namespace is there."""


def deleted(node: FakeNode, name: str) -> None:
    """The plugin fails at ADD only: the DEL comes."""
    node.delete(name)


class Play:
    """Attempts of one pod beside others. `held_max`: the most addresses that it held at once."""

    def __init__(self, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.node, self.held_max, self._list_at_s = node, 0, node.clock.monotonic()
        self._numbers = count()
        monkeypatch.setattr(node.runtime_reconciler, "list_soon", self._list_soon)

    def run(self, fails: Fails, *, attempts: int = ATTEMPTS) -> None:
        """Begin a sandbox each eleven seconds; each one fails."""
        for _ in range(attempts):
            name = f"attempt-{next(self._numbers)}"
            with suppress(UndeletedSandboxesError, PoolEmptyError):
                self.node.add(name, pod="victim", deadline_s=0.5)  # waits for nothing: the fake clock stands still meanwhile
                fails(self.node, name)
            self.wait(PAUSE_S)

    def wait(self, seconds: float) -> None:
        """Let the threads do their work, second by second."""
        node, until_s = self.node, self.node.clock.monotonic() + seconds
        while node.clock.monotonic() < until_s:
            if node.clock.monotonic() >= self._list_at_s:
                node.runtime_reconciler.reconcile_once()
                self._list_at_s = node.clock.monotonic() + self._interval_s()
            node.cooldown.sweep()
            node.cooldown.free_cooled()
            node.pool.cycle()
            self.held_max = max(self.held_max, len(self.held()))
            node.clock.advance(1.0)

    def held(self) -> list[Attachment]:
        """What the pod holds now."""
        return [attachment for attachment in self.node.datastore.attachments() if attachment.pod_name == "victim"]

    def _list_soon(self) -> None:
        self._list_at_s = self.node.clock.monotonic()

    def _interval_s(self) -> float:
        """As with events, of which none comes."""
        seconds = self.node.runtime_reconciler.interval_s()
        return RELIST_WITH_EVENTS_S if seconds == RELIST_WITHOUT_EVENTS_S else seconds


@pytest.mark.parametrize("fails", [removed, kept, slow, deleted], ids=lambda fails: fails.__name__)
@pytest.mark.parametrize(
    "settings",
    [PoolSettings(), PoolSettings(warm_ip_target=2, minimum_ip_target=9), PoolSettings(warm_target_auto=True)],
    ids=["ENIs", "addresses", "auto"],
)
def test_one_pod_holds_few_addresses_and_makes_no_eni(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: PoolSettings, fails: Fails
) -> None:
    """However its plugin fails: two at once, no ENI, no address more at EC2, and nothing of others is touched (I2, I8, I18)."""
    node = FakeNode(tmp_path, settings=settings)
    node.bring_up()
    others = [node.add(f"alive-{number}") for number in range(7)]
    for other in others:
        node.runtime.run(other.key.container_id)
    node.clock.advance(3600)
    node.pool.cycle()
    play = Play(node, monkeypatch)
    play.run(deleted, attempts=1)  # the pod itself is demand, once
    play.wait(700)
    enis, total = set(node.ec2.enis), node.datastore.counts().total
    play.run(fails)
    assert play.held_max <= HELD_MAX
    assert set(node.ec2.enis) == enis
    assert node.datastore.counts().total == total
    assert all(node.datastore.attachment(other.key) == other for other in others)
    node.assert_sound()
    node.datastore.close()


@in_both("node")
def test_what_is_left_behind_is_free_again(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempts end, the namespaces are gone: nothing of the pod is left, and its addresses have cooled."""
    play = Play(node, monkeypatch)
    play.run(removed, attempts=5)
    play.wait(60)
    assert (play.held(), node.datastore.counts().cooling) == ([], 0)
    node.assert_sound()


@in_both("node")
def test_a_newer_sandbox_only_brings_the_look_forward(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two lists within 12 s of the next attempt; without one those of the clock, within two minutes and a few seconds."""
    play = Play(node, monkeypatch)
    play.wait(1)
    play.run(removed, attempts=1)
    newer = node.add("newer", pod="victim")
    node.runtime.run("newer")
    assert len(play.held()) == 2
    play.wait(12)
    assert play.held() == [newer]
    node.add("alone", pod="another")
    removed(node, "alone")
    play.wait(125)
    assert node.datastore.attachment(node.key("alone")) is None
    assert play.held() == [newer]


def test_the_pod_fills_the_node_without_the_rules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutate: Mutate) -> None:
    """With five minutes of age and no bound for a pod it holds all that the node may have, as it was seen."""
    mutate("proof-waits-for-age")
    mutate("no-bound-of-sandboxes-per-pod")
    node = FakeNode(tmp_path)
    node.bring_up()
    play = Play(node, monkeypatch)
    play.run(removed)
    assert play.held_max > 20
    node.datastore.close()


@in_both("node")
def test_the_pod_is_served_once_its_plugin_works(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused pod gets its address as soon as one of its sandboxes is deleted or reaped."""
    play = Play(node, monkeypatch)
    play.run(kept, attempts=4)
    with pytest.raises(UndeletedSandboxesError) as refused:
        node.add("fifth", pod="victim")
    assert refused.value.refusal == RefusalCode.TOO_MANY_SANDBOXES
    assert (refused.value.fields["pod"], refused.value.fields["count"]) == ("default/victim", "2 sandboxes")
    for attachment in play.held():
        node.delete(attachment.key.container_id)
    assert node.add("sixth", pod="victim").pod_name == "victim"
