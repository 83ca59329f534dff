"""The daemon on fakes behind its real gRPC server: real services, datastore and wire; kernel, EC2 and runtime in memory."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import grpc

from fuzz.log_sink import LogSink
from fuzz.target import Violation
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.eni import InstanceLimits
from ipamd.model.pool_settings import PoolSettings
from ipamd.pb import cni_pb2, introspection_pb2
from ipamd.rpc.server import WATCH_THREADS, RpcServer
from ipamd.rpc.unix_server import SPARE_CONNECTIONS, UnixServer
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode

EXEC = "/vpc_ipamd.v1.Cni/Exec"
STATUS = "/vpc_ipamd.v1.Introspection/GetStatus"
NAMESPACES = tuple(f"/run/netns/{number}" for number in range(8))
RPCS = 8
COOL_EVERY = 20
PAUSE_S = 0.05
WAIT_S = 20.0
"""For an answer to a good request. Ours: it takes milliseconds."""

TRIES, TOO_OLD = 2, "max_age"
"""A call that meets the end of its connection's life was not taken, and is made again; a plugin has a connection for each call."""


class DaemonNode:
    """A node that serves. Its pool is large, and cools by a clock of its own, so that no ADD waits."""

    def __init__(self) -> None:
        self.log = LogSink()
        self.directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self.directory.chmod(0o700)
        ec2 = FakeEc2(limits=InstanceLimits("c5.18xlarge", 15, 50))
        self.node = FakeNode(self.directory, settings=PoolSettings(minimum_ip_target=200), ec2=ec2)
        for path in NAMESPACES:
            self.node.wiring.make_netns(path)
        self.node.bring_up()
        self._server, self.connections_max = self._made()
        self._server.start()
        self.socket = str(self._server.path)
        options = [("grpc.max_send_message_length", 8 << 20), ("grpc.use_local_subchannel_pool", 1)]
        self._channel = grpc.insecure_channel(f"unix:{self.socket}", options=options)
        self._case_count = 0

    def _made(self) -> tuple[UnixServer, int]:
        """Make the server. Returns: it, and how many connections it may hold."""
        app = self.node.app
        server = RpcServer(run_dir=self.directory, cni=app.cni, introspection=lambda: app.introspection, max_concurrent_rpcs=RPCS)
        return server, RPCS + SPARE_CONNECTIONS + WATCH_THREADS

    def ask(self, method: str, request: bytes) -> bytes | grpc.StatusCode:
        """Make a call with these bytes. Returns: the answer's bytes, or the status of a refusal."""
        channel: Any = self._channel  # the type stubs demand serializers, and bytes need none
        call = channel.unary_unary(method)
        for _ in range(TRIES):
            try:
                return bytes(call(request, timeout=WAIT_S))
            except grpc.RpcError as error:
                status: Any = error
                if status.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise Violation("late", f"{method} was not answered") from None
                if status.code() is not grpc.StatusCode.UNAVAILABLE:
                    return grpc.StatusCode(status.code())
                if TOO_OLD not in status.details():
                    break
        raise Violation("unavailable", f"{method}: {status.details()}")

    def clean_up(self) -> None:
        """Judge the log, detach every sandbox, and now and then let addresses cool. Raises: Violation."""
        for attachment in self.node.datastore.attachments():
            deadline, steps = Deadline.after(self.node.clock, WAIT_S), StepTimer(self.node.clock)
            self.node.detacher.detach_sandbox(attachment.key, deadline=deadline, steps=steps, reason="DEL")
        self._case_count += 1
        if self._case_count % COOL_EVERY == 0:
            self.node.cool()
            self.node.pool.cycle()
        self.log.judge()

    def check(self) -> None:
        """Look whether the daemon still answers good requests and is sound. Raises: Violation."""
        self._ask_good()
        self.node.assert_sound()

    def _ask_good(self) -> None:
        """Raises: Violation."""
        asked, deadline_s = introspection_pb2.GetStatusRequest().SerializeToString(), time.monotonic() + WAIT_S
        while (answer := self.ask(STATUS, asked)) is grpc.StatusCode.RESOURCE_EXHAUSTED and time.monotonic() < deadline_s:
            time.sleep(PAUSE_S)  # who has left keeps a place until the server notices
        if not isinstance(answer, bytes) or introspection_pb2.GetStatusReply.FromString(answer).phase != "serving":
            raise Violation("unanswered", f"GetStatus gave {answer!r:.200}")
        request = cni_pb2.ExecRequest(
            verb="STATUS", config=b'{"cniVersion":"1.1.0","name":"n"}', protocol_min=1, protocol_max=1, plugin_version="1"
        )
        answer = self.ask(EXEC, request.SerializeToString())
        if not isinstance(answer, bytes) or cni_pb2.ExecReply.FromString(answer).HasField("error"):
            raise Violation("unanswered", f"STATUS gave {answer!r:.200}")

    def close(self) -> None:
        """Stop serving."""
        self._channel.close()
        self._server.stop(0.0)
        shutil.rmtree(self.directory, ignore_errors=True)
