"""What kubelet and a runtime ask of the plugin while a node lives: STATUS every 5 s, a sandbox every 2 s.

Each call is the plugin as a process in the node, told once and never repeated, so that a call that fails would be a node that becomes
NotReady, or a pod that waits for kubelet's next try. Every sandbox has a thread of its own: one that waits holds up no other.
`KubeletOnCri` asks a real runtime instead, which calls the plugin.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType

from lab.node.errors import SandboxError
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

    def __init__(
        self, node: Node, *, plugin: str = PLUGIN_PATH, status_s: float = STATUS_S, sandbox_s: float = SANDBOX_S
    ) -> None:
        """Args: status_s, sandbox_s: pauses between two questions, and between two sandboxes."""
        self._periods_s = status_s, sandbox_s
        self.calls: list[Call] = []
        self._node = node
        self._plugin = plugin
        self._ended = threading.Event()
        self._adding = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._count = 0

    def __enter__(self) -> KubeletLike:
        self._start(lambda: self._repeat(self._ask_status, self._periods_s[0]))
        self._start(lambda: self._repeat(lambda: self._start(self._live), self._periods_s[1]))
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
        name = self._next_name()
        netns = self._node.make_netns(name)
        sandbox = {"CNI_CONTAINERID": name, "CNI_NETNS": netns, "CNI_IFNAME": "eth0"}
        try:
            self._call("ADD", sandbox)
            self._call("DEL", sandbox)
        finally:
            self._node.remove_netns(name)

    def _next_name(self) -> str:
        with self._adding:
            self._count += 1
            return f"roll-{self._count}"

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


class KubeletOnCri(KubeletLike):
    """The same of a node's runtime over CRI: its condition NetworkReady, and whole sandboxes.

    Calls are recorded as STATUS, ADD and DEL: the runtime's Status, RunPodSandbox, and Stop with RemovePodSandbox.
    """

    def _ask_status(self) -> None:
        self._record("STATUS", lambda: self._node.cri.network_problem(timeout_s=CALL_TIMEOUT_S))

    def _live(self) -> None:
        name, made = self._next_name(), ""

        def run() -> str:
            nonlocal made
            made = self._node.cri.run_sandbox(name)
            return ""

        def end() -> str:
            self._node.cri.stop(made, timeout_s=CALL_TIMEOUT_S)
            self._node.cri.remove(made, timeout_s=CALL_TIMEOUT_S)
            return ""

        self._record("ADD", run)
        if made:
            self._record("DEL", end)

    def _record(self, verb: str, ask: Callable[[], str]) -> None:
        """Ask; an answer other than "", or an error, is a failure."""
        began = time.monotonic()
        try:
            problem = ask()
        except SandboxError as error:
            problem = str(error)
        self.calls.append(Call(verb, began, time.monotonic() - began, problem == "", problem))
