"""SIGKILL of containerd while an ADD or DEL of its own is between two effects; and of both, runtime and daemon."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from lab.errors import LabError
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]

ADD_POINTS = ("attach.reserved", "attach.wired", "attach.committed")
DEL_POINTS = ("detach.retired", "detach.committed")


@pytest.fixture(scope="module")
def made() -> Iterator[Rig]:
    """A node whose runtime is killed again and again."""
    with rig(containerd=True) as one:
        yield one


def kill_runtime_at(made: Rig, point: str, request: Callable[[], object], *, with_daemon: bool) -> None:
    """Hold the daemon at `point`, provoke it, kill containerd there (and the daemon), let go, start again what was killed."""
    made.restart(env={"VPC_IPAMD_FAILPOINT": f"{point}=pause"})

    def ask() -> None:
        with suppress(LabError):
            request()

    asking = threading.Thread(target=ask)
    asking.start()
    hold = Path(made.node.root + "/run/vpc-ipamd/failpoint.hold")
    wait_until(hold.exists, what=f"held at {point}")
    assert made.node.containerd is not None
    made.node.containerd.kill()
    made.node.containerd.wait(10)
    if with_daemon:
        made.kill()
    hold.unlink()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()
    made.node.start_containerd()
    if with_daemon:
        made.start()
    else:
        wait_until(lambda: not (made.status() or {"busy": [1]})["busy"], what="the held operation has ended")
        made.restart()


def live_sandboxes(made: Rig) -> set[str]:
    """What the runtime lists as ready."""
    return {sandbox.sandbox_id for sandbox in made.node.cri.list() if sandbox.is_ready}


@pytest.mark.parametrize(
    "with_daemon", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["runtime", "runtime-and-daemon"]
)
@pytest.mark.parametrize("point", ADD_POINTS)
def test_the_runtime_dies_in_its_add(made: Rig, point: str, with_daemon: bool) -> None:
    """The sandbox is never heard of again: live ones keep their addresses, new ones get others, nothing is doubled (I1, I2)."""
    live = made.node.cri.run_sandbox(f"live-{point}-{with_daemon}")
    before = made.attachments()[live]
    kill_runtime_at(made, point, lambda: made.node.cri.run_sandbox("lost"), with_daemon=with_daemon)
    assert made.attachments()[live] == before
    fresh = made.node.cri.run_sandbox(f"fresh-{point}-{with_daemon}")
    rows = made.attachments()
    assert len(set(rows.values())) == len(rows)
    assert live_sandboxes(made) <= set(rows)
    assert all(made.lab.ping(source="host-a", targets=[rows[live], rows[fresh]]).values())
    made.assert_sound()
    remove_all(made)


@pytest.mark.parametrize(
    "with_daemon", [False, pytest.param(True, marks=pytest.mark.heavy)], ids=["runtime", "runtime-and-daemon"]
)
@pytest.mark.parametrize("point", DEL_POINTS)
def test_the_runtime_dies_in_its_del(made: Rig, point: str, with_daemon: bool) -> None:
    """The runtime comes back and asks again: the DEL succeeds, and nothing of the sandbox is left (I3, I4)."""
    gone = made.node.cri.run_sandbox(f"gone-{point}-{with_daemon}")
    kill_runtime_at(made, point, lambda: made.node.cri.stop(gone), with_daemon=with_daemon)
    made.node.cri.stop(gone)
    made.node.cri.remove(gone)
    assert gone not in made.attachments()
    made.assert_sound()
    remove_all(made)


def remove_all(made: Rig) -> None:
    """Remove what the runtime lists; what it has forgotten is deleted as its GC would."""
    for sandbox in made.node.cri.list():
        made.node.cri.stop(sandbox.sandbox_id)
        made.node.cri.remove(sandbox.sandbox_id)
    for forgotten in made.attachments():
        assert made.cni("DEL", forgotten, netns="").ok
    made.assert_sound(expected=0)
