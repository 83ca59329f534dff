"""A node that amazon-vpc-cni-k8s ran: its pods are wired, its file and conflist are there, its daemon is away."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from ipamd.migration.handover import ABSENCE_S
from lab.chaos import skewed_daemon
from lab.fabric import talk
from lab.fabric.netns import run_inside
from lab.vpc.family import IPV4, IPV6, Family
from lab.vpc.model import Address
from tests import aws_node
from tests.aws_node import Pod, Runtime
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig

ENV = {"VPC_IPAMD_CRI_SOCKET": aws_node.CRI_SOCKET, "WARM_ENI_TARGET": "0", "VPC_IPAMD_CRI_EVENTS": "false"}

LOOPBACK = b"""#!/bin/sh
echo '{"cniVersion": "1.1.0", "supportedVersions": ["0.3.1", "0.4.0", "1.0.0", "1.1.0"]}'
"""
"""What a node of containerd has beside our plugin; this one answers VERSION, and nobody asks it more."""


@dataclass
class Flow:
    """Datagrams from a host of the VPC to every pod and back, ten rounds a second, until `stop`."""

    sock: socket.socket
    targets: tuple[Address, ...]
    sent: int = 0
    heard: set[tuple[str, int]] = field(default_factory=set)
    asked: set[tuple[str, int]] = field(default_factory=set)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Send from a thread of its own."""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        """Thread body. The size of a question is its number: answers are as long."""
        while not self._stopped.wait(0.1):
            self.sent += 1
            size = 60 + self.sent % 1000
            for target in self.targets:
                self.asked.add((str(target), size))
                self.sock.sendto(b"q" * size, (str(target), talk.PORT))
            self.listen(0.05)

    def listen(self, quiet_s: float) -> None:
        """Take answers until none comes for a while."""
        self.sock.settimeout(quiet_s)
        while True:
            try:
                answer, peer = self.sock.recvfrom(65535)
            except TimeoutError:
                return
            self.heard.add((peer[0], len(answer)))

    def end(self) -> None:
        """Send no more: from now on the socket is the caller's alone."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
            assert not self._thread.is_alive()

    def stop(self) -> set[tuple[str, int]]:
        """End; returns the questions without an answer."""
        self.end()
        self.listen(1.0)
        return self.asked - self.heard


@dataclass
class Migrated:
    """The node, its runtime, and the pods of before."""

    rig: Rig
    runtime: Runtime
    pods: list[Pod]
    servers: talk.Servers
    agent: aws_node.Agent
    passed_s: float = 0.0

    def pass_time(self, seconds: float = ABSENCE_S + 10.0) -> None:
        """Let time pass on both clocks of our daemon; by default as long as the other's must be away."""
        self.passed_s += seconds
        self.rig.node.write_file(str(skewed_daemon.PASSED_PATH), str(self.passed_s).encode())

    @contextmanager
    def flow(self) -> Iterator[Flow]:
        """Packets to and from every pod while the block runs."""
        host = self.rig.lab.hosts["host-a"]
        sock = run_inside(host.path, partial(socket.socket, self.rig.family.number, socket.SOCK_DGRAM))
        flow = Flow(sock, tuple(pod.address for pod in self.pods))
        flow.start()
        try:
            yield flow
        finally:
            flow.end()
            sock.close()

    def reach_outside(self, pods: list[Pod]) -> bool:
        """Whether what pods ask a host of the VPC by egress is answered, with the node's own address seen there."""
        host, node = (self.rig.lab.primary_address(name) for name in ("host-a", "node-a"))
        seen = [talk.ask(self.rig.node.root + pod.netns, host) for pod in pods]
        return [one and one.seen_as for one in seen] == [node] * len(pods)

    def sh(self, script: str) -> str:
        """A command line in the node."""
        return self.rig.node.run(["/bin/sh", "-c", script], check=False).stdout


@contextmanager
def migrated(
    count: int,
    *,
    instance_type: str = "m5.large",
    env: dict[str, str] | None = None,
    start: bool = False,
    family: Family = IPV4,
) -> Iterator[Migrated]:
    """Build it: our daemon makes the ENIs, and everything of ours but these is taken away again."""
    settings = ENV | {"MINIMUM_IP_TARGET": str(count + 3)} | dict(env or {})
    with rig(env=settings, instance_type=instance_type, start=False, module=skewed_daemon.__name__, family=family) as made:
        runtime = Runtime(made.node)
        made.node.write_file("/opt/cni/bin/loopback", LOOPBACK, 0o755)
        with talk.Servers() as servers:
            try:
                made.start()
                made.driver.wait_status(lambda s: s["pool"]["assignable_count"] >= count, what="enough addresses", timeout_s=120)
                made.kill()
                clean = "rm -rf /run/vpc-ipamd/* /etc/cni/net.d/*; nft flush ruleset; ip -6 route flush type unreachable"
                made.node.run(["/bin/sh", "-c", clean], check=False)
                pods = aws_node.pods_on(made.node, made.lab.vpc.enis_of(made.node.instance_id), count)
                aws_node.wire(made.node, pods, primary=made.lab.primary_address("node-a"))
                aws_node.write_file(made.node, pods)
                aws_node.write_conflist(made.node)
                for pod in pods:
                    runtime.run_pod(pod.container_id, pod.name)
                    servers.add(pod.name, made.node.root + pod.netns, address=pod.address if family is IPV6 else "")
                servers.add("host-a", made.lab.hosts["host-a"].path)
                node = Migrated(made, runtime, pods, servers, aws_node.Agent(made.node))
                node.pass_time()  # since its daemon went
                if start:
                    made.start()
                yield node
                node.agent.kill()
            finally:
                runtime.close()


def assert_killed(made: Rig) -> None:
    """The daemon died at its failpoint, and of nothing else."""
    assert made.daemon is not None
    assert made.daemon.wait(20) == -signal.SIGKILL, made.log_tail()
