"""The three sides of the comparison, each on a lab node of its own with a driver. `ours`, `theirs` and `reference` make one each."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

from bench.beside import theirs as theirs_module
from bench.beside.theirs import TheirDaemon
from bench.network_config import CONFIGS
from bench.stage import IMPORTS, LOG_LINES, ONEFILE_PATH, REFERENCE_PATH, BenchError, Driver
from lab.lab import Lab
from lab.node import plugin
from lab.node.daemon import PLUGIN_PATH, RUN_DIR, Daemon
from lab.node.node import REPOSITORY, Node
from lab.vpc.interfaces import NO_DELAYS, Delays
from lab.vpc.state import Vpc

OURS, THEIRS, REFERENCE = "vpc-ipamd", "amazon-vpc-cni-k8s", "ptp"
NAMES = (OURS, THEIRS, REFERENCE)

QUIET_S = 15.0
"""A pool has reached its target if EC2 was not changed for this long. Ours: three passes of amazon-vpc-cni-k8s, which grows by at most
one ENI every 5 s."""

POOL_TIMEOUT_S = 600.0
POLL_S = 0.05

Chain = dict[str, Any]


class NodeDaemon(Protocol):
    """The methods of a node's network daemon that the comparison needs."""

    @property
    def pid(self) -> int:
        """The process ID in the machine's PID namespace."""

    def start(self) -> None:
        """Start the daemon. Returns at once."""

    def restart(self) -> float:
        """`kill -9`, and start again. Returns: the monotonic time of the kill."""


class Side:
    """A node with one of the compared plugins, and its daemon if it has one. Use it as a context, and call `start` in it."""

    def __init__(
        self,
        name: str,
        *,
        instance_type: str,
        prepare: Callable[[Node, str], tuple[Chain, NodeDaemon | None]],
        socket_path: str = "",
        log_path: str = "",
        faults: Mapping[str, object] | None = None,
        delays: Delays = NO_DELAYS,
    ) -> None:
        """Make the object; nothing is started yet.

        Args:
            prepare: installs the programs on a node in a region, and returns the chain of plugins, and the daemon if there is one.
            socket_path, log_path: paths of the daemon's socket and log in the node.
        """
        self.name = name
        self.node: Node
        self.chain: Chain
        self.started_at = 0.0
        self._prepare = prepare
        self._socket_path, self._log_path = socket_path, log_path
        self._lab = Lab(
            name=f"beside-{name}-{os.getpid()}", instance_type=instance_type, containerd=False, vpc=Vpc(delays=delays)
        )
        self._lab.faults.apply(faults or {})
        self._stack = ExitStack()

    def __enter__(self) -> Side:
        """Start the node and its driver. Raises: BenchError, NodeError."""
        try:
            self._stack.enter_context(self._lab)
            self.node = self._lab.node("node-a")
            self._driver = self._stack.enter_context(Driver(self.node))
            self.chain, self._daemon = self._prepare(self.node, self._lab.vpc.region)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def daemon(self) -> NodeDaemon:
        """The daemon. Raises: BenchError if this side has none."""
        if self._daemon is None:
            raise BenchError("it has no daemon")
        return self._daemon

    def start(self) -> None:
        """Start the daemon, if there is one. Returns at once. The monotonic time of the start is in `started_at`."""
        self.started_at = time.monotonic()
        if self._daemon is not None:
            self._daemon.start()

    def job(self, name: str, **arguments: Any) -> Any:
        """Let the driver do one job of `node_driver.JOBS` with this side's chain. Raises: BenchError with the end of the daemon's
        log."""
        try:
            return self._driver.ask({"job": name, "chain": self.chain, **arguments})
        except BenchError as exc:
            raise BenchError(f"{name}: {exc}{self._last_words()}") from exc

    def wait_rest(self) -> None:
        """Wait until the daemon serves and its pool has reached its target. Raises: BenchError."""
        give_up_at = time.monotonic() + POOL_TIMEOUT_S
        while self._daemon is not None and not (self._is_serving() and self._is_quiet()):
            if time.monotonic() > give_up_at:
                raise BenchError(f"not at rest after {POOL_TIMEOUT_S:.0f} s{self._last_words()}")
            time.sleep(POLL_S)

    def _is_serving(self) -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            return probe.connect_ex(self.node.root + self._socket_path) == 0

    def _is_quiet(self) -> bool:
        vpc = self._lab.vpc
        changes = [call.at for call in vpc.calls() if not call.api.startswith("Describe")]
        return bool(changes) and vpc.clock() - changes[-1] > QUIET_S

    def _last_words(self) -> str:
        path = Path(self.node.root + self._log_path)
        if not self._log_path or not path.exists():
            return ""
        lines = path.read_text(errors="replace").splitlines()[-LOG_LINES:]
        return "; the end of the daemon's log:\n" + "\n".join(lines)


def ours(*, instance_type: str, settings: Mapping[str, str], **cloud: Any) -> Side:
    """Make the side of our daemon. Its plugin is that of the image if `make plugin` has built it, otherwise the interpreted one.

    `cloud`: arguments of `Side`: `faults` and `delays` of EC2.
    """

    def prepare(node: Node, region: str) -> tuple[Chain, NodeDaemon]:
        daemon = Daemon(node, region=region, settings={"DISABLE_LEAKED_ENI_CLEANUP": "true", **settings})
        built = plugin.onefile()
        if built is not None:
            node.install(built, ONEFILE_PATH)
        daemon.install_plugin(is_interpreted=True)
        # Compile the modules before, because the image has bytecode.
        node.run([sys.executable, "-c", IMPORTS], cwd=str(REPOSITORY), env=daemon.environment)
        path = PLUGIN_PATH if built is None else ONEFILE_PATH
        return _chain("1.0.0", "vpc-ipamd", (path, {"type": "vpc-cni"})), daemon

    log_path = "/var/log/vpc-ipamd.log"
    socket_path = f"{RUN_DIR}/ipamd.sock"
    return Side(OURS, instance_type=instance_type, prepare=prepare, socket_path=socket_path, log_path=log_path, **cloud)


def theirs(programs: Path, *, instance_type: str, settings: Mapping[str, str], **cloud: Any) -> Side:
    """Make the side of amazon-vpc-cni-k8s, from a folder with `theirs.PROGRAMS`. `cloud`: as for `ours`."""

    def prepare(node: Node, region: str) -> tuple[Chain, NodeDaemon]:
        daemon = TheirDaemon(node, programs=programs, region=region, settings=settings)
        return _chain("0.4.0", "aws-cni", *theirs_module.plugins()), daemon

    log_path, socket_path = f"{theirs_module.LOGS}/ipamd.log", theirs_module.SOCKET
    return Side(THEIRS, instance_type=instance_type, prepare=prepare, socket_path=socket_path, log_path=log_path, **cloud)


def reference(*, instance_type: str) -> Side:
    """Make the side of `ptp` with `host-local`, a plugin without a daemon."""
    config = {name: value for name, value in CONFIGS["ptp"].items() if name not in ("cniVersion", "name")}
    return Side(
        REFERENCE,
        instance_type=instance_type,
        prepare=lambda _node, _region: (_chain("1.0.0", "bench-ptp", (REFERENCE_PATH, config)), None),
    )


def _chain(version: str, name: str, *plugins: tuple[str, dict[str, Any]]) -> Chain:
    return {"cniVersion": version, "name": name, "plugins": [{"path": path, "config": config} for path, config in plugins]}
