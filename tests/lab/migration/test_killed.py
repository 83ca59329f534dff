"""kill -9 in the middle of an import and of an export, on a real node: whoever starts next knows whose it is, and nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from ipaddress import IPv4Address

import pytest

from ipamd.migration import export
from tests import aws_node
from tests.lab.migration.conftest import Migrated, assert_killed, migrated

pytestmark = pytest.mark.privileged

EXPORTED = ["10-aws.conflist", "10-vpc-ipamd.conflist.vpc-ipamd-exported"]
SAVED = ["10-aws.conflist.vpc-ipamd-saved", "10-vpc-ipamd.conflist"]


def conflists(node: Migrated) -> list[str]:
    """What is there."""
    return node.sh("ls /etc/cni/net.d").split()


def exported(node: Migrated) -> dict[str, IPv4Address]:
    """Its file."""
    entries = json.loads(node.sh(f"cat {aws_node.CHECKPOINT}"))["allocations"]
    return {entry["containerID"]: IPv4Address(entry["ipv4"]) for entry in entries}


@pytest.mark.parametrize(
    "points", [export.FAILPOINTS[1:2], pytest.param(export.FAILPOINTS, marks=[pytest.mark.heavy, pytest.mark.slow])], ids=len
)
def test_a_kill_at_each_step_loses_nothing(points: Sequence[str]) -> None:
    """Import: repeated. Export: whoever starts then gives no address, and the next export ends as the first would have."""
    with migrated(2) as node:
        rig = node.rig
        rig.start(wait=False, env={"VPC_IPAMD_FAILPOINT": "import.stamped:1"})
        assert_killed(rig)
        rig.start()
        assert rig.attachments() == {pod.container_id: pod.address for pod in node.pods}
        for number, point in enumerate(points):
            rig.kill()
            rig.start(env={"VPC_IPAMD_FAILPOINT": f"{point}:1"})
            assert rig.add(f"ours-{number}").ok
            node.runtime.run_pod(f"ours-{number}", f"ours-{number}")
            rows = rig.attachments()
            assert rig.driver.ipamctl("export").returncode != 0
            assert_killed(rig)
            rig.start(wait=False)
            rig.driver.wait_status(lambda s: "goes back" in s["verdict"], what=f"the other's after {point}", timeout_s=120)
            assert rig.add(f"late-{number}").code == 11
            done = rig.driver.ipamctl("export")
            assert done.returncode == 0, (point, done.stdout, done.stderr)
            assert exported(node) == rows == rig.attachments()
            assert conflists(node) == EXPORTED
            assert rig.lab.ping(source="host-a", targets=rows.values()) == dict.fromkeys(rows.values(), True)
            assert rig.driver.ipamctl("export", "--undo").returncode == 0
            assert rig.daemon is not None
            assert rig.daemon.wait(20) == 1
            rig.start()
            assert conflists(node) == SAVED
            assert rig.attachments() == rows
        rig.assert_sound(expected=2 + len(points))
