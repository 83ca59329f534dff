"""amazon-vpc-cni-k8s on the nodes of a background lab: its stand-in (`lab/node/aws_node.py`) as a process, so that people can rehearse
a migration (docs/migration.md)."""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from lab.node import aws_node
from lab.node.errors import NodeError, SandboxError
from lab.node.process import NodeProcess

if TYPE_CHECKING:
    from lab.lab import Lab

LOG = "/var/log/aws-node.log"
LOG_LINES = 40

CHECKPOINT = f"/run/aws-node/{aws_node.CHECKPOINT.name}"
"""Its file, not by /var/run, which is a link that leads out of the node (`Node.root`)."""

READY_TIMEOUT_S = 60.0
"""Ours: EC2 assigns its addresses within seconds."""

POLL_S = 0.05


class AwsNodes:
    """At most one stand-in a node. Concurrency: any thread; one start or kill at a time."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._lock = threading.Lock()
        self._processes: dict[str, NodeProcess] = {}

    def start(self, name: str) -> None:
        """Start it as its DaemonSet does, and return when pods can run. Raises: NodeError."""
        node = self._lab.node(name)
        with self._lock:
            if self.pid(name) is not None:
                raise NodeError(f"aws-node runs on {name} already (process {self.pid(name)}); kill it first")
            with Path(node.root + LOG).open("ab") as log:
                self._processes[name] = node.spawn(
                    [sys.executable, "-I", "-S", str(Path(aws_node.__file__).resolve()), "agent"],
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                    env=node.daemon_environment(self._lab.vpc.region) | {"AWS_NODE_ADDRESSES": str(self._slots(name))},
                )
        self._await(name)

    def kill(self, name: str) -> None:
        """SIGKILL it, as when its pod is deleted: its file, socket, conflist and chains stay. Raises: NodeError if it does not run."""
        self._lab.node(name)
        with self._lock:
            if self.pid(name) is None:
                raise NodeError(f"no aws-node of this lab runs on {name}; start it with `vpc-lab aws-node {name} start`")
            process = self._processes.pop(name)
            process.kill()
            process.wait(READY_TIMEOUT_S)

    def pid(self, name: str) -> int | None:
        """Its process ID, as the machine sees it; None if it does not run."""
        process = self._processes.get(name)
        if process is None or process.poll() is not None:
            return None
        return process.pid

    def log(self, name: str) -> str:
        """Read the end of its log. Raises: NodeError if it was never started there."""
        path = Path(self._lab.node(name).root + LOG)
        if not path.exists():
            raise NodeError(f"aws-node was never started on {name}")
        return "\n".join(path.read_text(errors="replace").splitlines()[-LOG_LINES:])

    def allocations(self, name: str) -> list[dict[str, str]]:
        """Who has which address by its file. Raises: NodeError if there is no such node."""
        path = Path(self._lab.node(name).root + CHECKPOINT)
        try:
            document = json.loads(path.read_text())
        except (OSError, ValueError):
            return []
        return [
            {
                "address": entry.get("ipv4", ""),
                "pod": f"{entry['metadata']['k8sPodNamespace']}/{entry['metadata']['k8sPodName']}",
                "container_id": entry["containerID"],
            }
            for entry in document["allocations"]
        ]

    def _slots(self, name: str) -> int:
        """The secondary addresses of one ENI of the node."""
        vpc = self._lab.vpc
        return vpc.limits[vpc.instance(name).instance_type].addresses_per_eni - 1

    def _await(self, name: str) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while problem := self._problem(name):
            if self.pid(name) is None or time.monotonic() > deadline:
                raise NodeError(f"aws-node on {name} cannot run pods: {problem}\n--- the end of {LOG}\n{self.log(name)}")
            time.sleep(POLL_S)  # neither it nor containerd announces that

    def _problem(self, name: str) -> str:
        """What it lacks for pods; "" if nothing."""
        if self.pid(name) is None:
            return "it has ended"
        node = self._lab.node(name)
        conflist = Path(node.root + str(aws_node.CONFLIST))
        if not conflist.exists() or conflist.read_text() != aws_node.CONFLIST_TEXT:
            return "its conflist is not there"
        if node.containerd is None:
            return ""
        try:
            return node.cri.network_problem()
        except SandboxError as error:
            return str(error)
