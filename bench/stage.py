"""One lab node with the daemon and the driver. Most measurements use it.

CRI is off and sandboxes are plain network namespaces, so that containerd is not in the figures. The driver is a process in the node
(`node_driver`). This module sends it jobs, and reads the daemon's log.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

from lab.lab import IPV6_CIDR, Lab
from lab.node import plugin
from lab.node.daemon import PLUGIN_PATH, Daemon
from lab.node.node import REPOSITORY, Node
from lab.vpc.family import IPV6, family_by
from lab.vpc.interfaces import NO_DELAYS, Delays
from lab.vpc.state import Vpc

ONEFILE_PATH = "/opt/cni/bin/vpc-cni-onefile"
REFERENCE_PATH = "/usr/lib/cni/ptp"
IMPORTS = "import ipamd.daemon, ipamd.process.bootstrap, ipamd.process.lifecycle, ipamd.rpc.server, ipamd.metrics.page"
"""Statement that imports the modules that the daemon imports before it serves. Its memory and time are the least that a daemon
needs."""

READY_TIMEOUT_S = 30.0
QUIET_S = 1.0
"""The pool has reached its target if EC2 was not called for this long. Ours: eight times the latency of a call in `cold`."""

LOG_LINES = 8


class BenchError(Exception):
    """A measurement could not be made, so it is unknown whether its budget is kept."""


class Stage:
    """A lab of one node with the daemon and the driver. Use it as a context."""

    def __init__(
        self,
        *,
        instance_type: str,
        daemon_env: Mapping[str, str],
        faults: Mapping[str, object] | None = None,
        delays: Delays = NO_DELAYS,
        name: str = "bench",
        module: str = "ipamd.daemon",
    ) -> None:
        ipv6_cidr = IPV6_CIDR if family_by(daemon_env) is IPV6 else ""
        vpc = Vpc(delays=delays, ipv6_cidr=ipv6_cidr)
        self.lab = Lab(name=f"{name}-{os.getpid()}", instance_type=instance_type, containerd=False, vpc=vpc)
        self.node: Node
        self.daemon: Daemon
        self.lab.faults.apply(faults or {})
        # The search for leaked ENIs is off, because a daemon makes it a minute or two after its start, which is not idle then.
        self._settings = {"VPC_IPAMD_METRICS_ADDRESS": "off", "DISABLE_LEAKED_ENI_CLEANUP": "true"} | dict(daemon_env)
        self._module = module
        self._stack = ExitStack()

    def __enter__(self) -> Stage:
        try:
            self._stack.enter_context(self.lab)
            self.node = self.lab.node("node-a")
            self._driver = self._stack.enter_context(Driver(self.node))
            self._onefile = plugin.onefile()
            if self._onefile is not None:
                self.node.install(self._onefile, ONEFILE_PATH)
            self.daemon = Daemon(self.node, region=self.lab.vpc.region, settings=self._settings, module=self._module)
            self.daemon.install_plugin(is_interpreted=True)
            # Compile the modules before the start, because the image has bytecode. A start that compiles takes longer, and keeps 4
            # MiB.
            self.node.run([sys.executable, "-c", IMPORTS], cwd=str(REPOSITORY), env=self.daemon.environment)
            self.started_monotonic_s, self._started = time.monotonic(), datetime.now(UTC)
            self.daemon.start()
            self.wait_ready()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def plugins(self) -> dict[str, str]:
        """Our plugins that are installed, and the reference plugin: path in the node -> kind of configuration."""
        ours = [PLUGIN_PATH, *([ONEFILE_PATH] if self._onefile is not None else [])]
        return {**dict.fromkeys(ours, "vpc"), REFERENCE_PATH: "ptp"}

    def job(self, name: str, **arguments: Any) -> Any:
        """Let the driver do one job of `node_driver.JOBS`. Returns: its result. Raises: BenchError with the driver's error and the end
        of the daemon's log."""
        try:
            return self._driver.ask({"job": name, **arguments})
        except BenchError as exc:
            raise BenchError(f"{name}: {exc}; the daemon's last lines:\n{self.daemon.log_tail(LOG_LINES)}") from exc

    def wait_ready(self, *, quiet_s: float = QUIET_S) -> None:
        """Wait until the last started daemon has logged that it is ready, and EC2 was not called for `quiet_s`. Raises: NodeError."""
        self.daemon.wait_until(lambda: self._is_at_rest(quiet_s), what="at rest", timeout_s=READY_TIMEOUT_S + quiet_s)

    def wait_at_target(self) -> None:
        """Wait until the last plan that the daemon has logged since its start is that its pool is at target. Raises: NodeError."""
        self.daemon.wait_until(self._is_at_target, what="at target", timeout_s=READY_TIMEOUT_S)

    def _is_at_target(self) -> bool:
        plans = [str(line["plan"]) for line in _json_lines(self.daemon.log_text(of_this_start=True)) if "plan" in line]
        return bool(plans) and plans[-1].startswith("at target")

    def ready_after_s(self) -> float:
        """Return the seconds from the daemon's first start until it logged that it is ready. Raises: StopIteration if it did not."""
        lines = _json_lines(self.daemon.log_text())
        at = next(line["at"] for line in lines if str(line.get("message", "")).startswith("ready after"))
        return (datetime.fromisoformat(at.replace("Z", "+00:00")) - self._started).total_seconds()

    def requests(self, verb: str, container_ids: Iterable[str]) -> list[dict[str, Any]]:
        """Return the daemon's log lines about calls of `verb` for these containers, in order."""
        wanted = set(container_ids)
        lines = (line for line in _json_lines(self.daemon.log_text()) if line.get("verb") == verb)
        return [line for line in lines if line["container_id"] in wanted]

    def _is_at_rest(self, quiet_s: float) -> bool:
        """Whether the daemon is ready and EC2 is not called. The log is read instead of asking the daemon, because a request would
        disturb the measurement."""
        lines = _json_lines(self.daemon.log_text(of_this_start=True))
        is_ready = any(str(line.get("message", "")).startswith("ready after") for line in lines)
        return is_ready and self._seconds_since_call(default_s=quiet_s * 2) > quiet_s

    def _seconds_since_call(self, *, default_s: float) -> float:
        calls = self.lab.vpc.calls()
        return self.lab.vpc.clock() - calls[-1].at if calls else default_s


class Driver:
    """The driver's process in a node, and the two pipes to it. Use it as a context."""

    def __init__(self, node: Node) -> None:
        """Make the object; the process is not started yet."""
        self._node = node

    def __enter__(self) -> Driver:
        jobs_r, jobs_w = os.pipe()
        answers_r, answers_w = os.pipe()
        self._jobs, self._answers = os.fdopen(jobs_w, "w"), os.fdopen(answers_r)
        self._errors = tempfile.TemporaryFile(mode="w+")
        try:
            self._process = self._node.spawn(
                [sys.executable, "-m", "bench.node_driver"],
                cwd=str(REPOSITORY),
                stdin=jobs_r,
                stdout=answers_w,
                stderr=self._errors,
            )
        finally:
            os.close(jobs_r)
            os.close(answers_w)
        return self

    def __exit__(self, *exc: object) -> None:
        self._jobs.close()
        self._answers.close()
        self._errors.close()

    def ask(self, job: Mapping[str, Any]) -> Any:
        """Send one job of `node_driver.JOBS`, and wait for its result. Raises: BenchError."""
        self.send(job)
        return self.receive()

    def send(self, job: Mapping[str, Any]) -> None:
        """Send a job without waiting. A call of `receive` must follow."""
        self._jobs.write(json.dumps(job) + "\n")
        self._jobs.flush()

    def receive(self) -> Any:
        """Wait for the result of the job that was sent. Raises: BenchError with the error of the job, or the driver's last output."""
        line = self._answers.readline()
        if not line:
            self._errors.seek(0)
            raise BenchError(f"the driver ended: {self._errors.read()[-1000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchError(answer["error"])
        return answer["result"]


def plugin_label(path: str) -> str:
    """Return the word for one of our plugins in the names of figures."""
    return "onefile" if path == ONEFILE_PATH else "interpreted"


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
