"""One node of a chaos run: what is done to its daemon, runtime and clock, and what the checker must know of that.

Everything that changes the daemon's or the runtime's life runs in one thread per node, in order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lab.chaos.agent import ChaosAgent
from lab.chaos.checker import NodeState
from lab.chaos.expected_state import ExpectedState
from lab.chaos.history import History
from lab.chaos.skewed_daemon import OFFSET_PATH, PASSED_PATH
from lab.chaos.watched_daemon import TIMEOUT_S, WATCH_S, WatchedDaemon
from lab.node import containerd
from lab.node.daemon import Daemon
from lab.node.errors import NodeError
from lab.node.node import EC2_ADDRESS, Node
from lab.node.process import NodeProcess

MODULE = "lab.chaos.skewed_daemon"
ADDRESSES_PER_ENI = 4
"""Of each family. Ours: with few of them ENIs are made and attached throughout a run."""

POLICY_MODE = "NETWORK_POLICY_ENFORCING_MODE"
DRAIN_MARGIN_S = 15.0
DAMAGE_KEPT_S = 150.0
RESTART_PAUSE_S = 0.3

CUT = "chaos-cut"
"""Table of nftables by which a node is cut off from EC2."""

KERNEL = (
    *(("ip", family, *what) for family in ("-4", "-6") for what in (("address",), ("rule",), ("route", "show", "table", "all"))),
    *(("ip", family, "neighbour") for family in ("-4", "-6")),
    ("nft", "list", "ruleset"),
    (
        "sh",
        "-c",
        "wc -l /proc/net/nf_conntrack; grep -H . /proc/sys/net/ipv6/conf/*/accept_ra /proc/sys/net/ipv6/conf/*/forwarding",
    ),
)
"""What a packet meets on a node, for who asks later why it did not arrive."""


class ChaosNode:
    """One node. Concurrency: `queue` from any thread; the methods that it runs, from its thread only; the rest from any."""

    def __init__(self, lab_node: Node, *, region: str, env: Mapping[str, str], expected: ExpectedState, history: History) -> None:
        self.lab_node = lab_node
        self.name = lab_node.name
        settings = {"VPC_IPAMD_METRICS_ADDRESS": "off"} | dict(env)
        self.daemon = Daemon(lab_node, region=region, settings=settings, module=MODULE)
        self.has_branches = settings.get("ENABLE_POD_ENI") == "true"
        self.agent = ChaosAgent(lab_node, history=history) if POLICY_MODE in settings else None
        self._watched = WatchedDaemon(self.daemon, history=history, on_unasked_end=self._queue_restart)
        self._expected = expected
        self._history = history
        self._lock = threading.Lock()  # around the four below
        self._damaged: dict[str, float] = {}
        self._nft_deleted_at: float | None = None
        self._runtime_killed_at: tuple[float, ...] = ()
        self._runtime_is_up = True
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"node-{lab_node.name}")
        self._closed = threading.Event()

    def open(self) -> None:
        """Install the plugin, start the daemon and watch it; its policy agent too, if it has one."""
        self._watched.open()
        if self.agent is not None:
            self.agent.open()

    def retry(self) -> None:
        """Have the daemon ask EC2 now for what it refused, if it serves: one that starts asks anyway."""
        self.daemon.ask(lambda client: client.ask("Retry"))

    def close(self) -> None:
        """Let the worker finish and end the watcher."""
        self._worker.shutdown(wait=True, cancel_futures=True)
        self._closed.set()
        if self.agent is not None:
            self.agent.close()
        self._watched.close()

    def queue(self, action: Callable[[], None]) -> Future[None]:
        """Run an action in this node's thread."""
        return self._worker.submit(self._guarded, action)

    def state(self) -> NodeState:
        """What the checker must know."""
        ready_since = self._watched.ready_since
        with self._lock:
            now = self._history.now()
            self._damaged = {address: at for address, at in self._damaged.items() if now - at < DAMAGE_KEPT_S}
            return NodeState(
                ready_since,
                dict(self._damaged),
                self._runtime_killed_at,
                self._watched.started_at,
                has_egress=self.daemon.egress is not None,
                nft_deleted_at=self._nft_deleted_at,
            )

    def damage(self, address: str) -> None:
        """Note that the nemesis is about to remove part of this address's wiring."""
        with self._lock:
            self._damaged[address] = self._history.now()

    def damage_nft(self) -> None:
        """Note that the nemesis is about to delete the node's nftables tables."""
        with self._lock:
            self._nft_deleted_at = self._history.now()

    @property
    def runtime_is_up(self) -> bool:
        """Whether the runtime was not killed; a failing call is then a defect."""
        return self._runtime_is_up

    def kill_daemon(self, *, down_s: float, armed: str = "", lose: bool = False) -> None:
        """Kill the daemon with signal 9 and start it after `down_s`; `lose` deletes the database in between."""
        self._watched.kill()
        if lose:
            self._expected.on_datastore_lost(self.name)
            self.daemon.lose_datastore()
        self._closed.wait(down_s)
        self._watched.start(armed)

    def stop_daemon(self, *, down_s: float) -> None:
        """End the daemon with SIGTERM, let it drain, and start it after `down_s`."""
        self._watched.stop(float(self.daemon.settings["VPC_IPAMD_DRAIN_SECONDS"]) + DRAIN_MARGIN_S)
        self._closed.wait(down_s)
        self._watched.start()

    def stop_instance(self, down_s: float, say_stopped: Callable[[bool], None]) -> None:
        """Kill the daemon, and have EC2 call the instance stopped for `down_s`; its sandboxes keep running."""
        self._watched.kill()
        say_stopped(True)
        self._closed.wait(down_s)
        say_stopped(False)
        self._watched.start()

    def cut_off(self, *, is_cut: bool) -> None:
        """Drop what the node sends to EC2's endpoint, or end that."""
        rule = f"ip daddr {EC2_ADDRESS} drop"
        cut = f"table ip {CUT} {{ chain output {{ type filter hook output priority -300; {rule}; }}; }}"
        script = cut if is_cut else f"delete table ip {CUT}"
        self.lab_node.run(["nft", script], check=False)

    def await_end(self, timeout_s: float) -> None:
        """Wait until the daemon has ended by itself, at most `timeout_s`."""
        self._watched.await_end(timeout_s)

    def want_more(self) -> None:
        """Raise the pool's target, and its cap, from the next start on, so that it grows."""
        settings = self.daemon.settings
        for name, more in (("WARM_PREFIX_TARGET", 1), ("WARM_IP_TARGET", 4), ("VPC_IPAMD_MAX_PODS", 2)):
            if name in settings:
                settings[name] = str(int(settings[name]) + more)

    def kill_runtime(self, *, down_s: float) -> None:
        """Kill the runtime with signal 9 and start it after `down_s`; its sandboxes keep running."""
        if self.lab_node.containerd is None:
            return
        self._note_runtime(is_up=False)
        self.lab_node.containerd.kill()
        self.lab_node.containerd.wait(TIMEOUT_S)
        self._closed.wait(down_s)
        for is_last in (False, False, True):
            try:
                self.lab_node.start_containerd()
                break
            except NodeError as error:  # the lab's own matter: a busy machine
                self._history.note("the runtime is started again", node=self.name, error=str(error))
                if is_last:
                    raise
        self._note_runtime(is_up=True)

    def step_clock(self, offset_s: float) -> None:
        """Set the daemon's wall clock `offset_s` off the machine's."""
        self.lab_node.write_file(str(OFFSET_PATH), str(offset_s).encode())

    def pass_time(self, seconds: float) -> None:
        """Let time pass on both clocks of the daemon: `seconds` in all since the run began, never less than before."""
        self.lab_node.write_file(str(PASSED_PATH), str(seconds).encode())

    def disturb_agent(self, deed: Mapping[str, Any]) -> None:
        """Do something to the policy agent; nothing happens where there is none."""
        if self.agent is not None:
            self.agent.disturb(deed)

    def wait_ready(self, timeout_s: float) -> bool:
        """Wait until the watcher has seen the daemon ready. Returns: False at the deadline."""
        deadline = time.monotonic() + timeout_s
        while self._watched.ready_since is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(WATCH_S)
        return True

    def save_logs(self, directory: Path, *, lines: int) -> None:
        """Write the ends of the daemon's and of containerd's log, what the kernel holds, and what a policy agent did."""
        (directory / f"{self.name}.ipamd.log").write_text(self.daemon.log_tail(20 * lines), encoding="utf-8")
        runtime = self.lab_node.run(["tail", "-n", str(lines), containerd.LOG], check=False).stdout
        (directory / f"{self.name}.containerd.log").write_text(runtime, encoding="utf-8")
        seen = "".join(f"$ {' '.join(tool)}\n{self.lab_node.run(tool, check=False).stdout}\n" for tool in KERNEL)
        (directory / f"{self.name}.kernel.txt").write_text(seen, encoding="utf-8")
        if self.agent is not None:
            self.agent.save_record(directory / f"{self.name}.policy-agent.log")

    def _note_runtime(self, *, is_up: bool) -> None:
        with self._lock:
            self._runtime_is_up = is_up
            self._runtime_killed_at = (*self._runtime_killed_at, self._history.now())

    def _queue_restart(self, dead: NodeProcess) -> None:
        self.queue(lambda: self._restart(dead))

    def _restart(self, dead: NodeProcess) -> None:
        self._closed.wait(RESTART_PAUSE_S)
        self._watched.start_after(dead)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:  # noqa: BLE001  # top of a queue: the lab's own failure must be seen, and not end the run
            self._history.say(f"the lab could not do it: {error!r}", node=self.name, counted="lab error")
