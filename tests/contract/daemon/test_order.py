"""One operation per sandbox at a time: a stuck one is visible, blocks no other sandbox, and is never overtaken."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lab.vpc.family import Family
from tests.families import EACH_FAMILY_HEAVY_IPV6
from tests.patience import PATIENCE_S
from tests.rig import CniReply, rig, wait_until

pytestmark = pytest.mark.privileged


@EACH_FAMILY_HEAVY_IPV6
def test_a_stuck_add_is_visible_and_its_del_waits_for_it(family: Family) -> None:
    """ADD hangs between wiring and commit: other sandboxes go on, its age is shown, its DEL comes after it (I4)."""
    with rig(family=family) as made:
        made.restart(env={"VPC_IPAMD_FAILPOINT": "attach.wired=pause", "VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678"})
        made.node.make_netns("stuck")
        replies: dict[str, CniReply] = {}
        adding = threading.Thread(target=lambda: replies.update(add=made.cni("ADD", "stuck")))
        adding.start()
        hold = Path(made.node.root + "/run/vpc-ipamd/failpoint.hold")
        wait_until(hold.exists, what="the ADD is held")
        deleting = threading.Thread(target=lambda: replies.update(delete=made.cni("DEL", "stuck")))
        deleting.start()

        def busy() -> list[dict[str, object]]:
            return (made.status() or {"busy": []})["busy"]

        wait_until(lambda: bool(busy()) and busy()[0]["waiting_count"] == 1, what="the DEL waits behind the ADD")
        assert busy()[0]["operation"] == "ADD"
        assert made.add("free").ok, "another sandbox is not held up"
        _, scraped = made.page("http://127.0.0.1:61678/metrics")
        assert "ipamd_operations_in_progress 1.0" in scraped
        assert "ipamd_oldest_operation_age_seconds" in scraped
        hold.unlink()
        adding.join(PATIENCE_S)
        deleting.join(PATIENCE_S)
        assert replies["add"].ok
        assert replies["delete"].ok
        assert set(made.attachments()) == {"free"}, "the DEL came after the ADD, so that nothing of it is left"
        made.assert_sound(expected=1)


@EACH_FAMILY_HEAVY_IPV6
def test_callers_that_leave_and_come_back_are_counted(family: Family) -> None:
    """A plugin killed while it waits: the ADD is rolled back or kept for the same sandbox; the retry gets one address (I1)."""
    with rig(family=family) as made:
        made.restart(env={"VPC_IPAMD_FAILPOINT": "attach.reserved=pause", "VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678"})
        made.node.make_netns("left")
        hold = Path(made.node.root + "/run/vpc-ipamd/failpoint.hold")
        env = {
            "CNI_COMMAND": "ADD",
            "CNI_CONTAINERID": "left",
            "CNI_NETNS": "/run/netns/left",
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
        }
        conf = b'{"cniVersion":"1.0.0","name":"vpc-ipamd","type":"vpc-cni"}'
        made.node.write_file("/run/conf.json", conf)
        plugin = made.node.spawn(["/bin/sh", "-c", "exec /opt/cni/bin/vpc-cni </run/conf.json"], env=env)
        wait_until(hold.exists, what="the ADD is held")
        plugin.kill()
        plugin.wait(PATIENCE_S)
        wait_until(
            lambda: any(one["caller_left"] for one in (made.status() or {"busy": []})["busy"]), what="the daemon has noticed"
        )
        hold.unlink()
        wait_until(lambda: not (made.status() or {"busy": [1]})["busy"], what="the orphaned ADD has ended")
        assert made.attachments() == {}, "its caller had left: rolled back (I5)"
        again = made.cni("ADD", "left")
        assert again.ok
        assert made.cni("ADD", "left").body == again.body
        _, scraped = made.page("http://127.0.0.1:61678/metrics")
        assert 'ipamd_orphaned_requests_total{verb="ADD"} 1.0' in scraped
        assert "ipamd_replayed_adds_total 1.0" in scraped
        made.assert_sound(expected=1)
