"""Whom pods of the old node reach at an address that another node took: when its daemon notices, and what changes then (ADR 0083)."""

from __future__ import annotations

import logging
import time
from ipaddress import IPv4Network

import pytest

from ipamd.model.cloud_evidence import LOOK_GAP_S, RECENT_S
from ipamd.model.pod_annotations import ADDRESS, POD_ANNOTATIONS
from lab.chaos.skewed_daemon import PASSED_PATH
from lab.fabric import talk
from lab.lab import Lab
from lab.vpc.model import ReservationKind
from tests.patience import PATIENCE_S
from tests.rig import Rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.heavy, pytest.mark.slow, pytest.mark.timeout(400)]

log = logging.getLogger(__name__)

RANGE = "10.0.3.224/28"
ADDRESS_OF_POD = IPv4Network(RANGE)[5]
TURN_MOST_S = 75.0
"""Longest time between two turns of instance metadata (ipamd/eni/external_changes.py)."""

NOTICED_S = TURN_MOST_S + LOOK_GAP_S
"""A turn of metadata, and two answers of EC2 that lack it."""

POLL_S = 1.0
CONF = {"runtimeConfig": {POD_ANNOTATIONS: {ADDRESS: str(ADDRESS_OF_POD)}}}


def test_pods_of_the_old_node_reach_the_old_holder() -> None:
    """Until its DEL: a live sandbox keeps its wiring (I2), also after its daemon has noticed the loss. Others reach the new holder."""
    with Lab(nodes=["node-a", "node-b"], hosts=["host-a"], containerd=False) as lab, talk.Servers() as servers:
        lab.vpc.reserve_cidr(lab.vpc.instance("node-a").subnet_id, RANGE, ReservationKind.EXPLICIT)
        env = {
            "MAX_ENI": "1",
            "WARM_IP_TARGET": "1",
            "VPC_IPAMD_PINNED_ADDRESSES": f"default={RANGE}",
            "VPC_IPAMD_PINNED_ADDRESS_TAKE_NAMESPACES": "default",
        }
        old, new = (Rig(lab, lab.node(name), env=env, module="lab.chaos.skewed_daemon") for name in ("node-a", "node-b"))
        old.start()
        new.start()

        def heard_by(path: str) -> str | None:
            answer = talk.ask(path, ADDRESS_OF_POD)
            return answer and answer.by

        def is_noticed() -> bool:
            answer = old.client(lambda client: client.ask("ListAttachments")) or {}
            return any(row["address"] == str(ADDRESS_OF_POD) and row["lost_since"] for row in answer["attachments"])

        assert old.add("old", conf=CONF).address == ADDRESS_OF_POD
        servers.add("old", old.node.netns_path("/run/netns/old"), address=ADDRESS_OF_POD)
        assert old.add("beside", conf={"runtimeConfig": {POD_ANNOTATIONS: {}}}).ok
        beside, host = old.node.netns_path("/run/netns/beside"), lab.hosts["host-a"].path
        old.node.write_file(str(PASSED_PATH), str(RECENT_S).encode())  # what was obtained just now is not missed
        assert new.add("new", conf=CONF).address == ADDRESS_OF_POD
        taken_at = time.monotonic()
        servers.add("new", new.node.netns_path("/run/netns/new"), address=ADDRESS_OF_POD)
        wait_until(lambda: heard_by(host) == "new", what="the fabric follows EC2's answer")
        assert heard_by(beside) == "old"
        while not is_noticed():
            assert time.monotonic() - taken_at < NOTICED_S + PATIENCE_S
            assert heard_by(beside) == "old"
            time.sleep(POLL_S)
        log.warning("the old node's daemon noticed the loss after %.0f s", time.monotonic() - taken_at)
        assert heard_by(beside) == "old"
        servers.remove("old")
        deleted_at = time.monotonic()
        assert old.delete("old").ok
        wait_until(lambda: heard_by(beside) == "new", what="the neighbour reaches the new holder after the DEL")
        log.warning("a pod of the old node reached the new holder %.1f s after the old one's DEL", time.monotonic() - deleted_at)
        servers.remove("new")
        assert new.delete("new").ok
        assert old.delete("beside").ok
