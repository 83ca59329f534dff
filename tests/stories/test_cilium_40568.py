"""cilium PR 40568 (2025): DEL while the daemon restores.

cilium-agent opened its API before it had restored its endpoints. A DEL that came in between was answered "not found", which the
plugin took for done; the restore then brought the deleted endpoint back, and tried for ever to regenerate something whose link
was gone. Its first cure, to refuse DEL while restoring and let the plugin queue it, had a gap of its own: refused, then queued
just after the queue had been read.

What prevents it here: DEL is served from the first moment and leaves a tombstone though it knows no row
(`sandbox/detach.py: _detach_unrecorded`), and restoring looks for tombstones before it adopts (`sandbox/startup.py:
_resolve_veth`); a DEL that comes still later is caught by the transaction of `sandbox/quarantine.py: adopt` (I3, I4).
A DEL that a living daemon was too slow to answer is in the spool, and `host/maintenance.py` looks there every 5 s,
so that nothing waits for the next restart.

Bound: the DEL's own reply (0 fake seconds); for a spooled one 5 s.
"""

from __future__ import annotations

import pytest

from ipamd.core.health import Phase
from ipamd.host.maintenance import INTERVAL_S, Maintenance
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.sandbox import Sandbox
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.in_process import PluginProcess, ask, replay
from tests.stories.mutations import Mutate


def restoring(node: FakeNode) -> tuple[KernelSurvey, dict[str, Sandbox] | None]:
    """A daemon that has lost its datastore has just asked kernel and runtime, and has resolved nothing yet."""
    node.crash(keep_datastore=False)
    node.health.enter(Phase.RESTORING)
    node.node_info.learn_identity()
    node.enis.sync_with_ec2(IDENTITY)
    return node.wiring.survey(), node.listed()


def serve(node: FakeNode) -> None:
    """The rest of the start."""
    assert node.enis.routing.set_up_all() == []
    node.health.enter(Phase.SERVING)


def stays_deleted(node: FakeNode) -> None:
    """Nothing of `leaving` has come back, and nobody else suffered."""
    assert [a.key.container_id for a in node.datastore.attachments()] == ["staying"], "the deleted sandbox came back"
    assert not any(spec.key == node.key("leaving") for spec in node.wiring.wired.values())
    assert node.datastore.counts().quarantined == 0, "its address is still in doubt"
    node.cool()
    node.assert_sound()


def begin(node: FakeNode) -> None:
    """Two pods run."""
    for name in ("staying", "leaving"):
        node.add(name)
        node.runtime.run(name)


def play(node: FakeNode) -> None:
    """DEL comes after kernel and runtime were asked, and before their answers are worked on."""
    begin(node)
    survey, listed = restoring(node)
    assert not ask(node, "DEL", "leaving").HasField("error"), "DEL is served while restoring"
    node.startup.reconcile_kernel(survey, listed)
    serve(node)
    stays_deleted(node)


def play_later(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """DEL comes when the restore has already decided to adopt."""
    begin(node)
    survey, listed = restoring(node)
    real = node.quarantine.adopt

    def adopt(veth: HostVeth, sandbox: Sandbox, survey: KernelSurvey) -> str:
        if veth.key == node.key("leaving"):
            assert not ask(node, "DEL", "leaving").HasField("error")
        return real(veth, sandbox, survey)

    monkeypatch.setattr(node.quarantine, "adopt", adopt)
    node.startup.reconcile_kernel(survey, listed)
    serve(node)
    stays_deleted(node)


def play_spooled(node: FakeNode) -> None:
    """The start is over and the spool was read; now a DEL is spooled. The daemon's maintenance runs once, 5 s later."""
    begin(node)
    assert replay(node) == 0
    node.run_dir.chmod(0o700)
    assert PluginProcess(node.run_dir, "DEL", "leaving").run() == (0, {}), "nobody listens: spooled"
    maintenance = Maintenance(
        node.app.context,
        spool=node.spool,
        leave_mark=lambda: None,
        replay=lambda: replay(node) and None,
        release_idle=lambda **_: None,
        find_other_daemon=lambda: True,
        keep_sockets=lambda: None,
        end=pytest.fail,
    )
    assert INTERVAL_S == 5
    node.clock.advance(INTERVAL_S)
    assert maintenance.turn() == INTERVAL_S
    stays_deleted(node)


@in_both("node")
def test_a_del_while_restoring_is_final(node: FakeNode) -> None:
    """A deleted sandbox is not restored, though kernel and runtime had named it before its DEL (I4)."""
    play(node)


@in_both("node")
def test_a_del_in_the_last_moment_is_final_too(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DEL between the restore's decision and its transaction neither comes back nor stops the start (I4)."""
    play_later(node, monkeypatch)


@in_both("node")
def test_a_del_in_the_spool_of_a_living_daemon_is_carried_out(node: FakeNode) -> None:
    """What is spooled after the replay at start waits 5 s, not for the next restart (I3)."""
    play_spooled(node)


@in_both("node")
def test_the_deleted_sandbox_comes_back_without_tombstones(node: FakeNode, mutate: Mutate) -> None:
    """A DEL that only says "not found" is forgotten, and the restore makes the row again."""
    mutate("del-without-row-does-nothing")
    with pytest.raises(AssertionError, match="came back"):
        play(node)


@in_both("node")
def test_the_spooled_del_waits_for_ever_without_maintenance(node: FakeNode, mutate: Mutate) -> None:
    """A daemon that reads its spool at start only leaves the sandbox attached."""
    mutate("spool-read-once")
    with pytest.raises(AssertionError, match="came back"):
        play_spooled(node)
