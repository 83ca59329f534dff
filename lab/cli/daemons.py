"""The daemons that a lab in the background runs for its user, one a node: start, `kill -9`, wait until pods can run, log.

"Ready" is what the next `vpc-lab pods --run` needs: the daemon says ready (it has written its conflist by then) and containerd
says NetworkReady, which it does a moment later, once its watch has seen the file.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ipamd.ipamctl.client import DEFAULT_RUN_DIR, AwayError, Client, RefusedError
from lab.node.errors import NodeError, SandboxError
from lab.node.node import DAEMON_LOG, REPOSITORY
from lab.node.process import NodeProcess

if TYPE_CHECKING:
    from lab.lab import Lab

READY_TIMEOUT_S = 60.0  # ours, because: a first ENI takes seconds on EC2, a throttled start some tens
END_TIMEOUT_S = 10.0
POLL_S = 0.05
LOG_LINES = 40
FAILURE_LOG_LINES = 15


class Daemons:
    """At most one daemon a node. Concurrency: any thread; one start or kill at a time."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._lock = threading.Lock()
        self._running: dict[str, NodeProcess] = {}
        self._env: dict[str, dict[str, str]] = {}

    def start(self, name: str, *, env: Mapping[str, str] | None = None) -> None:
        """Start a node's daemon; returns at once.

        Args:
            env: settings, on top of those that this node's daemon was started with before.
        Raises: NodeError if there is no such node, or its daemon runs.
        """
        node = self._lab.node(name)
        with self._lock:
            if self._find(name) is not None:
                raise NodeError(
                    f"a daemon runs on {name} already (process {self._running[name].pid}); use restart, or kill it first"
                )
            settings = self._env[name] = self._env.get(name, {}) | dict(env or {})
            self._running[name] = node.start_daemon(region=self._lab.vpc.region, env=settings)

    def kill(self, name: str, *, must_run: bool = True) -> None:
        """`kill -9` a node's daemon and wait for its end.

        Raises: NodeError if there is no such node or, with `must_run`, no daemon that this lab started runs there.
        """
        self._lab.node(name)
        with self._lock:
            process = self._find(name)
            if process is None:
                if must_run:
                    raise NodeError(self._absence(name))
                return
            process.kill()
            process.wait(END_TIMEOUT_S)

    def pid(self, name: str) -> int | None:
        """Tell the process ID, as the machine sees it; None if no daemon runs."""
        with self._lock:
            process = self._find(name)
            return process.pid if process is not None else None

    def log(self, name: str, *, lines: int = LOG_LINES) -> str:
        """Read the end of a node's daemon log. Raises: NodeError if no daemon was ever started there."""
        node = self._lab.node(name)
        if name not in self._running:
            raise NodeError(self._absence(name))
        return node.run(["tail", "-n", str(lines), DAEMON_LOG], check=False).stdout.rstrip()

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
            if self.pid(name) is None or time.monotonic() > deadline:
                return problem
            time.sleep(POLL_S)  # neither daemon nor containerd announces it
        return ""

    def _problem(self, name: str) -> str:
        """Say what is still missing for pods on a node; "" if nothing is."""
        node = self._lab.node(name)
        process = self._running.get(name)
        if process is None:
            return self._absence(name)
        if process.poll() is not None:
            return f"the daemon ended with exit status {process.returncode}"
        status = self._status(name)
        if status is None:
            return "the daemon does not answer yet"
        if not status["ready"]:
            return (
                f"the daemon is not ready ({status['phase']}); it lacks: {'; '.join(status['lacks']) or 'nothing that it names'}"
            )
        if node.containerd is None:
            return ""
        try:
            problem = node.cri.network_problem()
        except SandboxError as error:
            problem = str(error)
        return f"the daemon is ready, containerd is not: {problem}" if problem else ""

    def _report(self, name: str, problem: str) -> str:
        argv = [sys.executable, "-m", "ipamd.ipamctl.main", "status"]
        done = self._lab.node(name).run(argv, cwd=str(REPOSITORY), env=self._env.get(name, {}), check=False)
        tail = self.log(name, lines=FAILURE_LOG_LINES) if name in self._running else ""
        return (
            f"{name} cannot run pods: {problem}\n--- ipamctl status\n{(done.stdout + done.stderr).rstrip()}\n"
            f"--- the end of {DAEMON_LOG} in {name} (`vpc-lab daemon {name} log`)\n{tail}"
        )

    def _status(self, name: str) -> dict[str, Any] | None:
        directory = self._env[name].get("VPC_IPAMD_RUN_DIR") or DEFAULT_RUN_DIR
        try:
            with Client(f"{self._lab.node(name).root}{directory}/ipamd.sock") as client:
                return client.status()
        except (AwayError, RefusedError):
            return None

    def _find(self, name: str) -> NodeProcess | None:
        """Give the daemon's process if it runs; with the lock held."""
        process = self._running.get(name)
        return process if process is not None and process.poll() is None else None

    def _absence(self, name: str) -> str:
        process = self._running.get(name)
        before = "" if process is None else f" any more (the last one ended with {process.returncode})"
        return (
            f"no daemon of this lab runs on {name}{before}; start it with `vpc-lab daemon {name} start --name {self._lab.name}`"
        )
