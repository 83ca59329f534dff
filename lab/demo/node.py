"""One node of the demo with all that is done to it: the daemon started, asked and killed, the kubelet's part, the spool.

The daemon is polled over its socket from outside (`ipamctl` takes a second of a busy core to start); what is shown as proof is
asked with the real `ipamctl` inside the node.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from ipamd.ipamctl.client import AwayError, Client, RefusedError
from lab.demo.ledger import AddressLedger
from lab.node.errors import NodeError
from lab.node.node import DAEMON_LOG, REPOSITORY, Node
from lab.node.process import NodeProcess

RUN_DIR = "/run/vpc-ipamd"  # the daemon's default, VPC_IPAMD_RUN_DIR
RUN_TIMEOUT_S = 90.0  # ours, because: above the 60 s of the plugin, whose words we want; a demo that waits longer has failed
POLL_S = 0.05
ANSWERED = (0, 1)  # exit statuses of ipamctl; 1: answered, and the answer is bad news


@dataclass(frozen=True)
class Pod:
    """One pod that runs: its sandbox, address, and where its network namespace is as the node sees it."""

    node: str
    name: str
    uid: str
    sandbox_id: str
    address: IPv4Address
    netns_path: str

    @property
    def holder(self) -> str:
        """Its name in the kubelets' ledger."""
        return f"{self.node}/{self.sandbox_id}"


class DemoNode:
    """One node. Concurrency: pods may be run and removed from many threads; the rest is for one."""

    def __init__(self, node: Node, *, region: str, ledger: AddressLedger) -> None:
        """`ledger` is the kubelets' common one."""
        self.lab_node = node
        self.name = node.name
        self._region = region
        self._ledger = ledger
        self._daemon: NodeProcess | None = None
        self._pods: dict[str, Pod] = {}
        self._lock = threading.Lock()  # a leaf

    @property
    def pods(self) -> list[Pod]:
        """Pods that run, by name."""
        with self._lock:
            return [self._pods[name] for name in sorted(self._pods)]

    def start_daemon(self) -> None:
        """Start vpc-ipamd; returns at once."""
        self._daemon = self.lab_node.start_daemon(region=self._region, env={"CLUSTER_NAME": "demo"})

    def kill_daemon(self) -> None:
        """`kill -9`, and wait for its end."""
        if self._daemon is None:
            raise NodeError(f"{self.name}: the daemon was not started")
        self._daemon.kill()
        self._daemon.wait(RUN_TIMEOUT_S)

    def status(self) -> dict[str, Any] | None:
        """What the daemon says of itself; None while it does not answer."""
        try:
            with Client(f"{self.lab_node.root}{RUN_DIR}/ipamd.sock") as client:
                return client.status()
        except (AwayError, RefusedError):
            return None

    def wait_until(self, claim: Callable[[dict[str, Any]], bool], *, what: str, timeout_s: float) -> dict[str, Any]:
        """Ask the daemon until `claim` holds of its status, which is returned.

        Raises: NodeError at the deadline, with what the daemon said last, or at once if its process has ended.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            status = self.status()
            if status is not None and claim(status):
                return status
            if self._daemon is not None and self._daemon.poll() is not None:
                raise NodeError(f"{self.name}: the daemon ended with {self._daemon.returncode} before {what}")
            if time.monotonic() > deadline:
                said = f"{status['phase']}; {'; '.join(status['lacks']) or 'it lacks nothing'}" if status else "no answer"
                raise NodeError(f"{self.name}: not {what} within {timeout_s:.0f} s: {said}")
            time.sleep(POLL_S)  # the daemon announces none of this

    def ipamctl(self, *words: str) -> str:
        """Run the real `ipamctl` in the node; what it prints, error included."""
        done = self._run_ipamctl(words)
        return (done[0] + done[1]).rstrip()

    def ask(self, *words: str) -> dict[str, Any]:
        """Run `ipamctl -o json` in the node. Raises: NodeError if it has no answer."""
        out, error, code = self._run_ipamctl(("-o", "json", *words))
        if code not in ANSWERED:
            raise NodeError(f"{self.name}: ipamctl {' '.join(words)} ended with {code}: {error.strip()}")
        document: dict[str, Any] = json.loads(out)
        return document

    def spooled_count(self) -> int:
        """DELs on disk that wait for the daemon."""
        spool = Path(f"{self.lab_node.root}{RUN_DIR}/spool")
        return sum(path.name.startswith("del-") for path in spool.iterdir()) if spool.is_dir() else 0

    def lose_datastore(self) -> list[str]:
        """Delete the database (of a daemon that is dead) and leave the spool; the names of the files."""
        lost = sorted(Path(f"{self.lab_node.root}{RUN_DIR}").glob("state.db*"))
        for path in lost:
            path.unlink()
        return [path.name for path in lost]

    def log_tail(self, lines: int) -> str:
        """The end of the daemon's log."""
        return self.lab_node.run(["tail", "-n", str(lines), DAEMON_LOG], check=False).stdout.rstrip()

    def run_pod(self, name: str, *, uid: str = "", attempt: int = 0) -> Pod:
        """Have the runtime create a sandbox, once. Raises: SandboxError with the plugin's words."""
        cri = self.lab_node.cri
        sandbox_id = cri.run_sandbox(name, uid=uid, attempt=attempt, timeout_s=RUN_TIMEOUT_S)
        status = cri.status(sandbox_id)
        if status.address is None:
            raise NodeError(f"{self.name}: the runtime reports no address for sandbox {sandbox_id}")
        pod = Pod(self.name, name, uid, sandbox_id, status.address, self.lab_node.inside_netns_path(status.netns_path))
        self._ledger.give(pod.address, pod.holder)
        with self._lock:
            self._pods[name] = pod
        return pod

    def remove_pod(self, pod: Pod) -> None:
        """Have the runtime stop and remove a sandbox. Raises: SandboxError."""
        self._ledger.let_go(pod.holder)  # from the call on, as the daemon may give the address before the call returns
        self.lab_node.cri.stop(pod.sandbox_id, timeout_s=RUN_TIMEOUT_S)
        self.lab_node.cri.remove(pod.sandbox_id, timeout_s=RUN_TIMEOUT_S)
        with self._lock:
            self._pods.pop(pod.name, None)

    def _run_ipamctl(self, words: tuple[str, ...]) -> tuple[str, str, int]:
        argv = [sys.executable, "-m", "ipamd.ipamctl.main", *words]
        done = self.lab_node.run(argv, cwd=str(REPOSITORY), check=False)
        return done.stdout, done.stderr, done.returncode
