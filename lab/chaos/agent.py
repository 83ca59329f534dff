"""The policy agent of one chaos node: what the nemesis does to it, and its restart when it ends by itself, as kubelet does it.

It has a thread of its own, so that it can be away while the daemon is.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.chaos.history import History
from lab.node.node import Node
from lab.node.policy_agent import PolicyAgent, PolicyView

WATCH_S = 0.5
DAEMON_WAIT_S = 120.0
"""How long it waits for the daemon's socket: longer than a daemon of a run is away."""

GAP_S = 0.5
END_S = 20.0


class ChaosAgent:
    """Starts, disturbs and watches one agent. Concurrency: `disturb`, `view` and `names` from any thread."""

    def __init__(self, node: Node, *, history: History) -> None:
        """Nothing is started yet."""
        self._agent = PolicyAgent(node)
        self._node = node.name
        self._history = history
        self._deeds: queue.Queue[Mapping[str, Any]] = queue.Queue()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"agent-{node.name}", daemon=True)

    def open(self) -> None:
        """Start the agent, which waits for the daemon."""
        self._thread.start()

    def close(self) -> None:
        """End the thread; the agent ends with its node."""
        self._closed.set()
        if self._thread.is_alive():
            self._thread.join(END_S)

    def disturb(self, deed: Mapping[str, Any]) -> None:
        """Do something to it when what was asked before is over; returns at once."""
        self._deeds.put(deed)

    def calm(self) -> None:
        """Wait until everything that was asked is over."""
        self._deeds.join()

    def view(self) -> PolicyView:
        """What filters the node's pods."""
        return self._agent.view()

    def save_record(self, path: Path) -> None:
        """Write what it did, an entry a line."""
        path.write_text("".join(f"{entry}\n" for entry in self._agent.record()), encoding="utf-8")

    def names(self) -> frozenset[str]:
        """The pods that it remembers."""
        return self._agent.names()

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._turn()
            except Exception as error:  # noqa: BLE001  # top of a loop: the lab's own failure must be seen, and not end the run
                self._history.say(f"the lab failed on the policy agent: {error!r}", node=self._node, counted="lab error")
                self._closed.wait(WATCH_S)

    def _turn(self) -> None:
        if not self._agent.is_running:
            self._start()
        try:
            deed = self._deeds.get(timeout=WATCH_S)
        except queue.Empty:
            return
        try:
            words = f"agent {deed['what']} {deed['for_s']}"
            self._history.say(words, node=self._node, counted=f"fault agent-{deed['what']}")
            self._do(deed["what"], for_s=deed["for_s"], slow_s=deed["slow_s"])
        finally:
            self._deeds.task_done()

    def _start(self, how: str = "again", *, gap_s: float = 0.0) -> None:
        self._agent.start(how=how, gap_s=gap_s, wait_s=DAEMON_WAIT_S, wait=False)

    def _do(self, what: str, *, for_s: float, slow_s: float) -> None:
        agent = self._agent
        match what:
            case "kill":
                agent.kill()
                self._closed.wait(for_s)
            case "restart" | "upgrade" | "forget":
                agent.kill()
                self._start({"restart": "again", "upgrade": "upgraded", "forget": "forgetful"}[what], gap_s=GAP_S)
            case "silence":
                agent.fall_silent()
                self._closed.wait(for_s)
                agent.speak()
            case _:
                order = {"slow": "slow_s", "refuse": "refuses", "refuse-delete": "refuses_delete"}[what]
                agent.order(**{order: slow_s if what == "slow" else True})
                self._closed.wait(for_s)
                agent.order(**{order: 0})
