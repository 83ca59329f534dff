"""ADDs that wait for the control plane to name a branch ENI have threads and connections of their own: nobody else waits for them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from ipamd.model.errors import BusyError
from ipamd.pb import cni_pb2, cni_pb2_grpc
from ipamd.rpc.server import SOCKET_NAME, RpcServer
from ipamd.sandbox.legs.branch import WAITING_LIMIT
from ipamd.settings import DaemonConfig, NetworkConfig
from ipamd.settings.fields import Settings
from tests.fakes.node import SETTINGS, FakeNode
from tests.fakes.pod_facts import annotation
from tests.patience import PATIENCE_S
from tests.rig import wait_until
from tests.stories.in_process import CONF
from tests.unit.service.branches import TRUNK_ENI

RPCS = 4
"""As a setting: three ADDs at once."""


@pytest.fixture
def named() -> threading.Event:
    """The control plane names branch ENIs."""
    return threading.Event()


@pytest.fixture
def node(tmp_path: Path, named: threading.Event) -> Iterator[FakeNode]:
    """A node that may serve few requests at once, behind a real server."""
    shipped = Settings(cloud=SETTINGS.cloud, daemon=DaemonConfig(max_concurrent_rpcs=RPCS))
    made = FakeNode(tmp_path, network=NetworkConfig(pod_eni=True), shipped=shipped)
    made.ec2.enis[TRUNK_ENI.eni_id] = TRUNK_ENI
    made.bring_up()

    def wait(*, timeout_s: float) -> bool:
        named.wait(min(timeout_s, 0.05))  # in real time
        return True

    made.pod_facts.wait = wait  # type: ignore[method-assign]
    made.run_dir.chmod(0o700)
    app = made.app
    server = RpcServer(run_dir=made.run_dir, cni=app.cni, introspection=object(), max_concurrent_rpcs=app.rpc_limit)
    server.start()
    yield made
    server.stop(1.0)
    made.assert_sound()
    made.datastore.close()


def ask(node: FakeNode, verb: str, sandbox: str) -> cni_pb2.ExecReply:
    """A plugin's call, by a connection of its own."""
    asked = node.request(sandbox) if verb == "ADD" else None
    request = cni_pb2.ExecRequest(
        verb=verb,
        container_id=sandbox,
        ifname="eth0",
        netns=asked.netns if asked else "",
        args=f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={sandbox};K8S_POD_UID=uid",
        config=json.dumps(CONF).encode(),
        protocol_min=1,
        protocol_max=1,
    )
    with grpc.insecure_channel(f"unix:{node.run_dir / SOCKET_NAME}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        reply: cni_pb2.ExecReply = cni_pb2_grpc.CniStub(channel).Exec(request, timeout=PATIENCE_S)  # type: ignore[no-untyped-call]
        return reply


def test_all_of_them_wait_and_the_node_serves(node: FakeNode, named: threading.Event) -> None:
    """As many as may wait do: pods of the pool are added, DELs are done, one more that would wait is refused at once; then all
    that wait are attached."""
    names = [f"w{number:02d}" for number in range(WAITING_LIMIT)]
    for name in [*names, "late"]:
        node.pod_facts.put(name)
    branches = node.app.branches
    assert branches is not None
    with ThreadPoolExecutor(WAITING_LIMIT) as callers:
        waiting = [callers.submit(ask, node, "ADD", name) for name in names]
        wait_until(lambda: len(branches.waiting_keys()) == WAITING_LIMIT, what="all of them wait")
        for number in range(2 * RPCS):
            assert not ask(node, "ADD", f"p{number}").HasField("error")
            assert not ask(node, "DEL", f"p{number}").HasField("error")
        assert ask(node, "ADD", "late").error.code == BusyError.cni_code
        for vlan, name in enumerate(names, 1):
            node.pod_facts.put(name, annotation(vlan))
        named.set()
        replies = [one.result(PATIENCE_S) for one in waiting]
    assert [reply.error.code for reply in replies if reply.HasField("error")] == []
    assert len([one for one in node.datastore.attachments() if one.uplink]) == WAITING_LIMIT
    assert branches.waiting_keys() == ()


def test_a_del_of_one_that_waits(node: FakeNode) -> None:
    """It is done at once, and the ADD ends soon after, refused."""
    node.pod_facts.put("w")
    branches = node.app.branches
    assert branches is not None
    with ThreadPoolExecutor(1) as callers:
        waiting = callers.submit(ask, node, "ADD", "w")
        wait_until(lambda: len(branches.waiting_keys()) == 1, what="it waits")
        assert not ask(node, "DEL", "w").HasField("error")
        assert "was deleted" in waiting.result(PATIENCE_S).error.message
