"""One lab node with the daemon and the driver: everything but the bare plugin is measured on it.

CRI is off and sandboxes are bare namespaces, so containerd is not in the figures. The driver is a process in the node
(`node_driver`); this side gives it jobs and reads the daemon's log.
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
"""What the daemon imports before it serves; boto3 comes later, in the background. Floor of its memory and of its start."""

READY_TIMEOUT_S = 30.0
QUIET_S = 1.0
"""Without a call to EC2 for this long, the pool has what it wants. Ours: ten times a call's latency in the cold-pool lab."""

LOG_LINES = 8


class BenchError(Exception):
    """A measurement could not be made; nothing is said about the budget."""


class Stage:
    """A lab of one node, the daemon and the driver. Use as a context."""

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
        # The look for leaked ENIs a minute or two after a start is the start's: it is no part of idling.
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
            # The image has its bytecode: a start that compiled would keep 4 MiB, and take longer.
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
        """Our plugins that exist, and the reference: path in the node -> kind of configuration."""
        ours = [PLUGIN_PATH, *([ONEFILE_PATH] if self._onefile is not None else [])]
        return {**dict.fromkeys(ours, "vpc"), REFERENCE_PATH: "ptp"}

    def job(self, name: str, **arguments: Any) -> Any:
        """Have the driver do one job of `node_driver.JOBS`. Raises: BenchError with the driver's or the daemon's last words."""
        try:
            return self._driver.ask({"job": name, **arguments})
        except BenchError as exc:
            raise BenchError(f"{name}: {exc}; the daemon's last lines:\n{self.daemon.log_tail(LOG_LINES)}") from exc

    def wait_ready(self, *, quiet_s: float = QUIET_S) -> None:
        """Wait until the newest daemon says that it is ready and EC2 has not been called for `quiet_s`. Raises: NodeError."""
        self.daemon.wait_until(lambda: self._is_at_rest(quiet_s), what="at rest", timeout_s=READY_TIMEOUT_S + quiet_s)

    def ready_after_s(self) -> float:
        """From the exec of the daemon's first start until it said that it is ready. Raises: StopIteration if it never did."""
        lines = _json_lines(self.daemon.log_text())
        at = next(line["at"] for line in lines if str(line.get("message", "")).startswith("ready after"))
        return (datetime.fromisoformat(at.replace("Z", "+00:00")) - self._started).total_seconds()

    def requests(self, verb: str, container_ids: Iterable[str]) -> list[dict[str, Any]]:
        """The daemon's own lines about `verb` of these containers, in order."""
        wanted = set(container_ids)
        lines = (line for line in _json_lines(self.daemon.log_text()) if line.get("verb") == verb)
        return [line for line in lines if line["container_id"] in wanted]

    def _is_at_rest(self, quiet_s: float) -> bool:
        """Read the log instead of asking: a question over the socket would be in what is measured next."""
        lines = _json_lines(self.daemon.log_text(of_this_start=True))
        is_ready = any(str(line.get("message", "")).startswith("ready after") for line in lines)
        return is_ready and self._seconds_since_call(default_s=quiet_s * 2) > quiet_s

    def _seconds_since_call(self, *, default_s: float) -> float:
        calls = self.lab.vpc.calls()
        return self.lab.vpc.clock() - calls[-1].at if calls else default_s


class Driver:
    """The driver's process in a node and the two pipes to it. Use as a context."""

    def __init__(self, node: Node) -> None:
        """Nothing is started yet."""
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
        """Have it do one job of `node_driver.JOBS` and wait for the answer. Raises: BenchError."""
        self.send(job)
        return self.receive()

    def send(self, job: Mapping[str, Any]) -> None:
        """Give it a job; `receive` must follow."""
        self._jobs.write(json.dumps(job) + "\n")
        self._jobs.flush()

    def receive(self) -> Any:
        """Wait for the answer to what was sent. Raises: BenchError with what the job, or the driver, said at its end."""
        line = self._answers.readline()
        if not line:
            self._errors.seek(0)
            raise BenchError(f"the driver ended: {self._errors.read()[-1000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise BenchError(answer["error"])
        return answer["result"]


def plugin_label(path: str) -> str:
    """How figures call a plugin of ours."""
    return "onefile" if path == ONEFILE_PATH else "interpreted"


def _json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
