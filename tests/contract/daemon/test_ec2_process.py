"""The process that asks EC2, under a daemon: it goes with the daemon, and what is lost with it is found again."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged


def processes(made: Rig) -> list[int]:
    """Children of the daemon that live."""
    tasks = Path(f"/proc/{made.driver.pid}/task").glob("*/children")
    return [int(pid) for task in tasks for pid in task.read_text().split()]


def asking(made: Rig) -> int:
    """The one that asks EC2; there is no other."""
    wait_until(lambda: len(processes(made)) == 1, what="one process")
    return processes(made)[0]


def test_a_creation_that_was_under_way_in_it_is_finished() -> None:
    """Killed after EC2 has made the ENI and before it said so: the node gets one ENI, not two, and ADD is served (I1, I9)."""
    with rig(is_executed=True, env={"WARM_IP_TARGET": "3", "MINIMUM_IP_TARGET": "3"}) as made:
        made.lab.faults.apply({"apis": {"CreateNetworkInterface": {"answer_latency_s": PATIENCE_S}}})
        before = len(made.lab.vpc.enis())
        names = [f"pod-{number}" for number in range(7)]
        for name in names:
            assert made.add(name).ok
        wait_until(lambda: len(made.lab.vpc.enis()) == before + 1, what="EC2 has made the ENI")
        made.lab.faults.apply({"apis": {"CreateNetworkInterface": {}}})
        os.kill(asking(made), signal.SIGKILL)
        wait_until(lambda: len(made.lab.vpc.enis_of(made.node.instance_id)) == 2, what="the ENI is attached")
        names.append("one-more")
        assert made.add("one-more").ok
        assert len(made.lab.vpc.enis()) == before + 1
        assert '"subject":"ec2 process"' in made.driver.log_text()
        status = made.status()
        assert status is not None
        assert not any("ec2 process" in one for one in status["degraded"])
        made.assert_sound(expected=len(names))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_it_ends_with_the_daemon_in_mid_call(number: signal.Signals) -> None:
    """EC2 does not answer, and the daemon ends: nothing stays behind that could still change something."""
    with rig(is_executed=True, start=False) as made:
        made.lab.faults.apply({"apis": {"DescribeNetworkInterfaces": {"hang": True}}})
        made.start(wait=False)
        wait_until(lambda: "EC2 is being asked" in str(made.status()), what="EC2 is asked")
        pid = asking(made)
        made.driver.end(number, timeout_s=PATIENCE_S)
        wait_until(lambda: not is_running(pid), what="the process is gone")
        made.lab.faults.clear()


def is_running(pid: int) -> bool:
    """It exists, and is no zombie."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_daemon_that_cannot_start_it_says_so_and_heals(tmp_path: Path) -> None:
    """Its module cannot be loaded: a condition names it, DEL is served, and the daemon is ready once it can."""
    broken = tmp_path / "botocore"
    broken.mkdir()
    (broken / "__init__.py").write_text("import os; os._exit(7)")
    with rig(start=False, is_executed=True) as made:
        made.start(wait=False, env={"PYTHONPATH": str(tmp_path)})
        status = made.driver.wait_status(
            lambda status: any("ec2 process: ended with 7" in one for one in status["degraded"]),
            what="named",
            timeout_s=PATIENCE_S,
        )
        assert not status["ready"]
        assert made.cni("DEL", "never-added").ok
        (broken / "__init__.py").unlink()
        broken.rmdir()
        made.wait_ready()
        assert made.add("pod").ok
        made.assert_sound(expected=1)
