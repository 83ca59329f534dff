"""STATUS, which kubelet asks every 5 s, is in the log only when its answer changes; it tells the plugin of a start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from ipamd.core.health import STATUS_GRACE_S, Phase
from ipamd.pb import cni_pb2, cni_pb2_grpc
from ipamd.rpc.server import SOCKET_NAME
from tests.fakes.node import FakeNode
from tests.stories.in_process import CONF, ask, listening

STATUS = json.dumps({**CONF, "cniVersion": "1.1.0"}).encode()


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[FakeNode]:
    """A node whose daemon has just started."""
    node = FakeNode(tmp_path)
    yield node
    node.datastore.close()


def test_status_is_logged_when_it_changes(fresh: FakeNode, caplog: pytest.LogCaptureFixture) -> None:
    """Not while it says yes, once when it fails, once when it says yes again."""
    caplog.set_level("INFO", logger="ipamd.rpc")
    fresh.health.enter(Phase.RESTORING)
    for seconds, failures in ((1, 0), (STATUS_GRACE_S, 1)):
        fresh.clock.advance(seconds)
        for _ in range(20):
            ask(fresh, "STATUS", "", config=STATUS)
        assert len(caplog.records) == failures
    fresh.health.enter(Phase.SERVING)
    for _ in range(20):
        assert not ask(fresh, "STATUS", "", config=STATUS).HasField("error")
    assert [record.args["code"] for record in caplog.records] == [50, 0]


def test_status_of_a_daemon_that_starts_says_so(fresh: FakeNode) -> None:
    """Its patience with its own start is the plugin's to count (I17)."""
    fresh.health.enter(Phase.RESTORING)
    reply = ask(fresh, "STATUS", "", config=STATUS)
    assert (reply.HasField("error"), reply.is_starting) == (False, True)
    fresh.health.enter(Phase.SERVING)
    assert not ask(fresh, "STATUS", "", config=STATUS).is_starting


def test_an_add_at_the_end_is_left_to_the_successor(fresh: FakeNode) -> None:
    """UNAVAILABLE, which the plugin repeats until somebody serves; an answer with code 11 would go back to kubelet (I17)."""
    fresh.bring_up()
    fresh.health.enter(Phase.DRAINING)
    request = cni_pb2.ExecRequest(
        verb="ADD",
        container_id="a",
        ifname="eth0",
        netns="/run/netns/a",
        config=json.dumps(CONF).encode(),
        protocol_min=1,
        protocol_max=1,
    )
    with listening(fresh), grpc.insecure_channel(f"unix:{fresh.run_dir}/{SOCKET_NAME}") as channel:
        stub = cni_pb2_grpc.CniStub(channel)
        with pytest.raises(grpc.RpcError) as refused:
            stub.Exec(request, timeout=120)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "successor" in refused.value.details()
