"""CRI-O #4221 (2020; containerd #12438 tells the same): RunPodSandbox times out and is retried while the first still runs.

kubelet gives RunPodSandbox 4 minutes. On a loaded node that was not enough; the runtime worked on, finished, noticed that nobody
waited any more, threw the result away and began anew, again and again. For the network this means: two sandboxes of one pod at
the same time, an ADD whose caller has left, and a clean-up DEL that comes late or not at all. An ADD that is recorded for a
caller who left holds an address for nobody.

What prevents it here: two sandboxes of one pod are two attachments, names decide nothing (docs/adr/0001);
`sandbox/attach.py` asks right before its transaction whether the caller is still there and in time
(`service/deadline.py: Deadline.check`), and undoes everything if not (I5). The attempt that nobody waits for leaves nothing,
whether its DEL comes or not.

Bound: 0 fake seconds after the kernel has answered the abandoned ADD; with a real containerd the retry is up within 20 s.
"""

from __future__ import annotations

import contextlib
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from ipamd.core.deadline import Deadline
from ipamd.failpoints import HOLD_NAME
from ipamd.model.attachment import Attachment
from ipamd.model.errors import DeadlineError
from lab.node import containerd
from lab.node.cri import CriClient
from lab.node.errors import SandboxError
from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.patience import PATIENCE_S
from tests.rig import RUN_DIR, rig, wait_until
from tests.stories.concurrent import AtStep
from tests.stories.mutations import Mutate

RETRY_BOUND_S = 20.0


def play(node: FakeNode) -> None:
    """The first attempt is in the kernel when its caller leaves; the second one runs beside it; no DEL ever comes."""
    left: list[str] = []
    retried: list[Attachment] = []

    def give_up_and_retry() -> None:
        node.clock.advance(240)
        left.append("kubelet")
        retried.append(node.add("attempt-2"))  # same pod, and a sandbox ID of its own

    deadline = Deadline.after(node.clock, 3600, is_cancelled=lambda: bool(left))
    with contextlib.suppress(DeadlineError):
        node.attacher.attach_sandbox(
            node.request("attempt-1"), deadline=deadline, steps=AtStep(node.clock, "commit", give_up_and_retry)
        )
    assert node.datastore.attachments() == tuple(retried), "the attempt that nobody waited for holds an address"
    assert set(node.wiring.wired) == {retried[0].host_veth}
    assert node.datastore.counts().cooling == 1
    node.cool()
    node.assert_sound()


@in_both("node")
def test_an_abandoned_attempt_leaves_nothing_and_disturbs_nobody(node: FakeNode) -> None:
    """Two attempts at one pod: the one that was given up is undone, the other one is whole (I5)."""
    play(node)


@in_both("node")
def test_the_abandoned_attempt_holds_an_address_without_the_last_question(node: FakeNode, mutate: Mutate) -> None:
    """An ADD that does not ask whether it is still wanted is recorded for nobody."""
    mutate("no-deadline-check")
    with pytest.raises(AssertionError, match="nobody waited for"):
        play(node)


@pytest.mark.privileged
@pytest.mark.containerd
def test_a_real_runtime_gives_up_and_tries_again() -> None:
    """containerd's RunPodSandbox is given up in the middle of an ADD; its DEL and the retry come while that ADD still runs (I5)."""
    with rig(containerd=True, env={"VPC_IPAMD_FAILPOINT": "attach.wired=pause"}) as made:
        cri, uid = made.node.cri, str(uuid.uuid4())
        hold = f"{RUN_DIR}/{HOLD_NAME}"

        def is_held() -> bool:
            return made.node.run(["test", "-e", hold], check=False).returncode == 0

        with (
            contextlib.closing(CriClient(made.node.root + containerd.SOCKET)) as kubelet,
            ThreadPoolExecutor(max_workers=1) as pool,
        ):
            first = pool.submit(kubelet.run_sandbox, "web", uid=uid)
            wait_until(is_held, what="the first ADD is at work")
            kubelet.close()  # gives up: to the runtime the same as a deadline, which might pass before there is an ADD
            with pytest.raises(SandboxError):
                first.result(PATIENCE_S)
        assert is_held(), "the first ADD is still at work"
        with pytest.raises(SandboxError, match="reserved"):
            cri.run_sandbox("web", uid=uid)
        made.node.run(["rm", hold])
        up: list[str] = []

        def try_again() -> bool:
            with contextlib.suppress(SandboxError):
                up.append(cri.run_sandbox("web", uid=uid))
            return bool(up)

        wait_until(try_again, what="the pod is up", timeout_s=RETRY_BOUND_S)
        assert set(made.attachments()) == set(up)
        made.assert_sound(expected=1)
        cri.remove(up[0])
        made.assert_sound(expected=0)
