"""The wire of the stories: a fake node's services behind the real servicer and socket, and the real plugin's code in-process.

The plugin runs on CPython's own system calls; a story may do something before one of them (`before`), and that is how a daemon
comes to start at the worst moment.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cni_plugin import vpc_cni
from cni_plugin._cni import System
from ipamd.core.deadline import Deadline
from ipamd.pb import cni_pb2
from ipamd.rpc.server import RpcServer
from tests.fakes.node import FakeNode

CONF = {"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni"}


def ask(node: FakeNode, verb: str, name: str, *, netns: str = "", config: bytes | None = None) -> cni_pb2.ExecReply:
    """One request as the daemon hears it."""
    request = cni_pb2.ExecRequest(
        verb=verb,
        container_id=name,
        ifname="eth0",
        netns=netns,
        config=json.dumps(CONF).encode() if config is None else config,
        protocol_min=1,
        protocol_max=1,
    )
    return node.app.cni.execute(request, Deadline.after(node.clock, 30))


def replay(node: FakeNode) -> int:
    """What start-up and the watch do: carry out what is in the spool."""
    return node.app.spooled_deletes.replay(deadline=Deadline.after(node.clock, 30))


@contextmanager
def listening(node: FakeNode) -> Iterator[None]:
    """The daemon's socket, in the node's run directory."""
    node.run_dir.chmod(0o700)
    server = RpcServer(
        run_dir=node.run_dir,
        cni=node.app.cni,
        introspection=object(),  # nobody asks
        max_concurrent_rpcs=4,
    )
    server.start()
    try:
        yield
    finally:
        server.stop(0)


REAL = System()


@dataclass
class PluginProcess:
    """One invocation of the plugin for a sandbox."""

    run_dir: Path
    verb: str
    container_id: str
    before: dict[str, Callable[[], object]] = field(default_factory=dict)
    """System call -> what happens before its first use."""

    def run(self) -> tuple[int, dict[str, Any]]:
        """To its end: exit status and the document it prints."""
        self._stdin = json.dumps(CONF).encode()
        self._environment = {
            "CNI_COMMAND": self.verb,
            "CNI_CONTAINERID": self.container_id,
            "CNI_IFNAME": "eth0",
            "CNI_PATH": "/opt/cni/bin",
            vpc_cni.RUN_DIR_VARIABLE: str(self.run_dir),
        }
        document, status, _ = vpc_cni.answer(self, started_ms=REAL.monotonic_ms())  # type: ignore[arg-type]  # by __getattr__
        return status, json.loads(document or b"{}")

    def env(self, name: str) -> bytes | None:
        """See System."""
        value = self._environment.get(name)
        return None if value is None else value.encode()

    def read(self, fd: int, count: int, wait_ms: int) -> bytes:
        """See System."""
        if fd != 0:
            return REAL.read(fd, count, wait_ms)
        data, self._stdin = self._stdin, b""
        return data

    def __getattr__(self, name: str) -> Any:
        happens = self.before.pop(name, None) if "before" in self.__dict__ else None
        if happens is not None:
            happens()
        return getattr(REAL, name)
