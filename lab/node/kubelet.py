"""What kubelet and a runtime ask of the plugin while a node lives: STATUS every 5 s, a sandbox every 2 s.

Each call is the plugin as a process in the node, told once and never repeated, so that a call that fails would be a node that becomes
NotReady, or a pod that waits for kubelet's next try. Every sandbox has a thread of its own: one that waits holds up no other.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from lab.node.node import Node
from lab.node.plugin import PLUGIN_PATH

STATUS_S = 5.0
"""Source: kubernetes pkg/kubelet/kubelet.go, the period of updateRuntimeUp."""

SANDBOX_S = 2.0
CALL_TIMEOUT_S = 70.0
CONFIG = json.dumps({"cniVersion": "1.1.0", "name": "vpc-ipamd", "type": "vpc-cni"}).encode()


@dataclass(frozen=True)
class Call:
    """One run of the plugin; times are monotonic."""

    verb: str
    began_monotonic_s: float
    seconds: float
    is_ok: bool
    output: str


class KubeletLike:
    """Asks from `__enter__` to `__exit__`, which returns when every call has ended. Use as a context."""

    def __init__(self, node: Node, *, plugin: str = PLUGIN_PATH) -> None:
        self.calls: list[Call] = []
        self._node = node
        self._plugin = plugin
        self._ended = threading.Event()
        self._adding = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._count = 0

    def __enter__(self) -> KubeletLike:
        self._start(lambda: self._repeat(self._ask_status, STATUS_S))
        self._start(lambda: self._repeat(lambda: self._start(self._live), SANDBOX_S))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._ended.set()
        for thread in self._threads:  # it grows no more once the first two have ended
            thread.join(CALL_TIMEOUT_S)

    def of(self, verb: str) -> list[Call]:
        """The calls of one verb that have ended."""
        return [call for call in list(self.calls) if call.verb == verb]

    def _start(self, body: Callable[[], None]) -> None:
        thread = threading.Thread(target=body, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _repeat(self, body: Callable[[], None], period_s: float) -> None:
        while not self._ended.wait(period_s):
            body()

    def _ask_status(self) -> None:
        self._call("STATUS", {})

    def _live(self) -> None:
        """One sandbox: its namespace, ADD, DEL."""
        with self._adding:
            self._count += 1
            name = f"roll-{self._count}"
        netns = self._node.make_netns(name)
        sandbox = {"CNI_CONTAINERID": name, "CNI_NETNS": netns, "CNI_IFNAME": "eth0"}
        try:
            self._call("ADD", sandbox)
            self._call("DEL", sandbox)
        finally:
            self._node.remove_netns(name)

    def _call(self, verb: str, variables: dict[str, str]) -> None:
        began = time.monotonic()
        done = self._node.run(
            [self._plugin],
            env={"CNI_COMMAND": verb, "CNI_PATH": "/opt/cni/bin", **variables},
            stdin_bytes=CONFIG,
            timeout_s=CALL_TIMEOUT_S,
            check=False,
        )
        self.calls.append(Call(verb, began, time.monotonic() - began, done.returncode == 0, done.stdout.strip()))
