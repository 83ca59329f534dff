"""The daemons of a background lab, one per node: start, `kill -9`, wait until pods can run, log.

Pods can run when the daemon is ready (its conflist is then written) and containerd reports NetworkReady, which follows a little
later, when its watch has seen the file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lab.node.daemon import DAEMON_LOG, Daemon
from lab.node.errors import NodeError, SandboxError

if TYPE_CHECKING:
    from lab.lab import Lab

READY_TIMEOUT_S = 120.0
"""Ours: a first ENI takes seconds on EC2, and a node that comes over waits until the other daemon has been away for a minute."""
POLL_S = 0.05
LOG_LINES = 40
FAILURE_LOG_LINES = 15


class Daemons:
    """At most one daemon a node. Concurrency: any thread; one start or kill at a time."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._lock = threading.Lock()
        self._daemons: dict[str, Daemon] = {}

    def start(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        """Start a node's daemon, with the plugin of the checkout as it is now; returns at once.

        Args:
            env: settings, on top of those that this node's daemon was started with before.
        Raises: NodeError if there is no such node, or its daemon runs.
        """
        node = self._lab.node(name)
        with self._lock:
            daemon = self._daemons.setdefault(name, Daemon(node, region=self._lab.vpc.region))
            if daemon.process is not None and daemon.is_running:
                raise NodeError(f"a daemon runs on {name} already (process {daemon.process.pid}); use restart, or kill it first")
            daemon.settings |= env or {}
            daemon.install_plugin()
            daemon.start()

    def kill(self, name: str, *, must_run: bool = True) -> None:
        """`kill -9` a node's daemon and wait for its end.

        Raises: NodeError if there is no such node or, with `must_run`, no daemon that this lab started runs there.
        """
        self._lab.node(name)
        with self._lock:
            daemon = self._daemons.get(name)
            if daemon is not None and daemon.is_running:
                daemon.kill()
            elif must_run:
                raise NodeError(self._absence(name))

    def pid(self, name: str) -> int | None:
        """Tell the process ID, as the machine sees it; None if no daemon runs."""
        with self._lock:
            daemon = self._daemons.get(name)
            return daemon.process.pid if daemon is not None and daemon.process is not None and daemon.is_running else None

    def log(self, name: str, *, lines: int = LOG_LINES) -> str:
        """Read the end of a node's daemon log. Raises: NodeError if no daemon was ever started there."""
        self._lab.node(name)
        if name not in self._daemons:
            raise NodeError(self._absence(name))
        return self._daemons[name].log_tail(lines)

    def wait_ready(self, *names: str, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Return once every named node can run pods; all of them have `timeout_s` together.

        Raises: NodeError with what each node lacks, what `ipamctl status` says there, and the end of its log.
        """
        deadline = time.monotonic() + timeout_s
        failures = [self._report(name, problem) for name in names if (problem := self._outwait(name, deadline))]
        if failures:
            raise NodeError("\n\n".join(failures))

    def _outwait(self, name: str, deadline: float) -> str:
        while problem := self._problem(name):
            if self.pid(name) is None:
                return self._problem(name)  # it may have ended since it was asked: how it did is what matters
            if time.monotonic() > deadline:
                return problem
            time.sleep(POLL_S)  # neither daemon nor containerd announces it
        return ""

    def _problem(self, name: str) -> str:
        """Say what is still missing for pods on a node; "" if nothing is."""
        node = self._lab.node(name)
        daemon = self._daemons.get(name)
        if daemon is None:
            return self._absence(name)
        if (problem := daemon.problem()) or node.containerd is None:
            return problem
        try:
            problem = node.cri.network_problem()
        except SandboxError as error:
            problem = str(error)
        return f"the daemon is ready, containerd is not: {problem}" if problem else ""

    def _report(self, name: str, problem: str) -> str:
        daemon = self._daemons.get(name)
        if daemon is None:
            return f"{name} cannot run pods: {problem}"
        done = daemon.ipamctl("status")
        return (
            f"{name} cannot run pods: {problem}\n--- ipamctl status\n{(done.stdout + done.stderr).rstrip()}\n"
            f"--- the end of {DAEMON_LOG} in {name} (`vpc-lab daemon {name} log`)\n{daemon.log_tail(FAILURE_LOG_LINES)}"
        )

    def _absence(self, name: str) -> str:
        daemon = self._daemons.get(name)
        ended = None if daemon is None or daemon.process is None else daemon.process.returncode
        before = "" if ended is None else f" any more (the last one ended with {ended})"
        return (
            f"no daemon of this lab runs on {name}{before}; start it with `vpc-lab daemon {name} start --name {self._lab.name}`"
        )
