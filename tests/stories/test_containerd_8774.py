"""containerd #8774 (2023; also cilium #22067): without a CNI configuration the runtime cannot delete sandboxes.

An agent that tidies up at shutdown removes its CNI configuration. From then on containerd refuses StopPodSandbox and
RemovePodSandbox ("cni plugin not initialized"), although nothing but a DEL is wanted: pods hang in Terminating, nodes cannot be
drained, and the agent's successor may find no place on a full node.

What prevents it here: `conflist.py` writes the configuration and nothing removes it, at shutdown least of all (docs/architecture.md,
End); DELs that come meanwhile go into the plugin's spool (I3).

Bound (real): with the daemon ended in good order a sandbox is stopped and removed within 10 s.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node.errors import SandboxError
from tests.rig import Rig, rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]

CONFLIST = "/etc/cni/net.d/10-vpc-ipamd.conflist"
BOUND_S = 10.0


@pytest.fixture(scope="module")
def made() -> Iterator[Rig]:
    """One node with containerd for both tellings."""
    with rig(containerd=True, env={"VPC_IPAMD_DRAIN_SECONDS": "1"}) as node:
        yield node


def shut_down(made: Rig) -> None:
    """What a rolling update does."""
    assert made.daemon is not None
    made.daemon.send_signal(signal.SIGTERM)
    assert made.daemon.wait(15) == 0


def play(made: Rig, name: str, *, is_tidy: bool = False) -> None:
    """A pod runs, the daemon is shut down, and then the pod is deleted."""
    sandbox = made.node.cri.run_sandbox(name)
    address = made.attachments()[sandbox]
    shut_down(made)
    if is_tidy:
        made.node.run(["rm", CONFLIST])
        wait_until(lambda: "no network config found" in containerd_log(made), what="containerd has seen it")
    began = time.monotonic()
    try:
        made.node.cri.stop(sandbox)
        made.node.cri.remove(sandbox)
    except SandboxError as error:
        raise AssertionError(f"the runtime cannot delete its sandbox: {error}") from error
    assert time.monotonic() - began < BOUND_S
    made.start()
    assert address not in made.attachments().values()
    made.assert_sound(expected=0)


def containerd_log(made: Rig) -> str:
    """What containerd has written."""
    return Path(f"{made.node.root}/var/log/containerd.log").read_text()


def test_sandboxes_are_deleted_after_the_daemon_was_shut_down(made: Rig) -> None:
    """The conflist stays, so that the runtime executes DEL, and the spool keeps it (I3)."""
    play(made, "deletable")


def test_sandboxes_cannot_be_deleted_without_the_conflist(made: Rig) -> None:
    """With the conflist removed at shutdown containerd refuses; the next start, which writes it anew, heals it."""
    with pytest.raises(AssertionError, match=r"cannot delete its sandbox.*cni plugin not initialized"):
        play(made, "stuck", is_tidy=True)
    made.start()
    (stuck,) = [sandbox.sandbox_id for sandbox in made.node.cri.list()]
    made.node.cri.remove(stuck)
    made.assert_sound(expected=0)
