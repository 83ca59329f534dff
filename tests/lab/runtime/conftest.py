"""Which containerd a test runs on, and how to look at a daemon's idea of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from lab.node import containerd
from lab.node.node import REPOSITORY
from tests.rig import Rig, rig, wait_until

DIRECTORY_17 = REPOSITORY / "build" / "containerd-1.7"
DIRECTORY_2 = REPOSITORY / "build" / "containerd-2"
DIRECTORIES = {"1.6": "", "1.7": str(DIRECTORY_17), "2": str(DIRECTORY_2)}
WITHOUT_17 = "containerd 1.7 is not here: tools/fetch_containerd.sh unpacks Debian trixie's into build/containerd-1.7"
WITHOUT_2 = "containerd 2 is not here: `tools/fetch_containerd.sh 2` unpacks Debian forky's into build/containerd-2"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a containerd that is not here."""
    has_17, has_2 = (os.access(directory / "containerd", os.X_OK) for directory in (DIRECTORY_17, DIRECTORY_2))
    for item in items:
        callspec = getattr(item, "callspec", None)
        versions = callspec.params.values() if callspec else ()
        if not has_17 and (item.get_closest_marker("containerd17") or "1.7" in versions):
            item.add_marker(pytest.mark.skip(reason=WITHOUT_17))
        if not has_2 and "2" in versions:
            item.add_marker(pytest.mark.skip(reason=WITHOUT_2))


@contextmanager
def rig_with(version: str, **options: Any) -> Iterator[Rig]:
    """A node with that containerd, and the daemon."""
    with rig(containerd=True, containerd_directory=DIRECTORIES[version], **options) as made:
        yield made


def socket_of(made: Rig) -> str:
    """The CRI socket of the node, opened from this process."""
    return made.node.root + containerd.SOCKET


def runtime_view(made: Rig) -> dict[str, Any]:
    """What the daemon says of its container runtime."""
    status = made.status()
    assert status is not None
    return dict(status["runtime"])


def kill_outside(made: Rig, sandbox_id: str, version: str) -> None:
    """End a sandbox's process behind the runtime's back, as the OOM killer would."""
    path = f"{DIRECTORIES[version]}:/usr/sbin:/usr/bin:/sbin:/bin".lstrip(":")
    pid = next(
        line.split()[1]
        for line in made.node.run(["ctr", "-n", "k8s.io", "task", "list"], env={"PATH": path}).stdout.splitlines()
        if line.startswith(sandbox_id)
    )
    made.node.run(["kill", "-KILL", pid])


def seconds_until(is_so: Callable[[], bool], what: str, *, timeout_s: float = 10.0) -> float:
    """Bounded wait; seconds."""
    return wait_until(is_so, what=what, timeout_s=timeout_s)


def quiet(made: Rig) -> None:
    """Return when the daemon has not listed for more than a second: the next event finds it at rest."""
    wait_until(lambda: runtime_view(made)["list_age_s"] > 1.2, what="a quiet second")


def run_sandbox(made: Rig, name: str, **options: Any) -> str:
    """RunPodSandbox, waiting first until the runtime has read the conflist."""
    from lab.node.errors import SandboxError

    deadline = time.monotonic() + 10
    while True:
        try:
            return made.node.cri.run_sandbox(name, **options)
        except SandboxError as error:
            if "cni plugin not initialized" not in str(error) or time.monotonic() > deadline:
                raise
