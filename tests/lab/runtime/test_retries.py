"""RunPodSandbox that takes too long, is given up and tried again, while the daemon starts, dies, or is in the middle of an ADD.

The runtime is real, the kubelet's part is the lab's. What a retry finds must be whole: its own result, or nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from lab.node.errors import SandboxError
from tests.lab.runtime.conftest import rig_with, run_sandbox
from tests.patience import PATIENCE_S
from tests.rig import CniReply, Rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]

STEPS = ("attach.reserved", "attach.wired", "attach.committed")
KUBELET_GIVES_UP_S = 8.0
GIVES_UP_S = 4.0
"""Of a caller that gives up while its ADD is held: it must have got there before."""


@pytest.fixture(scope="module")
def made() -> Iterator[Rig]:
    """One node with containerd 1.6 for all; every test starts its own daemon, with what it arms."""
    with rig_with("1.6") as rig:
        yield rig


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    """Callers that wait."""
    with ThreadPoolExecutor(max_workers=4) as threads:
        yield threads


@contextmanager
def held_at(made: Rig, step: str) -> Iterator[Path]:
    """A daemon that stops once at a step of an ADD until the hold is unlinked; a daemon without it afterwards."""
    hold = Path(f"{made.node.root}/run/vpc-ipamd/failpoint.hold")
    made.restart(env={"VPC_IPAMD_FAILPOINT": f"{step}=pause"})
    try:
        yield hold
    finally:
        hold.unlink(missing_ok=True)


def wait_held(hold: Path) -> None:
    """Return when an ADD stands at the step."""
    wait_until(lambda: os.path.exists(hold), what="ADD held")


@pytest.mark.parametrize("step", STEPS)
def test_a_del_that_overtakes_its_add_is_final(made: Rig, pool: ThreadPoolExecutor, step: str) -> None:
    """The DEL comes while the ADD is at work: it waits for it, then nothing is left, and the next ADD is refused (I4)."""
    name = f"overtaken-{step.split('.')[1]}"
    with held_at(made, step) as hold:
        made.node.make_netns(name)
        add: Future[CniReply] = pool.submit(made.cni, "ADD", name)
        wait_held(hold)
        dels = [pool.submit(made.cni, "DEL", name, netns="") for _ in range(2)]
        with pytest.raises(TimeoutError):
            dels[0].result(0.3)  # it waits: an answer now would be a lie
        hold.unlink()
        assert add.result(20).ok
        assert all(each.result(20).ok for each in dels)
        assert not made.cni("ADD", name).ok, "an ADD after its DEL"
        made.node.remove_netns(name)
        made.assert_sound(expected=0)


def test_a_sandbox_given_up_and_tried_again_under_a_new_id(made: Rig, pool: ThreadPoolExecutor) -> None:
    """The kubelet's deadline passes in the middle of the ADD; the runtime cleans up; the retry is another sandbox and works."""
    with held_at(made, "attach.wired") as hold:
        first = pool.submit(made.node.cri.run_sandbox, "slow", uid="u-1", timeout_s=GIVES_UP_S)
        wait_held(hold)
        with pytest.raises(SandboxError, match=r"(?i)deadline"):
            first.result(20)
        again = pool.submit(made.node.cri.run_sandbox, "slow", uid="u-1", attempt=1)  # while the first ADD is still at work
        second = again.result(30)
        assert second in made.attachments()
        hold.unlink()
        wait_until(lambda: set(made.attachments()) == {second}, what="the first one's address back")
        made.node.cri.remove(second)
        for left in made.node.cri.list():
            made.node.cri.remove(left.sandbox_id)
        made.assert_sound(expected=0)


def test_an_add_given_up_and_tried_again_under_the_same_id(made: Rig, pool: ThreadPoolExecutor) -> None:
    """The plugin is killed while its ADD is at work. What was not promised is undone, and the retry gets an address of its own."""
    with held_at(made, "attach.wired") as hold:
        made.node.make_netns("same")
        first = pool.submit(made.cni, "ADD", "same", timeout_s=GIVES_UP_S)
        wait_held(hold)
        assert first.exception(20) is not None  # killed by whoever ran it
        retry = pool.submit(made.cni, "ADD", "same")
        with pytest.raises(TimeoutError):
            retry.result(0.3)
        hold.unlink()
        reply = retry.result(20)
        assert reply.ok
        assert set(made.attachments()) == {"same"}
        assert made.cni("CHECK", "same", conf={"prevResult": reply.body}).ok
        assert made.delete("same").ok
        made.assert_sound(expected=0)


def test_a_result_that_nobody_heard_is_kept_for_its_sandbox(made: Rig, pool: ThreadPoolExecutor) -> None:
    """The plugin is killed after the commit: the same sandbox gets that very result, and its DEL takes it back."""
    with held_at(made, "attach.committed") as hold:
        made.node.make_netns("kept")
        first = pool.submit(made.cni, "ADD", "kept", timeout_s=GIVES_UP_S)
        wait_held(hold)
        assert first.exception(20) is not None
        hold.unlink()
        kept = made.attachments()["kept"]
        assert made.cni("ADD", "kept").address == kept
        assert made.cni("ADD", "kept").address == kept
        assert made.delete("kept").ok
        made.assert_sound(expected=0)


def test_a_daemon_that_dies_under_an_add_leaves_no_half_sandbox(made: Rig, pool: ThreadPoolExecutor) -> None:
    """kill -9 in the middle of RunPodSandbox: the plugin waits for another daemon until the kubelet gives up; the runtime then cleans
    up into the spool, and after the start nothing is left."""
    with held_at(made, "attach.wired") as hold:
        running = pool.submit(made.node.cri.run_sandbox, "dying", uid="u-2", timeout_s=KUBELET_GIVES_UP_S)
        wait_held(hold)
        made.kill()
        with pytest.raises(SandboxError):
            running.result(60)
    assert not any(each.is_ready for each in made.node.cri.list())
    starting = pool.submit(made.start)
    # The kubelet does not wait for the daemon: it tries until it works.
    sandbox = _run_until_it_works(made, "dying")
    starting.result(30)
    assert set(made.attachments()) == {sandbox}
    for each in made.node.cri.list():
        made.node.cri.remove(each.sandbox_id)
    made.assert_sound(expected=0)


def _run_until_it_works(made: Rig, name: str) -> str:
    deadline = time.monotonic() + PATIENCE_S
    for attempt in range(1, 10_000):
        try:
            return run_sandbox(made, name, uid="u-2", attempt=attempt)
        except SandboxError:
            if time.monotonic() > deadline:
                break
    raise AssertionError(f"{attempt} tries, and none worked")
