"""One node of a chaos run: the daemon and the runtime started, killed and brought back, and what the checker must know of it.

Everything that changes the daemon's or the runtime's record runs in one thread per node, in order. A watcher tells a death that was
asked for (a kill, a failpoint) from one that was not: the latter is a violation of its own.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from ipamd.ipamctl.client import AwayError, Client, RefusedError
from lab.chaos.checker import NodeState
from lab.chaos.expected_state import ExpectedState, Violation
from lab.chaos.history import History
from lab.chaos.skewed_daemon import OFFSET_PATH
from lab.node.errors import NodeError
from lab.node.node import DAEMON_LOG, PLUGIN_PATH, REPOSITORY, Node
from lab.node.process import NodeProcess

RUN_DIR = "/run/vpc-ipamd"
FAILPOINT_ENV = "VPC_IPAMD_FAILPOINT"
DRAIN_MARGIN_S = 15.0
WATCH_S = 0.25
DAMAGE_KEPT_S = 150.0
TIMEOUT_S = 20.0
UNBORN_S = 5.0
"""Ours: a process this young may be importing still and has not said yet what SIGTERM means to it; then it just ends."""

TELLS = "unexpected end"


class ChaosNode:
    """One node. Concurrency: `queue` from any thread; the methods that it runs, from its thread only; the rest from any."""

    def __init__(self, lab_node: Node, *, region: str, env: Mapping[str, str], expected: ExpectedState, history: History) -> None:
        self.lab_node = lab_node
        self.name = lab_node.name
        self._env = lab_node.daemon_environment(region) | {"VPC_IPAMD_METRICS_ADDRESS": "off"} | dict(env)
        self._expected = expected
        self._history = history
        self._daemon: NodeProcess | None = None
        self._armed = ""
        self._started_at = 0.0
        self._is_expected = True
        self._lock = threading.RLock()  # around the daemon's process and what is expected of it
        self._ready_since: float | None = None
        self._damaged: dict[str, float] = {}
        self._runtime_killed_at: tuple[float, ...] = ()
        self._runtime_is_up = True
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"node-{lab_node.name}")
        self._ended = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name=f"watch-{lab_node.name}", daemon=True)

    def open(self) -> None:
        """Install the plugin, start the daemon and the watcher."""
        build = [sys.executable, "-m", "cni_plugin.build", "--python", "/usr/bin/python3", "--output", PLUGIN_PATH]
        self.lab_node.run(build, cwd=str(REPOSITORY))
        self.start_daemon()
        self._watcher.start()

    def close(self) -> None:
        """Let the worker finish and end the watcher."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._ended.set()
        self._watcher.join(TIMEOUT_S)

    def queue(self, action: Callable[[], None]) -> Future[None]:
        """Do something in this node's thread."""
        return self._worker.submit(self._guarded, action)

    def state(self) -> NodeState:
        """What the checker must know."""
        with self._lock:
            now = self._history.now()
            self._damaged = {address: at for address, at in self._damaged.items() if now - at < DAMAGE_KEPT_S}
            return NodeState(self._ready_since, dict(self._damaged), self._runtime_killed_at)

    def damage(self, address: str) -> None:
        """Chaos is about to take something of this address's wiring."""
        with self._lock:
            self._damaged[address] = self._history.now()

    @property
    def runtime_is_up(self) -> bool:
        """The runtime serves; a failing call is then its own fault or ours."""
        return self._runtime_is_up

    def start_daemon(self, failpoint: str = "") -> None:
        """Start the daemon, armed or not; returns at once."""
        with self._lock:
            env = self._env | ({FAILPOINT_ENV: failpoint} if failpoint else {})
            shell = ["/bin/sh", "-c", f'exec "$@" >>{DAEMON_LOG} 2>&1', "sh"]
            argv = [*shell, sys.executable, "-m", "lab.chaos.skewed_daemon"]
            self._daemon = self.lab_node.spawn(argv, env=env, cwd=str(REPOSITORY))
            self._armed, self._is_expected = failpoint, False
            self._started_at = self._history.now()

    def kill_daemon(self, *, down_s: float, armed: str = "", lose: bool = False) -> None:
        """kill -9, stay away, come back; `lose` deletes the database meanwhile."""
        self._end_daemon(lambda daemon: daemon.kill(), TIMEOUT_S)
        if lose:
            self._expected.on_datastore_lost(self.name)
            for path in Path(f"{self.lab_node.root}{RUN_DIR}").glob("state.db*"):
                path.unlink()
        self._ended.wait(down_s)
        self.start_daemon(armed)

    def want_more(self) -> None:
        """Raise the pool's target, and its cap, from the next start on, so that it grows."""
        for name, more in (("WARM_PREFIX_TARGET", 1), ("WARM_IP_TARGET", 4), ("MAX_PODS", 2)):
            if name in self._env:
                self._env[name] = str(int(self._env[name]) + more)

    def await_end(self, timeout_s: float) -> None:
        """Wait until the daemon has ended by itself, at most so long."""
        deadline = time.monotonic() + timeout_s
        while self._daemon is not None and self._daemon.poll() is None and time.monotonic() < deadline:
            self._ended.wait(WATCH_S)

    def stop_daemon(self, *, down_s: float) -> None:
        """SIGTERM, the drain, and come back."""
        drain_s = float(self._env["VPC_IPAMD_DRAIN"])
        code = self._end_daemon(lambda daemon: daemon.terminate(), drain_s + DRAIN_MARGIN_S)
        is_unborn = code == -signal.SIGTERM and self._history.now() - self._started_at < UNBORN_S
        if code not in (0, -signal.SIGKILL) and not is_unborn:
            self._tell(f"it was asked to end and ended with {code}", log=self.log_tail(20))
        self._ended.wait(down_s)
        self.start_daemon()

    def kill_runtime(self, *, down_s: float) -> None:
        """kill -9 the runtime, stay away, come back; its sandboxes live on."""
        if self.lab_node.containerd is None:
            return
        with self._lock:
            self._runtime_is_up = False
            self._runtime_killed_at = (*self._runtime_killed_at, self._history.now())
        self.lab_node.containerd.kill()
        self.lab_node.containerd.wait(TIMEOUT_S)
        self._ended.wait(down_s)
        for is_last in (False, False, True):
            try:
                self.lab_node.start_containerd()
                break
            except NodeError as error:  # the lab's own matter: a busy machine
                self._history.note("the runtime is started again", node=self.name, error=str(error))
                if is_last:
                    raise
        with self._lock:
            self._runtime_is_up = True
            self._runtime_killed_at = (*self._runtime_killed_at, self._history.now())

    def step_clock(self, offset_s: float) -> None:
        """Put the daemon's wall clock so many seconds off the machine's."""
        self.lab_node.write_file(str(OFFSET_PATH), str(offset_s).encode())

    def ask(self, question: Callable[[Client], dict[str, Any]]) -> dict[str, Any] | None:
        """Ask the daemon over its socket; None if it does not answer."""
        try:
            with Client(f"{self.lab_node.root}{RUN_DIR}/ipamd.sock") as client:
                return question(client)
        except (AwayError, RefusedError):
            return None

    def rows(self) -> dict[str, str] | None:
        """Container ID -> address, as the daemon has it; None when it is away."""
        answer = self.ask(lambda client: client.attachments())
        return {row["container_id"]: row["address"] for row in answer["attachments"]} if answer is not None else None

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the daemon is ready; False at the deadline."""
        deadline = time.monotonic() + timeout_s
        while self.state().ready_since is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(WATCH_S)
        return True

    def log_tail(self, lines: int, path: str = DAEMON_LOG) -> str:
        """The end of the daemon's log."""
        return self.lab_node.run(["tail", "-n", str(lines), path], check=False).stdout

    def _end_daemon(self, how: Callable[[NodeProcess], None], timeout_s: float) -> int:
        with self._lock:
            was_expected, armed, daemon = self._is_expected, self._armed, self._daemon
            self._is_expected, self._ready_since = True, None
        if daemon is None:
            return 0
        code = daemon.poll()
        if code is not None and not was_expected:
            self._note_death(armed, code)  # the watcher has not seen it yet
        how(daemon)
        try:
            return daemon.wait(timeout_s)
        except Exception:  # noqa: BLE001  # TimeoutExpired: it does not end
            self._tell(f"it does not end within {timeout_s:.0f} s")
            daemon.kill()
            daemon.wait(TIMEOUT_S)
            return -9
        finally:
            with self._lock:
                self._ready_since = None

    def _watch(self) -> None:
        while not self._ended.wait(WATCH_S):
            try:
                self._watch_once()
            except Exception as error:  # noqa: BLE001  # top of a loop
                self._history.note("watcher", node=self.name, error=repr(error))

    def _watch_once(self) -> None:
        with self._lock:
            daemon, is_expected = self._daemon, self._is_expected
            if daemon is None or is_expected:
                self._ready_since = None
                return
            code = daemon.poll()
            if code is not None:
                self._ready_since, armed = None, self._armed
                self._is_expected = True
                self._note_death(armed, code)
                self.queue(lambda: self._come_back(daemon))
                return
        status = self.ask(lambda client: client.status())
        is_ready = status is not None and bool(status["ready"])
        with self._lock:
            if self._daemon is not daemon or self._is_expected or not is_ready:
                self._ready_since = None
            elif self._ready_since is None:
                self._ready_since = self._history.now()

    def _come_back(self, dead: NodeProcess) -> None:
        self._ended.wait(0.3)
        if not self._ended.is_set() and self._daemon is dead:  # else a queued event has started another one meanwhile
            self.start_daemon()

    def _note_death(self, armed: str, code: int) -> None:
        if armed and code == -9:
            self._history.say(f"died at {armed}", node=self.name, counted=f"kill failpoint {armed.partition(':')[0]}")
        else:
            self._tell(f"the daemon ended by itself with {code}", log=self.log_tail(30))

    def _tell(self, what: str, *, log: str = "") -> None:
        self._history.note("log", node=self.name, log=log.splitlines())
        self._history.violate(Violation(TELLS, self._history.now(), self.name, what))

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # top of a queue: the lab's own failure must be seen, and not end the run
            self._history.say(f"the lab could not do it: {error!r}", node=self.name, counted="lab error")
