"""The daemon of one lab node: install the plugin, start and kill the daemon, call it, wait for a state, read the log.

`vpc-lab`, the demo, chaos runs, the benchmarks and `tests/rig.py` run vpc-ipamd only through this class. RPCs go over the daemon's own
socket from outside the node, because starting `ipamctl` takes a second of a busy core. Output that is shown to people comes from the
real `ipamctl` inside the node.
"""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ipamd.ipamctl.client import DEFAULT_RUN_DIR, Client
from ipamd.ipamctl.verb import AwayError, RefusedError
from lab.node import plugin
from lab.node.errors import NodeError
from lab.node.node import REPOSITORY, Node
from lab.node.plugin import PLUGIN_PATH
from lab.node.preloaded import Preloaded
from lab.node.process import NodeProcess
from lab.vpc.family import Family, egress_by, family_by

__all__ = ["PLUGIN_PATH", "Daemon"]

DAEMON_LOG = "/var/log/vpc-ipamd.log"
RUN_DIR = DEFAULT_RUN_DIR
SHIPPED_PYTHON = {"PYTHONOPTIMIZE": "2", "PYTHONNODEBUGRANGES": "1"}
"""The options with which the image runs Python (manifests/Dockerfile, docs/performance.md), so that the lab measures the shipped
program."""

BYTECODE = REPOSITORY / "build" / "bytecode"
"""Directory of the bytecode that Python writes with SHIPPED_PYTHON. It is separate from the bytecode of the checkout, which is
written with other options, because the two must not be mixed."""

READY_TIMEOUT_S = 90.0
END_TIMEOUT_S = 20.0
POLL_S, LONG_POLL_S = 0.02, 0.1
"""Shortest and longest pause between two RPCs of a wait, in seconds. The pause grows with the time waited, because an answer costs
6 ms of a core."""

LOG_LINES = 30
IPAMCTL_ANSWERED = (0, 1)  # exit statuses with which ipamctl printed an answer; 1: the answer reports a problem


class Daemon:
    """At most one vpc-ipamd process on one node. Concurrency: any thread may call it; one thread at a time may start and end it."""

    def __init__(
        self,
        node: Node,
        *,
        region: str,
        settings: Mapping[str, str] | None = None,
        module: str = "ipamd.daemon",
        by: Preloaded | None = None,
    ) -> None:
        """Make the object; no process is started yet.

        Args:
            settings: environment variables of every start. On a node without containerd they include VPC_IPAMD_CRI_SOCKET=off, unless
                the caller sets that variable.
            module: the module that `python -m` runs; chaos runs the daemon with a clock that can be set.
            by: the process that forks the daemon and `ipamctl`, with their modules imported already; by default Python is executed.
        """
        self.node = node
        self.settings = dict(settings or {})
        self.process: NodeProcess | None = None
        self._region = region
        self._module = module
        self._by = by
        self._has_plugin = False
        self._log_start = 0

    @property
    def family(self) -> Family:
        """The address family of the daemon's pool, by the settings."""
        return family_by(self.settings)

    @property
    def egress(self) -> Family | None:
        """The other address family, if sandboxes have egress in it; otherwise None."""
        return egress_by(self.settings)

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        """The process ID in the machine's PID namespace. Raises: NodeError if the daemon was not started."""
        if self.process is None:
            raise NodeError(f"{self.node.name}: the daemon was not started")
        return self.process.pid

    @property
    def run_dir(self) -> Path:
        """The path of the run directory for this process."""
        return Path(self.node.root + (self.settings.get("VPC_IPAMD_RUN_DIR") or RUN_DIR))

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of the next start, without those that the caller of `start` adds (`env`)."""
        runtime = {} if self.node.containerd is not None else {"VPC_IPAMD_CRI_SOCKET": "off"}
        python = SHIPPED_PYTHON | {"PYTHONPYCACHEPREFIX": str(BYTECODE)}
        return self.node.daemon_environment(self._region) | python | runtime | self.settings

    def install_plugin(self, *, is_interpreted: bool = False) -> None:
        """Install the CNI plugin in the node: the static file if it is built, otherwise the interpreted file."""
        (plugin.install_interpreted if is_interpreted else plugin.install)(self.node)
        self._has_plugin = True

    def start(self, *, env: Mapping[str, str] | None = None) -> None:
        """Start the process; returns at once. The first start installs the plugin.

        Args:
            env: settings for this start only, on top of `settings`.
        Raises: NodeError if the daemon runs already.
        """
        if self.process is not None and self.is_running:
            raise NodeError(f"a daemon runs on {self.node.name} already (process {self.process.pid})")
        if not self._has_plugin:
            self.install_plugin()
        argv = [sys.executable, "-m", self._module]
        with Path(self.node.root + DAEMON_LOG).open("ab") as log:
            self._log_start = log.tell()
            environment = self.environment | dict(env or {})
            self.process = self.node.spawn(argv, env=environment, cwd=str(REPOSITORY), stdout=log, stderr=log, by=self._by)

    def kill(self) -> int:
        """`kill -9`, and wait for the end. Returns: the exit code, 0 if no daemon was ever started."""
        return self.end(signal.SIGKILL, timeout_s=END_TIMEOUT_S)

    def end(self, number: signal.Signals, *, timeout_s: float) -> int:
        """Send a signal and wait for the end. Returns: the exit code. Raises: subprocess.TimeoutExpired."""
        if self.process is None:
            return 0
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def restart(self, *, env: Mapping[str, str] | None = None) -> float:
        """`kill -9`, and start again as soon as the old process is gone. Returns: the monotonic time of the kill."""
        killed_at = time.monotonic()
        self.kill()
        self.start(env=env)
        return killed_at

    def ask(self, question: Callable[[Client], dict[str, Any]]) -> dict[str, Any] | None:
        """Call `question` with a client of the daemon. Returns: its result; None if the daemon does not answer or refuses."""
        try:
            with Client(f"{self.run_dir}/ipamd.sock") as client:
                return question(client)
        except (AwayError, RefusedError):
            return None

    def _listens(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(f"{self.run_dir}/ipamd.sock") == 0

    def status(self) -> dict[str, Any] | None:
        """The daemon's answer to GetStatus; None while it does not answer."""
        return self.ask(lambda client: client.ask("GetStatus"))

    def rows(self) -> dict[str, str] | None:
        """Container ID -> address, by the daemon's answer to ListAttachments; None while it does not answer."""
        answer = self.ask(lambda client: client.ask("ListAttachments"))
        return {row["container_id"]: row["address"] for row in answer["attachments"]} if answer is not None else None

    def problem(self) -> str:
        """Return why the daemon does not serve ADD yet; "" if it serves ADD."""
        if self.process is None:
            return "the daemon was not started"
        if (code := self.process.poll()) is not None:
            return f"the daemon ended with exit status {code}"
        status = self.status() if self._listens() else None  # a gRPC connection at each poll would cost more than the start
        if status is None:
            return "the daemon does not answer yet"
        if status["ready"]:
            return ""
        return (
            f"the daemon is not ready ({status['phase']}); degraded: {'; '.join(status['degraded']) or 'nothing that it names'}"
        )

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Wait until ADD is served and the conflist is written. Returns: the seconds that this took.

        Raises: NodeError with the missing state and the end of the log, at the timeout or at once if the process ends.
        """
        began = time.monotonic()
        self.wait_until(lambda: not self.problem(), what="ready", timeout_s=timeout_s)
        return time.monotonic() - began

    def wait_status(self, claim: Callable[[dict[str, Any]], bool], *, what: str, timeout_s: float) -> dict[str, Any]:
        """Read the status until `claim` is true of it, and return it. Raises: as `wait_ready`."""
        status: dict[str, Any] | None = None

        def holds() -> bool:
            nonlocal status
            status = self.status()
            return status is not None and claim(status)

        self.wait_until(holds, what=what, timeout_s=timeout_s)
        return status or {}

    def wait_until(self, claim: Callable[[], bool], *, what: str, timeout_s: float) -> None:
        """Poll until `claim` is true or the process has ended, because the daemon sends no notification. Raises: as `wait_ready`."""
        began = time.monotonic()
        while not claim():
            waited_s = time.monotonic() - began
            has_ended = not self.is_running
            if has_ended or waited_s > timeout_s:
                when = "and never will be" if has_ended else f"within {timeout_s:.0f} s"
                raise NodeError(f"{self.node.name}: not {what} {when}: {self.problem()}\n{self.log_tail()}")
            time.sleep(max(POLL_S, min(waited_s / 4, LONG_POLL_S)))

    def ipamctl(self, *words: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run the real `ipamctl` in the node. It is forked if the daemon is forked (`by`).

        `env`: environment variables, in addition to the daemon's run directory.
        """
        own = {name: value for name, value in self.settings.items() if name == "VPC_IPAMD_RUN_DIR"}
        argv = [sys.executable, "-m", "ipamd.ipamctl.main", *words]
        by = self._by.with_tls if self._by is not None else None
        return self.node.run(argv, cwd=str(REPOSITORY), env=own | dict(env or {}), check=False, by=by)

    def ipamctl_json(self, *words: str) -> dict[str, Any]:
        """Run `ipamctl -o json` in the node. Raises: NodeError if `ipamctl` prints no answer."""
        done = self.ipamctl("-o", "json", *words)
        if done.returncode not in IPAMCTL_ANSWERED:
            raise NodeError(f"{self.node.name}: ipamctl {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def spooled_count(self) -> int:
        """Count the DELs on disk that wait for the daemon."""
        spool = self.run_dir / "spool"
        return sum(path.name.startswith("del-") for path in spool.iterdir()) if spool.is_dir() else 0

    def lose_datastore(self) -> list[str]:
        """Delete the database of a daemon that does not run, and leave the spool. Returns: the names of the files."""
        lost = sorted(self.run_dir.glob("state.db*"))
        for path in lost:
            path.unlink()
        return [path.name for path in lost]

    def log_text(self, *, of_this_start: bool = False) -> str:
        """Read the log, of all starts or of the last one."""
        path = Path(self.node.root + DAEMON_LOG)
        if not path.exists():
            return ""
        with path.open("rb") as log:
            log.seek(self._log_start if of_this_start else 0)
            return log.read().decode(errors="replace")

    def log_tail(self, lines: int = LOG_LINES) -> str:
        """Read the end of the log."""
        return "\n".join(self.log_text().splitlines()[-lines:])
