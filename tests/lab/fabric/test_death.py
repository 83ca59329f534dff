"""A lab that is killed leaves nothing; what a killed lab and a killed guard leave, `vpc-lab down` removes."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab.cli.main import main
from lab.lab import Lab
from lab.node import workspace
from lab.node.errors import NodeError
from lab.node.node import REPOSITORY
from tests.errors import refused_by_kernel
from tests.lab.fabric.conftest import eventually

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]
GONE_WITHIN_S = 10.0
CHILD = """
import json, sys, time
from lab.lab import Lab
from tests.lab.fabric.test_sandboxes import install_ptp
with Lab(name=sys.argv[1], nodes=["node-a", "node-b"], hosts=["host-a"]) as lab:
    for node in lab.nodes.values():
        install_ptp(node)
        for number in range(3):
            node.cri.run_sandbox(f"pod-{number}")
        node.spawn(["sleep", "1000"])
    print(json.dumps({"guard": lab._workspace._guard.pid, "cgroup": lab._workspace.cgroup}), flush=True)
    time.sleep(1000)
"""


@dataclass
class Victim:
    """A lab in a process of its own, with what there was to see of it on the machine."""

    name: str
    process: subprocess.Popen[str]
    guard: int
    cgroup: Path
    pids: set[int]


@dataclass(frozen=True)
class Machine:
    """What a lab must not change on the machine."""

    mounts: frozenset[str]
    interfaces: frozenset[str]
    named_netns: frozenset[str]
    temporary: frozenset[str]

    @classmethod
    def now(cls) -> Machine:
        return cls(
            mounts=frozenset(Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()),
            interfaces=frozenset(path.name for path in Path("/sys/class/net").iterdir()),
            named_netns=frozenset(str(path) for path in Path("/run").glob("netns/*")),
            temporary=frozenset(str(path) for path in Path("/tmp").glob("*lab*")),
        )


@pytest.fixture
def victim() -> Iterator[Victim]:
    """Two nodes, each with containerd, three sandboxes and a process, in a lab process that can be killed."""
    name = f"victim-{time.monotonic_ns()}"
    with subprocess.Popen([sys.executable, "-c", CHILD, name], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        cgroup = Path(told["cgroup"])
        pids = {int(pid) for file in cgroup.rglob("cgroup.procs") for pid in file.read_text().split()}
        yield Victim(name, process, told["guard"], cgroup, pids)
        process.kill()
    main(["down", "--name", name])


def test_killed_lab_leaves_nothing(victim: Victim) -> None:
    """After kill -9 no process, mount, interface, namespace, cgroup or directory of the lab remains."""
    before = Machine.now()
    assert len(victim.pids) >= 2 * (1 + 1 + 3 * 2 + 1)  # init, containerd, shims and pauses, sleep
    victim.process.kill()
    victim.process.wait()
    assert eventually(lambda: not any(map(_runs, {*victim.pids, victim.guard})), within_s=GONE_WITHIN_S)
    assert eventually(lambda: not victim.cgroup.exists(), within_s=GONE_WITHIN_S)
    assert eventually(lambda: not (workspace.STATE_ROOT / victim.name).exists(), within_s=GONE_WITHIN_S)
    assert Machine.now() == before


def test_killed_guard_is_made_good_by_down(victim: Victim) -> None:
    """With the guard killed too, every process still dies with the lab, and `vpc-lab down` removes cgroup and directory."""
    os.kill(victim.guard, signal.SIGKILL)
    victim.process.kill()
    victim.process.wait()
    assert eventually(lambda: not any(map(_runs, victim.pids)), within_s=GONE_WITHIN_S)
    assert victim.cgroup.exists()
    assert main(["down", "--name", victim.name]) == 0
    assert not victim.cgroup.exists()
    assert not (workspace.STATE_ROOT / victim.name).exists()


def test_name_can_be_taken_again_after_a_crash(victim: Victim) -> None:
    """A new lab of a killed lab's name, guard killed too, starts at once on clean workspace."""
    os.kill(victim.guard, signal.SIGKILL)
    victim.process.kill()
    victim.process.wait()
    with Lab(name=victim.name, nodes=["node-a"], containerd=False) as lab:
        assert lab.node("node-a").run(["hostname"]).stdout == "node-a\n"
    assert not victim.cgroup.exists()


def test_name_of_a_living_lab_is_refused(victim: Victim) -> None:
    """A second lab of the same name is refused with a sentence that says what to do, and the first is unharmed."""
    with pytest.raises(NodeError, match="is up already: `vpc-lab down"), Lab(name=victim.name, containerd=False):
        pass
    assert all(map(_runs, victim.pids))


def test_failed_start_leaves_nothing() -> None:
    """A lab that cannot be built (two nodes of one name) removes what it had built by then."""
    before, name = Machine.now(), f"failed-{time.monotonic_ns()}"
    with (
        pytest.raises(OSError, check=refused_by_kernel(errno.EEXIST)),
        Lab(name=name, nodes=["node-a", "node-a"], containerd=False),
    ):
        pass
    assert not (workspace.STATE_ROOT / name).exists()
    assert Machine.now() == before


def _runs(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody reaped does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"
