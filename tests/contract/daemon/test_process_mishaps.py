"""DEL while the process drains, and a configuration directory that is not mounted yet."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from lab.vpc.family import Family
from tests.families import EACH_FAMILY_HEAVY_IPV6
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

CONFLIST = "/etc/cni/net.d/10-vpc-ipamd.conflist"


def host_veth_count(made: Rig) -> int:
    """Host veths of sandboxes, dying ones included."""
    listed = made.node.run(["ip", "-o", "link", "show", "type", "veth"]).stdout
    return sum("vpc-ipamd/1" in line or "alias" in line for line in listed.splitlines())


@EACH_FAMILY_HEAVY_IPV6
def test_a_del_during_the_drain_takes_its_veth_along(family: Family) -> None:
    """The last DELs of a daemon leave no link behind for a successor that may never come (I4)."""
    with rig(family=family, env={"VPC_IPAMD_DRAIN_SECONDS": "30"}) as made:
        assert made.add("a").ok
        assert host_veth_count(made) == 1 + (made.driver.egress is not None)
        assert made.daemon is not None
        made.daemon.send_signal(signal.SIGTERM)
        wait_until(lambda: (made.status() or {}).get("phase") == "draining", what="draining")
        assert made.cni("DEL", "a").ok  # the namespace stays, or it would take the veth along
        wait_until(lambda: host_veth_count(made) == 0, what="the veth is gone")


def test_a_conflist_that_cannot_be_written_yet_is_written_later() -> None:
    """Something is in its way at start (a mount that is late, say): the daemon becomes ready when it is gone."""
    with rig(start=False) as made:
        path = Path(made.node.root + CONFLIST)
        path.mkdir(parents=True)
        made.start(wait=False)
        wait_until(lambda: "conflist" in str((made.status() or {}).get("degraded", "")), what="it says so")
        assert made.add("served-all-the-same").ok
        path.rmdir()
        made.wait_ready()


def test_a_read_only_directory_with_the_right_conflist_is_no_trouble() -> None:
    """A daemon that starts again changes nothing there, so it is ready; one that must change something says so and waits."""
    with rig(start=False) as made:
        directory = str(Path(CONFLIST).parent)
        made.node.run(["mount", "--bind", directory, directory])
        made.start()
        made.kill()
        made.node.run(["mount", "-o", "remount,bind,ro", directory])
        made.start()
        status = made.status()
        assert status is not None
        assert [one["subject"] for one in status["conditions"] if one["subject"] != "cri"] == []
        made.kill()
        made.node.run(["mount", "-o", "remount,bind,rw", directory])
        made.node.run(["rm", CONFLIST])
        made.node.run(["mount", "-o", "remount,bind,ro", directory])
        made.start(wait=False)
        wait_until(lambda: "conflist" in _subjects(made), what="it says so")
        made.node.run(["mount", "-o", "remount,bind,rw", directory])
        made.wait_ready()
        assert "conflist" not in _subjects(made)


def _subjects(made: Rig) -> list[str]:
    status = made.status()
    return [one["subject"] for one in status["conditions"]] if status else []


def test_a_conflist_of_other_bytes_is_replaced() -> None:
    """A damaged file is no reason to stop."""
    with rig(start=False) as made:
        path = Path(made.node.root + CONFLIST)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"\xff\xfe\x00")
        made.start()
