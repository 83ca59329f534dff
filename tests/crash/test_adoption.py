"""A lost datastore on a node with real containerd: the rows are rebuilt from kernel and CRI, even after a second crash."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.families import HEAVY_IPV6, in_both_of_lab, lab_family_for
from tests.rig import Rig, rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]

FAILPOINT = "adopt.adopted"


@pytest.fixture
def made(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A node with containerd and three real sandboxes."""
    with rig(containerd=True, family=lab_family_for(request)) as one:
        for number in range(3):
            one.node.cri.run_sandbox(f"pod-{number}")
        one.assert_sound(expected=3)
        yield one


def lose_datastore(made: Rig) -> None:
    """Delete state.db and everything that SQLite keeps beside it."""
    made.node.run(["/bin/sh", "-c", "rm -f /run/vpc-ipamd/state.db*"])


@in_both_of_lab("made", HEAVY_IPV6)
def test_a_deleted_datastore_is_rebuilt(made: Rig) -> None:
    """Every live sandbox keeps its address, and none of these is given to a new one (I1, I2); within 10 s."""
    before = made.attachments()
    made.kill()
    lose_datastore(made)
    made.start()
    assert made.attachments() == before
    made.node.cri.run_sandbox("pod-new")
    made.assert_sound(expected=4)
    assert all(made.lab.ping(source="host-a", targets=made.attachments().values()).values())
    for sandbox in made.node.cri.list():
        made.node.cri.stop(sandbox.sandbox_id)
        made.node.cri.remove(sandbox.sandbox_id)
    made.assert_sound(expected=0)


@in_both_of_lab("made", HEAVY_IPV6)
def test_a_crash_in_the_middle_of_adopting_is_repeated_whole(made: Rig) -> None:
    """Killed after the first of three was adopted: the half-made datastore does not pass for a whole one (I2)."""
    before = made.attachments()
    made.kill()
    lose_datastore(made)
    made.start(wait=False, env={"VPC_IPAMD_FAILPOINT": FAILPOINT})
    wait_until(lambda: made.daemon is not None and made.daemon.poll() is not None, what="death while adopting")
    made.start()
    assert made.attachments() == before
    made.assert_sound(expected=3)


def test_a_reboot_leaves_nothing_behind(made: Rig) -> None:
    """Power loss: namespaces and /run are gone, containerd lists the sandboxes as NOTREADY; every DEL still succeeds (I3)."""
    sandboxes = made.node.cri.list()
    made.kill()
    for path in (made.node.inside_netns_path(sandbox.sandbox_id) for sandbox in sandboxes):
        made.node.run(["umount", "-l", path])
        made.node.run(["rm", path])
    for name in made.kernel_addresses():
        made.node.run(["ip", "link", "del", name])
    made.node.run(["/bin/sh", "-c", "ip rule flush prio 513; ip rule flush prio 1536; rm -rf /run/vpc-ipamd/*"], check=False)
    for priority in ("513", "1536"):
        while made.node.run(["ip", "rule", "del", "prio", priority], check=False).returncode == 0:
            pass
    made.start()
    assert made.attachments() == {}
    for sandbox in sandboxes:
        made.node.cri.stop(sandbox.sandbox_id)
        made.node.cri.remove(sandbox.sandbox_id)
    made.node.cri.run_sandbox("after-reboot")
    made.assert_sound(expected=1)
