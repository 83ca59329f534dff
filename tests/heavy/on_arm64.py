"""What runs in the arm64 machine of tools/arm64_machine.sh, by the image's interpreter: one node's life in the lab.

Each step that holds is printed as a line; an exception ends the program with another status than 0. No pytest: the image has none.
"""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable

import ipamd
from lab.node import node
from tests import rig

SLOWER = 20
"""How many times longer than on a real machine a thing may take. Measured: the daemon is ready 30 to 40 s after its start, not 1 s."""

wait_until = rig.wait_until


def patient(is_so: Callable[[], bool], *, what: str, timeout_s: float = rig.PATIENCE_S) -> float:
    """Wait as the rig does, but longer."""
    return wait_until(is_so, what=what, timeout_s=timeout_s * SLOWER)


def main() -> None:
    """Live a node's life."""
    rig.wait_until = patient
    node.START_TIMEOUT_S *= SLOWER
    began = time.monotonic()

    def held(what: str) -> None:
        print(f"held after {time.monotonic() - began:.1f} s: {what}", flush=True)  # noqa: T201  # the console is what is read

    assert ipamd.__file__.startswith("/opt/ipamd/lib/"), ipamd.__file__
    assert sys.executable.startswith("/opt/ipamd/bin/"), sys.executable
    held(f"the image's daemon on {platform.machine()}, Linux {platform.release()}, Python {platform.python_version()}")
    with rig.rig(start=False, is_executed=True) as made:
        made.start(wait=False)
        made.wait_ready(30.0 * SLOWER)
        held("ready")
        assert made.cni("STATUS", "", netns="", version="1.1.0").ok
        held("STATUS by the static plugin")
        first, second = made.add("pod-1"), made.add("pod-2")
        held(f"ADD: {first.address}, {second.address}")
        answered = made.lab.ping(source="host-a", targets=[first.address, second.address], timeout_s=SLOWER)
        assert all(answered.values()), answered
        answered = made.lab.ping(source=(made.node, "/run/netns/pod-1"), targets=[second.address], timeout_s=SLOWER)
        assert all(answered.values()), answered
        held("packets from another machine to both, and from one to the other")
        made.assert_sound(expected=2)
        held("rows, kernel and EC2 agree")
        assert made.delete("pod-1").ok
        assert made.delete("pod-2").ok
        made.assert_sound(expected=0)
        held("DEL of both leaves nothing")


if __name__ == "__main__":
    main()
